"""Convert a draft head from any layout to upstream's and print what was done, or check one.

    python train/convert_head.py --check nvidia/gpt-oss-120b-Eagle3-long-context openai/gpt-oss-120b
    python train/convert_head.py --head yuhuili/EAGLE3-LLaMA3.1-Instruct-8B --output heads/llama3.1
    python train/convert_head.py --head runs/head --output runs/head_16k --draft_vocab 16384 \
        --data answers.jsonl
    python train/convert_head.py --check mtp zai-org/GLM-4.5-Air
    python train/convert_head.py --head runs/head --output runs/head_vllm --to vllm
    python train/convert_head.py --head runs/head3 --output runs/head_llama --to llama.cpp

The layouts are described in eagle_fsd/heads/layouts.py. Heads load here in any of them,
unconverted; what is written loads in SafeAILab/EAGLE too, and in SGLang and vLLM as docs/serve.md
describes. --draft_vocab confines a trained head to the tokens that the assistant wrote most often
in --data, without training it again: drafting reads fewer rows of the lm_head. Of a head that has
none of its own and reads the target's, these may be other tokens than before, and more. --check
writes nothing: it says on a page what a head is, whom it fits and what is wrong with it, from the
head's files and the target's config alone, and ends with status 1 if something is.
"""

import os
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from eagle_fsd.cli import run_command
from eagle_fsd.config import BadInput
from eagle_fsd.options import option

if TYPE_CHECKING:
    from eagle_fsd.heads.draft_head import DraftHead


@dataclass
class ConvertOptions:
    head: str | None = None
    """The folder or hub id of a head in any layout."""
    output: str | None = None
    """The folder to write, which must not hold a head."""
    check: list[str] = option([])
    """A head, or mtp, and a target, to be looked at together; nothing is written."""
    draft_vocab: int = 0
    """Draft this many tokens only, the most frequent ones in --data. 0: as it is."""
    to: Literal["", "llama.cpp", "vllm"] = ""
    """The engine that the head is written for, and refused with the reason if it cannot run there:
    llama.cpp, of EAGLE-3 heads alone; or vllm, which with plugins/vllm reads a head of EAGLE-1/2
    too. Empty: this project and upstream."""
    data: list[str] = option([])
    """Answers by which --draft_vocab chooses, as for train_head.py."""

    def __post_init__(self):
        converts = bool(self.head and self.output)
        adds = self.head or self.output or self.draft_vocab or self.data or self.to
        if (len(self.check) != 2 or adds) if self.check else not converts:
            raise BadInput(
                "give --head and --output to convert; or --check HEAD TARGET, which only looks: "
                "leave --head, --output and what converts out"
            )
        if bool(self.data) != bool(self.draft_vocab):
            raise BadInput("--draft_vocab and --data, files of answers, go together: give both")


def check(options: ConvertOptions) -> None:
    from eagle_fsd.heads.files import stored_head
    from eagle_fsd.heads.mtp_files import is_mtp
    from eagle_fsd.models.load import load_head, load_target_config

    head, target = options.check
    config = load_target_config(target)
    if is_mtp(head):  # refused, where something is wrong with it
        layer = load_head(head, config, target=target).config.target
        page, faults = {"head": f"MTP of a checkpoint of type {layer.model_type}"}, []
    else:
        stored = stored_head(head, config)
        page, faults = stored.page(config.num_hidden_layers), stored.faults
    print(f"{head} for {target}")
    for label, text in [*page.items(), *(("wrong", each) for each in faults or ["nothing found"])]:
        print(f"{label:<10}{text}")
    if faults:
        raise BadInput(f"faults of {head} for {target}: {len(faults)}, named above")


def run(options: ConvertOptions) -> None:
    """Check a head, or read it, write it and report."""
    if options.check:
        return check(options)
    from eagle_fsd.heads.files import read_head, write_head
    from eagle_fsd.heads.layouts import unread_by
    from eagle_fsd.heads.mtp_files import is_mtp
    from eagle_fsd.runs.folder import lock_folder

    if is_mtp(options.head):
        raise BadInput(
            f"--head {options.head} is an MTP layer, which no EAGLE layout has a place for: it "
            "norms the embedding and the hidden state before its fc; give it as --head as it is"
        )
    if os.path.exists(Path(options.output) / "config.json"):
        raise BadInput(f"--output {options.output} holds a config.json already: name another")
    head, notes = read_head(options.head)
    kind = "EAGLE-3" if head.config.eagle3 else "EAGLE-1/2"
    print(f"read {options.head}: {kind} head; {'; '.join(notes)}")
    if options.to and (unread := unread_by(options.to, head.config)):
        raise BadInput(f"{options.to} does not run --head {options.head}: {'; '.join(unread)}")
    if options.draft_vocab:
        head = confined(head, options)
    with lock_folder(Path(options.output)):
        write_head(options.output, head, reader=options.to)
    own = sum(parameter.numel() for parameter in head.parameters())
    print(f"wrote {options.output}: {own:,} parameters")
    for key, tensor in head.state_dict().items():
        print(f"  {key} {tuple(tensor.shape)}")


def confined(head: "DraftHead", options: ConvertOptions) -> "DraftHead":
    """The head with the draft vocabulary asked for."""
    import torch

    from eagle_fsd.heads.draft_vocabulary import (
        answer_counts,
        coverage,
        cut_vocabulary,
        frequent_tokens,
    )
    from eagle_fsd.training.data import read_dialogues

    V = head.config.vocab_size
    read = (read_dialogues(path, vocab_size=V) for path in options.data)
    counts = answer_counts(chain.from_iterable(read))
    # a head without an lm_head reads the target's, which has a row for every token
    every = head.lm_head is None or head.draft_token_R is None
    former_X = torch.arange(V) if every else head.draft_token_R
    token_R = frequent_tokens(counts, options.draft_vocab, former_X)
    unseen = sum(counts[token] == 0 for token in token_R.tolist())
    print(
        f"draft vocabulary: {len(token_R):,} of the {len(former_X):,} tokens that the head can "
        f"draft, {coverage(counts, token_R):.2%} of the {counts.total():,} answer tokens in"
        f" --data; {unseen:,} of them do not occur there"
    )
    return cut_vocabulary(head, token_R)


if __name__ == "__main__":
    run_command(run, [ConvertOptions])
