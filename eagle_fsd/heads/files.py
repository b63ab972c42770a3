"""Draft heads as folders with config.json and weights, in any layout (layouts.py).

Published heads come from a folder or a hub id: model.safetensors or pytorch_model.bin, single or
sharded. Pickles are read with weights_only=True, and nothing else of them is ever run.

Axes: D hidden size, V the target's vocabulary, R draft vocabulary.
"""

import json
import pickle
import re
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from eagle_fsd.config import BadInput
from eagle_fsd.heads.head_config import HeadConfig
from eagle_fsd.heads.layouts import (
    LAYOUTS,
    Shapes,
    Verifier,
    additions,
    layout_of,
    name_in_file,
    optional_shapes,
    stranger,
)
from eagle_fsd.heads.models import check_head_type, stored_shapes

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
INDEX_DTYPES = {"d2t": torch.int64, "t2d": torch.bool}  # all other tensors are weights
# what torch.load and safetensors raise on files that are cut off or garbled
UNREADABLE = (SafetensorError, pickle.UnpicklingError, struct.error, EOFError, OSError)
UNREADABLE += (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True)
class StoredHead:
    """A head's folder, read.

    Attributes:
        layout: one of LAYOUTS.
        config: its shape, in our terms.
        notes: what was renamed, dropped or assumed, a sentence each.
        tensors: under our keys; empty when only the config was read.
    """

    layout: str
    config: HeadConfig
    notes: tuple[str, ...] = ()
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


def resolve_folder(name: str | Path) -> Path:
    """A local folder, or a hub id fetched into the hub's cache.

    Raises:
        BadInput: neither; names what was given.
    """
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download

    wanted = ["*.json", "*.safetensors", "*.bin"]
    try:
        return Path(snapshot_download(str(name), allow_patterns=wanted))
    except (OSError, ValueError) as error:  # as all of the hub's errors are
        reason = str(error).partition("\n")[0]
        raise BadInput(
            f"no draft head at {name!r}: it is no folder, and the hub did not give it ({reason})"
        ) from error


def read_stored_config(folder: Path) -> StoredHead:
    """config.json of a head in any layout, without its weights.

    Raises:
        BadInput: absent, broken, or of a head that cannot run here; names the setting.
    """
    path = folder / CONFIG_NAME
    if not path.is_file():
        raise BadInput(f"{folder} is no draft head: it has no {CONFIG_NAME}")
    values = _read_json(path)
    layout = layout_of(values)
    read_config, _ = LAYOUTS[layout]
    try:
        _check_settings(values)
        translated, notes = read_config(values)
        config = HeadConfig.from_json(translated)
        check_head_type(config)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error
    except (TypeError, ValueError, AttributeError, LookupError) as error:  # a number as text, say
        raise BadInput(f"{path} has a value of a wrong type ({error})") from error
    width, D = values.get("target_hidden_size"), config.hidden_size
    if width not in (None, D):
        raise BadInput(
            f"{path}: target_hidden_size {width}, hidden_size {D}: a head narrower than its target "
            "is not supported"
        )
    return StoredHead(layout, config, tuple(notes))


def _check_settings(values: dict) -> None:
    for key, value in values.items():
        if value and stranger(key):
            raise BadInput(f"{key}: {stranger(key)} is not supported")
        if isinstance(value, dict):
            _check_settings(value)


def read_stored_head(folder: Path) -> StoredHead:
    """A head in any layout with its tensors, every one of them checked.

    Raises:
        BadInput: see read_stored_config; or the tensors are not those of such a head, see `_check`.
    """
    stored = read_stored_config(folder)
    layout, config = stored.layout, stored.config
    shapes = stored_shapes(config)
    names = {key: name_in_file(key, layout, config) for key in shapes}
    tensors = read_tensors(folder)
    optional = optional_shapes(layout, config)
    optional |= {k: tuple(t.shape) for k, t in tensors.items() if k.startswith("verifier_")}
    faults = _check(tensors, {names[key]: shape for key, shape in shapes.items()}, optional)
    if not faults and config.draft_vocab_size:
        faults = _check_vocabulary(tensors, config.vocab_size)
    if faults:
        raise BadInput(f"the draft head in {folder} does not fit: {'; '.join(faults)}")
    dropped = [key for key in tensors if key not in names.values()]
    notes = [f"renamed {name} to {key}" for key, name in names.items() if key != name]
    notes += [f"dropped {key}: the target's own, or without effect" for key in dropped]
    ours = {key: tensors[name] for key, name in names.items()}
    ours = {key: tensor.to(INDEX_DTYPES.get(key, tensor.dtype)) for key, tensor in ours.items()}
    return replace(stored, notes=(*stored.notes, *notes), tensors=ours)


def _check(tensors: dict[str, torch.Tensor], wanted: Shapes, optional: Shapes) -> list[str]:
    """What is missing, unexpected, misshapen, of another kind of number, or not finite.

    Args:
        wanted, optional: by the file's own names.
    """
    faults = [f"missing {key} {shape}" for key, shape in wanted.items() if key not in tensors]
    for key, tensor in tensors.items():
        got, shape = tuple(tensor.shape), wanted.get(key, optional.get(key))
        is_weight = tensor.is_floating_point() and tensor.dtype.itemsize > 1  # 8 bits need a scale
        if shape is None:
            known = next(filter(None, map(stranger, key.split("."))), "")
            faults.append(f"unexpected {key} {got}{known and f' ({known}: not supported)'}")
        elif got != shape:
            hint = ": it is transposed" if got == shape[::-1] else ""
            faults.append(f"{key} has shape {got}, config.json says {shape}{hint}")
        elif is_weight == (key in INDEX_DTYPES):
            faults.append(f"{key} has dtype {str(tensor.dtype).removeprefix('torch.')}")
        elif key not in wanted:
            if (key.endswith(".bias") or key == "d2t") and tensor.any():
                faults.append(f"{key} is not zero, and such a head has none")
        # a NaN passes through minimum and maximum, which are found far faster than isfinite of all
        elif is_weight and not torch.stack(tensor.aminmax()).isfinite().all():
            strange = (~tensor.isfinite()).sum().item()
            faults.append(f"{key} is NaN or infinite at {strange:,} of {tensor.numel():,} places")
    return faults


def _check_vocabulary(tensors: dict[str, torch.Tensor], vocab_size: int) -> list[str]:
    """Whether d2t leads into the target's vocabulary, one token each, and t2d says the same."""
    token_R = tensors["d2t"].long() + torch.arange(tensors["d2t"].shape[0])
    first, last = token_R.min().item(), token_R.max().item()
    ascending = bool((token_R.diff() > 0).all())
    if first < 0 or last >= vocab_size or not ascending:
        return [
            f"d2t must lead to ascending tokens of 0..{vocab_size - 1}; it leads to "
            f"{first}..{last}, ascending: {'yes' if ascending else 'no'}"
        ]
    if "t2d" in tensors and not torch.equal(tensors["t2d"].bool().nonzero()[:, 0], token_R):
        return ["t2d marks other tokens than d2t leads to"]
    return []


def write_head(
    folder: str | Path,
    config: HeadConfig,
    tensors: dict[str, torch.Tensor],
    layout: str = "eagle_fsd",
    *,
    dtype: torch.dtype | None = torch.bfloat16,
    embedding_VD: torch.Tensor | None = None,
    verifier: Verifier = ("", []),
) -> tuple[str, ...]:
    """Write a head as config.json and model.safetensors; the weights appear in one rename.

    Args:
        tensors: under our keys; others are left out.
        layout: one of LAYOUTS.
        dtype: of the floating-point tensors; None keeps each one's own.
        embedding_VD: the target's embedding, stored beside the head; "eagle_fsd" has none.
        verifier: the target's name and architectures, which "speculators" stores.

    Returns:
        What was renamed, dropped, added or cannot be said there, a sentence each.

    Raises:
        BadInput: the layout has no such head; names the setting.
    """
    _, write_config = LAYOUTS[layout]
    values, notes = write_config(config, verifier)
    names = {key: name_in_file(key, layout, config) for key in stored_shapes(config)}
    notes = [*notes, *(f"renamed {key} to {name}" for key, name in names.items() if key != name)]
    if not config.eagle3 and layout != "eagle_fsd" and names.pop("d2t", None):
        notes.append(f"dropped d2t: in {layout} an EAGLE-1/2 head drafts from all tokens")
    added = additions(layout, config)
    if embedding_VD is not None and layout != "eagle_fsd":
        added["embed_tokens.weight"] = embedding_VD
    notes += [f"added {key} {tuple(tensor.shape)}" for key, tensor in added.items()]
    saved = {name: tensors[key].detach() for key, name in names.items()}
    own = tensors["fc.weight"].dtype
    saved |= {key: t.to(own) if t.is_floating_point() else t for key, t in added.items()}
    if dtype is not None:
        saved = {key: t.to(dtype) if t.is_floating_point() else t for key, t in saved.items()}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_NAME).write_text(json.dumps(values, indent=2) + "\n")
    unfinished = folder / f"{WEIGHTS_NAME}.tmp"
    saved = {key: tensor.cpu().contiguous() for key, tensor in saved.items()}
    save_file(saved, unfinished, metadata={"format": "pt"})
    unfinished.replace(folder / WEIGHTS_NAME)
    return tuple(notes)


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a head under the file's own keys; BadInput names what is broken."""
    for single in (WEIGHTS_NAME, "pytorch_model.bin"):
        if (folder / single).is_file():
            return _read_file(folder / single)
        index = folder / f"{single}.index.json"
        if index.is_file():
            placed = _read_json(index).get("weight_map")
            if not isinstance(placed, dict):
                raise BadInput(f"{index} has no weight_map")
            shards = sorted(set(placed.values()))
            missing = [shard for shard in shards if not (folder / shard).is_file()]
            if missing:
                raise BadInput(f"{index} names shards that are absent: {', '.join(missing)}")
            return {k: v for shard in shards for k, v in _read_file(folder / shard).items()}
    raise BadInput(f"{folder} has no weights: expected {WEIGHTS_NAME} or pytorch_model.bin")


def _read_file(path: Path) -> dict[str, torch.Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        # a pickle from outside may run code; weights_only reads tensors and nothing else
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except UNREADABLE as error:
        code = re.search(r"GLOBAL (\S+)", str(error))
        reason = f"it is broken or cut off ({type(error).__name__})"
        if code:
            reason = (
                f"the pickle holds more than tensors ({code[1]}), which could run code and is "
                f"never loaded; get the head as {WEIGHTS_NAME}"
            )
        raise BadInput(f"cannot read {path}: {reason}") from error
    if not isinstance(tensors, dict):
        raise BadInput(f"{path} must map names to tensors, it is a {type(tensors).__name__}")
    named = {k: t for k, t in tensors.items() if isinstance(k, str) and isinstance(t, torch.Tensor)}
    strange = [f"{k!r}: {type(tensors[k]).__name__}" for k in tensors if k not in named]
    if strange:
        raise BadInput(f"{path} must map names to tensors, it has {', '.join(strange[:5])}")
    return tensors


def _read_json(path: Path) -> dict:
    try:
        values = json.loads(path.read_text())
    except ValueError as error:
        raise BadInput(f"{path} is broken JSON: {error}") from error
    if not isinstance(values, dict):
        raise BadInput(f"{path} must hold a JSON object, got {values!r:.80}")
    return values
