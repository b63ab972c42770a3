"""Where training conversations come from: files, packages, hub data sets, and their mixture.

What is asked of the target's own ("self") is written in dialogues.py; here it is only a name.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from eagle_fsd.config import BadInput
from eagle_fsd.models.assets import asset_dir
from eagle_fsd.models.loaded import Message
from eagle_fsd.runs.jsonl import read_records

SELF = "self"
FORMS = (
    '{"conversations": [{"from", "value"}]}, {"messages": [{"role", "content"}]}, a text, or '
    '{"prompt"}, {"question"}, {"user"}, {"turns"}'
)
USER, ASSISTANT, SYSTEM = "user", "assistant", "system"
ROLES = {"human": USER} | dict.fromkeys(("gpt", "chatgpt", "bing", "bard"), ASSISTANT)
ROLES |= {role: role for role in (USER, ASSISTANT, SYSTEM)}

Conversation = list[Message]


def parse_record(record: object) -> Conversation | None:
    """A record in one of FORMS as messages: an optional system message, then user and assistant by
    turns. None if it is malformed: another form, roles that do not alternate, an empty turn.

    A list of turns is user turns without the answers between them.
    """
    if isinstance(record, str):
        record = {"prompt": record}
    alternating = [USER, ASSISTANT]
    try:
        if turns := record.get("conversations"):
            messages = [{"role": ROLES[m["from"]], "content": m["value"]} for m in turns]
        elif turns := record.get("messages"):
            messages = [{"role": ROLES[m["role"]], "content": m["content"]} for m in turns]
        else:
            texts = [record[key] for key in ("prompt", "question", "user") if key in record]
            turns = record.get("turns", texts[:1])
            messages = [{"role": USER, "content": turn} for turn in turns]
            alternating = [USER]
    except (AttributeError, KeyError, TypeError):
        return None
    roles = [message["role"] for message in messages]
    roles = roles[1:] if roles[:1] == [SYSTEM] else roles
    if not roles or roles != (alternating * len(roles))[: len(roles)]:
        return None
    whole = all(isinstance(m["content"], str) and m["content"].strip() for m in messages)
    return messages if whole else None


def read_source(name: str) -> list[Conversation | None]:
    """Conversations of a source; None stands for a malformed one.

    Raises:
        BadInput: it is unknown or cannot be read (see read_records), or no record has a known form.
    """
    if name.startswith("hub:"):
        records = _hub_records(*name.split(":")[1:])
    elif name == "sharegpt" or Path(name).is_file():
        path = asset_dir("sharegpt") / "sharegpt.json" if name == "sharegpt" else name
        records = [record for _, record in read_records(path)]
    else:
        raise BadInput(
            f"unknown source {name!r}: give {SELF}, sharegpt, hub:owner/name, or a file that exists"
        )
    conversations = [parse_record(record) for record in records]
    if not any(conversations):
        raise BadInput(f"source {name!r} holds no conversation; known forms: {FORMS}")
    return conversations


def _hub_records(name: str, split: str = "train") -> list:
    try:
        from datasets import load_dataset

        return list(load_dataset(name, split=split))
    except (ImportError, OSError, ValueError) as error:
        raise BadInput(
            f"cannot load the hub data set {name!r} ({error}); it takes pip install datasets"
        ) from error


@dataclass(frozen=True)
class Candidate:
    """What a dialogue may be made of.

    Attributes:
        number: what is random about it depends on this.
        conversation: None for a malformed record, and for source self.
    """

    number: int
    source: str
    conversation: Conversation | None


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
            yield Candidate(number, name, next(left[name]))
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
