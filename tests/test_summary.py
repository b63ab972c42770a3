"""Figures of a comparison against numbers worked out by hand; tables, picture, provenance."""

import json
import math
import os
import shlex
import sys
from pathlib import Path

import pytest

from eagle_fsd.plots import plot_speed_against_regret
from eagle_fsd.provenance import describe_run, without_checkout
from eagle_fsd.runs import Run
from eagle_fsd.summary import ceiling, summarize, tables

ROOT = Path(__file__).parent.parent


def turn(token_ids, seconds, rounds=(), *, finish="stop", share=1.0, logp=-1.0) -> dict:
    """`rounds` are (tokens, fuzzy, tv, regret) lists."""
    names = ("tokens", "fuzzy", "tv", "regret")
    return {
        "token_ids": list(token_ids),
        "seconds": seconds,
        "finish": finish,
        "rescored_argmax_share": share,
        "rescored_mean_logp": logp,
        "rounds": [dict(zip(names, r, strict=True)) for r in rounds],
    }


def record(question_id, *turns) -> dict:
    return {"question_id": question_id, "turns": list(turns)}


def plain_rounds(count: int) -> list:
    return [([1], [0], [], []) for _ in range(count)]


# Two questions; the first has two turns. Each arm's answers differ in length and time.
HAND = {
    "generate": [
        record("q1", turn([5, 6, 7], 2.0), turn([8, 9], 1.0)),
        record("q2", turn([4], 1.0, finish="length")),
    ],
    "plain": [
        record(
            "q1",
            turn([5, 6, 7], 1.0, plain_rounds(2)),
            turn([8, 9], 0.5, plain_rounds(1), share=0.5, logp=-2.0),
        ),
        record("q2", turn([4, 4, 4, 4, 4], 2.5, plain_rounds(4), finish="length")),
    ],
    "exact": [
        # tokens of rounds count before trimming: 3 + 1 in the first turn, of which 3 are kept
        record(
            "q1",
            turn([5, 6, 7], 0.5, [([6, 7, 8], [0, 0, 0], [0, 0], [0, 0])]),
            turn([8, 9], 0.25, [([9], [0], [0], [0])]),
        ),
        record("q2", turn([4, 4, 4, 4, 5], 1.0, [([4, 4], [0, 0], [0], [0])] * 2)),
    ],
    "fsd_js_T0.2": [
        record(
            "q1",
            turn([5, 6, 1], 0.25, [([6, 1, 1, 2], [0, 1, 0, 0], [0.1, 0.5, 0], [0, 0.75, 0])]),
            turn([8, 9], 0.25, [([9, 9], [0, 1], [0.2], [0, 0.25])], share=0.5, logp=-3.0),
        ),
        record("q2", turn([4, 4, 4], 0.5, [([4, 4], [0, 0], [0.0], [0])])),
    ],
}


def by_arm(records) -> dict[str, dict]:
    return {row["arm"]: row for row in summarize(records)}


def values(row: dict, *names: str) -> list:
    return [row[n]["value"] if isinstance(row[n], dict) else row[n] for n in names]


def test_figures_of_the_baselines():
    """Total tokens over total seconds, per answer means, token-weighted rescoring."""
    rows = by_arm(HAND)
    assert list(rows) == list(HAND)
    generate, plain = rows["generate"], rows["plain"]
    assert values(generate, "questions", "answers") == [2, 3]
    assert values(generate, "tokens_per_second", "seconds_per_answer") == [6 / 4, 4 / 3]
    assert values(generate, "tokens_per_answer", "at_limit") == [2, 1 / 3]
    assert values(generate, "speed_vs_generate") == [1]
    assert values(generate, "speed_vs_plain") == [pytest.approx((6 / 4) / (10 / 4))]
    assert values(generate, "same_as_plain") == [2 / 3]
    assert values(generate, "argmax_share", "mean_logp") == [1, -1]
    for name in ("tokens_per_round", "rounds_per_answer", "fuzzy_share", "ceiling"):
        assert generate[name] is None
    assert values(plain, "tokens_per_second", "speed_vs_plain") == [10 / 4, 1]
    assert values(plain, "speed_vs_generate") == [pytest.approx((10 / 4) / (6 / 4))]
    assert values(plain, "tokens_per_round", "rounds_per_answer") == [1, 7 / 3]
    # 3 tokens with share 1, 2 with 0.5, 5 with 1
    assert values(plain, "argmax_share", "mean_logp") == [9 / 10, pytest.approx(-12 / 10)]
    assert values(plain, "argmax_share_vs_plain", "same_as_plain") == [1, 1]
    # exact makes 2 tokens a round (below), so plain has half as many
    assert values(plain, "tokens_per_round_vs_exact", "fuzzy_share") == [0.5, 0]


def test_figures_of_the_arms_that_draft():
    """Rounds before trimming, means over their tokens, ratios to exact and the ceiling."""
    rows = by_arm(HAND)
    exact, fuzzy = rows["exact"], rows["fsd_js_T0.2"]
    # rounds of 3, 1, 2, 2 tokens
    assert values(exact, "tokens_per_round", "rounds_per_answer") == [8 / 4, 4 / 3]
    assert values(exact, "tokens_per_round_vs_exact", "ceiling", "fuzzy_share") == [1, 1, 0]
    assert values(exact, "tokens_per_second", "same_as_plain") == [10 / 1.75, 2 / 3]
    # rounds of 4, 2, 2 tokens, of which two are fuzzy
    assert values(fuzzy, "tokens_per_round", "rounds_per_answer") == [8 / 3, 1]
    assert values(fuzzy, "fuzzy_share", "regret_per_token") == [2 / 8, 1 / 8]
    assert values(fuzzy, "tv_per_token") == [pytest.approx(0.8 / 8)]
    assert values(fuzzy, "tokens_per_round_vs_exact") == [pytest.approx((8 / 3) / 2)]
    assert values(fuzzy, "ceiling") == [pytest.approx(1 / (1 - 0.25 * 2))]
    assert values(fuzzy, "tokens_per_second", "speed_vs_plain") == [8, pytest.approx(8 / 2.5)]
    assert values(fuzzy, "same_as_plain", "tokens_per_answer") == [1 / 3, 8 / 3]
    assert values(fuzzy, "argmax_share", "mean_logp") == [7 / 8, pytest.approx(-12 / 8)]
    assert values(fuzzy, "argmax_share_vs_plain") == [pytest.approx((7 / 8) / (9 / 10))]


def test_without_baselines_their_ratios_are_none():
    """Fsd alone is summarised; nothing is compared with what was not run."""
    (row,) = summarize({"fsd_js_T0.2": HAND["fsd_js_T0.2"]})
    for name in ("speed_vs_generate", "speed_vs_plain", "same_as_plain", "ceiling"):
        assert row[name] is None
    assert row["tokens_per_round_vs_exact"] is None and row["argmax_share_vs_plain"] is None
    assert row["tokens_per_round"] == 8 / 3


def test_ceiling():
    """1 / (1 - f tau): none at f = 0, without bound from f tau = 1 on."""
    assert ceiling(0, 3.5) == 1
    assert ceiling(0.1, 3) == pytest.approx(1 / 0.7)
    assert ceiling(0.25, 4) == math.inf and ceiling(0.3, 4) == math.inf


def test_arms_are_cut_to_the_common_questions():
    """Whatever the order of the records and questions that only some arms have."""
    more = {arm: rows[::-1] for arm, rows in HAND.items()}
    more["generate"] = [record("q0", turn([1] * 50, 0.1)), *more["generate"]]
    more["exact"] = [*more["exact"], record("q9", turn([1] * 70, 0.1))]
    assert summarize(more) == summarize(HAND)
    less = HAND | {"fsd_js_T0.2": HAND["fsd_js_T0.2"][:1]}
    rows = by_arm(less)
    assert all(row["questions"] == 1 and row["answers"] == 2 for row in rows.values())
    assert rows["plain"]["tokens_per_second"] == 5 / 1.5


@pytest.mark.parametrize(
    "records",
    [{}, {"plain": []}, {"plain": HAND["plain"][:1], "exact": HAND["exact"][1:]}],
    ids=["no arm", "no answer", "none in common"],
)
def test_nothing_in_common_is_told(records):
    """A ValueError that says so, not a division by zero."""
    with pytest.raises(ValueError, match="question"):
        summarize(records)


def test_one_question_has_no_interval():
    """Value without bounds, and the table shows it bare."""
    rows = summarize({arm: rows[:1] for arm, rows in HAND.items()})
    ratio = rows[3]["speed_vs_plain"]
    assert ratio == {"value": pytest.approx((5 / 0.5) / (5 / 1.5)), "low": None, "high": None}
    assert "| 3.00 " in tables(rows)


def varied(questions: int) -> dict[str, list]:
    """`exact` is 2, 3 or 4 times as fast as `plain`, by question."""
    plain, exact = [], []
    for i in range(questions):
        ids, seconds = [7] * (10 + i % 4), 1 + i % 2
        rounds = [([1] * (2 + i % 3), [0] * (2 + i % 3), [0], [0])] * 3
        plain.append(record(i, turn(ids, seconds, plain_rounds(9))))
        exact.append(record(i, turn(ids, seconds / (2 + i % 3), rounds)))
    return {"plain": plain, "exact": exact}


def test_the_interval_holds_the_value_and_shrinks():
    """About as 1 / sqrt(n); the same every time; none around a ratio with itself."""
    width = {}
    for n in (12, 48):
        rows = by_arm(varied(n))
        ratio = rows["exact"]["speed_vs_plain"]
        assert 2 < ratio["low"] < ratio["value"] < ratio["high"] < 4
        width[n] = ratio["high"] - ratio["low"]
        itself = rows["plain"]["speed_vs_plain"]
        assert itself == {"value": 1, "low": 1, "high": 1}
        assert rows["exact"]["speed_vs_plain"] == by_arm(varied(n))["exact"]["speed_vs_plain"]
    assert 1.5 < width[12] / width[48] < 2.7


def test_the_interval_is_paired():
    """An arm that is twice as fast on every question has no spread, however unlike they are."""
    plain = [record(i, turn([7] * (5 + 11 * i), 2.0**i)) for i in range(6)]
    twice = [record(i, turn([7] * (5 + 11 * i), 2.0**i / 2)) for i in range(6)]
    ratio = by_arm({"plain": plain, "exact": twice})["exact"]["speed_vs_plain"]
    assert ratio == {"value": 2, "low": 2, "high": 2}


NO_ROUNDS = [record(i, turn([3], 0.5)) for i in ("q1", "q2")]


def test_answers_without_rounds():
    """Every answer ended with its first token: lengths and speeds, no figures of rounds."""
    rows = by_arm({"plain": NO_ROUNDS, "exact": NO_ROUNDS})
    assert rows["exact"]["tokens_per_second"] == 2 and rows["exact"]["tokens_per_round"] is None
    assert rows["exact"]["ceiling"] is None


def test_one_question_without_rounds_spoils_no_interval():
    """A resample of that question alone has no tokens per round; bounds were NaN by it."""
    records = {"exact": [HAND["exact"][0], NO_ROUNDS[1]], "fsd": [HAND["exact"][0], NO_ROUNDS[1]]}
    ratio = by_arm(records)["fsd"]["tokens_per_round_vs_exact"]
    assert ratio["value"] == 1
    assert ratio["low"] is None or ratio["low"] == ratio["high"] == 1


def test_no_ceiling_over_an_exact_arm_without_rounds():
    """Without its tokens per round there is no ceiling and no ratio, rather than inf and NaN."""
    row = by_arm(
        {"exact": NO_ROUNDS, "fsd": HAND["fsd_js_T0.2"]},
    )["fsd"]
    assert row["ceiling"] is None and row["tokens_per_round_vs_exact"] is None


def all_fuzzy() -> dict[str, list]:
    """HAND with an arm whose ceiling is without bound: f tau = 1 * 2."""
    rounds = [([1, 2, 3], [1, 1, 1], [0.5, 0.5], [1.0, 1.0, 1.0])]
    wild = [record("q1", turn([1, 2], 0.1, rounds), turn([1, 2], 0.1, rounds))]
    return HAND | {"fsd_js_T9": [*wild, record("q2", turn([1, 2, 3], 0.1, rounds))]}


@pytest.mark.parametrize("records", [HAND, all_fuzzy()], ids=["hand", "ceiling without bound"])
def test_rows_are_json(records):
    """As strict parsers read it: Infinity and NaN are no JSON."""
    rows = summarize(records)
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows


def test_tables():
    """Every arm in both, cells under their titles, a bar for what is not there."""
    text = tables(summarize(all_fuzzy()))
    speed, cost = (part.splitlines() for part in text.split("\n\n"))
    for table in (speed, cost):
        assert len({len(line) for line in table}) == 1 and len(table) == 2 + 5
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
        assert [row[0] for row in cells[2:]] == [*HAND, "fsd_js_T9"]
    line = dict(zip(*(row.strip("|").split("|") for row in (speed[0], speed[5])), strict=True))
    found = {title.strip(): cell.strip() for title, cell in line.items()}
    assert found["tokens/s"] == "8.0" and found["ceiling"] == "2.00"
    assert found["vs exact"].startswith("1.33 [") and found["rounds/answer"] == "1.0"
    assert "| - " in speed[2]  # generate has no rounds


@pytest.mark.parametrize(
    "records",
    [HAND, all_fuzzy(), {"plain": HAND["plain"]}, {"plain": NO_ROUNDS, "exact": NO_ROUNDS}]
    + [{arm: HAND[arm] for arm in ("plain", "fsd_js_T0.2")}]
    + [{arm: rows[:1] for arm, rows in HAND.items()}],
    ids=["hand", "ceiling without bound", "plain", "no rounds", "no exact", "one question"],
)
def test_the_picture_is_drawn(tmp_path, records):
    """Whatever arms there are beside plain, also without any round, ceiling or interval."""
    path = tmp_path / "summary.png"
    plot_speed_against_regret(summarize(records), path, title="T = $0.2, 50 %_")
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000


def without_machine_paths(described: dict) -> str:
    """What is published, as text."""
    return described["command"]


@pytest.mark.parametrize("form", ["{}/runs/a", "--output={}/runs/a", "{}"])
def test_no_path_of_the_checkout_is_published(monkeypatch, form):
    """Options given as one word or two, or the checkout itself: relative in command and options."""
    argument = form.format(ROOT)
    monkeypatch.setattr(sys, "argv", [f"{ROOT}/train/train_head.py", "--x", argument])
    described = describe_run("cpu")
    assert str(ROOT) + os.sep not in json.dumps(described)
    assert str(ROOT) not in without_machine_paths(described)
    assert shlex.split(described["command"])[:2] == ["python", "train/train_head.py"]
    options = without_checkout({"output": f"{ROOT}/runs/a", "steps": 3, "names": ["a"]})
    assert options == {"output": "runs/a", "steps": 3, "names": ["a"]}
    assert described["versions"].keys() >= {"torch", "transformers", "python"}


def test_a_run_of_paths_inside_the_checkout_can_be_continued(tmp_path):
    """Settings are recorded with relative paths: the same command again was refused for them."""
    settings = {"head": f"{ROOT}/checkpoints/some-head", "device": "cpu", "questions": 2}
    other = settings | {"head": f"{ROOT}/checkpoints/other-head"}
    record = {"question_id": 1, "arm": "plain", "answer_id": "a", "tstamp": 0.0, "turns": []}

    def opened(settings: dict) -> Run:
        run = Run(tmp_path / "run", settings, extendable=frozenset({"questions"}))
        run.open_arm("plain")
        return run

    opened(other)  # nothing was answered: the folder is free
    opened(settings).add("plain", record)
    run = opened(settings | {"questions": 3})
    assert run.records["plain"] == {1: record | {"session": "1"}}
    with pytest.raises(ValueError, match="other-head"):
        opened(other)
    run.add("plain", record | {"question_id": 2})
    assert [session["session"] for session in run.sessions] == ["1", "2"]
    rows = {arm: list(rows.values()) for arm, rows in run.records.items()}
    assert run.origin(rows)[1] == 0
    rows["exact"] = [record | {"question_id": 2, "session": "1"}]
    assert run.origin(rows)[1] == 1, "question 2 was answered in two sessions"
