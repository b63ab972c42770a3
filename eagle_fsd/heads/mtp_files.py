"""An MTP layer from the files of a checkpoint and into files of its own.

Of a checkpoint the MTP tensors alone are read, by file and key, and the tables that show whether
it is the target's; GGUF files never. A layer that was trained on is written under the same keys
into a folder of its own, whose config.json says what it is; the tensors can be put back into the
checkpoint that it is of.
"""

import json
import re
import sys
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import PretrainedConfig
from transformers.utils import CONFIG_NAME, cached_file

from eagle_fsd.config import BadInput, one_line
from eagle_fsd.heads.checkpoint import UNREADABLE, Checkpoint, same_numbers
from eagle_fsd.heads.files import (
    FREQUENCIES,
    WEIGHT_DTYPES,
    first_faults,
    frequency_faults,
    tensor_faults,
    write_files,
)
from eagle_fsd.heads.mtp_families import FAMILIES, counted_layers
from eagle_fsd.heads.mtp_head import FITTING, STATES, MtpConfig, MtpHead, check_same

NAME = "mtp"  # of the head that a target's own checkpoint holds
SWITCHES = ("feature", "own")
# A model's embedding and lm_head, in a checkpoint of text alone or in a multimodal one
EMBEDDINGS = re.compile(r"(model\.|language_model\.|text_model\.)*embed_tokens\.weight")
LM_HEADS = re.compile(r"(language_model\.)?lm_head\.weight")
# How far, relative to its size, the embedding of another checkpoint may be from the target's: one
# that was trained further is hardly changed, and one that is not related is 1.4 away.
RELATED = 0.3
RELEASED = (
    "take the files that were released, in bfloat16, float16 or float32, or name their folder: "
    "--head mtp:FOLDER"
)


def is_mtp(name: str | Path) -> bool:
    """Whether a head is named that is an MTP layer: `mtp`, with a checkpoint or switches behind it,
    or a folder that write_mtp wrote."""
    return is_text(name) or bool(_written(name))


def is_text(name: str | Path) -> bool:
    """Whether it is `mtp`, with or without a checkpoint and switches, and not a folder's name."""
    return re.split("[:,]", str(name))[0] == NAME


def _written(folder: str | Path) -> dict:
    """What write_mtp wrote into a config.json; empty of any other folder."""
    try:
        values = json.loads(Path(folder, CONFIG_NAME).read_text())
        return values if values.get("head_type") == NAME else {}
    except (OSError, ValueError, AttributeError):
        return {}  # of another head, whose reader says what is wrong


def parse_name(name: str) -> tuple[str, dict[str, str]]:
    """The checkpoint that `mtp[:FOLDER][,feature=raw][,own=raw]` names, "" for the target's own,
    and the switches (mtp_head.py). BadInput: none of this form."""
    first, *pairs = name.split(",")
    switches = {key: value for key, _, value in (pair.partition("=") for pair in pairs)}
    valid = switches.keys() <= {*SWITCHES} and {*STATES}.issuperset(switches.values())
    if len(switches) < len(pairs) or not valid:
        raise BadInput(
            f"head {name!r} is not {NAME}[:FOLDER] with {' or '.join(SWITCHES)} behind it, each "
            f"{' or '.join(STATES)}, such as {NAME},own=raw"
        )
    return first.partition(":")[2], switches


def read_mtp(name: str | Path, target: str, config: PretrainedConfig) -> MtpHead:
    """The MTP layer of a name for which is_mtp holds, on the CPU, every tensor checked.

    Args:
        target: folder or hub id of the target's checkpoint; "": it has none.
        config: of the target's text model.

    Raises:
        BadInput: names the family, the first tensors or the file, and what helps.
    """
    # 1. Where it lies: the name, a trained layer's config.json, or the target's own checkpoint.
    path, switches = parse_name(str(name)) if is_text(name) else (str(name), {})
    if not path and _written(NAME):
        raise BadInput(
            f"head {name!r} is the layer in the target's own checkpoint, and a folder {NAME!r} "
            f"holds a trained one: name that ./{NAME}, or rename the folder"
        )
    written = _written(path) if path else {}
    if written:
        check_same(written.get("target", {}), config)
        switches = {key: written[key] for key in SWITCHES if key in written} | switches
    path = path or target
    if not path or config.model_type not in FAMILIES:
        raise BadInput(
            f"head {name!r} is a target's own MTP layer, which lies in its safetensors files: this "
            f"target, of type {config.model_type!r}, has none, or is of no family known to have one"
            f" ({', '.join(FAMILIES)}); name another --head"
        )
    try:
        files = Checkpoint(path)
    except BadInput as error:
        raise BadInput(f"{error}: {RELEASED}") from error
    try:
        own = files if path == target or not target else _own_files(target)
        if own is not files and not written:
            check_same(_described(path, config), config)
        return _read(files, own, config, switches)
    except BadInput:
        raise
    except UNREADABLE as error:
        raise BadInput(
            f"cannot read the MTP layer in {path} ({one_line(error)}): {RELEASED}"
        ) from error


def _described(path: str, config: PretrainedConfig) -> dict[str, object]:
    """What the config.json of another checkpoint says of FITTING, its text model's if it has more
    than one; as this config says where it says nothing, or has a type that is not known here."""
    file = cached_file(path, CONFIG_NAME, _raise_exceptions_for_missing_entries=False)
    values = json.loads(Path(file).read_text()) if file else {}
    values = values.get("text_config") or values
    if values.get("model_type") not in FAMILIES:
        values.pop("model_type", None)
    return {key: values.get(key, getattr(config, key)) for key in FITTING}


def _own_files(target: str) -> Checkpoint | None:
    """Of a target; None where its tables cannot be looked at in files."""
    try:
        return Checkpoint(target)
    except (BadInput, *UNREADABLE):
        return None


def _table(files: Checkpoint | None, *names: re.Pattern) -> torch.Tensor | None:
    """A model's first table of these names in its files."""
    keys = sorted(files.keys) if files else ()
    key = next((key for name in names for key in keys if name.fullmatch(key)), None)
    return None if key is None else files.tensor(key)


def _check_related(files: Checkpoint, table_VD: torch.Tensor, own_VD: torch.Tensor) -> None:
    """Refuse, by a BadInput, an MTP layer beside another embedding than the target's; tell where
    the two are near, as of a target that was trained further."""
    step = max(1, len(own_VD) // 4096)
    table_VD, own_VD = table_VD[::step].float(), own_VD[::step].float()
    same = table_VD.shape == own_VD.shape
    distance = ((table_VD - own_VD).norm() / own_VD.norm()).item() if same else float("inf")
    if not distance <= RELATED:
        raise BadInput(
            f"the embedding in {files.path} is not the target's: its MTP layer is of another "
            "checkpoint, and would not draft for this one"
        )
    if distance > 1e-3:  # beyond what rounding does
        tqdm.write(
            f"eagle_fsd: the embedding in {files.path} differs from the target's by "
            f"{distance:.1%}: its MTP layer was not trained with this target",
            file=sys.stderr,
        )


def _read(
    files: Checkpoint, own: Checkpoint | None, config: PretrainedConfig, switches: dict[str, str]
) -> MtpHead:
    """The head in a checkpoint of a family that has one; `own`: the target's files, if known."""
    kind = config.model_type
    layout = FAMILIES[kind].after(config.num_hidden_layers)
    # 1. There is a layer, and one alone.
    if layout.eh_proj not in files.keys:
        raise BadInput(
            f"the checkpoint in {files.path} holds no MTP layer: it has no tensor "
            f"{layout.eh_proj!r}. transformers leaves these out when it saves a model of type "
            f"{kind!r}: {RELEASED}"
        )
    if (count := counted_layers(config)) > 1:
        raise BadInput(
            f"this target's config counts {count} MTP layers, each for a level of its own, and "
            "one that is run for every level is all that runs here: name another --head"
        )
    # 2. Its shape: whether it has an lm_head of its own, and how its experts lie.
    tables = [_table(each, LM_HEADS, EMBEDDINGS) for each in (own, files)]  # tied: one for both
    readout = next((table for table in tables if table is not None), None)
    own_lm_head = layout.lm_head in files.keys
    if own_lm_head and readout is not None:
        own_lm_head = not same_numbers(files.tensor(layout.lm_head), readout)
    fused = f"{layout.layer}mlp.experts.gate_up_proj" in files.keys
    shape = MtpConfig(config, own_lm_head=own_lm_head, fused_experts=fused, **switches)
    head = MtpHead(shape).eval()
    # 3. Its tensors, and the embedding, which must be the target's own.
    wanted = {key: tuple(part.shape) for key, part in stored_tensors(head).items()}
    idle = {layout.embedding, layout.lm_head} - wanted.keys()
    own_keys = [key for key in files.keys - idle if key.startswith(layout.every)]
    tensors = {key: files.tensor(key) for key in own_keys}
    for key, tensor in tensors.items():
        if tensor.dtype not in WEIGHT_DTYPES:
            raise BadInput(
                f"the MTP layer in {files.path} is quantised ({key} has dtype {tensor.dtype}): "
                "take a conversion to bfloat16 that kept the layer"
            )
    faults = frequency_faults(tensors, head._rotary[0])
    tensors = {key: tensors[key] for key in tensors if not key.endswith(FREQUENCIES)}
    faults += tensor_faults(wanted, tensors)
    beside, own_table = _table(files, EMBEDDINGS), _table(own, EMBEDDINGS)
    if layout.embedding in files.keys:
        copy = files.tensor(layout.embedding)
        if beside is None:
            beside = copy
        elif not same_numbers(copy, beside):
            faults.append(f"{layout.embedding} is not the target's embedding")
    if own is not files and beside is not None and own_table is not None:
        _check_related(files, beside, own_table)
    if faults:
        raise BadInput(
            f"the MTP layer in {files.path} is not one of a target of type {kind!r} and of this "
            f"shape: {first_faults(faults)}: {RELEASED}"
        )
    # 4. Under the head's names: of experts that lie one by one, several make up one.
    whole = {}
    for name, part in head.state_dict().items():
        parts = [tensors[key] for key in stored_keys(shape, name, len(part))]
        whole[name] = parts[0] if len(parts) == 1 else torch.cat(parts).view(part.shape)
    head.load_state_dict(whole, assign=True)
    return head


def stored_keys(config: MtpConfig, name: str, experts: int) -> list[str]:
    """Keys of the tensors that one of a head's is made of in a checkpoint: of experts that lie one
    by one there are several, of all else one.

    Example: gate_up_proj of 2 experts is 0.gate_proj, 0.up_proj, 1.gate_proj, 1.up_proj.
    """
    kind, _, part = name.partition(".")
    if kind in ("lm_head", "norm"):
        return [getattr(config.layout, kind)]
    if not part.startswith("mtp_block."):
        return [getattr(config.layout, part.removesuffix(".weight"))]
    key = config.layout.layer + part.removeprefix("mtp_block.")
    folder, _, last = key.rpartition(".")
    if not folder.endswith(".experts") or config.fused_experts:
        return [key]
    names = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}[last]
    return [f"{folder}.{expert}.{name}.weight" for expert in range(experts) for name in names]


def stored_tensors(head: MtpHead) -> dict[str, torch.Tensor]:
    """Of a head, under its family's keys."""
    tensors = {}
    for name, tensor in head.state_dict().items():
        keys = stored_keys(head.config, name, len(tensor))
        parts = [tensor] if len(keys) == 1 else tensor.flatten(0, 1).chunk(len(keys))
        tensors |= dict(zip(keys, parts, strict=True))
    return tensors


def write_mtp(folder: str | Path, head: MtpHead) -> None:
    """Write a head as model.safetensors and config.json, each in one rename. BadInput: they cannot
    be written."""
    switches = {key: getattr(head.config, key) for key in SWITCHES}
    target = {key: getattr(head.config.target, key) for key in FITTING}
    write_files(folder, stored_tensors(head), {"head_type": NAME, **switches, "target": target})
