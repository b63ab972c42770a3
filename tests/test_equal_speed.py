"""Loss at equal speed: read off between thresholds, with intervals over questions."""

import math
import random

import numpy as np
import pytest

from eagle_fsd.evaluation.curves import crossing, equal_speed

CELL = {"run": "r", "divergence": None, "logits": None, "child": None, "threshold": None}
CELL |= {"tree": None, "temperature": "0", "top_k": "0", "top_p": "1"}


def record(question: int, lengths: list[int], fuzzy: int, share: float) -> dict:
    """One answer of as many tokens as its rounds have, with prefill's."""
    rounds = [
        {"tokens": [0] * n, "fuzzy": [0] * n, "regret": [0.0] * n, "tv": [0.0] * n} for n in lengths
    ]
    for number in range(fuzzy):
        rounds[number]["fuzzy"][0], rounds[number]["regret"][0] = 1, 2.0
    turn = {"token_ids": list(range(1 + sum(lengths))), "rounds": rounds, "finish": "stop"}
    turn |= {"seconds": 1.0, "rescored_argmax_share": share, "rescored_mean_logp": -1.0 - share}
    return {"question_id": question, "turns": [turn]}


def arms(questions: int = 9) -> tuple[dict, list[dict]]:
    """plain at 1 token a round, exact at 2, T .2 and .4 at 2.2 and 2.4, varying by question."""
    rng = random.Random(0)
    lengths = {"plain": [1] * 10, "exact": [2] * 10}
    lengths |= {"a": [2] * 8 + [3] * 2, "b": [2] * 6 + [3] * 4}
    share, fuzzy = {"plain": 1.0, "exact": 1.0, "a": 0.9, "b": 0.7}, {"a": 1, "b": 4}
    records = {
        ("r", arm): [
            record(q, found + [found[0]] * rng.randrange(2), fuzzy.get(arm, 0), share[arm])
            for q in range(questions)
        ]
        for arm, found in lengths.items()
    }
    rows = [
        CELL | {"arm": "plain", "rule": "plain"},
        CELL | {"arm": "exact", "rule": "exact", "tree": "15x4x6"},
        CELL | {"arm": "b", "rule": "fsd", "divergence": "js", "tree": "15x4x6", "threshold": 0.4},
        CELL | {"arm": "a", "rule": "fsd", "divergence": "js", "tree": "15x4x6", "threshold": 0.2},
    ]
    return records, rows


def test_a_line_is_read_off_between_its_thresholds():
    """By hand, from the arms' pooled rates; the gain that the line does not reach has no row."""
    records, rows = arms()
    found = {row["gain"]: row for row in equal_speed(records, rows)}
    assert set(found) == {1.05, 1.1}

    def tau(arm: str) -> float:
        rounds = [r for row in records["r", arm] for r in row["turns"][0]["rounds"]]
        return sum(len(r["tokens"]) for r in rounds) / len(rounds)

    at = (1.05 - 1) / (tau("a") / tau("exact") - 1)
    assert 0 < at < 1
    low = found[1.05]
    assert low["threshold"] == pytest.approx(0.2 * at)
    assert low["argmax_share"]["value"] == pytest.approx(-0.1 * at)
    assert low["mean_logp"]["value"] == pytest.approx(0.1 * at)
    assert low["argmax_share"]["low"] < low["argmax_share"]["value"] < low["argmax_share"]["high"]
    tokens = sum(len(r["tokens"]) for row in records["r", "a"] for r in row["turns"][0]["rounds"])
    assert low["fuzzy_share"]["value"] == pytest.approx(9 / tokens * at)
    assert low["regret_per_token"]["value"] == pytest.approx(18 / tokens * at)


def test_one_question_has_no_interval():
    """And what not all arms have answered is left out."""
    records, rows = arms(1)
    for row in equal_speed(records, rows):
        assert row["argmax_share"]["value"] < 0 and row["argmax_share"]["low"] is None
    whole, rows = arms(4)
    less = {key: found[: 3 if key[1] == "b" else 4] for key, found in whole.items()}
    same = {key: found[:3] for key, found in whole.items()}
    assert equal_speed(less, rows) == equal_speed(same, rows)


def test_without_baselines_there_is_no_row():
    records, rows = arms()
    assert equal_speed(records, [row for row in rows if row["rule"] != "exact"]) == []
    assert equal_speed(records, [row for row in rows if row["rule"] != "plain"]) == []


def test_crossing():
    """The first crossing counts; nothing is extrapolated; a flat piece is passed over."""
    gain_A, loss_A = np.array([1.0, 1.0, 1.2, 1.1, 1.4]), np.array([0.0, 5.0, 7.0, 9.0, 3.0])
    assert crossing(gain_A, loss_A, 1.1) == pytest.approx(6.0)
    assert crossing(gain_A, loss_A, 1.3) == pytest.approx(5.0)
    assert math.isnan(crossing(gain_A, loss_A, 1.5)) and math.isnan(crossing(gain_A, loss_A, 0.9))
