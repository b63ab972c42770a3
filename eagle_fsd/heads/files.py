"""Draft heads as folders with config.json and weights (checkpoint.py), in any layout."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save
from transformers import PretrainedConfig
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_NAME

from eagle_fsd.config import BadInput, one_line
from eagle_fsd.heads.checkpoint import UNREADABLE, Checkpoint, model_folder
from eagle_fsd.heads.draft_head import DraftHead, build_head
from eagle_fsd.heads.head_config import HeadConfig
from eagle_fsd.heads.layouts import read_config, renamed, to_json
from eagle_fsd.runs.jsonl import write_file, write_json

FREQUENCIES = "rotary_emb.inv_freq"  # older files hold what follows from the config
WEIGHT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
Shapes = dict[str, tuple[int, ...]]  # by a tensor's name


def head_folder(name: str | Path) -> Path:
    """With all of its files, see model_folder."""
    return model_folder(name, ["*.json", "*.safetensors", "*.bin"])


@dataclass(frozen=True)
class StoredHead:
    """A head's folder as read, before it is a head.

    Attributes:
        layout, notes: see layouts.read_config.
        tensors: every one of the file but those that change nothing, under our names.
        faults: what is wrong with them, and why it is no head for the target, a sentence each.
    """

    folder: Path
    layout: str
    config: HeadConfig
    notes: list[str]
    tensors: dict[str, torch.Tensor]
    faults: list[str]

    def page(self, target_layers: int) -> dict[str, str]:
        """What it is and whom it fits, for people to read, a line by its label."""
        config = self.config
        weights = [tensor for tensor in self.tensors.values() if tensor.is_floating_point()]
        drafted, tokens = config.draft_vocab_size or config.vocab_size, config.vocab_size
        reads = "the last hidden state, after its norm"
        if layers := config.fused_layers(target_layers):
            reads = f"hidden states {', '.join(map(str, layers))}"
            if not config.feature_layers:
                reads += ": config.json names none, and these are every publisher's default"
        return {
            "head": f"{'EAGLE-3' if config.eagle3 else 'EAGLE-1/2'} in the layout {self.layout}",
            "layers": f"{config.num_hidden_layers} of {config.hidden_size:,} channels",
            "weights": f"{sum(t.numel() for t in weights):,} numbers in {len(weights)} tensors",
            "drafts": f"{drafted:,} of {tokens:,} tokens",
            "reads": reads,
            "made for": f"targets of {config.feature_size:,} channels and {tokens:,} tokens",
            "assumed": "; ".join(self.notes) or "nothing",
        }


def read_head(
    name: str | Path, target_config: PretrainedConfig | None = None
) -> tuple[DraftHead, list[str]]:
    """A head of any layout in its own dtype, on the CPU, every tensor of its file checked, and
    against the target where one is given; its layout and what was assumed, a sentence each.
    BadInput names the file that is broken, the setting that cannot run here, or the first of what
    is wrong with the tensors or does not fit the target."""
    stored = stored_head(name, target_config)
    if stored.faults:
        faults = first_faults(stored.faults)
        raise BadInput(f"the draft head in {stored.folder} does not fit: {faults}")
    head = build_head(stored.config).eval()
    head.load_state_dict(stored.tensors, assign=True)
    return head, [f"layout: {stored.layout}", *stored.notes]


def stored_head(name: str | Path, target_config: PretrainedConfig | None = None) -> StoredHead:
    """The same without refusing what is wrong with the tensors or does not fit the target."""
    # 1. The config: its layout, and the head that it describes.
    folder = head_folder(name)
    path = folder / CONFIG_NAME
    target_layers = getattr(target_config, "num_hidden_layers", 0)
    layout, config, notes = _stored_config(path, target_layers)
    misfits = [] if target_config is None else config.misfits(target_config)
    faults = [f"{path}: {misfit}" for misfit in misfits]
    # 2. The tensors under our names; what shows in these alone.
    files = Checkpoint(folder)
    names = renamed(files.keys, layout, config.head_type)
    tensors = {name: files.tensor(key) for key, name in names.items()}
    config = replace(
        config,
        qk_norm=config.qk_norm or any("self_attn.q_norm." in key for key in tensors),
        own_embedding=config.own_embedding or "embed_tokens.weight" in tensors,
        own_lm_head=config.own_lm_head or "lm_head.weight" in tensors,
    )
    # 3. What such a head has not is left out where it says nothing else than the rest: frequencies,
    #    which the config gives, a d2t that leads nowhere, biases of a layout with all or none, and
    #    the norm and the lm_head by which speculators knows a target in training.
    wanted = _shapes(config)
    t2d, has_t2d = tensors.pop("t2d", None), wanted.pop("t2d", None)
    for key in tensors.keys() - wanted.keys():
        zeros = key.endswith(("d2t", ".bias")) and not tensors[key].any()
        if zeros or key.startswith("verifier_") or key.endswith(FREQUENCIES):
            del tensors[key]
    faults += tensor_faults(wanted, tensors)
    # 4. The draft vocabulary. t2d tells the tokens that d2t leads to, and follows from it.
    if not faults:
        V, d2t = config.vocab_size, tensors.get("d2t")
        faults = vocabulary_faults(d2t, t2d, V)
        if has_t2d and not faults:
            tensors["t2d"] = torch.zeros(V, dtype=torch.bool)
            tensors["t2d"][d2t + torch.arange(len(d2t))] = True
    return StoredHead(folder, layout, config, notes, tensors, faults)


def _stored_config(path: Path, target_layers: int) -> tuple[str, HeadConfig, list[str]]:
    """What read_config says of a file; BadInput: it describes no head that can be built here."""
    try:
        layout, config, notes = read_config(json.loads(path.read_text()), target_layers)
        _shapes(config)
        return layout, config, notes
    except UNREADABLE as error:
        said = error if isinstance(error, BadInput) else one_line(error)
        raise BadInput(f"{path} is no config of a draft head that runs here: {said}") from error


def write_head(folder: str | Path, head: DraftHead, *, reader: str = "") -> None:
    """As model.safetensors and config.json, each in one rename. `reader`: see layouts.to_json."""
    tensors = head.state_dict()
    if head.d2t is not None and not head.d2t.any():
        # the first tokens: a d2t of zeros is taken for one never filled in where no t2d says so
        marked_V = torch.arange(head.config.vocab_size) < len(head.d2t)
        tensors.setdefault("t2d", marked_V)
    write_files(folder, tensors, to_json(head.config, reader))


def write_files(folder: str | Path, tensors: dict[str, torch.Tensor], values: dict) -> None:
    tensors = {key: tensor.cpu().contiguous() for key, tensor in tensors.items()}
    write_file(Path(folder) / SAFE_WEIGHTS_NAME, save(tensors, metadata={"format": "pt"}))
    write_json(Path(folder) / CONFIG_NAME, values)  # last: a folder without it is no head


def first_faults(faults: list[str]) -> str:
    """Up to three of them, and how many there are further."""
    more = [f"{len(faults) - 3} further faults"] if len(faults) > 3 else []
    return "; ".join(faults[:3] + more)


def tensor_faults(wanted: Shapes, tensors: dict[str, torch.Tensor]) -> list[str]:
    """What is wrong with a file's tensors, a sentence each."""
    faults = [f'unexpected "{key}"' for key in sorted(tensors.keys() - wanted.keys())]
    faults += [f'missing "{key}"' for key in sorted(wanted.keys() - tensors.keys())]
    for key in sorted(wanted.keys() & tensors.keys()):
        tensor, shape, index = tensors[key], wanted[key], key in ("d2t", "t2d")
        if (own := tuple(tensor.shape)) != shape:
            faults.append(f"the shape for {key}: is {own}, must be {shape}")
        elif tensor.is_floating_point() if index else tensor.dtype not in WEIGHT_DTYPES:
            faults.append(f"{key} has dtype {tensor.dtype}")
        elif not index and tensor.numel():
            # a NaN passes through minimum and maximum, found far faster than isfinite of all
            low, high = (end.item() for end in tensor.aminmax())
            if not math.isfinite(low) or not math.isfinite(high):
                faults.append(f"{key} is NaN or infinite")
            elif low == high == 0 and tensor.ndim > 1:
                faults.append(f"{key} is all zeros, and was never filled in")
    return faults


def vocabulary_faults(d2t_R: torch.Tensor | None, t2d_V: torch.Tensor | None, V: int) -> list[str]:
    """What is wrong with a draft vocabulary; without d2t all V tokens are drafted."""
    token_R = torch.arange(V) if d2t_R is None else d2t_R + torch.arange(len(d2t_R))
    if token_R.min() < 0 or token_R.max() >= V or (token_R.diff() <= 0).any():
        return [f"d2t does not lead to ascending tokens of 0..{V - 1}"]
    if t2d_V is None:
        if d2t_R is None or d2t_R.any():
            return []
        return ["d2t is all zeros, and was never filled in (the first tokens need a t2d too)"]
    marked = t2d_V.nonzero()[:, 0]
    unfilled = d2t_R is None and not len(marked)  # upstream's, of a head that drafts all tokens
    if unfilled or torch.equal(marked, token_R):
        return []
    return [f"t2d marks {len(marked)} tokens, and not the {len(token_R)} that d2t leads to"]


def _shapes(config: HeadConfig) -> Shapes:
    """Of every tensor that such a head has; nothing is allocated."""
    with torch.device("meta"):
        return {key: tuple(t.shape) for key, t in build_head(config).state_dict().items()}
