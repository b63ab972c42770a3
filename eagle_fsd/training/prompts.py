"""Where training conversations come from: files, packages, hub data sets, and their mixture.

What is asked of the target's own ("self") is written in dialogues.py; here it is only a name.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eagle_fsd.config import BadInput
from eagle_fsd.models.assets import sharegpt_file
from eagle_fsd.models.chat import Message
from eagle_fsd.runs.jsonl import read_records

SELF = "self"
FORMS = (
    '{"conversations": [{"from", "value"}]}, {"messages": [{"role", "content"}]}, a text, or '
    '{"prompt"}, {"question"}, {"user"}, {"turns"}'
)
ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
}


def parse_record(record: object) -> list[Message] | None:
    """A record in one of FORMS as messages: an optional system message, then user and assistant by
    turns. None if it is malformed: another form, roles that do not alternate, an empty turn.

    A list of turns is user turns without the answers between them.
    """
    if isinstance(record, str):
        return _checked([{"role": "user", "content": record}])
    if not isinstance(record, dict):
        return None
    if isinstance(turns := record.get("conversations"), list):
        return _checked([_message(turn, "from", "value") for turn in turns])
    if isinstance(turns := record.get("messages"), list):
        return _checked([_message(turn, "role", "content") for turn in turns])
    if isinstance(turns := record.get("turns"), list):
        return _checked([{"role": "user", "content": turn} for turn in turns], answers=False)
    for key in ("prompt", "question", "user"):
        if isinstance(record.get(key), str):
            return _checked([{"role": "user", "content": record[key]}])
    return None


def _message(turn: object, role: str, content: str) -> Message | None:
    if not isinstance(turn, dict) or turn.get(role) not in ROLES:
        return None
    return {"role": ROLES[turn[role]], "content": turn.get(content)}


def _checked(messages: list[Message | None], *, answers: bool = True) -> list[Message] | None:
    if not messages or None in messages:
        return None
    if not all(isinstance(m["content"], str) and m["content"].strip() for m in messages):
        return None
    turns = messages[1:] if messages[0]["role"] == "system" else messages
    wanted = ("user", "assistant") if answers else ("user",)
    if not turns or any(m["role"] != wanted[i % len(wanted)] for i, m in enumerate(turns)):
        return None
    return messages


def read_hub(name: str) -> list:
    """Records of a hub data set, `owner/name` or `owner/name:split` (default split: train)."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise BadInput(
            f"source hub:{name} needs the package datasets: pip install datasets"
        ) from error
    name, _, split = name.partition(":")
    try:
        return list(load_dataset(name, split=split or "train"))
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot load the hub data set {name!r} ({error})") from error


def read_source(name: str) -> list[list[Message] | None]:
    """Conversations of a source; None stands for a malformed one.

    Raises:
        BadInput: see read_records and read_hub; or no record has a known form.
    """
    if name == "sharegpt":
        records = _records(sharegpt_file())
    elif name.startswith("hub:"):
        records = read_hub(name.removeprefix("hub:"))
    elif Path(name).is_file():
        records = _records(name)
    else:
        raise BadInput(
            f"unknown source {name!r}: give {SELF}, sharegpt, hub:owner/name, or a file that exists"
        )
    conversations = [parse_record(record) for record in records]
    if not any(conversations):
        raise BadInput(f"source {name!r} holds no conversation; known forms: {FORMS}")
    return conversations


def _records(path: str | Path) -> list:
    return [record for _, record in read_records(path)]


@dataclass(frozen=True)
class Draw:
    """The dialogue number `number` is to come from record `record` of a source.

    The target's own turns have no record: -1.
    """

    number: int
    source: str
    record: int


class Mixture:
    """Sources with weights, drawn from in an order that depends on the seed alone.

    Args:
        weights: source -> weight.
        sizes: source -> number of records; a source that is used up is left out from then on, and
            `self` is never used up.
    """

    def __init__(self, weights: dict[str, float], sizes: dict[str, int], *, seed: int):
        self.weights = weights
        self.sizes = sizes
        self.seed = seed

    def draws(self) -> Iterator[Draw]:
        """Draws number 0, 1, 2, ... until every source is used up."""
        order = {}
        for name, size in self.sizes.items():
            order[name] = list(range(size))
            random.Random(f"{self.seed}/order/{name}").shuffle(order[name])
        left = dict(self.weights)
        taken = dict.fromkeys(left, 0)
        rng = random.Random(f"{self.seed}/mixture")
        number = 0
        while left:
            (name,) = rng.choices(list(left), list(left.values()))
            if name != SELF and taken[name] == self.sizes[name]:
                del left[name]
                continue
            record = -1 if name == SELF else order[name][taken[name]]
            taken[name] += 1
            yield Draw(number, name, record)
            number += 1


def parse_weights(sources: list[str]) -> dict[str, float]:
    """`["self=0.6", "prompts.jsonl=0.4"]` as a dict; a source without a weight gets 1.

    Raises:
        BadInput: a weight is no positive number, or a source is named twice.
    """
    weights: dict[str, float] = {}
    for text in sources:
        name, equals, weight = text.rpartition("=") if "=" in text else (text, "", "1")
        try:
            value = float(weight)
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf") or not name:
            raise BadInput(f"--sources {text!r}: expected SOURCE=WEIGHT with a positive weight")
        if name in weights:
            raise BadInput(f"--sources names {name!r} twice")
        weights[name] = value
    if not weights:
        raise BadInput("--sources is empty: name at least one, e.g. self")
    return weights
