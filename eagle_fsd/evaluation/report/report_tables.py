"""A run's tables, from which Markdown, CSV and the page come, and a bench's summary of them."""

from collections.abc import Sequence

import pandas as pd

from eagle_fsd.evaluation.bench import Bench
from eagle_fsd.evaluation.curves import equal_speed, plot_curves
from eagle_fsd.evaluation.metrics import rounds_of
from eagle_fsd.evaluation.report.read_runs import RunData
from eagle_fsd.evaluation.tables import (
    MCNEMAR,
    NO_TEST,
    PAIRWISE,
    Column,
    columns,
    markdown_table,
    metric_columns,
    terminal_table,
    verdict,
    write_csv,
)
from eagle_fsd.runs.jsonl import write_json

Table = tuple[Sequence[Column], list[dict]]  # rows have the columns' keys, and more for the CSV
DEPTHS = range(1, 9)  # of accepted drafts
OVER_EXACT: Column = ("tokens/round over exact", "gain", ".2f")
SCORES: tuple[Column, ...] = (
    *columns(score="s", arm="s", questions="d", mean=".4f"),
    ("- plain", "vs_plain", "+.4f"),
    *MCNEMAR,
)
# title of a table -> how to read it
NOTES = {
    "Arms": "In brackets 95 % intervals over questions; in parentheses the smallest true "
    "difference that so many questions show (5 %, power 80 %).",
    "Speed": "In brackets 95 % intervals over questions.",
    "Cost": "- plain: mean difference of the questions' own rates, as under Arms.",
    "Answers": "Differences as under Cost.",
    "By category": "Few questions each: intervals are wide, or missing.",
    "Equal speed": "What every line of arms has lost where its tokens per round are 1.05, 1.1 and "
    "1.2 times exact's, interpolated between its values: compare with random.",
    "Scores": "Means; - plain: paired difference over the questions and turns that both have. "
    "gained, lost: questions right only here, or only by plain; McNemar's exact p.",
    "Pairwise": "Against the baseline, each match in both orders; a tie too where the orders "
    "disagree. gained, lost: questions with more wins than losses, and with fewer.",
    "Accepted drafts": "Share of rounds that accept at least so many drafts.",
}


def run_tables(run: RunData) -> dict[str, Table]:
    """Tables by title, those that hold something; the first is for the top of the page."""
    rows = run.rows
    several = len({row["category"] for row in run.categories}) > 1
    scores = [row | (row.get("mcnemar") or NO_TEST) | {"mcnemar": None} for row in run.scores]
    depths = [(f">= {depth}", f"at_least_{depth}", ".3f") for depth in DEPTHS]
    parts = [*columns(category="s", arm="s", questions="d"), *metric_columns("categories")]
    answers = columns(arm="s", answers="d") + metric_columns("answers")
    equal = [*columns(line="s"), OVER_EXACT, *columns(value=".3f"), *metric_columns("equal speed")]
    tables: dict[str, Table] = {
        "Arms": (columns(arm="s") + metric_columns("main"), rows),
        "Speed": (columns(arm="s", questions="d") + metric_columns("speed"), rows),
        "Cost": (columns(arm="s") + metric_columns("cost"), rows),
        "Answers": (answers, rows),
        "By category": (parts, run.categories if several else []),
        "Equal speed": (equal, equal_speed(run.records, rows)),
        "Scores": (SCORES, scores),
        "Pairwise": ([*columns(judge="s", baseline="s"), *PAIRWISE], run.pairwise),
        "Accepted drafts": ([*columns(arm="s"), *depths], _depth_rows(run)),
    }
    return {title: table for title, table in tables.items() if table[1]}


def _depth_rows(run: RunData) -> list[dict]:
    rows = []
    for arm, found in run.records.items():
        accepted = pd.Series([len(r["tokens"]) - 1 for record in found for r in rounds_of(record)])
        shares = {f"at_least_{depth}": float((accepted >= depth).mean()) for depth in DEPTHS}
        if shares["at_least_1"] > 0:
            rows.append({"arm": arm} | shares)
    return rows


def report_bench(bench: Bench, *, extra: str = "", further: dict | None = None) -> str:
    """Write summary.md, .json, .csv, .svg, .pdf and by_category.csv; returns what the terminal
    shows. `extra` are further tables, `further` further entries of summary.json."""
    folder, settings = bench.run.folder, bench.run.settings
    run = RunData(bench.name, settings, bench.run.sessions, bench.records())
    rows, notes = run.rows, run.doubts()
    trees = {row["tree"] for row in rows if row["tree"]}
    title = (
        f"{bench.name}, {len(bench.questions)} questions, {run.subject}, trees "
        f"{', '.join(sorted(trees)) or 'none'}, {settings['max_new_tokens']} new tokens; "
        f"{run.origin('device')}, commit {run.origin('commit')}"
    )
    whole = {"title": title, "options": settings, "sessions": run.sessions, "notes": notes}
    whole |= {"rows": rows, "by_category": run.categories, **(further or {})}
    write_json(folder / "summary.json", whole)
    write_csv(folder / "summary.csv", rows)
    write_csv(folder / "by_category.csv", run.categories)
    plot = "![loss against gain](summary.svg)" if plot_curves(rows, folder / "summary") else ""
    said = "\n".join(f"- {row['arm']}: {verdict(row)}" for row in rows)
    notes = [f"Note: {note}." for note in notes]
    tables = [
        f"### {title}\n\n{NOTES[title]}\n\n{markdown_table(found, shown)}"
        for title, (shown, found) in run_tables(run).items()
    ]
    text = "\n\n".join(filter(None, [title, said, plot, *tables, extra, *notes]))
    (folder / "summary.md").write_text(text + "\n", encoding="utf-8")
    rest = (
        f"All columns, with intervals, written to {folder}/summary.md, .json and .csv; the plot: "
        f"summary.svg\nThe page: python evaluate/report.py {folder} --output {folder}_report"
    )
    return "\n" + "\n\n".join(
        filter(None, [title, terminal_table(rows), said, extra, *notes, rest])
    )
