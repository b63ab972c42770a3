"""Answer one prompt, streaming.

    python evaluate/answer.py --prompt "Why is the sky blue?" --threshold 0.2
    python evaluate/answer.py --prompt "..." --rule exact          # lossless EAGLE-2
    python evaluate/answer.py --prompt "..." --plain               # no drafts

The answer goes to standard output as it comes, what it cost to standard error.
"""

import sys
from dataclasses import asdict, dataclass, field

from eagle_fsd.api import Answer, stream
from eagle_fsd.config import AcceptConfig, BadInput
from eagle_fsd.decoding.clock import synchronized_time
from eagle_fsd.decoding.loop import StopConfig
from eagle_fsd.models.model_options import DecodeOptions, ModelOptions, option
from eagle_fsd.runs.command import run_command


@dataclass
class AnswerOptions:
    prompt: str = field(metadata={"help": "the user's turn"})
    plain: bool = option(False, "decode without drafts")
    rule: str = option("fsd", "exact, fsd or fsd-paper")
    threshold: float = option(AcceptConfig.threshold, "T: larger is faster and further from exact")
    max_new_tokens: int = option(256, "budget of the answer")


def run(options: AnswerOptions, decoding: DecodeOptions, model_options: ModelOptions) -> None:
    if not options.prompt.strip():
        raise BadInput("the prompt is empty: give --prompt some text")
    decoding.accept(options.rule, options.threshold)  # checked before weights load
    StopConfig(options.max_new_tokens)
    model = model_options.load(drafts=not options.plain)
    began = synchronized_time(model.target.device)
    answer = Answer()
    for text, so_far in stream(
        model,
        options.prompt,
        rule=options.rule,
        threshold=options.threshold,
        max_new_tokens=options.max_new_tokens,
        **asdict(decoding),
    ):
        print(text, end="", flush=True)
        answer = so_far
    seconds = synchronized_time(model.target.device) - began
    print()
    figures = (
        f"{len(answer.tokens)} tokens in {seconds:.1f} s ({len(answer.tokens) / seconds:.1f}/s)"
    )
    if answer.rounds and not options.plain:
        figures += (
            f", {answer.tokens_per_round:.2f} tokens per round, "
            f"fuzzy share {answer.fuzzy_share:.3f}"
        )
    print(f"[{figures}; ended by {answer.finish}]", file=sys.stderr)


def main(arguments: list[str] | None = None) -> None:
    run_command(run, [AnswerOptions, DecodeOptions, ModelOptions], arguments)


if __name__ == "__main__":
    main()
