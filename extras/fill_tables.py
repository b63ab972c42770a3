"""Fills the tables of a page of results with the numbers of runs, and prints the page:

    python extras/fill_tables.py results/reader/README.md runs/mt_bench_80+runs/reader/reader.json

A source is a folder of evaluate/mt_bench.py or tasks.py, or a file of tables such as replay.json or
reader.json; A+B is one source. A table takes its numbers from the first source that has them all,
and keeps the digits, signs and brackets of its cells. What stays as it was is named on standard
error: tables of which no source has every row, and columns that no source knows. The sentences
stay too, and are to be read again.
"""

import argparse
import re
import sys
from pathlib import Path

from eagle_fsd.cli import ended_by
from eagle_fsd.evaluation.curves import GAIN
from eagle_fsd.evaluation.metrics import METRICS
from eagle_fsd.evaluation.run_data import read_run
from eagle_fsd.evaluation.tables import cell_text
from eagle_fsd.runs.jsonl import read_json

TABLE = re.compile(r"(?:^\|.*\n)+", re.M)
NUMBER = re.compile(
    r"[+-]?\d+(?:\.(?P<digits>\d+))?(?P<bold>\**)(?P<interval> \[[^]]*\])?( \([^)]*\))?"
)
# the columns that name a row of a table: the first of these that it has
NAMES = (("line", GAIN), ("temperature", "arm"), ("arm",), ("level",))
# title of a column -> key of a source's rows
KEYS = {metric.label: key for key, metric in METRICS.items()} | {
    **{name: name for name in ("line", "temperature", "arm", "level")},
    **{"gain": GAIN, "over exact": GAIN, "over plain": "speed_vs_plain"},
    **{"over generate": "speed_vs_generate", "log p - plain": "mean_logp_minus_plain"},
    **{"repetition, less plain's": "repetition_minus_plain"},
    **{"new, less plain's": "new_logp_per_character_minus_plain"},
    **{"new text by the reader - plain": "new_logp_per_character_minus_plain"},
    **{"regret less `path`'s": "regret_per_token_minus"},
    **{"new, less `path`'s": "new_logp_per_character_minus"},
    **{"top-1": "top1", "top-8": "top8", "JS": "js"},
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
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def is_named(row: dict, names: dict[str, str]) -> bool:
    """Whether a source's row is the one that these cells name."""
    for key, cell in names.items():
        value = row.get(key)
        if isinstance(value, float | int) and NUMBER.fullmatch(cell):
            if value != float(cell):
                return False
        elif value != cell.strip("`*"):
            return False
    return True


def filled(old: str, value: object) -> str | None:
    """The cell with another number, written as the old one; None where there is none to write."""
    found = NUMBER.search(old)
    if found is None:  # "-", or empty: what this arm does not have
        return old
    if isinstance(value, dict) and not found["interval"]:
        value = value["value"]
    if value is None or isinstance(value, dict) and value["value"] is None:
        return None
    form = f"{'+' if found[0][0] in '+-' else ''}.{len(found['digits'] or '')}f"
    if isinstance(value, dict) and not found[0].endswith(")"):
        value = value | {"detectable": None}
    number, *brackets = cell_text(value, form).partition(" ")
    return old[: found.start()] + number + found["bold"] + "".join(brackets) + old[found.end() :]


def fill(table: str, rows: list[dict]) -> tuple[str, list[str]] | None:
    """The table with the numbers of a source's rows, and the titles of the columns that stay; None
    where the source lacks a number of it."""
    header, line, *body = table.splitlines()
    titles = cells_of(header)
    keys = [KEYS.get(title) for title in titles]
    names = next((names for names in NAMES if set(names) <= set(keys)), None)
    if names is None:
        return None
    lines = [header, line]
    for old in map(cells_of, body):
        named = {key: cell for key, cell in zip(keys, old, strict=True) if key in names}
        mine = [row for row in rows if is_named(row, named)]
        new = []
        for key, cell in zip(keys, old, strict=True):
            value = next((row[key] for row in mine if row.get(key) is not None), None)
            new.append(cell if key is None or key in names else filled(cell, value))
        if not mine or None in new:
            return None
        lines.append(f"| {' | '.join(new)} |")
    return "\n".join(lines) + "\n", [
        title for title, key in zip(titles, keys, strict=True) if key is None
    ]


def fill_page(page: Path, sources: list[str]) -> None:
    all_rows = [rows_of(source) for source in sources]

    def fill_table(match: re.Match) -> str:
        for rows in all_rows:
            if found := fill(match[0], rows):
                text, kept = found
                if kept:
                    print(f"kept in {page}: the column {', '.join(kept)}", file=sys.stderr)
                return text
        print(f"kept in {page}: the table {match[0].splitlines()[0]}", file=sys.stderr)
        return match[0]

    print(TABLE.sub(fill_table, page.read_text(encoding="utf-8")), end="")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("page", type=Path, help="A page of results.")
    parser.add_argument("sources", nargs="+", help="Folders of runs, files of tables, or A+B.")
    ended_by(lambda: fill_page(**vars(parser.parse_args())))
