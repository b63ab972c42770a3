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

from eagle_fsd.config import BadInput
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
        faults: what is wrong with them, tensor by tensor.
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
        BadInput: names the file that is broken, the setting that cannot run here, or the tensors
            that are missing, unexpected, misshapen or not finite.
    """
    stored = stored_head(name, target_config, feature_layers=feature_layers)
    if stored.faults:
        faults = "; ".join(stored.faults)
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
    folder = head_folder(name)
    path = folder / CONFIG_NAME
    try:
        values = json.loads(path.read_text())
        if feature_layers:
            values = values | {"feature_layers": list(feature_layers)}
        layers = getattr(target_config, "num_hidden_layers", 0)
        layout, config, notes = read_config(values, layers)
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
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise BadInput(f"{path} is no draft head's config ({reason})") from error
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
    d2t = tensors.get("d2t", torch.empty(0))
    if "t2d" in wanted.keys() - tensors.keys() and d2t.shape == wanted["d2t"]:
        tensors["t2d"] = _marked(d2t, config.vocab_size)  # ModelOpt writes none
    tensors = {k: t for k, t in tensors.items() if k in wanted or not _is_idle(k, t, layout)}
    faults = _misfits(wanted, tensors, config)
    faults += [fault for key, tensor in tensors.items() for fault in _faults(key, tensor)]
    faults = faults or _d2t_faults(config, tensors)
    return StoredHead(folder, layout, config, notes, tensors, faults)


def write_head(folder: str | Path, head: DraftHead, *, reader: str = "") -> None:
    """Write a head as model.safetensors and config.json, each in one rename. BadInput: they cannot
    be written. `reader`: see layouts.to_json."""
    tensors = {key: tensor.cpu().contiguous() for key, tensor in head.state_dict().items()}
    write_file(Path(folder) / SAFE_WEIGHTS_NAME, save(tensors, metadata={"format": "pt"}))
    # last: a folder without it is no head
    write_json(Path(folder) / CONFIG_NAME, to_json(head.config, reader))


def _is_idle(key: str, tensor: torch.Tensor, layout: str) -> bool:
    """Whether a tensor that such a head has not changes nothing."""
    if key.startswith(("embed_tokens.", "verifier_")) or key == "t2d":
        return True  # the target's own, and a mask that d2t implies
    if key == "lm_head.weight":
        return layout == "speculators"  # the target's own, too
    # a d2t that leads nowhere; biases of a layout that has all of them or none
    return key.endswith(("d2t", ".bias")) and not tensor.any()


def _shapes(config: HeadConfig) -> dict[str, torch.Size]:
    """Of every tensor that such a head has; nothing is allocated."""
    with torch.device("meta"):
        return {key: tensor.shape for key, tensor in build_head(config).state_dict().items()}


def _misfits(
    wanted: dict[str, torch.Size], tensors: dict[str, torch.Tensor], config: HeadConfig
) -> list[str]:
    """Tensors that are missing, unexpected or of another shape."""
    found = []
    numbers = [key.split(".")[1] for key in tensors if key.startswith("layers.")]
    stored = 1 + max((int(number) for number in numbers if number.isdecimal()), default=0)
    if stored != config.num_hidden_layers:
        found.append(
            f"config.json says num_hidden_layers {config.num_hidden_layers}, the weights are of "
            f"{stored}: set it to what the head was trained with"
        )
    for word, keys in (
        ("missing", wanted.keys() - tensors.keys()),
        ("unexpected", tensors.keys() - wanted.keys()),
    ):
        found += [f"{word} " + ", ".join(f'"{key}"' for key in sorted(keys))] if keys else []
    for key in sorted(wanted.keys() & tensors.keys()):
        shape, own = tuple(wanted[key]), tuple(tensors[key].shape)
        if own != shape:
            turned = ", transposed" if own == shape[::-1] else ""
            found.append(f"the shape for {key}: is {own}{turned}, must be {shape}")
    return found


def _marked(offset_R: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Whether a token can be drafted, bool [V]; where d2t leads there."""
    marked_V = torch.zeros(vocab_size, dtype=torch.bool)
    token_R = offset_R.long() + torch.arange(len(offset_R))
    marked_V[token_R[(token_R >= 0) & (token_R < vocab_size)]] = True
    return marked_V


def _d2t_faults(config: HeadConfig, tensors: dict[str, torch.Tensor]) -> list[str]:
    if "d2t" not in tensors:
        return []
    offset_R, V = tensors["d2t"], config.vocab_size
    token_R = offset_R + torch.arange(len(offset_R))
    first, last = token_R.min().item(), token_R.max().item()
    if 0 <= first and last < V and (token_R.diff() > 0).all():
        return []
    return [f"d2t leads to {first}..{last}, not to ascending tokens of 0..{V - 1}"]


def _faults(key: str, tensor: torch.Tensor) -> list[str]:
    """Numbers of another kind, or not finite."""
    index = key in ("d2t", "t2d")
    if tensor.is_floating_point() if index else tensor.dtype not in WEIGHT_DTYPES:
        return [f"{key} has dtype {tensor.dtype}"]
    # a NaN passes through minimum and maximum, which are found far faster than isfinite of all
    if index or not tensor.numel() or torch.stack(tensor.aminmax()).isfinite().all():
        return []
    strange = (~tensor.isfinite()).sum().item()
    return [f"{key} is NaN or infinite at {strange:,} of {tensor.numel():,} places"]


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
        if path.suffix == ".bin":  # torch's own advice would be to run the pickle's code
            hint = ", or a pickle of more than tensors, which could run code and is never loaded"
        kind = type(error).__name__
        raise BadInput(
            f"cannot read {path}: it is absent, cut off or broken{hint} ({kind})"
        ) from error
