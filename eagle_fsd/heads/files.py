"""Draft heads as folders with config.json and weights in one file, in any layout (layouts.py).
Pickles are read with weights_only=True, and nothing else of them is ever run."""

import json
import os
import pickle
import struct
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from transformers import PretrainedConfig
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_NAME

from eagle_fsd.config import BadInput, one_line
from eagle_fsd.heads.draft_head import DraftHead, build_head
from eagle_fsd.heads.head_config import HeadConfig
from eagle_fsd.heads.layouts import read_config, renamed, to_json
from eagle_fsd.runs.jsonl import write_file, write_json

# pytorch_model.bin is read where there is no other
HEAD_FILES = (CONFIG_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_NAME)
WEIGHT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# what comes of files that are cut off or garbled, and of values of a wrong type or size
UNREADABLE = (SafetensorError, pickle.UnpicklingError, struct.error, StrictDataclassError)
UNREADABLE += (ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, OSError)
UNREADABLE += (RuntimeError, TypeError, ValueError)
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
    # 2. The tensors under our names; two settings show in these alone.
    tensors = _read_weights(folder)
    try:
        names = renamed(tensors, layout, config.head_type)
    except BadInput as error:
        raise BadInput(f"the draft head in {folder} does not fit: {error}") from error
    tensors = {names[key]: tensor for key, tensor in tensors.items()}
    config = replace(
        config,
        qk_norm=config.qk_norm or any("self_attn.q_norm." in key for key in tensors),
        own_lm_head=config.own_lm_head or "lm_head.weight" in tensors,
    )
    wanted = _shapes(config)
    # 3. What such a head has not and what changes nothing is left out: the target's own tables, a
    #    mask that d2t implies, a d2t that leads nowhere, biases of a layout with all or none.
    for key in tensors.keys() - wanted.keys():
        idle = key.startswith(("embed_tokens.", "verifier_")) or key == "t2d"
        idle |= key == "lm_head.weight" and layout == "speculators"
        if idle or (key.endswith(("d2t", ".bias")) and not tensors[key].any()):
            del tensors[key]
    # 4. ModelOpt writes no t2d, which tells the tokens that d2t leads to.
    d2t = tensors.get("d2t", torch.empty(0))
    if "t2d" in wanted.keys() - tensors.keys() and d2t.shape == wanted["d2t"]:
        token_R = (d2t.long() + torch.arange(len(d2t))).clamp(0, config.vocab_size - 1)
        marked_V = torch.zeros(config.vocab_size, dtype=torch.bool)
        tensors["t2d"] = marked_V.index_fill(0, token_R, True)
    faults = _faults(config, wanted, tensors)
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
        # a NaN passes through minimum and maximum, found far faster than isfinite of all
        elif not index and tensor.numel() and not torch.stack(tensor.aminmax()).isfinite().all():
            strange = (~tensor.isfinite()).sum().item()
            faults.append(f"{key} is NaN or infinite at {strange:,} of {tensor.numel():,} places")
    return faults


def _shapes(config: HeadConfig) -> Shapes:
    """Of every tensor that such a head has; nothing is allocated."""
    with torch.device("meta"):
        return {key: tuple(t.shape) for key, t in build_head(config).state_dict().items()}


def _faults(config: HeadConfig, wanted: Shapes, tensors: dict[str, torch.Tensor]) -> list[str]:
    """What is wrong with the tensors of a file, a sentence each."""
    faults = []
    numbers = [key.split(".")[1] for key in tensors if key.startswith("layers.")]
    layers = 1 + max((int(number) for number in numbers if number.isdecimal()), default=0)
    if layers != config.num_hidden_layers:
        faults.append(
            f"config.json says num_hidden_layers {config.num_hidden_layers}, the weights are of "
            f"{layers}: set it to what the head was trained with"
        )
    faults += tensor_faults(wanted, tensors)
    if not faults and "d2t" in tensors:
        token_R, V = tensors["d2t"] + torch.arange(len(tensors["d2t"])), config.vocab_size
        first, last = token_R.min().item(), token_R.max().item()
        if first < 0 or last >= V or (token_R.diff() <= 0).any():
            faults.append(f"d2t leads to {first}..{last}, not to ascending tokens of 0..{V - 1}")
        elif "t2d" in tensors and not torch.equal(tensors["t2d"].nonzero()[:, 0], token_R):
            marked = tensors["t2d"].count_nonzero().item()
            faults.append(f"t2d marks {marked} tokens, and not those that d2t leads to")
    return faults


def _read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a head under the file's own keys; BadInput names what is broken."""
    safe, pickled = folder / SAFE_WEIGHTS_NAME, folder / WEIGHTS_NAME
    path = pickled if pickled.is_file() and not safe.is_file() else safe
    try:
        if path is safe:
            return load_file(path)
        # a pickle from outside may run code; weights_only reads tensors and nothing else
        tensors = torch.load(path, map_location="cpu", weights_only=True)
        if all(isinstance(k, str) and isinstance(t, torch.Tensor) for k, t in tensors.items()):
            return tensors
        raise TypeError("it must map names to tensors")
    except UNREADABLE as error:
        hint = ""
        if path is pickled:  # torch's own advice would be to run the pickle's code
            hint = ", or a pickle of more than tensors, which could run code and is never loaded"
        raise BadInput(
            f"cannot read {path}: it is absent, cut off or broken{hint} ({type(error).__name__})"
        ) from error
