"""A run's tables, from which Markdown, CSV and the page come, and a bench's summary of them."""

from collections.abc import Sequence

from eagle_fsd.cli import shown_command
from eagle_fsd.evaluation import tables
from eagle_fsd.evaluation.bench import Bench
from eagle_fsd.evaluation.curves import equal_speed, plot_curves
from eagle_fsd.evaluation.report.run_data import RunData
from eagle_fsd.evaluation.tables import Column, columns, metric_columns
from eagle_fsd.runs.jsonl import write_file, write_json

Table = tuple[Sequence[Column], list[dict]]  # rows have the columns' keys, and more for the CSV
OVER_EXACT: Column = ("tokens/round over exact", "gain", ".2f")
# title of a table -> how to read it
NOTES = {
    "Arms": "In brackets 95 % intervals over questions; in parentheses the smallest true "
    "difference that so many questions show (5 %, power 80 %).",
    "Speed": "In brackets 95 % intervals over questions.",
    "Cost": "- plain: mean difference of the questions' own rates, as under Arms.",
    "Answers": "Differences as under Cost.",
    "By category": "Few questions each: intervals are wide, or missing.",
    "Equal speed": "What every line of arms has lost where its tokens per round are first "
    "1.05, 1.1, 1.2 and 1.3 times exact's, linear between two values: compare with random.",
    "Scores": tables.SCORES_NOTE,
    "Pairwise": tables.PAIRWISE_NOTE,
}


def run_tables(run: RunData) -> dict[str, Table]:
    """Tables by title, those that hold something; the first is for the top of the page."""
    rows = run.rows
    several = len({row["category"] for row in run.categories}) > 1
    parts = [*columns(category="s", arm="s", questions="d"), *metric_columns("categories")]
    answers = columns(arm="s", answers="d") + metric_columns("answers")
    equal = [*columns(line="s"), OVER_EXACT, *columns(value=".3f"), *metric_columns("equal speed")]
    found: dict[str, Table] = {
        "Arms": (columns(arm="s") + metric_columns("main"), rows),
        "Speed": (columns(arm="s", questions="d") + metric_columns("speed"), rows),
        "Cost": (columns(arm="s") + metric_columns("cost"), rows),
        "Answers": (answers, rows),
        "By category": (parts, run.categories if several else []),
        "Equal speed": (equal, equal_speed(run.records, rows)),
        "Scores": (tables.SCORES, run.scores),
        "Pairwise": ([*columns(judge="s", baseline="s"), *tables.PAIRWISE], run.pairwise),
    }
    return {title: table for title, table in found.items() if table[1]}


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
    tables.write_csv(folder / "summary.csv", rows)
    tables.write_csv(folder / "by_category.csv", run.categories)
    plot = "![loss against gain](summary.svg)" if plot_curves(rows, folder / "summary") else ""
    said = "\n".join(f"- {row['arm']}: {tables.verdict(row, run.noise)}" for row in rows)
    notes = [f"Note: {note}." for note in [*notes, run.noise_told()] if note]
    parts = [
        f"### {title}\n\n{NOTES[title]}\n\n{tables.markdown_table(found, shown)}"
        for title, (shown, found) in run_tables(run).items()
    ]
    text = "\n\n".join(filter(None, [title, said, plot, *parts, extra, *notes]))
    write_file(folder / "summary.md", text + "\n")
    page = shown_command("report.py", folder, "--output", f"{folder}_report")
    rest = (
        f"All columns, with intervals, are in {folder}: summary.md, summary.json and summary.csv; "
        f"the plot is summary.svg.\nThe report's page is made by: {page}"
    )
    return "\n" + "\n\n".join(
        filter(None, [title, tables.terminal_table(rows), said, extra, *notes, rest])
    )
