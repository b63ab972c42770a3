"""What seconds are worth: turns that something else on the machine slowed down, and its noise."""

import math
from collections.abc import Mapping, Sequence
from statistics import median, median_low
from typing import NamedTuple

from eagle_fsd.arms import parse_arm
from eagle_fsd.evaluation.record_numbers import Record, rounds_of, seconds
from eagle_fsd.runs.folder import answer_key

# Times as long as its neighbours: of the 100 turns of a run beside eight other processes on two
# cores, where the same work varied by half, none took more than 1.9 times (results/disturbed).
DISTURBED = 2.0
# Tokens of a prompt that prefill reads in the time of one round, from a slow CPU to a GPU, where
# prefill is a round like others: a short answer to a long prompt is no disturbed one.
PREFILL_RATES = (8, 16, 32, 64, math.inf)


class Disturbed(NamedTuple):
    """A turn, numbered from 1, that took `times` as long as its neighbours."""

    arm: str
    question_id: int | str
    choice: int
    turn: int
    times: float


def disturbed_turns(records: Mapping[str, Sequence[Record]]) -> list[Disturbed]:
    """The turns that took more than DISTURBED times as long as their neighbours, the longest first:
    the other turns of the arm, and the other arms on the same turn."""
    # that rate of prefill holds by which the turns are most alike
    every = [_times(records, rate) for rate in PREFILL_RATES]
    turns = min(every, key=lambda turns: median([abs(math.log(t.times)) for t in turns] or [0]))
    return sorted((t for t in turns if t.times > DISTURBED), key=lambda t: -t.times)


def _times(records: Mapping[str, Sequence[Record]], rate: float) -> list[Disturbed]:
    # 1. A turn's seconds a round over the median of its arm's: rules and trees differ.
    slow: dict[tuple, dict[str, float]] = {}  # of a turn, by arm
    for arm, rows in records.items():
        own = {}
        for row in rows:
            for number, turn in enumerate(row["turns"], start=1):
                # transformers' own loop records no rounds, each of its tokens is one
                rounds = len(turn["rounds"]) or len(turn["token_ids"])
                spent = turn["seconds"] / (1 + rounds + turn["prompt_tokens"] / rate)
                own[(*answer_key(row), number)] = spent
        usual = median(own.values())
        for place, spent in own.items():
            slow.setdefault(place, {})[arm] = spent / usual
    # 2. That over what other arms took on the same turn, since questions differ; of these the lower
    # median, as several may be disturbed.
    found = []
    for place, by_arm in slow.items():
        for arm, value in by_arm.items():
            others = [other for name, other in by_arm.items() if name != arm]
            found.append(Disturbed(arm, *place, value / median_low(others or [1.0])))
    return found


def same_work(records: Mapping[str, Sequence[Record]]) -> list[float]:
    """How much longer the slowest of several arms took than the fastest, for every answer that
    they made by the same rounds, token for token: what noise alone does. 0.1: 10 %."""
    groups: dict[tuple, list[float]] = {}
    for arm, rows in records.items():
        drafter = parse_arm(arm).drafter
        for row in rows if drafter else []:
            work = tuple(tuple(r["tokens"]) for r in rounds_of(row))
            groups.setdefault((drafter, *answer_key(row), work), []).append(seconds(row))
    return [
        max(times) / min(times) - 1 for times in groups.values() if len(times) > 1 and all(times)
    ]
