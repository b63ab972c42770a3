"""Turns that something slowed down are found, and nothing else; the machine's noise."""

import copy
import random

import pytest
from hand_records import made_run

from eagle_fsd.evaluation.disturbed import disturbed_turns
from eagle_fsd.evaluation.metrics import summarize
from eagle_fsd.evaluation.report.run_data import RunData


def timed_run(rate: float) -> dict[str, list[dict]]:
    """Eight questions of two turns by arms whose rounds differ in length, up to a tenth of noise;
    prompts from short to long, of which prefill reads `rate` tokens in the time of a round."""
    draw = random.Random(1)
    records = made_run(8)
    records["generate"] = copy.deepcopy(records["plain"])
    for number, rows in enumerate(records.values()):
        for row in rows:
            row["turns"] = [copy.deepcopy(row["turns"][0]) for _ in range(2)]
            for at, turn in enumerate(row["turns"]):
                turn["prompt_tokens"] = 40 + 60 * row["question_id"] + 500 * at
                turn["rounds"] *= 1 + draw.randrange(3)
                work = 1 + len(turn["rounds"]) + turn["prompt_tokens"] / rate
                turn["seconds"] = (1 + number) * work * draw.uniform(0.95, 1.05)
    for turn in (turn for row in records["generate"] for turn in row["turns"]):
        turn["token_ids"], turn["rounds"] = turn["token_ids"][:1] * len(turn["rounds"]), []
    return records


@pytest.mark.parametrize("rate", [20, 1000])
def test_a_slowed_turn_is_found_and_nothing_else(rate):
    """Of one arm, of several, of nearly all on one question, of transformers' own loop; a short
    answer to a long prompt is none."""
    records = timed_run(rate)
    assert not disturbed_turns(records)
    slowed = {("exact", 3, 2): 4, ("plain", 3, 2): 5, ("generate", 5, 1): 3, ("fsd:0.2", 0, 1): 3}
    slowed |= {(arm, 6, 1): 4 for arm in [*records][:4]}
    for (arm, question, turn), times in slowed.items():
        records[arm][question]["turns"][turn - 1]["seconds"] *= times
    found = {(t.arm, t.question_id, t.turn): t.times for t in disturbed_turns(records)}
    assert found == pytest.approx(slowed, rel=0.25)
    assert sorted(found.values(), reverse=True) == [*found.values()]


def test_one_disturbed_answer_moves_the_total_and_not_the_median():
    """The sentence on the arm says the median then, and the notes which answer it was. Where
    seconds are no timings nothing is said."""
    sessions = [{"session": "1", "timed": True, "warnings": [], "versions": {}, "commit": "abc"}]
    quiet, records = timed_run(16), timed_run(16)
    records["exact"][2]["turns"][0]["seconds"] *= 20
    before, after = ({row["arm"]: row for row in summarize(run)} for run in (quiet, records))
    pair = before["exact"], after["exact"]
    total, shifted = (row["speed_vs_plain"]["value"] for row in pair)
    median, held = (row["median_speed_vs_plain"] for row in pair)
    assert shifted < 0.7 * total and held["value"] == pytest.approx(median["value"], rel=0.1)
    run = RunData("", {}, sessions, records)
    (row,) = (row for row in run.rows if row["arm"] == "exact")
    assert f"{held['value']:.2f} times" in run.verdict(row)
    (note,) = (text for text in run.doubts() if "--retime" in text)
    assert "1 of 112 turns" in note and "exact on question 2, turn 1 (1" in note
    untimed = RunData("", {}, [sessions[0] | {"timed": False}], records)
    assert not untimed.disturbed and not any("--retime" in text for text in untimed.doubts())


def test_same_work_is_that_of_the_same_rounds():
    """Other tokens, or the same in other rounds, or by another drafter, are other work."""

    def answer(seconds: float, *rounds: list[int]) -> list[dict]:
        turn = {"seconds": seconds, "rounds": [{"tokens": tokens} for tokens in rounds]}
        return [{"question_id": 1, "session": "1", "turns": [turn]}]

    records = {
        "plain": answer(9.0, [1, 2]),
        "exact": answer(2.0, [1, 2]),
        "fsd:0.1": answer(3.0, [1, 2]),
        "fsd:0.2": answer(5.0, [1, 3]),
        "fsd:0.3": answer(5.0, [1], [2]),
        "fsd:0.3@eagle:7x3x4": answer(5.0, [1, 2]),
    }
    run = RunData("", {}, [], records)
    assert run.same_work == [0.5] and run.noise == 0.5
    assert "took 50 % longer than the fastest in the median" in run.noise_note()
    assert RunData("", {}, [], {"plain": records["plain"]}).noise == 0
