"""Rows of metrics as Markdown, on a terminal and in a sentence; and curves: loss at equal
gain, read off between values, with intervals over questions."""

import math

import numpy as np
import pytest
from hand_records import HAND, NO_ROUNDS, made_run

from eagle_fsd.evaluation import tables
from eagle_fsd.evaluation.curves import GAIN, LEAST, LOSSES, crossing, equal_gain, lost_at
from eagle_fsd.evaluation.metrics import METRICS, summarize
from eagle_fsd.evaluation.run_data import RunData

INTERVAL = {"value": 0.25, "low": -0.5, "high": 1.0}
FSD = "fsd:0.2"


def test_cells():
    """Bounds where they say something, the detectable difference without a sign."""
    assert tables.cell_text(None, ".2f") == "-"
    assert tables.cell_text(INTERVAL, ".2f") == "0.25 [-0.50, 1.00]"
    assert tables.cell_text(INTERVAL | {"detectable": 0.75}, "+.1f") == "+0.2 [-0.5, +1.0] (0.8)"
    assert tables.cell_text(INTERVAL | {"low": 0.25, "high": 0.25}, ".2f") == "0.25"


def test_tables():
    """Cells under their titles, a bar for what is not there or was not timed. Bug held down: a text
    with a bar or a line end was two cells, or a line of its own."""

    def printed(rows: list[dict], name: str) -> list[dict[str, str]]:
        shown = tables.columns(arm="s") + tables.metric_columns(name)
        title, _, *cells = tables.markdown_table(rows, shown).splitlines()
        lines = [[cell.strip() for cell in x.strip("|").split("|")] for x in (title, *cells)]
        return [dict(zip(lines[0], row, strict=True)) for row in lines[1:]]

    cost, answers = (printed(summarize(HAND), name) for name in ("cost", "answers"))
    assert [row["arm"] for row in cost] == [*HAND] and cost[0]["fuzzy share"] == "-"
    assert cost[3]["log p/token - plain"] == "-0.200" and answers[0]["same as plain"] == "0.667"
    speed = printed(summarize(made_run(8), timed=False), "speed")
    assert speed[3]["tokens/s over plain"] == speed[3]["s/answer"] == "-"
    text = tables.markdown_table([{"name": "a|b\nc"}], [("judge x|\ny", "name", "s")])
    assert text.splitlines()[::2] == ["| judge x\\| y   |", "| a\\|b c        |"]


def test_the_terminal_table_holds_every_arm_and_fits():
    """At most 100 wide, whatever the arm is called."""
    long = "fsd:0.2,child=draft,divergence=kl_target_draft@eagle:59x6x10"
    lines = tables.terminal_table(summarize(HAND | {long: HAND[FSD]})).splitlines()
    assert max(map(len, lines)) <= 100
    numbers = ["3.20", "2.67", "0.2500", "0.1250", "+0.0000", "-0.200"]
    assert lines[5].split() == [FSD, *numbers] and lines[6].split()[1:] == numbers
    assert "".join(line.split()[0] for line in lines[6:]) == long


def test_verdicts():
    """Of what is known of an arm, behind the score of a task where there is one."""
    generate, plain, exact, fuzzy = map(tables.verdict, summarize(HAND))
    assert generate == "0.60 times plain's tokens per second"
    assert plain == "2.5 tokens per second"
    assert exact == "2.29 times plain's tokens per second, 2.00 tokens per round"
    assert fuzzy == (
        "3.20 times plain's tokens per second, +33 % tokens per round over exact, 25.0 % of its "
        "tokens fuzzy, a regret of 0.125 nats per token"
    )
    row = summarize(HAND)[3]
    loops = row | {"repetition_minus_plain": {"value": 0.18}}
    assert tables.verdict(loops) == f"{fuzzy}, 18 % more of its text repeated than of plain's"
    drawn = tables.verdict(row, sampled=True)
    assert drawn.endswith(f"a TV of {row['tv_per_token']['value']:.3f} per token")
    score = {"score": "last_number", "mean": {"value": 0.5}, "vs_plain": {"value": -0.25}}
    scored = f"last_number 0.500 (-0.250 against plain), {fuzzy}"
    assert tables.verdict(row, score=score) == scored
    # bug held down: of plain, where nothing was timed, stood "nothing to compare with"
    assert tables.verdict(summarize(HAND, timed=False)[1]) == "3.3 tokens per answer"


def test_a_run_above_temperature_0_is_told_by_its_tv():
    session = {"session": "1", "timed": False}
    for temperature, told in ((0.0, "a regret of"), (0.7, "a TV of")):
        seen = {"temperature": temperature, "session": "1"}
        records = {arm: [row | seen for row in rows] for arm, rows in HAND.items()}
        run = RunData("", {}, [session], records)
        assert told in run.verdict(run.rows[3])


def test_a_speed_that_noise_explains_is_no_gain():
    """Bug held down: it was told as gained where arms that did the same work differed by more."""
    rows = summarize(HAND)
    for row, ratio in ((0, 0.6), (2, 16 / 7), (3, 3.2)):
        none = f"plain's speed within noise ({ratio:.2f} times)"
        assert tables.verdict(rows[row], noise=2.21).startswith(none)
        assert not tables.verdict(rows[row], noise=0.6).startswith(none)
    held = rows[2] | {"speed_vs_plain": {"value": 1.3, "low": 0.9, "high": 1.7}}
    assert tables.verdict(held) == "plain's speed within noise (1.30 times), 2.00 tokens per round"


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


def test_one_slow_answer_moves_the_total_and_not_the_median():
    records = made_run(8)
    before = {row["arm"]: row for row in summarize(records)}["exact"]
    records["exact"][2]["turns"][0]["seconds"] *= 20
    after = {row["arm"]: row for row in summarize(records)}["exact"]
    assert after["speed_vs_plain"]["value"] < 0.7 * before["speed_vs_plain"]["value"]
    median = before["median_speed_vs_plain"]["value"]
    assert after["median_speed_vs_plain"]["value"] == pytest.approx(median, rel=0.1)


# --- curves ---------------------------------------------------------------------------------------


def pooled(records: list[dict], key: str) -> float:
    metric = METRICS[key]
    return sum(map(metric.numerator, records)) / sum(map(metric.denominator, records))


def test_a_line_is_read_off_between_its_values():
    """By hand, from the arms' pooled rates, in the order of their values; a gain that the line does
    not reach has no row. Bug held down: one below its smallest measured gain was read off between
    that arm and exact, where nothing was measured."""
    records = made_run(LEAST)
    records = {arm: records[arm] for arm in ("plain", "exact", "fsd:0.4", "fsd:0.2")}
    gains = {arm: pooled(records[arm], "tokens_per_round") for arm in records}
    low, high = (gains[arm] / gains["exact"] for arm in ("fsd:0.2", "fsd:0.4"))
    assert 1.05 < low < 1.1 < high < 1.2
    (row,) = equal_gain(records, summarize(records))
    at = (1.1 - low) / (high - low)
    assert (row["line"], row[GAIN], row["between"]) == ("fsd", 1.1, "0.2 and 0.4")
    for key in ("regret_per_token", "mean_logp_minus_plain"):
        start, end = (pooled(records[arm], key) for arm in ("fsd:0.2", "fsd:0.4"))
        plain = pooled(records["plain"], key) if METRICS[key].baseline else 0.0
        assert row[key]["value"] == pytest.approx(start + (end - start) * at - plain)
        assert row[key]["low"] < row[key]["value"] < row[key]["high"]
    # few questions have no interval; nothing is read off without exact or plain, nor where answers
    # are of one token. Bug held down: an arm without rounds ended the report in a TypeError
    records = made_run(LEAST - 1)
    few = equal_gain(records, summarize(records))
    assert few and all(row[key]["low"] is None for row in few for key in LOSSES)
    short = {"plain": NO_ROUNDS, "exact": NO_ROUNDS, FSD: NO_ROUNDS, "fsd:0.4": NO_ROUNDS}
    lacking = [{a: r for a, r in records.items() if a != arm} for arm in ("exact", "plain")]
    for less in (short, *lacking):
        assert equal_gain(less, summarize(less)) == []


def test_an_unfinished_run_is_read_off_over_the_questions_that_all_arms_have():
    """Bug held down: gains were over these, and losses over what the line's own arms had."""
    records = made_run(2 * LEAST)
    same = {arm: rows[:LEAST] for arm, rows in records.items()}
    records["random:0.3"] = records["random:0.3"][:LEAST]
    rows = equal_gain(records, summarize(records))
    assert rows == equal_gain(same, summarize(same)) and rows[0]["line"] == "fsd"


def test_a_line_may_fall_with_its_value():
    """typical's larger value is the tighter one: the same rates are read off as where it rises."""
    records = made_run(LEAST)
    rates = {arm: records[arm] for arm in ("plain", "exact")}
    low, high = records["fsd:0.2"], records["fsd:0.4"]
    up, down = {"fsd:0.2": low, "fsd:0.4": high}, {"typical:0.2": high, "typical:0.4": low}
    (rising,), (falling,) = (equal_gain(rates | x, summarize(rates | x)) for x in (up, down))
    assert (rising["between"], falling["between"]) == ("0.2 and 0.4", "0.4 and 0.2")
    assert all(falling[key] == rising[key] for key in (GAIN, *LOSSES))


def test_nothing_is_read_off_between_arms_that_lie_far_apart():
    """Bug held down: of two distant thresholds the table made a third between them, at which the
    gain it stated was 1.05 and the measured one 1.01."""
    records = made_run(LEAST)
    near = equal_gain(records, summarize(records))
    assert any(row["line"] == "fsd" for row in near)
    for record in records["fsd:0.4"]:
        for turn in record["turns"]:  # the same tokens in half the rounds
            pairs = zip(turn["rounds"][::2], turn["rounds"][1::2], strict=True)
            turn["rounds"] = [{key: one[key] + two[key] for key in one} for one, two in pairs]
    far = equal_gain(records, summarize(records))
    assert far and not any(row["line"] == "fsd" for row in far)


def test_crossing():
    """The first one counts; a neighbour whose gain is unknown is left out, and an arm that has the
    gain is read as it is. Bug held down: a curve that falls before the gain was read from its
    largest gain so far."""
    assert crossing([1.0, 1.2, 1.4, 1.3], [5.0, 7.0, 9.0, 3.0], 1.3) == pytest.approx(8)
    assert crossing([1, 1.2, 1.1, 1.3], [0, 1, 0.5, 2], 1.25) == pytest.approx(1.625)
    assert crossing([1.1, math.nan, 1.3], [1, 2, 3], 1.3) == 3 == crossing([1.3], [3], 1.3)
    assert all(math.isnan(crossing([1.1, math.nan, 1.3], [1, 2, 3], gain)) for gain in (1.05, 1.2))
    rates_2A = np.array([[1.0, 1.0, 1.2, 1.1, 1.3], [5.0, 0, 1, 0.5, 2]])  # plain and exact first
    total_2A2 = np.stack([rates_2A, np.ones_like(rates_2A)], axis=-1)
    for less, lost in ((True, 1.625 - 5), (False, 1.625)):
        assert lost_at(total_2A2, gain=1.25, less_plain=less) == pytest.approx(lost)
        several = lost_at(np.stack([total_2A2] * 3), gain=1.25, less_plain=less)
        assert several == pytest.approx([lost] * 3)
