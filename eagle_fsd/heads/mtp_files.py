"""MTP layers from the files of a checkpoint and into files of their own.

Of a checkpoint the MTP tensors alone are read, by file and key; pickles and GGUF files never. A
layer that was trained on is written under the same keys into a folder of its own, whose config.json
says what it is; the tensors can be put back into the checkpoint that it is of.
"""

import json
import re
from collections.abc import Set
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from transformers import PretrainedConfig
from transformers.utils import (
    CONFIG_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    cached_file,
)

from eagle_fsd.config import BadInput
from eagle_fsd.heads.files import UNREADABLE
from eagle_fsd.heads.mtp_families import COUNTS, FAMILIES, Layout, stored_layers, stored_name
from eagle_fsd.heads.mtp_head import FITTING, STATES, MtpConfig, MtpHead, check_same, new_config
from eagle_fsd.runs.jsonl import write_file, write_json

NAME = "mtp"  # of the head that a target's own checkpoint holds
SWITCHES = ("feature", "own")
# tensors that nothing here reads: older checkpoints keep what follows from the config
IDLE = ("rotary_emb.inv_freq",)
READABLE = ("BF16", "F16", "F32")  # as safetensors calls dtypes
# last parts of the names of what stands beside quantised weights, or for them
QUANTISED = re.compile(r".*(scale|zero_?point|zeros|packed|qweight|g_idx)[^.]*")
ROWS = 4096  # of two tables that are compared at a time
RELEASED = "take the files that were released, or name their folder: --head mtp:FOLDER"


class Checkpoint:
    """The tensors of a model's safetensors files, by key, each read when it is asked for.

    Args:
        path: a folder, or a hub id whose files are fetched as far as they are needed.
    """

    def __init__(self, path: str | Path):
        self.path, self._open = str(path), {}
        self._file_of: dict[str, str]
        if index := self._file(SAFE_WEIGHTS_INDEX_NAME):
            self._file_of = dict(json.loads(Path(index).read_text())["weight_map"])
        elif self._file(SAFE_WEIGHTS_NAME):
            self._file_of = dict.fromkeys(self._reader(SAFE_WEIGHTS_NAME).keys(), SAFE_WEIGHTS_NAME)
        else:
            raise BadInput(
                f"no {SAFE_WEIGHTS_NAME} at {self.path!r}: an MTP layer is read from safetensors "
                "files alone"
            )

    @property
    def keys(self) -> Set[str]:
        return self._file_of.keys()

    def header(self, key: str) -> tuple[tuple[int, ...], str]:
        """Shape and dtype, as safetensors calls it."""
        part = self._reader(self._file_of[key]).get_slice(key)
        return tuple(part.get_shape()), part.get_dtype()

    def rows(self, key: str, first: int, last: int) -> torch.Tensor:
        return self._reader(self._file_of[key]).get_slice(key)[first:last]

    def tensor(self, key: str) -> torch.Tensor:
        return self._reader(self._file_of[key]).get_tensor(key)

    def _file(self, name: str) -> str | None:
        return cached_file(self.path, name, _raise_exceptions_for_missing_entries=False)

    def _reader(self, name: str) -> safe_open:
        if name not in self._open:
            if (path := self._file(name)) is None:
                raise FileNotFoundError(f"{name} is not there")
            self._open[name] = safe_open(path, "pt")
        return self._open[name]


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
    given = {key: value for key, _, value in (pair.partition("=") for pair in pairs)}
    known = given.keys() <= {*SWITCHES} and {*STATES}.issuperset(given.values())
    if len(given) < len(pairs) or not known:
        raise BadInput(
            f"head {name!r} is not {NAME}[:FOLDER] with {' or '.join(SWITCHES)} behind it, each "
            f"{' or '.join(STATES)}, such as {NAME},own=raw"
        )
    return first.partition(":")[2], given


def read_mtp(name: str | Path, target: str, config: PretrainedConfig) -> MtpHead:
    """The MTP layers of a name for which is_mtp holds, on the CPU, every tensor checked: headers
    before any is read.

    Args:
        target: folder or hub id of the target's checkpoint; "": it has none.
        config: of the target's text model.

    Raises:
        BadInput: names the family, the tensor or the file, and what helps.
    """
    path, given = parse_name(str(name)) if is_text(name) else (str(name), {})
    if is_text(name) and not path and _written(NAME):
        raise BadInput(
            f"head {name!r} is the layer in the target's own checkpoint, and a folder {NAME!r} "
            f"holds a trained one: name that ./{NAME}, or rename the folder"
        )
    written = _written(path) if path else {}
    if written:
        check_same(written.get("target", {}), config)
    switches = {key: written[key] for key in SWITCHES if key in written} | given
    if not (path := path or target):
        raise BadInput(
            "head mtp is the target's own MTP layer, which lies in its safetensors files: this "
            "target has none; name another --head"
        )
    layout = FAMILIES.get(config.model_type)
    if layout is None:
        raise BadInput(
            f"targets of type {config.model_type!r} have no MTP layer that is known here, only "
            f"{', '.join(FAMILIES)}: name another --head"
        )
    try:
        return _read(Checkpoint(path), layout, config, switches)
    except BadInput:
        raise
    except UNREADABLE as error:
        told = " ".join(f"{type(error).__name__}: {error}".split())
        raise BadInput(f"cannot read the MTP layer in {path} ({told}): {RELEASED}") from error


def _read(
    files: Checkpoint, layout: Layout, config: PretrainedConfig, switches: dict[str, str]
) -> MtpHead:
    n, keys = config.num_hidden_layers, set(files.keys)
    count = stored_layers(layout, keys, n)
    counted = next((value for name in COUNTS if (value := getattr(config, name, 0))), 0)
    if not count:
        why = f"though its config counts {counted}" if counted else "nor does its config count one"
        raise BadInput(
            f"the checkpoint in {files.path} holds no MTP layer ({why}): it has no tensor "
            f"{stored_name(layout.eh_proj, 0, n)!r}. transformers leaves these out when it saves a "
            f"model of type {config.model_type!r}: {RELEASED}"
        )
    if count < counted and layout.several:
        raise BadInput(
            f"the checkpoint in {files.path} holds {count} of the {counted} MTP layers that its "
            f"config counts: it has no tensor {stored_name(layout.eh_proj, count, n)!r}: {RELEASED}"
        )
    first = stored_name(layout.layer, 0, n)
    fused = f"{first}mlp.experts.gate_up_proj" in keys
    own_lm_head = _own_tables(files, layout, config, count)
    shape = new_config(
        config, layout, count, own_lm_head=own_lm_head, fused_experts=fused, **switches
    )
    head = MtpHead(shape).eval()
    places = {name: places_of(shape, name, part.shape) for name, part in head.state_dict().items()}
    _check(files, shape, head, places)
    tensors = {name: _joined(files, place) for name, place in places.items()}
    for name, tensor in tensors.items():
        if not torch.stack(tensor.aminmax()).isfinite().all():
            raise BadInput(f"{places[name][0][0]} in {files.path} is NaN or infinite: {RELEASED}")
    head.load_state_dict(tensors, assign=True)
    return head


def _own_tables(files: Checkpoint, layout: Layout, config: PretrainedConfig, count: int) -> bool:
    """Whether the layer has an lm_head of its own. BadInput: an embedding of its own, or, of
    several layers, one has an lm_head."""
    n, own_lm_head = config.num_hidden_layers, False
    for layer in range(count):
        for template in filter(None, (layout.embedding, layout.lm_head)):
            key = stored_name(template, layer, n)
            if key not in files.keys or _is_targets(files, key, template == layout.lm_head):
                continue
            if template == layout.embedding or count > 1:
                raise BadInput(
                    f"{key} in {files.path} is not the target's own, which is what an MTP layer "
                    "reads here: name another --head"
                )
            own_lm_head = True
    return own_lm_head


def _is_targets(files: Checkpoint, key: str, lm_head: bool) -> bool:
    """Whether a table is a copy of the target's embedding, or of its lm_head."""
    names = ("lm_head.weight",) if lm_head else ()
    own = [name for name in (*names, "model.embed_tokens.weight") if name in files.keys]
    if not own or files.header(key) != files.header(own[0]):
        return False
    (rows, *_), _ = files.header(key)
    return all(
        torch.equal(files.rows(key, i, i + ROWS), files.rows(own[0], i, i + ROWS))
        for i in range(0, rows, ROWS)
    )


def places_of(config: MtpConfig, name: str, shape: torch.Size) -> list[list[str]]:
    """Keys of the tensors that one of a head's is made of in a checkpoint: of experts that lie one
    by one a list for each, of all else a single one.

    Example: gate_up_proj of two experts is [[0.gate_proj, 0.up_proj], [1.gate_proj, 1.up_proj]].
    """
    n, layout = config.target.num_hidden_layers, config.layout
    kind, *rest = name.split(".")
    if kind == "lm_head":
        return [[stored_name(layout.lm_head, 0, n)]]
    layer, part = int(rest[0]), ".".join(rest[1:])
    if kind == "norms":
        return [[stored_name(layout.norm, layer, n)]]
    if not part.startswith("mtp_block."):
        return [[stored_name(getattr(layout, part.removesuffix(".weight")), layer, n)]]
    key = stored_name(layout.layer, layer, n) + part.removeprefix("mtp_block.")
    folder, _, last = key.rpartition(".")
    if not folder.endswith(".experts") or config.fused_experts:
        return [[key]]
    names = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}[last]
    return [[f"{folder}.{e}.{name}.weight" for name in names] for e in range(shape[0])]


def _check(
    files: Checkpoint, config: MtpConfig, head: MtpHead, places: dict[str, list[list[str]]]
) -> None:
    """Refuse, by headers alone, tensors that are missing, quantised, misshapen or unexpected."""
    n, layout, held = config.target.num_hidden_layers, config.layout, set(files.keys)
    wanted, faults = {}, []
    for name, part in head.state_dict().items():
        shape, place = tuple(part.shape), places[name]
        if len(place) > 1 or len(place[0]) > 1:
            shape = (shape[1] // len(place[0]), *shape[2:])
        wanted |= {key: shape for keys in place for key in keys}
    starts = tuple(stored_name(layout.every, i, n) for i in range(config.count))
    names = [name for name in (layout.embedding, layout.lm_head) if name]
    tables = {stored_name(name, i, n) for name in names for i in range(config.count)}
    found = {key for key in held if key.startswith(starts) and not key.endswith(IDLE)} - tables
    for key in sorted(found | (wanted.keys() & held)):
        shape, dtype = files.header(key)
        if dtype not in READABLE or QUANTISED.fullmatch(key.rpartition(".")[2]):
            raise BadInput(
                f"the MTP layer in {files.path} is quantised ({key} is {dtype}), and is run here "
                "from bfloat16, float16 or float32 alone: take the checkpoint that is released in "
                "one of these, or dequantise the tensors of the layer"
            )
        if key in wanted and shape != wanted[key]:
            faults.append(f"{key} is {shape} and not {wanted[key]}")
        elif key not in wanted:
            faults.append(f"{key} is unexpected")
    if missing := sorted(wanted.keys() - held):
        faults.insert(0, f"{len(missing)} tensors are missing, the first {missing[0]}")
    if faults:
        more = f", and {len(faults) - 3} further faults" if len(faults) > 3 else ""
        raise BadInput(
            f"the MTP layer in {files.path} is not one of a target of type "
            f"{config.target.model_type!r} and of this shape: {'; '.join(faults[:3])}{more}: "
            f"{RELEASED}"
        )


def _joined(files: Checkpoint, place: list[list[str]]) -> torch.Tensor:
    if len(place) == len(place[0]) == 1:
        return files.tensor(place[0][0])
    return torch.stack([torch.cat([files.tensor(key) for key in keys]) for keys in place])


def stored_tensors(head: MtpHead) -> dict[str, torch.Tensor]:
    """Of a head, under its family's keys."""
    tensors = {}
    for name, tensor in head.state_dict().items():
        place = places_of(head.config, name, tensor.shape)
        if len(place) == len(place[0]) == 1:
            tensors[place[0][0]] = tensor
            continue
        for keys, expert in zip(place, tensor, strict=True):
            tensors |= dict(zip(keys, expert.chunk(len(keys)), strict=True))
    return {key: tensor.cpu().contiguous() for key, tensor in tensors.items()}


def write_mtp(folder: str | Path, head: MtpHead) -> None:
    """Write a head as model.safetensors and config.json, each in one rename. BadInput: they cannot
    be written."""
    config = head.config
    write_file(
        Path(folder) / SAFE_WEIGHTS_NAME, save(stored_tensors(head), metadata={"format": "pt"})
    )
    own = {"head_type": config.head_type} | {key: getattr(config, key) for key in SWITCHES}
    fitting = {key: getattr(config.target, key) for key in FITTING}
    # last: a folder without it is no head
    write_json(Path(folder) / CONFIG_NAME, own | {"target": fitting})
