"""Convert a draft head from any layout to another, and say what was done.

    python train/convert_head.py --head yuhuili/EAGLE3-LLaMA3.1-Instruct-8B --output heads/llama3.1
    python train/convert_head.py --head runs/head --output runs/for_vllm --format speculators \
        --target smollm2
    python train/convert_head.py --head runs/head --output runs/head_16k --draft_vocab 16384 \
        --data answers.jsonl

The layouts are described in eagle_fsd/heads/layouts.py. Heads load here in any of them,
unconverted. --draft_vocab confines a trained head to the tokens that the assistant wrote most often
in --data, without training it again: drafting reads fewer rows of the lm_head.
"""

import sys
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from eagle_fsd.config import BadInput
from eagle_fsd.heads import files, vocabulary
from eagle_fsd.heads.layouts import LAYOUTS
from eagle_fsd.models.load import DTYPES, check_fits, load_target, load_target_config
from eagle_fsd.models.model_options import option
from eagle_fsd.runs.command import run_command
from eagle_fsd.training.data import read_dialogues


@dataclass
class ConvertOptions:
    head: str = field(metadata={"help": "folder or hub id of a head in any layout"})
    output: str = field(metadata={"help": "folder to write; must not hold a head yet"})
    format: str = option("eagle_fsd", f"layout to write: {', '.join(LAYOUTS)}")
    target: str = option("", "its embedding is stored beside the head, and its sizes are checked")
    dtype: str = option("", "bfloat16, float16 or float32; empty: as it is")
    draft_vocab: int | None = option(None, "draft so many tokens, those most frequent in --data")
    data: list[str] = field(
        default_factory=list, metadata={"help": "for --draft_vocab: answers, as for train_head.py"}
    )

    def __post_init__(self):
        if self.format not in LAYOUTS:
            raise BadInput(f"unknown --format {self.format!r}: {', '.join(LAYOUTS)}")
        if self.dtype and self.dtype not in DTYPES:
            raise BadInput(f"unknown --dtype {self.dtype!r}: {', '.join(DTYPES)}")
        if (Path(self.output) / files.CONFIG_NAME).exists():
            raise BadInput(f"--output {self.output} holds a config.json already: name another")
        if bool(self.data) != (self.draft_vocab is not None):
            raise BadInput("--draft_vocab and --data, files of answers, go together: give both")


def convert(options: ConvertOptions) -> None:
    """Read, check, write and report."""
    head = files.read_stored_head(files.resolve_folder(options.head))
    kind = "EAGLE-3" if head.config.eagle3 else "EAGLE-1/2"
    print(f"read {options.head}: {kind} head in the layout of {head.layout}")
    embedding_VD, verifier = None, ("", [])
    fused = head.config.feature_layers or "2, n // 2 and n - 3 of n"
    if options.target:
        shape = load_target_config(options.target)
        check_fits(head.config, shape, name=options.head)
        verifier = (options.target, list(shape.architectures or []))
        fused = head.config.fused_layers(shape.num_hidden_layers)
    if options.draft_vocab is not None:
        head = confine(head, options)
    if options.target and options.format != "eagle_fsd":
        dtype = str(head.tensors["fc.weight"].dtype).removeprefix("torch.")
        target, _ = load_target(options.target, dtype=dtype)
        embedding_VD = target.embed(torch.arange(target.vocab_size))  # scaled where it scales
    written = files.write_head(
        options.output,
        head.config,
        head.tensors,
        options.format,
        dtype=DTYPES.get(options.dtype),
        embedding_VD=embedding_VD,
        verifier=verifier,
    )
    for note in (*head.notes, *written):
        print(f"  {note}")
    if head.config.eagle3:
        print(f"  fuses hidden states {fused} of the target; number i is what enters layer i")
    own = sum(t.numel() for t in head.tensors.values() if t.is_floating_point())
    print(f"wrote {options.output}: layout of {options.format}, {own:,} parameters")
    for key, tensor in files.read_tensors(Path(options.output)).items():
        print(f"  {key} {tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}")


def confine(head: files.StoredHead, options: ConvertOptions) -> files.StoredHead:
    """The head with the draft vocabulary asked for, and a note; BadInput if it cannot have that."""
    if not head.config.eagle3 and options.format != "eagle_fsd":
        raise BadInput(
            f"--draft_vocab: {options.format} has no place for the draft vocabulary of an "
            "EAGLE-1/2 head; leave it out, or write --format eagle_fsd"
        )
    counts, last = Counter(), head.config.vocab_size - 1
    for path in options.data:
        found = vocabulary.answer_counts(read_dialogues(path, max_length=sys.maxsize))
        if not 0 <= min(found) <= max(found) <= last:
            raise BadInput(
                f"{path} has token ids {min(found)}..{max(found)}, the head's target has 0..{last}:"
                " was the data made with another tokenizer?"
            )
        counts += found
    former_R = vocabulary.draft_tokens(head.config, head.tensors)
    token_R = vocabulary.frequent_tokens(counts, options.draft_vocab, former_R)
    unseen = sum(counts[token] == 0 for token in token_R.tolist())
    note = (
        f"draft vocabulary: {len(token_R):,} of the {len(former_R):,} tokens that the head drafted,"
        f" {vocabulary.coverage(counts, token_R):.2%} of the {counts.total():,} answer tokens in"
        f" --data; {unseen:,} of them do not occur there"
    )
    config, tensors = vocabulary.cut_vocabulary(head.config, head.tensors, token_R)
    return replace(head, config=config, tensors=tensors, notes=(*head.notes, note))


if __name__ == "__main__":
    run_command(convert, [ConvertOptions])
