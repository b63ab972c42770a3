"""Rows of figures as Markdown and as CSV."""

import csv

import pytest
from hand_records import HAND, all_fuzzy

from eagle_fsd.evaluation.metrics import by_category, summarize
from eagle_fsd.evaluation.tables import category_table, cell_text, csv_rows, tables, write_csv

INTERVAL = {"value": 0.25, "low": -0.5, "high": 1.0}


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (None, ".2f", "-"),
        (3, "d", "3"),
        (INTERVAL, ".2f", "0.25 [-0.50, 1.00]"),
        (INTERVAL, "ratio", "0.25 [-0.50, 1.00]"),
        (INTERVAL | {"detectable": 0.75}, "+.1f", "+0.2 [-0.5, +1.0] (0.8)"),
        (INTERVAL | {"low": None, "high": None}, ".2f", "0.25"),
        (INTERVAL | {"low": 0.25, "high": 0.25}, ".2f", "0.25"),
        (INTERVAL | {"value": None}, ".2f", "-"),
    ],
)
def test_cells(value, form, text):
    """Bounds where they say something, the detectable difference without a sign."""
    assert cell_text(value, form) == text


def read_table(text: str) -> list[dict[str, str]]:
    lines = text.splitlines()
    assert len({len(line) for line in lines}) == 1, "aligned"
    title, _, *cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len(set(title)) == len(title)
    return [dict(zip(title, row, strict=True)) for row in cells]


def test_tables():
    """Every arm in all three, cells under their titles, a bar for what is not there."""
    notes_and_tables = tables(summarize(all_fuzzy())).split("\n\n")
    speed, cost, answers = map(read_table, notes_and_tables[1::2])
    for table in (speed, cost, answers):
        assert [row["arm"] for row in table] == [*HAND, "fsd_js_T9"]
    assert speed[0]["tokens/round"] == cost[0]["fuzzy share"] == "-"  # generate has no rounds
    assert speed[3]["tokens/s"] == "8.0" and speed[3]["ceiling"] == "2.00"
    assert speed[3]["vs exact"].startswith("1.33 [") and speed[3]["rounds/answer"] == "1.0"
    assert speed[3]["tokens/round"] == "2.67 [2.00, 3.00]" and speed[3]["of ceiling"] == "0.67"
    assert speed[4]["ceiling"] == speed[4]["of ceiling"] == "-"
    assert cost[3]["log p - plain"] == "-0.200 [-0.400, +0.000] (0.560)"
    assert cost[1]["log p - plain"] == "+0.000"
    assert answers[3]["tokens - plain"] == "-1.0 [-2.0, +0.0] (2.8)"
    assert answers[0]["same as plain"] == "0.667" and answers[0]["answers"] == "3"


def test_what_was_not_timed_is_a_bar():
    """Tokens a second and both ratios."""
    speed = read_table(tables(summarize(HAND, timed=False)).split("\n\n")[1])
    for row in speed:
        assert row["tokens/s"] == row["vs generate"] == row["vs plain"] == "-"


def test_one_question_is_shown_without_interval():
    """Its speed against plain: 5 / 0.5 tokens a second over 5 / 1.5."""
    rows = summarize({arm: rows[:1] for arm, rows in HAND.items()})
    assert read_table(tables(rows).split("\n\n")[1])[3]["vs plain"] == "3.00"


def test_category_table():
    """A line for each category and arm; generate has none where it answered nothing."""
    records = {
        arm: [row | {"category": f"about {row['question_id']}"} for row in rows]
        for arm, rows in HAND.items()
    }
    records["generate"] = records["generate"][:1]
    table = read_table(category_table(by_category(records)))
    assert [(row["category"], row["arm"]) for row in table] == [
        *(("about q1", arm) for arm in HAND),
        *(("about q2", arm) for arm in HAND if arm != "generate"),
    ]
    assert table[-1]["questions"] == "1"


def test_csv(tmp_path):
    """One line an arm under one header; intervals are columns beside their rate."""
    rows = summarize(HAND)
    rows[3]["accept"] = {"rule": "fsd", "threshold": 0.2}
    write_csv(tmp_path / "rows.csv", rows)
    with (tmp_path / "rows.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["arm"] for line in lines] == list(HAND)
    fuzzy, generate = lines[3], lines[0]
    assert fuzzy["accept_rule"] == "fsd" and generate["accept_rule"] == ""
    assert [float(fuzzy[f"tokens_per_round{end}"]) for end in ("", "_low", "_high")] == [
        8 / 3,
        2,
        3,
    ]
    assert generate["tokens_per_round"] == generate["tokens_per_round_low"] == ""
    assert float(fuzzy["mean_logp_minus_plain_detectable"]) == pytest.approx(0.56)
    assert not any("interval" in name for name in lines[0])
    names = list(lines[0])
    assert names.index("tokens_per_round_high") == names.index("tokens_per_round") + 2
    assert csv_rows([]) == []
