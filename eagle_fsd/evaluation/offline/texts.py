"""The target's own greedy texts, stored once: what every head is replayed on (growth.py).

texts.jsonl: a first line with the settings, then a question a line: its prompt and the greedy
tokens, whatever the budget and the stop tokens. A text for a budget is cut from them when it is
read, so a store made for 128 tokens also serves 64. Features are not stored: one forward a question
gives them back, equal to those of step-by-step decoding up to float32 rounding.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.drafter import RootDrafter
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode
from eagle_fsd.decoding.target import Target
from eagle_fsd.models.generate import Request, complete
from eagle_fsd.rules.fsd import Exact
from eagle_fsd.runs.jsonl import append_line, open_rows

# Tokens kept beyond an answer's end: a round's accepted drafts are counted before trimming, so the
# last rounds look past it. The deepest tree that can be replayed has as many levels.
BEYOND = 16
BATCH = 16  # questions decoded together; a killed run loses at most these

Prompts = dict[int | str, tuple[str, list[int]]]  # question id -> (category, prompt tokens)


@dataclass(frozen=True)
class PlainText:
    """A prompt, the plain greedy answer to it, and what the target would have said next.

    Attributes:
        answer: trimmed at stop and budget, as the loop does.
        beyond: BEYOND greedy tokens after the answer's end.
    """

    question_id: int | str
    category: str
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


def cut(
    greedy: list[int], stop: StopConfig, *, question_id: int | str, category: str, prompt: list[int]
) -> PlainText | None:
    """The text for a budget; None if more greedy tokens are needed."""
    answer, finish = stop.trim([], greedy)
    if finish is None or len(answer) + BEYOND > len(greedy):
        return None
    beyond = greedy[len(answer) : len(answer) + BEYOND]
    return PlainText(question_id, category, prompt, answer, beyond)


def check_positions(target: Target, prompt: list[int], stop: StopConfig) -> None:
    """Refuse what the target has no positions for.

    Raises:
        BadInput: names the lengths.
    """
    if len(prompt) + stop.max_new_tokens + BEYOND > target.max_positions:
        raise BadInput(
            f"prompt of {len(prompt)} tokens + max_new_tokens {stop.max_new_tokens} + {BEYOND} "
            f"that replay looks ahead is beyond the target's {target.max_positions} positions: "
            "lower the budget"
        )


@torch.inference_mode()
def greedy_tokens(target: Target, prompts: list[list[int]], stop: StopConfig) -> list[list[int]]:
    """Greedy continuations of several prompts, past their stops, max_new_tokens + BEYOND each.

    They are made in one batch, many times faster than one by one. Each is then run alone in one
    forward; where a token is not the argmax there (a tie that the batch resolved otherwise), the
    text is decoded by the one loop instead.
    """
    count = stop.max_new_tokens + BEYOND
    requests = [Request(prompt, count) for prompt in prompts]
    waiting = deque(requests)
    for _ in complete(
        target, lambda: waiting.popleft() if waiting else None, batch_size=len(prompts)
    ):
        pass
    texts = [request.tokens for request in requests]
    return [
        text if target.rescore(prompt, text)[0] == 1.0 else _decoded(target, prompt, count)
        for prompt, text in zip(prompts, texts, strict=True)
    ]


def _decoded(target: Target, prompt: list[int], count: int) -> list[int]:
    config = DecodeConfig(Policy(Exact()), StopConfig(count))
    return decode(target, RootDrafter(), prompt, config).tokens


class TextStore:
    """The stored texts of one target.

    Args:
        folder: holds texts.jsonl; made if needed.
        settings: what the texts depend on (target, dtype, template).
    """

    def __init__(self, folder: str | Path, settings: dict):
        self.path = Path(folder) / "texts.jsonl"
        self.rows = open_rows(self.path, settings)

    def find(
        self, question_id: int | str, category: str, prompt: list[int], stop: StopConfig
    ) -> PlainText | None:
        """The stored text for this budget, or None.

        Raises:
            BadInput: the question was stored with another prompt.
        """
        row = self.rows.get(question_id)
        if row is None:
            return None
        if row["prompt_ids"] != prompt:
            raise BadInput(
                f"{self.path} holds another prompt for question {question_id!r}: name another "
                "folder for this question file"
            )
        return cut(
            row["greedy_ids"], stop, question_id=question_id, category=category, prompt=prompt
        )

    def missing(self, prompts: Prompts, stop: StopConfig) -> list[int | str]:
        """Questions without a text for this budget, the shortest prompts first."""
        ids = [key for key in prompts if self.find(key, *prompts[key], stop) is None]
        return sorted(ids, key=lambda key: len(prompts[key][1]))

    def fill(self, target: Target, prompts: Prompts, stop: StopConfig) -> Iterator[int | str]:
        """Decode and store what is missing, a batch at a time, yielding each question's id once
        it is on disk.

        Raises:
            BadInput: see check_positions.
        """
        missing = self.missing(prompts, stop)
        for key in missing:
            check_positions(target, prompts[key][1], stop)
        for first in range(0, len(missing), BATCH):
            keys = missing[first : first + BATCH]
            batch = [prompts[key][1] for key in keys]
            for key, prompt, greedy in zip(
                keys, batch, greedy_tokens(target, batch, stop), strict=True
            ):
                row = {"question_id": key, "prompt_ids": prompt, "greedy_ids": greedy}
                append_line(self.path, row)  # of two lines with one id the later counts
                self.rows[key] = row
                yield key
