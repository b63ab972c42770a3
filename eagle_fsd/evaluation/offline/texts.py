"""The target's own greedy texts, stored once: what every head is replayed on (replay.py).

Their folder is a run's (runs/folder.py): records/texts.jsonl has a question a line, its prompt and
the greedy tokens whatever the stop tokens. A text for a budget is cut from them when it is read, so
a store made for 128 tokens also serves 64. Features are not stored: one forward a question gives
them back, equal to those of step-by-step decoding up to float32 rounding.
"""

from dataclasses import dataclass

from tqdm import tqdm

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.drafter import RootDrafter
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode
from eagle_fsd.decoding.target import Target
from eagle_fsd.models.generate import Request, complete
from eagle_fsd.rules.fsd import Exact
from eagle_fsd.runs.folder import Run

# Tokens kept beyond an answer's end: a round's accepted drafts are counted before trimming, so the
# last rounds look past it. The deepest tree that can be replayed has as many levels.
BEYOND = 16
BATCH = 16  # questions decoded together; a killed run loses at most these

Prompts = dict[int | str, list[int]]  # by question id


@dataclass(frozen=True)
class PlainText:
    """A prompt, the plain greedy answer to it, trimmed as the loop does, and BEYOND further greedy
    tokens."""

    prompt: list[int]
    answer: list[int]
    beyond: list[int]

    @property
    def ids(self) -> list[int]:
        return [*self.prompt, *self.answer, *self.beyond]

    @property
    def roots(self) -> range:
        """Indices into `ids` of every token that may be a round's root: all of the answer but the
        last. The first is the one that prefill yields.

        Example, prompt a b, answer c d e, beyond f ..:  ids a b c d e f ..   roots 2 3
        """
        return range(len(self.prompt), len(self.prompt) + len(self.answer) - 1)


def cut(prompt: list[int], greedy: list[int], stop: StopConfig) -> PlainText | None:
    """The text for a budget; None if more greedy tokens are needed."""
    answer, finish = stop.trim([], greedy)
    beyond = greedy[len(answer) :][:BEYOND]
    return None if finish is None or len(beyond) < BEYOND else PlainText(prompt, answer, beyond)


def plain_texts(
    run: Run, target: Target, prompts: Prompts, stop: StopConfig
) -> dict[int | str, PlainText]:
    """The texts of the prompts for a budget; those that the store does not hold yet, for other
    questions or other texts of theirs, are made.

    Args:
        run: the store, whose settings are what the texts depend on: target, dtype, template.

    Raises:
        BadInput: the target has too few positions.
    """

    def stored(key: int | str) -> PlainText | None:
        row = run.records["texts"].get((key, 0))
        known = row and row["prompt_ids"] == prompts[key]
        return cut(prompts[key], row["greedy_ids"], stop) if known else None

    missing = {key: prompt for key, prompt in prompts.items() if stored(key) is None}
    if missing:
        _make(run, target, missing, stop.max_new_tokens + BEYOND)
    return {key: stored(key) for key in prompts}


def _make(run: Run, target: Target, prompts: Prompts, count: int) -> None:
    """Record `count` greedy tokens of each prompt, made in batches, many times faster than one by
    one. Each text is then run alone in one forward; where a token is not the argmax there (a tie
    that the batch resolved otherwise), it is decoded by the one loop instead."""
    longest = max(map(len, prompts.values()))
    if longest + count > target.max_positions:
        raise BadInput(
            f"prompt of {longest} tokens + max_new_tokens {count - BEYOND} + {BEYOND} that replay "
            f"looks ahead is beyond the target's {target.max_positions} positions: lower the budget"
        )
    run.begin_session()
    one_by_one = DecodeConfig(Policy(Exact()), StopConfig(count))
    keys = {Request(prompt, count): key for key, prompt in prompts.items()}
    waiting = iter(sorted(keys, key=lambda request: len(request.prompt)))
    made = complete(target, lambda: next(waiting, None), batch_size=BATCH)
    for request in tqdm(made, total=len(keys), desc="texts"):
        tokens = request.tokens
        if target.rescore(request.prompt, tokens)[0] < 1:
            tokens = decode(target, RootDrafter(), request.prompt, one_by_one).tokens
        row = {"question_id": keys[request], "prompt_ids": request.prompt, "greedy_ids": tokens}
        run.add("texts", row)
