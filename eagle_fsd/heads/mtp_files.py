"""An MTP layer from the files of a checkpoint, of which its tensors alone are read, and into files
of its own under the same keys, so that they can be put back into the checkpoint.
"""

import json
import re
from contextlib import suppress
from pathlib import Path

import torch
from transformers import PretrainedConfig
from transformers.utils import CONFIG_NAME

from eagle_fsd.config import BadInput
from eagle_fsd.heads.checkpoint import Checkpoint, model_folder, same_numbers
from eagle_fsd.heads.files import FREQUENCIES, first_faults, tensor_faults, write_files
from eagle_fsd.heads.mtp_head import (
    FAMILIES,
    FITTING,
    STATES,
    MtpConfig,
    MtpHead,
    check_same,
    counted_layers,
)

NAME = "mtp"  # of the head that a target's own checkpoint holds
SWITCHES = ("feature", "own")
# what a checkpoint, also a multimodal one, calls its readout, and the embedding where that is both
READOUTS = ("lm_head.weight", "language_model.lm_head.weight")
READOUTS += ("model.embed_tokens.weight", "model.language_model.embed_tokens.weight")
RELEASED = "take the released files, or unquantised ones that kept the layer: mtp:FOLDER"


def is_mtp(name: str | Path) -> bool:
    """Whether a head is named that is an MTP layer: `mtp`, with a checkpoint or switches behind it,
    or a folder that write_mtp wrote."""
    return is_text(name) or _values(name).get("head_type") == NAME


def is_text(name: str | Path) -> bool:
    """Whether it is `mtp`, whatever stands behind it, and not a folder's name."""
    return re.split("[:,]", str(name))[0] == NAME


def _values(folder: str | Path) -> dict:
    with suppress(OSError, ValueError):
        values = json.loads(Path(folder, CONFIG_NAME).read_text())
        return values if isinstance(values, dict) else {}
    return {}


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
    """The MTP layer of a name for which is_mtp holds, on the CPU, every tensor checked; `config` is
    of the text model of `target`, whose checkpoint may lie nowhere (""). BadInput names the family,
    the first tensors or the file, and what helps."""
    # 1. Where it lies: a trained layer's folder, another checkpoint, or the target's own.
    path, switches = parse_name(str(name)) if is_text(name) else (str(name), {})
    path = path or target
    if not path or config.model_type not in FAMILIES:
        raise BadInput(
            f"head {name!r} is an MTP layer in the files of a target of type "
            f"{', '.join(FAMILIES)}: this one, of type {config.model_type!r}, is none of these or "
            "has no such files; name another head"
        )
    if path != target:  # its config says whose it is, and with which switches it was trained
        values = _values(model_folder(path))
        switches = {key: values[key] for key in SWITCHES if key in values} | switches
        values = values.get("target") or values.get("text_config") or values
        if values.get("model_type") not in FAMILIES:  # MiMo's own says mimo
            values = values | {"model_type": config.model_type}
        check_same({key: values.get(key, getattr(config, key)) for key in FITTING}, config)
    # 2. What these files hold: one layer, with a readout of its own or without.
    files, shape = Checkpoint(path), MtpConfig(config, **switches)
    held = counted_layers(config) if (key := shape.key("eh_proj")) in files.keys else 0
    if held != 1:
        raise BadInput(
            f"the checkpoint in {path} holds {held} MTP layers (such as {key!r}), and one alone is "
            "read; transformers leaves it out when it saves a model: name another head, or "
            f"{RELEASED}"
        )
    shape.fused_experts = shape.key("layer") + "mlp.experts.gate_up_proj" in files.keys
    if (key := shape.key("lm_head")) in files.keys:
        readout = next((name for name in READOUTS if name in files.keys), "")
        shape.own_lm_head = not (readout and same_numbers(files.tensor(key), files.tensor(readout)))
    # 3. Its tensors, but for tables that others hold too, and what follows from the config.
    head = MtpHead(shape).eval()
    wanted = {key: tuple(part.shape) for key, part in stored_tensors(head).items()}
    idle = {shape.key("embedding"), shape.key("lm_head")} - wanted.keys()
    tensors = {
        key: files.tensor(key)
        for key in files.keys - idle
        if key.startswith(shape.key("")) and not key.endswith(FREQUENCIES)
    }
    if faults := tensor_faults(wanted, tensors):
        raise BadInput(
            f"the MTP layer in {path} is not one of a target of type {config.model_type!r} and of "
            f"this shape: {first_faults(faults)}: {RELEASED}"
        )
    whole = {}
    for part, made in head.state_dict().items():
        parts = [tensors[key] for key in stored_keys(shape, part, len(made))]
        whole[part] = parts[0] if len(parts) == 1 else torch.cat(parts).view(made.shape)
    head.load_state_dict(whole, assign=True)
    return head


def stored_keys(config: MtpConfig, name: str, experts: int) -> list[str]:
    """What one of a head's tensors is made of in a checkpoint: of experts that lie one by one there
    are several, of all else one.

    Example: gate_up_proj of 2 experts is 0.gate_proj, 0.up_proj, 1.gate_proj, 1.up_proj.
    """
    part = name.removeprefix("step.")
    if not part.startswith("mtp_block."):
        return [config.key(part.removesuffix(".weight"))]
    key = config.key("layer") + part.removeprefix("mtp_block.")
    folder, _, last = key.rpartition(".")
    if not folder.endswith(".experts") or config.fused_experts:
        return [key]
    names = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}[last]
    return [f"{folder}.{expert}.{name}.weight" for expert in range(experts) for name in names]


def stored_tensors(head: MtpHead) -> dict[str, torch.Tensor]:
    tensors = {}
    for name, tensor in head.state_dict().items():
        keys = stored_keys(head.config, name, len(tensor))
        parts = [tensor] if len(keys) == 1 else tensor.flatten(0, 1).chunk(len(keys))
        tensors |= dict(zip(keys, parts, strict=True))
    return tensors


def write_mtp(folder: str | Path, head: MtpHead) -> None:
    switches = {key: getattr(head.config, key) for key in SWITCHES}
    target = {key: getattr(head.config.target, key) for key in FITTING}
    write_files(folder, stored_tensors(head), {"head_type": NAME, **switches, "target": target})
