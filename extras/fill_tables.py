"""Fills the tables of a page of results with the numbers of runs, and prints the page:

    python extras/fill_tables.py results/reader/README.md runs/mt_bench_80+runs/reader/reader.json

A source is a folder of evaluate/mt_bench.py or tasks.py, or a file of tables such as replay.json or
reader.json; A+B is one source. A table takes its numbers from the first source that has them all,
and keeps the digits and brackets of its cells. A column that no source knows is then marked "(old)"
in its title. A table keeps its numbers, and is marked by a line above it, where no source has each
of them, has two for a cell, or where a cell holds more than a number. Sentences stay as they are.
"""

import argparse
import math
import re
from pathlib import Path

from eagle_fsd.cli import ended_by
from eagle_fsd.evaluation.curves import GAIN
from eagle_fsd.evaluation.metrics import METRICS
from eagle_fsd.evaluation.run_data import read_run
from eagle_fsd.evaluation.tables import cell_text
from eagle_fsd.runs.jsonl import read_json

TABLE = re.compile(r"(?:^\|.*(?:\n|\Z))+", re.M)
# bold or not, then perhaps an interval and the smallest difference that would show
NUMBER = re.compile(
    r"(?P<bold>\**)[+-]?\d+(?:\.(?P<digits>\d+))?\**(?P<interval> \[[^]]+\])?(?: \(\d[\d.]*\))?"
)
# the columns that name a row of a table: the first of these that it has
NAMES = (("line", GAIN), ("temperature", "arm"), ("arm",), ("level",))
# title of a column -> key of a source's rows
KEYS = {metric.label: key for key, metric in METRICS.items()} | {
    "line": "line",
    "temperature": "temperature",
    "arm": "arm",
    "level": "level",
    "gain": GAIN,
    "over exact": GAIN,
    "over plain": "speed_vs_plain",
    "over generate": "speed_vs_generate",
    "log p - plain": "mean_logp_minus_plain",
    "repetition, less plain's": "repetition_minus_plain",
    "new, less plain's": "new_logp_per_character_minus_plain",
    "new text by the reader - plain": "new_logp_per_character_minus_plain",
    "regret less `path`'s": "regret_per_token_minus",
    "new, less `path`'s": "new_logp_per_character_minus",
    "top-1": "top1",
    "top-8": "top8",
    "JS": "js",
}


def rows_of(source: str) -> list[dict]:
    """The rows of all folders and files of a source; a run's with its temperature."""
    rows = []
    for part in map(Path, source.split("+")):
        if part.suffix == ".json":
            tables = [table for table in read_json(part).values() if isinstance(table, list)]
            rows += [row for table in tables for row in table]
        else:
            run = read_run(part)
            rows += [{"temperature": run.options["temperature"]} | row for row in run.rows]
    return rows


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def is_named(row: dict, names: dict[str, str]) -> bool:
    """Whether a source's row is the one that these cells name."""

    def alike(value: object, cell: str) -> bool:
        if isinstance(value, float | int) and re.fullmatch(r"[\d.]+", cell):
            return value == float(cell)
        return value == cell.strip("`*")

    return all(alike(row.get(key), cell) for key, cell in names.items())


def found_in(rows: list[dict], key: str) -> object:
    """What these rows of one arm say of a metric; None where that is nothing, or two things."""
    found = [row[key] for row in rows if row.get(key) is not None]
    numbers = [value["value"] if isinstance(value, dict) else value for value in found]
    if not found or None in numbers or not all(math.isclose(n, numbers[0]) for n in numbers):
        return None
    return next((value for value in found if isinstance(value, dict)), found[0])


def filled(old: str, value: object) -> str | None:
    """The cell with another number, written as the old one; None where that can't be."""
    if old in ("", "-"):  # what this arm does not have
        return old
    form = NUMBER.fullmatch(old)
    if form is None or value is None:
        return None
    if isinstance(value, dict) and not form["interval"]:
        value = value["value"]
    elif isinstance(value, dict) and not old.endswith(")"):
        value = value | {"detectable": None}
    signed = old[len(form["bold"])] in "+-"
    spec = f"{'+' if signed else ''}.{len(form['digits'] or '')}f"
    number, *brackets = cell_text(value, spec).partition(" ")
    if form["digits"] is None and float(number) != value:  # the 0 of exact, and no rounded number
        return None
    return form["bold"] + number + form["bold"] + "".join(brackets)


def fill(table: str, rows: list[dict]) -> str | None:
    """The table with the numbers of a source's rows; None where these lack a number of it."""
    header, line, *body = table.splitlines()
    keys = [KEYS.get(title) for title in cells_of(header)]
    names = next((names for names in NAMES if set(names) <= set(keys)), None)
    if names is None:
        return None
    marks = ["" if key else " (old)" for key in keys]
    titles = [title + mark for title, mark in zip(cells_of(header), marks, strict=True)]
    lines = [f"| {' | '.join(titles)} |", line]
    for old in map(cells_of, body):
        cells = dict(zip(keys, old, strict=True))
        mine = [row for row in rows if is_named(row, {name: cells[name] for name in names})]
        new = [
            cell if key is None or key in names else filled(cell, found_in(mine, key))
            for key, cell in zip(keys, old, strict=True)
        ]
        if not mine or None in new:
            return None
        lines.append(f"| {' | '.join(new)} |")
    return "\n".join(lines) + "\n"


def fill_page(page: Path, sources: list[str]) -> None:
    all_rows = [rows_of(source) for source in sources]

    def fill_table(match: re.Match) -> str:
        made = (fill(match[0], rows) for rows in all_rows)
        return next(filter(None, made), f"*(Not made anew.)*\n\n{match[0]}")

    print(TABLE.sub(fill_table, page.read_text(encoding="utf-8")), end="")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("page", type=Path, help="A page of results.")
    parser.add_argument("sources", nargs="+", help="Folders of runs, files of tables, or A+B.")
    ended_by(lambda: fill_page(**vars(parser.parse_args())))
