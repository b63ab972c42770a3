"""Draft heads read from and written to any layout; what the layouts are is in layouts.py.

Axes: D hidden size, V the target's vocabulary.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from eagle_fsd.heads.files import (
    CONFIG_NAME,
    check_tensors,
    check_vocabulary,
    read_config_json,
    read_tensors,
    write_files,
)
from eagle_fsd.heads.head_config import HeadConfig
from eagle_fsd.heads.layouts import (
    LAYOUTS,
    REFUSED,
    Verifier,
    additions,
    file_keys,
    layout_of,
    optional_shapes,
)

EMBEDDING = "embed_tokens.weight"


@dataclass(frozen=True)
class StoredHead:
    """A head's file, read.

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


def read_stored_config(folder: Path) -> StoredHead:
    """config.json of a head in any layout, without its weights.

    Raises:
        ValueError: absent, broken, or of a head that cannot run here; names the setting.
    """
    values, source = read_config_json(folder), str(folder / CONFIG_NAME)
    layout = layout_of(values, source)
    nested = values.get("transformer_layer_config")
    for level in (values, nested if isinstance(nested, dict) else {}):
        for key, meaning in REFUSED.items():
            if level.get(key):
                raise ValueError(f"{source} says {key}: {meaning} is not supported")
    translated, notes = LAYOUTS[layout][0](dict(values), source)
    width = values.get("target_hidden_size")
    if width not in (None, translated.get("hidden_size")):
        raise ValueError(
            f"{source} says target_hidden_size {width} and hidden_size "
            f"{translated.get('hidden_size')}: a head narrower than its target is not supported"
        )
    return StoredHead(layout, HeadConfig.from_json(translated, source=source), tuple(notes))


def read_stored_head(folder: Path) -> StoredHead:
    """A head in any layout with its tensors, every key and shape checked.

    Raises:
        ValueError: see read_stored_config; or missing, unexpected and misshapen keys, all named.
    """
    stored = read_stored_config(folder)
    config = stored.config
    names = file_keys(stored.layout, config)
    wanted = {names[key]: shape for key, shape in config.shapes().items()}
    tensors = read_tensors(folder)
    optional = optional_shapes(stored.layout, config)
    optional |= {k: tuple(t.shape) for k, t in tensors.items() if k.startswith("verifier_")}
    check_tensors(tensors, wanted, optional, folder=folder)
    dropped = [key for key in tensors if key not in wanted]
    for key in dropped:
        if key.endswith(".bias") and tensors[key].any():
            raise ValueError(f"the draft head in {folder} has a bias that is not zero: {key}")
    if config.draft_vocab_size:
        check_vocabulary(tensors, config.vocab_size, folder=folder)
    elif "d2t" in tensors and tensors["d2t"].any():
        raise ValueError(
            f"the draft head in {folder} drafts from all {config.vocab_size} tokens, but its d2t "
            "is not zero"
        )
    notes = [f"renamed {name} to {key}" for key, name in names.items() if key != name]
    notes += [f"dropped {key}: the target's own, or without effect" for key in dropped]
    dtypes = {"d2t": torch.int64, "t2d": torch.bool}
    ours = {key: tensors[name] for key, name in names.items()}
    ours = {key: tensor.to(dtypes.get(key, tensor.dtype)) for key, tensor in ours.items()}
    return replace(stored, notes=(*stored.notes, *notes), tensors=ours)


def write_stored_head(
    folder: str | Path,
    config: HeadConfig,
    tensors: dict[str, torch.Tensor],
    layout: str,
    *,
    dtype: torch.dtype | None = None,
    embedding_VD: torch.Tensor | None = None,
    verifier: Verifier = ("", []),
) -> tuple[str, ...]:
    """Write a head in a layout.

    Args:
        tensors: under our keys.
        layout: one of LAYOUTS.
        dtype: of the floating-point tensors; None keeps each one's own.
        embedding_VD: the target's embedding, stored beside the head; "eagle_fsd" has none.
        verifier: the target's name and architectures, which "speculators" stores.

    Returns:
        What was renamed, dropped, added or cannot be said there, a sentence each.

    Raises:
        ValueError: the layout has no such head; names the setting.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"unknown layout {layout!r}: {', '.join(LAYOUTS)}")
    values, notes = LAYOUTS[layout][1](config, verifier)
    names = file_keys(layout, config)
    saved = {name: tensors[key] for key, name in names.items()}
    notes = [*notes, *(f"renamed {key} to {name}" for key, name in names.items() if key != name)]
    if not config.eagle3 and layout != "eagle_fsd" and saved.pop("d2t", None) is not None:
        notes.append(f"dropped d2t: in {layout} an EAGLE-1/2 head drafts from all tokens")
    added = additions(layout, config, like=tensors["fc.weight"])
    if embedding_VD is not None and layout != "eagle_fsd":
        added[EMBEDDING] = embedding_VD
    saved |= added
    if dtype is not None:
        saved = {key: t.to(dtype) if t.is_floating_point() else t for key, t in saved.items()}
    write_files(folder, values, saved)
    return (*notes, *(f"added {key} {tuple(tensor.shape)}" for key, tensor in added.items()))
