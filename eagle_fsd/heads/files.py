"""Draft heads as folders with config.json and weights (checkpoint.py), in any layout."""

import json
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save
from torch import nn
from transformers import PretrainedConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_NAME

from eagle_fsd.config import BadInput, one_line
from eagle_fsd.heads.checkpoint import UNREADABLE, Checkpoint
from eagle_fsd.heads.draft_head import DraftHead, build_head
from eagle_fsd.heads.head_config import HeadConfig
from eagle_fsd.heads.layouts import read_config, renamed, to_json
from eagle_fsd.runs.jsonl import write_file, write_json

FREQUENCIES = "rotary_emb.inv_freq"  # older files hold what follows from the config
WEIGHT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
Shapes = dict[str, tuple[int, ...]]  # by a tensor's name


def head_folder(name: str | Path) -> Path:
    """A local folder, or a hub id fetched into the hub's cache; BadInput if it is neither."""
    if os.path.isdir(name):
        return Path(name)
    from huggingface_hub import snapshot_download

    try:
        patterns = ["*.json", "*.safetensors", "*.bin"]
        return Path(snapshot_download(str(name), allow_patterns=patterns))
    except (OSError, ValueError) as error:  # as all of the hub's errors are
        reason = str(error).partition("\n")[0]
        raise BadInput(
            f"no draft head at '{name}': it is no folder, and the hub did not give it ({reason})"
        ) from error


@dataclass(frozen=True)
class StoredHead:
    """A head's folder as read, before it is a head.

    Attributes:
        layout, notes: see layouts.read_config.
        tensors: every one of the file but those that change nothing, under our names.
        faults: what is wrong with them, a tensor each.
    """

    folder: Path
    layout: str
    config: HeadConfig
    notes: list[str]
    tensors: dict[str, torch.Tensor]
    faults: list[str]


def read_head(
    name: str | Path,
    target_config: PretrainedConfig | None = None,
    *,
    feature_layers: tuple[int, ...] = (),
) -> tuple[DraftHead, list[str]]:
    """A head of any layout in its own dtype, on the CPU, every tensor of its file checked. Where a
    target is given a head of another is refused before weights are read. `feature_layers`: see
    stored_head.

    Returns:
        The head; its layout and what was assumed, a sentence each.

    Raises:
        BadInput: names the file that is broken, the setting that cannot run here, or the first
            tensors that are missing, unexpected, misshapen or not finite.
    """
    stored = stored_head(name, target_config, feature_layers=feature_layers)
    if stored.faults:
        faults = first_faults(stored.faults)
        raise BadInput(f"the draft head in {stored.folder} does not fit: {faults}")
    head = build_head(stored.config).eval()
    head.load_state_dict(stored.tensors, assign=True)
    return head, [f"layout: {stored.layout}", *stored.notes]


def stored_head(
    name: str | Path,
    target_config: PretrainedConfig | None = None,
    *,
    must_fit: bool = True,
    feature_layers: tuple[int, ...] = (),
) -> StoredHead:
    """The same without refusing tensors, which are judged as `faults`; and, unless it must fit the
    target, without refusing a head of another.

    Args:
        feature_layers: which hidden states it reads, as we count them, whatever its config says.
    """
    # 1. The config: its layout, and the head that it describes.
    folder = head_folder(name)
    path = folder / CONFIG_NAME
    try:
        values = json.loads(path.read_text())
        if feature_layers:
            values = values | {"feature_layers": list(feature_layers)}
        target_layers = getattr(target_config, "num_hidden_layers", 0)
        layout, config, notes = read_config(values, target_layers)
        if feature_layers and not config.eagle3:
            raise BadInput(
                "a head of EAGLE-1/2 reads the last hidden state: name no feature layers"
            )
        if target_config is not None and must_fit:
            config.check_fits(target_config)
        _shapes(config)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error
    except UNREADABLE as error:
        raise BadInput(f"{path} is no draft head's config ({one_line(error)})") from error
    # 2. The tensors under our names; what shows in these alone.
    files = Checkpoint(folder)
    try:
        names = renamed(files.keys, layout, config.head_type)
    except BadInput as error:
        raise BadInput(f"the draft head in {folder} does not fit: {error}") from error
    tensors = {name: files.tensor(key) for key, name in names.items()}
    config = replace(
        config,
        qk_norm=config.qk_norm or any("self_attn.q_norm." in key for key in tensors),
        own_embedding=config.own_embedding or "embed_tokens.weight" in tensors,
        own_lm_head=config.own_lm_head or "lm_head.weight" in tensors,
    )
    wanted = _shapes(config)
    # 3. What such a head has not is left out where it says nothing else than the rest: a d2t that
    #    leads nowhere, biases of a layout with all or none, frequencies that the config gives; and
    #    the norm and the lm_head by which speculators knows a target in training.
    faults = _layer_faults(config, tensors)
    faults += frequency_faults(tensors, LlamaRotaryEmbedding(config))
    t2d = tensors.pop("t2d", None)
    for key in tensors.keys() - wanted.keys():
        zeros = key.endswith(("d2t", ".bias")) and not tensors[key].any()
        if zeros or key.startswith("verifier_") or key.endswith(FREQUENCIES):
            del tensors[key]
    has_t2d = wanted.pop("t2d", None)
    faults += tensor_faults(wanted, tensors)
    # 4. The draft vocabulary. t2d tells the tokens that d2t leads to, and follows from it.
    if not faults:
        V, d2t = config.vocab_size, tensors.get("d2t")
        faults = vocabulary_faults(d2t, t2d, V)
        if has_t2d and not faults:
            tensors["t2d"] = torch.zeros(V, dtype=torch.bool)
            tensors["t2d"][d2t + torch.arange(len(d2t))] = True
    return StoredHead(folder, layout, config, notes, tensors, faults)


def write_head(folder: str | Path, head: DraftHead, *, reader: str = "") -> None:
    """Write a head as model.safetensors and config.json, each in one rename. BadInput: they cannot
    be written. `reader`: see layouts.to_json."""
    write_files(folder, head.state_dict(), to_json(head.config, reader))


def write_files(folder: str | Path, tensors: dict[str, torch.Tensor], values: dict) -> None:
    """A head's two files, of these tensors and of what its config.json says."""
    tensors = {key: tensor.cpu().contiguous() for key, tensor in tensors.items()}
    write_file(Path(folder) / SAFE_WEIGHTS_NAME, save(tensors, metadata={"format": "pt"}))
    write_json(Path(folder) / CONFIG_NAME, values)  # last: a folder without it is no head


def first_faults(faults: list[str]) -> str:
    """Up to three of them, and how many there are further."""
    more = [f"{len(faults) - 3} further faults"] if len(faults) > 3 else []
    return "; ".join(faults[:3] + more)


def tensor_faults(wanted: Shapes, tensors: dict[str, torch.Tensor]) -> list[str]:
    """Which tensors are missing, unexpected or of another shape, hold numbers of another kind or
    ones that are not finite, a sentence each."""
    faults = [f'missing "{key}"' for key in sorted(wanted.keys() - tensors.keys())]
    faults += [f'unexpected "{key}"' for key in sorted(tensors.keys() - wanted.keys())]
    for key in sorted(wanted.keys() & tensors.keys()):
        tensor, shape, index = tensors[key], wanted[key], key in ("d2t", "t2d")
        own = tuple(tensor.shape)
        if own != shape:
            turned = ", transposed" if own == shape[::-1] else ""
            faults.append(f"the shape for {key}: is {own}{turned}, must be {shape}")
        elif tensor.is_floating_point() if index else tensor.dtype not in WEIGHT_DTYPES:
            faults.append(f"{key} has dtype {tensor.dtype}")
        elif not index and tensor.numel():
            # a NaN passes through minimum and maximum, found far faster than isfinite of all
            low, high = (end.item() for end in tensor.aminmax())
            if not math.isfinite(low) or not math.isfinite(high):
                strange, places = (~tensor.isfinite()).sum().item(), tensor.numel()
                faults.append(f"{key} is NaN or infinite at {strange:,} of {places:,} places")
            elif low == high == 0 and tensor.ndim > 1:
                faults.append(f"{key} is all zeros, and was never filled in")
    return faults


def frequency_faults(tensors: dict[str, torch.Tensor], rotary: nn.Module) -> list[str]:
    """Which rotary frequencies that a file holds are not those that its config gives."""
    return [
        f"{key} is not what config.json says of rotary positions"
        for key, tensor in tensors.items()
        if key.endswith(FREQUENCIES)
        and not (
            tensor.shape == rotary.inv_freq.shape
            and torch.allclose(tensor.float(), rotary.inv_freq, rtol=1e-2)  # rounded to 16 bits
        )
    ]


def _shapes(config: HeadConfig) -> Shapes:
    """Of every tensor that such a head has; nothing is allocated."""
    with torch.device("meta"):
        return {key: tuple(t.shape) for key, t in build_head(config).state_dict().items()}


def vocabulary_faults(d2t: torch.Tensor | None, t2d: torch.Tensor | None, V: int) -> list[str]:
    """What is wrong with tables of a draft vocabulary, or between them, a sentence; without d2t all
    V tokens are drafted."""
    drafted_R = torch.arange(V if d2t is None else len(d2t))
    if d2t is not None:
        drafted_R += d2t
    first, last = drafted_R.min().item(), drafted_R.max().item()
    if first < 0 or last >= V or (drafted_R.diff() <= 0).any():
        return [f"d2t leads to {first}..{last}, not to ascending tokens of 0..{V - 1}"]
    if t2d is None:
        if d2t is None or d2t.any():
            return []
        return [
            "d2t is all zeros, and was never filled in; if the first tokens are meant, add a t2d "
            "that marks them"
        ]
    marked = t2d.nonzero()[:, 0]
    unfilled = d2t is None and not len(marked)  # upstream's, of a head that drafts all tokens
    if t2d.shape != (V,) or not (unfilled or torch.equal(marked, drafted_R)):
        tells = "not those that d2t leads to" if d2t is not None else "no d2t leads to them"
        return [f"t2d marks {len(marked)} of {t2d.numel()} tokens, and {tells}"]
    return []


def _layer_faults(config: HeadConfig, tensors: dict[str, torch.Tensor]) -> list[str]:
    """That the config counts other layers than there are."""
    numbers = [key.split(".")[1] for key in tensors if key.startswith("layers.")]
    layers = 1 + max((int(number) for number in numbers if number.isdecimal()), default=0)
    if layers == config.num_hidden_layers:
        return []
    return [
        f"config.json says num_hidden_layers {config.num_hidden_layers}, the weights are of "
        f"{layers}: set it to what the head was trained with"
    ]
