"""The report's tables: one description each, written as Markdown, CSV and HTML."""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from eagle_fsd.evaluation.curves import equal_speed
from eagle_fsd.evaluation.metrics import METRICS, Record, by_category, rounds_of
from eagle_fsd.evaluation.report.read_runs import RunData
from eagle_fsd.evaluation.tables import (
    NOTES,
    PAIRWISE,
    Column,
    cell_text,
    columns,
    markdown_table,
)

MOST_DEPTHS = 8  # columns of accepted drafts
SOURCES = ("draft", "fuzzy", "target")
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
ARM: Column = ("arm", "arm", "s")
EQUAL_SPEED: tuple[Column, ...] = (
    ("line", "line", "s"),
    ("tokens/round over exact", "gain", ".2f"),
    ("value", "value", ".3f"),
)
SCORES: tuple[Column, ...] = (
    ("score", "score", "s"),
    ARM,
    ("questions", "questions", "d"),
    ("mean", "mean", ".4f"),
    ("- plain", "vs_plain", "+.4f"),
    ("gained", "gained", "d"),
    ("lost", "lost", "d"),
    ("McNemar p", "mcnemar_p", ".3f"),
)


@dataclass(frozen=True)
class Table:
    """A table and how to read it.

    Attributes:
        name: of its CSV file; tables of one name (of several runs) share the file.
        title, note: above it.
        columns: as in eagle_fsd.evaluation.tables.
        rows: with the columns' keys; the CSV holds all keys.
    """

    name: str
    title: str
    note: str
    columns: Sequence[Column]
    rows: list[dict]

    def markdown(self) -> str:
        return f"### {self.title}\n\n{self.note}\n\n{markdown_table(self.rows, self.columns)}"

    def html(self) -> str:
        """The note, and the table in a box that scrolls; a column's meaning on hover."""
        heads, lines = [], []
        for title, key, form in self.columns:
            meaning = html.escape(METRICS[key].meaning) if key in METRICS else ""
            told = f' title="{meaning}" tabindex="0"' if meaning else ""
            heads.append(f"<th{_text_class(form)}{told}>{html.escape(title)}</th>")
        for row in self.rows:
            cells = [_cell(row[key], form) for _, key, form in self.columns]
            lines.append(f"<tr>{''.join(cells)}</tr>")
        return (
            f'<p class="note">{html.escape(self.note)}</p>\n<div class="scroll"><table>\n'
            f"<thead><tr>{''.join(heads)}</tr></thead>\n<tbody>\n{_lines(lines)}\n</tbody>\n"
            "</table></div>"
        )

    def folded(self) -> str:
        summary = f"<summary>{html.escape(self.title)}</summary>"
        return f"<details>{summary}\n{self.html()}\n</details>"


def _lines(lines: list[str]) -> str:
    return "\n".join(lines)


def _text_class(form: str) -> str:
    return ' class="text"' if form == "s" else ""


def _cell(value: object, form: str) -> str:
    """An interval stands small below its value."""
    text, bracket, interval = cell_text(value, form).partition(" [")
    small = f"<small>{html.escape(bracket.strip() + interval)}</small>" if bracket else ""
    return f"<td{_text_class(form)}>{html.escape(text)}{small}</td>"


def main_table(rows: list[dict]) -> Table:
    """What the page opens with: 7 columns."""
    note = "With 95 % bootstrap intervals over questions, and in parentheses the smallest true "
    note += "difference that so many questions show. Hover over a title for its meaning."
    return Table("arms", "Arms", note, [ARM, *columns("main")], rows)


def run_tables(run: RunData, rows: list[dict]) -> list[Table]:
    """A run's further tables, those that hold something.

    Args:
        rows: from summarize.
    """
    rows_of = dict.fromkeys(("speed", "cost", "answers"), rows)
    categories = by_category(run.records, timed=run.timed)
    if len({row["category"] for row in categories}) > 1:
        rows_of["categories"] = categories
    tables = [
        Table("categories" if name == "categories" else "arms", *NOTES[name], columns(name), found)
        for name, found in rows_of.items()
    ]
    lost = equal_speed(run.records, rows)
    note = "What every line of arms has lost where its tokens per round are 1.05, 1.1 and 1.2 times"
    note += " exact's (interpolated between its values, with 95 % intervals): compare with random."
    shown = [*EQUAL_SPEED, *columns("equal speed")]
    tables.append(Table("equal_speed", "Loss at equal speed", note, shown, lost))
    tables += [_score_table(run), _pairwise_table(run), _depth_table(run), _divergence_table(run)]
    return [table for table in tables if table.rows]


def _score_table(run: RunData) -> Table:
    """What scorers and judges gave, as they wrote it."""
    note = "Means with 95 % intervals over questions; - plain: paired difference over the questions"
    note += " and turns that both have, in parentheses the smallest that so many questions show. "
    note += "gained, lost: questions right only here, or only by plain; McNemar's exact p."
    rows = []
    for row in run.scores:
        split = row.get("mcnemar") or {}
        test = {"gained": split.get("gained"), "lost": split.get("lost")}
        plain = {key: value for key, value in row.items() if key != "mcnemar"}
        rows.append(plain | test | {"mcnemar_p": split.get("p")})
    return Table("scores", "Scores", note, SCORES, rows)


def _pairwise_table(run: RunData) -> Table:
    note = "Against the baseline, each match in both orders; a tie too where the orders disagree. "
    note += "gained, lost: questions with more wins than losses, and with fewer; McNemar's exact p."
    shown = (("judge", "judge", "s"), ("baseline", "baseline", "s"), *PAIRWISE)
    return Table("pairwise", "Pairwise verdicts", note, shown, run.pairwise)


def _depth_table(run: RunData) -> Table:
    rows = []
    for arm, records in run.records.items():
        shares = accepted_by_depth(records)[:MOST_DEPTHS]
        if shares:
            shares += [0.0] * (MOST_DEPTHS - len(shares))
            at = {f"at_least_{depth}": share for depth, share in enumerate(shares, start=1)}
            rows.append({"arm": arm} | at)
    rows = [row for row in rows if row["at_least_1"]]  # drafts, and accepts some
    depths = range(1, MOST_DEPTHS + 1)
    shown = [ARM, *((f">= {depth}", f"at_least_{depth}", ".3f") for depth in depths)]
    note = "Share of rounds that accept at least so many drafts."
    return Table("accepted_drafts", "Accepted drafts", note, shown, rows)


def accepted_by_depth(records: Sequence[Record]) -> list[float]:
    """Share of rounds that accept at least d drafts, for d = 1 up to the most accepted."""
    counts = [len(r["tokens"]) - 1 for record in records for r in rounds_of(record)]
    return [
        sum(count >= depth for count in counts) / len(counts)
        for depth in range(1, max(counts, default=0) + 1)
    ]


def _divergence_table(run: RunData) -> Table:
    judged = [(arm, *node) for arm, found in run.records.items() for node in judged_nodes(found)]
    rows = []
    frame = pd.DataFrame(judged, columns=["arm", "source", "divergence"])
    for (arm, source), values in frame.groupby(["arm", "source"], sort=False)["divergence"]:
        found = {f"quantile_{share:g}": float(values.quantile(share)) for share in QUANTILES}
        rows.append({"arm": arm, "source": source, "nodes": len(values)} | found)
    order = list(run.records)
    rows.sort(key=lambda row: (order.index(row["arm"]), SOURCES.index(row["source"])))
    shares = ((f"{100 * share:g} %", f"quantile_{share:g}", ".4f") for share in QUANTILES)
    shown = [ARM, ("followed by", "source", "s"), ("nodes", "nodes", "d"), *shares]
    note = "Quantiles of the divergence D at judged nodes, by what was emitted after them: a draft "
    note += "that the exact test accepts too, a fuzzy draft, or the target's own token."
    return Table("divergences", "Divergences", note, shown, rows)


def judged_nodes(records: Sequence[Record]) -> list[tuple[str, float]]:
    """(source, D) of the judged nodes; infinite values are left out."""
    found = []
    for r in (r for record in records for r in rounds_of(record)):
        last = len(r["tokens"]) - 1
        for place, (value, fuzzy) in enumerate(zip(r["divergence"], r["fuzzy"], strict=True)):
            if value is not None and math.isfinite(float(value)):
                source = "fuzzy" if fuzzy else "draft" if place < last else "target"
                found.append((source, float(value)))
    return found
