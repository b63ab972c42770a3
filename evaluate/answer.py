"""Answer one prompt, streaming.

    python evaluate/answer.py --prompt "Why is the sky blue?" --arm fsd:0.3
    python evaluate/answer.py --prompt "..." --arm exact           # lossless EAGLE-2
    python evaluate/answer.py --prompt "..." --arm plain           # no drafts
    python evaluate/answer.py --prompt "..." --show                # fuzzy tokens and rounds, marked
    python evaluate/answer.py --prompt "..." --html trees.html     # a page of its draft trees

The answer goes to standard output as it comes, what it cost to standard error. A terminal shows
fuzzy tokens in colour, unless NO_COLOR is set; elsewhere they are coloured only if FORCE_COLOR is.
With --show the borders of rounds are marked too, and where there is no colour, fuzzy tokens stand
in [square brackets] and a | stands between rounds.
"""

import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from eagle_fsd.cli import run_command
from eagle_fsd.config import DEFAULT_ARM, BadInput
from eagle_fsd.options import ModelOptions, SamplingOptions


@dataclass
class AnswerOptions:
    prompt: str
    """The user's message."""
    arm: str = DEFAULT_ARM
    """How drafts are accepted and made: rule[:value][,field=value][@drafter[:tree]], or plain."""
    max_new_tokens: int = 256
    """The most tokens that the answer may have."""
    show: bool = False
    """Mark the fuzzy tokens and the borders of rounds: by colours on a terminal, elsewhere by
    [square brackets] around fuzzy tokens and a | between rounds."""
    html: str = ""
    """A file to write, with a page of the draft tree of every round. Empty: none is written."""


COLORS = ("\033[30;43m", "\033[0m")  # black on yellow
BORDER = "\033[2m|\033[0m"  # faint
ENDS = {"stop": "at a stop token or string", "length": "at its budget of tokens"}


def run(options: AnswerOptions, sampling: SamplingOptions, model_options: ModelOptions) -> None:
    from eagle_fsd.api import Answer, stream
    from eagle_fsd.arms import parse_arm
    from eagle_fsd.decoding.loop import StopConfig
    from eagle_fsd.evaluation.answering import TurnTrace
    from eagle_fsd.messages import read_messages
    from eagle_fsd.runs.jsonl import write_file
    from eagle_fsd.timing import synchronized_time

    read_messages(options.prompt)  # is it text?
    arm = parse_arm(options.arm)
    arm.check_answers()
    arm.check(sampling.sampling())
    StopConfig(options.max_new_tokens)  # checked before weights load
    if os.path.isdir(options.html) or any(map(os.path.isfile, Path(options.html).parents)):
        raise BadInput(f"--html {options.html} is a folder, or lies in a file: name a file")
    model = model_options.load([arm])
    trace = TurnTrace(model, arm) if options.html else None
    colored = "FORCE_COLOR" in os.environ or sys.stdout.isatty() and "NO_COLOR" not in os.environ
    marks = COLORS if colored else ("[", "]") if options.show else ("", "")
    border = "" if not options.show else BORDER if colored else "|"
    began = synchronized_time(model.target.device)
    answer, shown = Answer(), 0
    settings = {"arm": options.arm, "max_new_tokens": options.max_new_tokens, **asdict(sampling)}
    watch = trace.take if trace else None
    for _, answer in stream(model, options.prompt, **settings, watch=watch):
        marked = answer.marked(marks, border)
        print(marked[shown:], end="", flush=True)
        shown = len(marked)
    seconds = synchronized_time(model.target.device) - began
    print()
    count = len(answer.tokens)
    cost = f"{count} tokens in {seconds:.1f} seconds ({count / seconds:.1f} tokens/s)"
    if answer.rounds and arm.drafts:
        cost += (
            f", {answer.tokens_per_round:.2f} tokens per round, {sum(answer.fuzzy)} fuzzy "
            f"(a share of {answer.fuzzy_share:.3f})"
        )
    cost += f"; the answer ended {ENDS[answer.finish]}"
    print(f"[{cost}]", file=sys.stderr)
    if trace:
        # here, since it brings in what draws plots, which takes as long as a short answer
        from eagle_fsd.evaluation.report.write_report import answer_page

        page = answer_page(
            trace.taken,
            [text for text, *_ in answer.pieces()],
            thought=answer.thought,
            prompt=options.prompt,
            arm=arm.text,
            greedy=sampling.temperature == 0,
            subject=f"{model_options.target}: {cost}",
        )
        write_file(Path(options.html), page)
        print(f"The page of its draft trees is in {options.html}", file=sys.stderr)


if __name__ == "__main__":
    run_command(run, [AnswerOptions, SamplingOptions, ModelOptions])
