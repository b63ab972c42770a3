"""Answer one prompt, streaming.

    python evaluate/answer.py --prompt "Why is the sky blue?" --arm fsd:0.3
    python evaluate/answer.py --prompt "..." --arm exact           # lossless EAGLE-2
    python evaluate/answer.py --prompt "..." --arm plain           # no drafts

The answer goes to standard output as it comes, what it cost to standard error. On a terminal fuzzy
tokens are coloured, unless NO_COLOR is set; elsewhere only if FORCE_COLOR is.
"""

import os
import sys
from dataclasses import asdict, dataclass, field

from eagle_fsd.cli import ModelOptions, SamplingOptions, option, run_command
from eagle_fsd.config import DEFAULT_ARM, BadInput, check_text


@dataclass
class AnswerOptions:
    prompt: str = field(metadata={"help": "the user's turn"})
    arm: str = option(DEFAULT_ARM, "rule[:value][,field=value][@drafter[:tree]], or plain")
    max_new_tokens: int = option(256, "budget of the answer")


FUZZY, END = "\033[30;43m", "\033[0m"  # black on yellow


def run(options: AnswerOptions, sampling: SamplingOptions, model_options: ModelOptions) -> None:
    from eagle_fsd.api import Answer, stream
    from eagle_fsd.arms import parse_arm
    from eagle_fsd.decoding.loop import StopConfig
    from eagle_fsd.evaluation.answering import fuzzy_spans
    from eagle_fsd.timing import synchronized_time

    if not options.prompt.strip():
        raise BadInput("the prompt is empty: give --prompt some text")
    check_text(options.prompt)
    arm = parse_arm(options.arm)
    arm.check_answers()
    arm.check(sampling.sampling())
    StopConfig(options.max_new_tokens)  # checked before weights load
    model = model_options.load([arm])
    began = synchronized_time(model.target.device)
    answer = Answer()
    settings = {"arm": options.arm, "max_new_tokens": options.max_new_tokens, **asdict(sampling)}
    colored = "FORCE_COLOR" in os.environ or sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for text, answer in stream(model, options.prompt, **settings):
        spans = fuzzy_spans(model, answer) if colored else []
        print(marked(answer.text, spans, len(answer.text) - len(text)), end="", flush=True)
    seconds = synchronized_time(model.target.device) - began
    print()
    cost = f"{len(answer.tokens)} tokens in {seconds:.1f} s ({len(answer.tokens) / seconds:.1f}/s)"
    if answer.rounds and arm.drafts:
        cost += (
            f", {answer.tokens_per_round:.2f} tokens per round, "
            f"{sum(answer.fuzzy)} fuzzy (share {answer.fuzzy_share:.3f})"
        )
    print(f"[{cost}; ended by {answer.finish}]", file=sys.stderr)


def marked(text: str, spans: list[list[int]], first: int) -> str:
    """The text from its character `first` on, with the spans [begin, end) coloured."""
    pieces = []
    for begin, end in spans:
        if end > first:
            pieces += [text[first:begin], FUZZY, text[max(begin, first) : end], END]
            first = end
    return "".join([*pieces, text[first:]])


def main(arguments: list[str] | None = None) -> None:
    run_command(run, [AnswerOptions, SamplingOptions, ModelOptions], arguments)


if __name__ == "__main__":
    main()
