"""Rows of metrics as Markdown, as CSV, on a terminal and in a sentence."""

import csv

import pytest
from hand_records import HAND, all_fuzzy

from eagle_fsd.evaluation.metrics import METRICS, summarize
from eagle_fsd.evaluation.tables import (
    WIDTH,
    cell_text,
    columns,
    columns_text,
    markdown_table,
    terminal_table,
    verdict,
    write_csv,
)

INTERVAL = {"value": 0.25, "low": -0.5, "high": 1.0}
FSD = "fsd:0.2"


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


def printed(rows: list[dict], name: str) -> list[dict[str, str]]:
    return read_table(markdown_table(rows, columns(name)))


def test_tables():
    """Every arm in all three, cells under their titles, a bar for what is not there."""
    rows = summarize(all_fuzzy())
    speed, cost, answers = (printed(rows, name) for name in ("speed", "cost", "answers"))
    for found in (speed, cost, answers):
        assert [row["arm"] for row in found] == [*HAND, "fsd:9"]
    assert speed[0]["tokens/round"] == cost[0]["fuzzy share"] == "-"  # generate has no rounds
    assert speed[3]["tokens/s"].startswith("8.0 [") and speed[3]["ceiling"] == "2.00"
    assert speed[3]["tokens/round over exact"].startswith("1.33 [")
    assert speed[3]["tokens/round"] == "2.67 [2.00, 3.00]" and speed[3]["of ceiling"] == "0.67"
    assert speed[4]["ceiling"] == speed[4]["of ceiling"] == "-"
    assert cost[3]["log p/token - plain"] == "-0.200 [-0.400, +0.000] (0.560)"
    assert cost[1]["log p/token - plain"] == "+0.000"
    assert answers[3]["tokens/answer - plain"] == "-1.0 [-2.0, +0.0] (2.8)"
    assert answers[0]["same as plain"].startswith("0.667") and answers[0]["answers"] == "3"


def test_what_was_not_timed_is_a_bar():
    """Tokens a second and both ratios."""
    for row in printed(summarize(HAND, timed=False), "speed"):
        names = ("tokens/s", "tokens/s over generate", "tokens/s over plain", "s/answer")
        assert [row[name] for name in names] == ["-"] * 4


def test_text_breaks_no_table():
    """A category with a bar or a line end was two cells, or a line of its own."""
    text = markdown_table([{"name": "a|b\nc"}], [("name", "name", "s")])
    assert text.splitlines()[2:] == ["| a\\|b c |"]


def test_terminal_table_fits():
    """An arm too long for its column has a line to itself; the main columns are under their
    titles."""
    long = "fsd:0.2,child=target,divergence=kl_target_draft@eagle:59x6x10"
    lines = terminal_table(summarize(HAND | {long: HAND[FSD]})).splitlines()
    assert max(map(len, lines)) <= WIDTH and len(lines) == 2 + 4 + 2
    assert lines[0].split() == "tokens/s fuzzy argmax share log p/token".split()
    titles = "arm over plain tokens/round share regret/token - plain - plain"
    assert lines[1].split() == titles.split()
    assert lines[-2] == long
    numbers = ["3.20", "2.67", "0.2500", "0.1250", "+0.0000", "-0.200"]
    assert lines[-1].split() == numbers and lines[5].split() == [FSD, *numbers]
    assert lines[2].split() == ["generate", "0.60", "-", "-", "-", "+0.1000", "+0.200"]


def test_verdicts():
    """A sentence an arm, of what is known of it."""
    generate, plain, exact, fuzzy = map(verdict, summarize(HAND))
    assert generate == "generate: 0.60 times plain's tokens/s"
    assert plain == "plain: what the others are compared with, 2.5 tokens/s"
    assert exact == "exact: 2.29 times plain's tokens/s, 2.00 tokens a round"
    assert fuzzy == (
        "fsd:0.2: 3.20 times plain's tokens/s, +33 % tokens a round over exact, 25 % fuzzy, "
        "-0.20 log p a token"
    )
    assert verdict(summarize({FSD: HAND[FSD]})[0]) == "fsd:0.2: 2.67 tokens a round, 25 % fuzzy"


def test_every_column_is_told():
    """The dictionary of columns has a line for every metric."""
    assert [row["column"] for row in read_table(columns_text().split("\n\n")[0])] == list(METRICS)


def test_csv(tmp_path):
    """One line an arm under one header; intervals are columns beside their rate; what a
    spreadsheet would run stays text."""
    rows = [row | {"note": "=1+1", "nothing": None} for row in summarize(HAND)]
    write_csv(tmp_path / "rows.csv", rows)
    with (tmp_path / "rows.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["arm"] for line in lines] == list(HAND)
    fuzzy, generate = lines[3], lines[0]
    assert (fuzzy["rule"], fuzzy["value"], generate["value"]) == ("fsd", "0.2", "")
    found = [float(fuzzy[f"tokens_per_round{end}"]) for end in ("", "_low", "_high")]
    assert found == [8 / 3, 2, 3]
    assert generate["tokens_per_round"] == generate["tokens_per_round_low"] == ""
    assert float(fuzzy["mean_logp_minus_plain_detectable"]) == pytest.approx(0.56)
    assert float(fuzzy["mean_logp_minus_plain"]) == pytest.approx(-0.2)  # a number, no formula
    assert fuzzy["note"] == "'=1+1" and "nothing" not in fuzzy
    write_csv(tmp_path / "none.csv", [])
    assert (tmp_path / "none.csv").read_text().strip() == ""
