"""Answer one prompt, streaming.

    python evaluate/answer.py --prompt "Why is the sky blue?" --threshold 0.2
    python evaluate/answer.py --prompt "..." --rule exact          # lossless EAGLE-2
    python evaluate/answer.py --prompt "..." --plain               # no drafts

The answer goes to standard output as it comes, what it cost to standard error.
"""

import sys
from dataclasses import dataclass, field

from transformers import HfArgumentParser

from eagle_fsd.api import Answer, stream
from eagle_fsd.config import AcceptConfig, SamplingConfig
from eagle_fsd.options import ModelOptions, option
from eagle_fsd.timing import synchronized_time


@dataclass
class AnswerOptions:
    prompt: str = field(metadata={"help": "the user's turn"})
    plain: bool = option(False, "decode without drafts")
    rule: str = option("fsd", "exact, fsd or fsd-paper")
    divergence: str = option("js", "kl_target_draft, kl_draft_target, js, tv or js_reference")
    threshold: float = option(AcceptConfig.threshold, "T: larger is faster and further from exact")
    logits: str = option("raw", "divergence of raw rows, or processed by the sampling filters")
    child: str = option("draft", "which child when D passes: draft, target, deepest or sample")
    temperature: float = option(0.0, "0 is greedy")
    top_k: int = option(0, "0: off")
    top_p: float = option(1.0, "1: off")
    max_new_tokens: int = option(256, "budget of the answer")
    seed: int = option(0, "of all sampling")

    def settings(self) -> dict:
        """What eagle_fsd.stream takes, checked."""
        accept = AcceptConfig(self.rule, self.divergence, self.threshold, self.logits, self.child)
        accept.check_with(SamplingConfig(self.temperature, self.top_k, self.top_p))
        if not self.prompt.strip():
            raise ValueError("the prompt is empty: give --prompt some text")
        values = dict(vars(self))
        del values["prompt"], values["plain"]
        return values


def run(options: AnswerOptions, model_options: ModelOptions) -> None:
    settings = options.settings()
    model = model_options.load(drafts=not options.plain)
    began = synchronized_time(model.target.device)
    answer = Answer()
    for text, so_far in stream(model, options.prompt, **settings):
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
    parser = HfArgumentParser([AnswerOptions, ModelOptions])
    try:
        run(*parser.parse_args_into_dataclasses(arguments))
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
