"""Convert a draft head from any layout to another, and say what was done.

    python train/convert_head.py --head yuhuili/EAGLE3-LLaMA3.1-Instruct-8B --output heads/llama3.1
    python train/convert_head.py --head runs/head --output runs/for_vllm --format speculators \
        --target smollm2
    python train/convert_head.py --head runs/head --output runs/head_16k --draft_vocab 16384 \
        --data answers.jsonl

The layouts are described in eagle_fsd/layouts.py. Heads load here in any of them, unconverted.
--draft_vocab confines a trained head to the tokens that the assistant wrote most often in --data,
without training it again: drafting reads fewer rows of the lm_head.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from transformers import HfArgumentParser

from eagle_fsd.heads.files import CONFIG_NAME, read_tensors, resolve_folder
from eagle_fsd.heads.foreign import StoredHead, read_stored_head, write_stored_head
from eagle_fsd.heads.layouts import LAYOUTS
from eagle_fsd.models.load import DTYPES, check_fits, load_target, load_target_config
from eagle_fsd.models.model_options import option
from eagle_fsd.training.data import Dialogue, read_dialogues
from eagle_fsd.training.vocabulary import (
    answer_counts,
    coverage,
    cut_vocabulary,
    draft_tokens,
    frequent_tokens,
)

WHOLE = 1 << 20  # tokens; no dialogue is longer


@dataclass
class ConvertOptions:
    head: str = field(metadata={"help": "folder or hub id of a head in any layout"})
    output: str = field(metadata={"help": "folder to write; must not hold a head yet"})
    format: str = option("eagle_fsd", f"layout to write: {', '.join(LAYOUTS)}")
    target: str = option("", "its embedding is stored beside the head, and its sizes are checked")
    dtype: str = option("", "bfloat16, float16 or float32; empty: as it is")
    draft_vocab: int | None = option(
        None, "tokens that the head shall draft, those most frequent in --data; default: as it is"
    )
    data: list[str] = field(
        default_factory=list,
        metadata={"help": "for --draft_vocab: files of answers, as train_head.py reads them"},
    )

    def __post_init__(self):
        if self.format not in LAYOUTS:
            raise ValueError(f"unknown --format {self.format!r}: {', '.join(LAYOUTS)}")
        if self.dtype and self.dtype not in DTYPES:
            raise ValueError(f"unknown --dtype {self.dtype!r}: {', '.join(DTYPES)}")
        if (Path(self.output) / CONFIG_NAME).exists():
            raise ValueError(f"--output {self.output} holds a {CONFIG_NAME} already")
        if self.draft_vocab is not None and not self.data:
            raise ValueError(f"--draft_vocab {self.draft_vocab} needs --data: files of answers")
        if self.data and self.draft_vocab is None:
            raise ValueError("--data is for --draft_vocab: say how many tokens shall be drafted")


def convert(options: ConvertOptions) -> None:
    """Read, check, write and report.

    Raises:
        ValueError: the head is broken, does not fit the target, or has no place in the layout.
    """
    stored = read_stored_head(resolve_folder(options.head))
    config = stored.config
    embedding_VD, verifier, layers = None, ("", []), config.feature_layers
    if options.target:
        target_config = load_target_config(options.target)
        check_fits(config, target_config, name=options.head)
        verifier = (options.target, list(target_config.architectures or []))
        layers = config.fused_layers(target_config.num_hidden_layers)
    cut, made = confine(stored, options) if options.draft_vocab is not None else (stored, [])
    if options.target and options.format != "eagle_fsd":
        embedding_VD = read_embedding(options.target, like=stored.tensors["fc.weight"])
    notes = write_stored_head(
        options.output,
        cut.config,
        cut.tensors,
        options.format,
        dtype=DTYPES[options.dtype] if options.dtype else None,
        embedding_VD=embedding_VD,
        verifier=verifier,
    )
    report(options, stored, cut, (*made, *notes), layers)


def confine(stored: StoredHead, options: ConvertOptions) -> tuple[StoredHead, list[str]]:
    """The head with the draft vocabulary asked for, and a sentence about it.

    Raises:
        ValueError: the head drafts fewer tokens, the layout cannot say it, or the data is no good.
    """
    config, size = stored.config, options.draft_vocab
    if not config.eagle3 and options.format != "eagle_fsd":
        raise ValueError(
            f"--draft_vocab: {options.format} has no place for the draft vocabulary of an "
            "EAGLE-1/2 head; leave it out, or write --format eagle_fsd"
        )
    former_R = draft_tokens(config, stored.tensors)
    if not 1 <= size <= len(former_R):
        raise ValueError(
            f"--draft_vocab {size} must be 1 to {len(former_R)}, the tokens that {options.head} "
            "can draft"
        )
    dialogues = read_answers(options.data, config.vocab_size)
    token_R = frequent_tokens(dialogues, size, vocab_size=config.vocab_size, among_R=former_R)
    counts, share = answer_counts(dialogues), coverage(dialogues, token_R)
    unseen = sum(counts[token] == 0 for token in token_R.tolist())
    note = (
        f"draft vocabulary: {size:,} of the {len(former_R):,} tokens that the head drafted, "
        f"{share:.2%} of the {counts.total():,} answer tokens in --data"
    )
    note += f"; {unseen:,} of them do not occur there" if unseen else ""
    if size == len(former_R):
        return stored, [note + "; nothing to cut"]
    config, tensors = cut_vocabulary(config, stored.tensors, token_R)
    return replace(stored, config=config, tensors=tensors), [note]


def read_answers(paths: list[str], vocab_size: int) -> list[Dialogue]:
    """The dialogues of all files; ValueError names a file with tokens of another vocabulary."""
    files = {path: read_dialogues(path, max_length=WHOLE) for path in paths}
    for path, dialogues in files.items():
        low, high = min(min(d.ids) for d in dialogues), max(max(d.ids) for d in dialogues)
        if not 0 <= low <= high < vocab_size:
            raise ValueError(
                f"{path} has token ids {low}..{high}, the head's target has 0..{vocab_size - 1}: "
                "was the data made with another tokenizer?"
            )
    return [dialogue for dialogues in files.values() for dialogue in dialogues]


def read_embedding(target: str, *, like: torch.Tensor) -> torch.Tensor:
    """What the target's embedding gives for every token, [V, D], scaled where the model scales."""
    loaded, _ = load_target(target, dtype=str(like.dtype).removeprefix("torch."))
    return loaded.embed(torch.arange(loaded.vocab_size))


def report(
    options: ConvertOptions,
    stored: StoredHead,
    cut: StoredHead,
    notes: Iterable[str],
    layers: tuple[int, ...],
) -> None:
    """Print what was read, done and written."""
    kind = "EAGLE-3" if stored.config.eagle3 else "EAGLE-1/2"
    print(f"read {options.head}: {kind} head in the layout of {stored.layout}")
    for note in (*stored.notes, *notes):
        print(f"  {note}")
    if stored.config.eagle3:
        said = f"{layers} of the target" if layers else "2, n // 2 and n - 3 of n (the usual ones)"
        print(f"  fuses hidden states {said}; number i is what enters layer i")
    before = dtype_names(stored.tensors.values())
    written = read_tensors(Path(options.output))
    after = dtype_names(written.values())
    changed = after if after == before else f"{before} became {after}"
    own = sum(t.numel() for t in cut.tensors.values() if t.is_floating_point())
    print(f"wrote {options.output}: layout of {options.format}, {own:,} parameters, {changed}")
    for key, tensor in written.items():
        print(f"  {key} {tuple(tensor.shape)}")


def dtype_names(tensors: Iterable[torch.Tensor]) -> str:
    """The floating-point types that occur."""
    names = {str(t.dtype).removeprefix("torch.") for t in tensors if t.is_floating_point()}
    return ", ".join(sorted(names))


def main(arguments: list[str] | None = None) -> None:
    parser = HfArgumentParser(ConvertOptions)
    try:
        convert(*parser.parse_args_into_dataclasses(arguments))
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
