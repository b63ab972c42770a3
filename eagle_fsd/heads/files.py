"""Files of draft heads: a folder with config.json and weights.

Published heads come from a folder or a hub id: model.safetensors or pytorch_model.bin, single or
sharded. Pickles are read with weights_only=True. What keys mean is in head_config.py (ours and
upstream's) and layouts.py (other projects').
"""

import json
import pickle
import re
import struct
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from eagle_fsd.heads.head_config import HeadConfig

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
Shapes = dict[str, tuple[int, ...]]
# what torch.load and safetensors raise on files that are cut off or garbled
UNREADABLE = (
    SafetensorError,
    pickle.UnpicklingError,
    struct.error,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
# modules that are known, but not of heads that run here
STRANGERS = {
    "fc_norm": "EAGLE-3.1",
    "input_norm": "EAGLE-3.1, norm_before_fc",
    "q_norm": "attention with norms, as Qwen3",
    "k_norm": "attention with norms, as Qwen3",
    "embed_layernorm": "a HASS variant with layernorms",
    "hidden_layernorm": "a HASS variant with layernorms",
    "lm_head_layernorm": "a HASS variant with layernorms",
    "embedding_layernorm": "a HASS variant with layernorms",
    "pre_lm_head_layernorm": "a HASS variant with layernorms",
}


def resolve_folder(name: str | Path) -> Path:
    """A local folder, or a hub id fetched into the hub's cache.

    Raises:
        ValueError: neither; names what was given.
    """
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(str(name), allow_patterns=["*.json", "*.safetensors", "*.bin"])
        )
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise ValueError(
            f"no draft head at {name!r}: it is no folder, and the hub did not give it ({error})"
        ) from error


def read_config_json(folder: Path) -> dict:
    """config.json of a head as it is; ValueError if it is absent or broken."""
    path = folder / CONFIG_NAME
    if not path.is_file():
        raise ValueError(f"{folder} is no draft head: it has no {CONFIG_NAME}")
    return _read_json(path)


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a head under the file's own keys; ValueError names what is broken."""
    for single in (WEIGHTS_NAME, "pytorch_model.bin"):
        if (folder / single).is_file():
            return _read_file(folder / single)
        index = folder / f"{single}.index.json"
        if index.is_file():
            placed = _read_json(index).get("weight_map")
            if not isinstance(placed, dict):
                raise ValueError(f"{index} has no weight_map")
            shards = sorted(set(placed.values()))
            missing = [shard for shard in shards if not (folder / shard).is_file()]
            if missing:
                raise ValueError(f"{index} names shards that are absent: {', '.join(missing)}")
            return {k: v for shard in shards for k, v in _read_file(folder / shard).items()}
    raise ValueError(f"{folder} has no weights: expected {WEIGHTS_NAME} or pytorch_model.bin")


def check_tensors(
    tensors: dict[str, torch.Tensor], wanted: Shapes, optional: Shapes, *, folder: Path
) -> None:
    """Compare a checkpoint with what its config.json promises.

    Raises:
        ValueError: missing, unexpected and misshapen keys, and weights that are no floating-point
            numbers, each named.
    """
    faults = [f"missing {key} {shape}" for key, shape in wanted.items() if key not in tensors]
    for key, tensor in tensors.items():
        got, shape = tuple(tensor.shape), wanted.get(key) or optional.get(key)
        if shape is None:
            faults.append(f"unexpected {key} {got}{_stranger(key)}")
        elif got != shape:
            hint = ": it is transposed" if got == shape[::-1] else ""
            faults.append(f"{key} has shape {got}, config.json says {shape}{hint}")
        elif tensor.is_floating_point() == (key in ("d2t", "t2d")):
            faults.append(f"{key} has dtype {str(tensor.dtype).removeprefix('torch.')}")
    if faults:
        raise ValueError(f"the draft head in {folder} does not fit: " + "; ".join(faults))


def check_vocabulary(tensors: dict[str, torch.Tensor], vocab_size: int, *, folder: Path) -> None:
    """Whether d2t leads into the target's vocabulary, one token each, and t2d says the same."""
    token_R = tensors["d2t"].long() + torch.arange(tensors["d2t"].shape[0])
    first, last = token_R.min().item(), token_R.max().item()
    if first < 0 or last >= vocab_size or (token_R.diff() < 1).any():
        raise ValueError(
            f"the draft head in {folder} does not fit: d2t must lead to ascending tokens of "
            f"0..{vocab_size - 1}; it leads to {first}..{last}, ascending: "
            f"{'yes' if (token_R.diff() > 0).all() else 'no'}"
        )
    if "t2d" in tensors and not torch.equal(tensors["t2d"].bool().nonzero()[:, 0], token_R):
        raise ValueError(
            f"the draft head in {folder} does not fit: t2d marks other tokens than d2t leads to"
        )


def write_head(
    folder: str | Path,
    config: HeadConfig,
    tensors: dict[str, torch.Tensor],
    *,
    dtype: torch.dtype | None = torch.bfloat16,
) -> None:
    """Write a head in our own layout; keys that are not in `config.shapes` are left out.

    Args:
        dtype: of the floating-point tensors; None keeps each one's own.
    """
    saved = {key: tensors[key] for key in config.shapes()}
    if dtype is not None:
        saved = {key: t.to(dtype) if t.is_floating_point() else t for key, t in saved.items()}
    write_files(folder, config.to_json(), saved)


def write_files(folder: str | Path, values: dict, tensors: dict[str, torch.Tensor]) -> None:
    """Write config.json and model.safetensors; the weights appear in one rename."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_NAME).write_text(json.dumps(values, indent=2) + "\n")
    saved = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
    save_file(saved, folder / f"{WEIGHTS_NAME}.tmp", metadata={"format": "pt"})
    (folder / f"{WEIGHTS_NAME}.tmp").replace(folder / WEIGHTS_NAME)


def _stranger(key: str) -> str:
    known = [meaning for part in key.split(".") if (meaning := STRANGERS.get(part))]
    return f" ({known[0]}: not supported)" if known else ""


def _read_json(path: Path) -> dict:
    try:
        values = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is broken JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a JSON object, got {values!r:.80}")
    return values


def _read_file(path: Path) -> dict[str, torch.Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        # a pickle from outside may run code; weights_only reads tensors and nothing else
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except UNREADABLE as error:
        refused = re.search(r"GLOBAL (\S+)", str(error))
        if refused:
            raise ValueError(
                f"cannot read {path}: the pickle holds more than tensors ({refused[1]}), which "
                "could run code and is never loaded"
            ) from error
        reason = type(error).__name__
        if not isinstance(error, pickle.UnpicklingError) and str(error):
            reason += f": {str(error).splitlines()[0][:200]}"
        raise ValueError(f"cannot read {path}: it is broken or cut off ({reason})") from error
    if not isinstance(tensors, dict):
        raise ValueError(
            f"{path} must hold a dictionary of tensors, not a {type(tensors).__name__}"
        )
    strange = [
        f"{key!r}: {type(value).__name__}"
        for key, value in tensors.items()
        if not (isinstance(key, str) and isinstance(value, torch.Tensor))
    ]
    if strange:
        raise ValueError(f"{path} must map names to tensors, it has {', '.join(strange[:5])}")
    return tensors
