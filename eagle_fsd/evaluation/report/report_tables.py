"""A run's tables, from which Markdown, CSV and the page come, and a bench's summary of them."""

from collections.abc import Sequence

from eagle_fsd.cli import shown_command
from eagle_fsd.evaluation import tables
from eagle_fsd.evaluation.bench import Bench
from eagle_fsd.evaluation.curves import GAIN, GAINS, LEAST, equal_speed
from eagle_fsd.evaluation.metrics import METRICS
from eagle_fsd.evaluation.plots import caption, few_questions, plot_curves
from eagle_fsd.evaluation.report.run_data import RunData
from eagle_fsd.evaluation.tables import Column, columns, metric_columns
from eagle_fsd.runs.jsonl import write_file, write_json

Table = tuple[Sequence[Column], list[dict]]  # rows have the columns' keys, and more for the CSV
POOLED = (
    "A column whose title ends in \u201c- plain\u201d is a mean over questions: of each question's "
    "own rate less plain's on it. Every other column is pooled, which is a sum over all questions "
    "divided by another such sum. So two pooled numbers need not differ by the number under "
    "\u201c- plain\u201d."
)
# title of a table -> how to read it, but for what note_of adds on intervals
NOTES = {
    "Scores": tables.SCORES_NOTE,
    "Pairwise": tables.PAIRWISE_NOTE,
    "Arms": POOLED,
    "Speed": "All columns are pooled: sums over all questions, divided by each other.",
    "Cost": POOLED,
    "Answers": POOLED,
    "By category": "Each category is measured by its own questions alone. All columns are pooled.",
    "Equal speed": "For every line of arms, which differ in their rule's value only: what it has "
    f"lost where its tokens per round are first {', '.join(map(str, GAINS))} times exact's, taken "
    "as linear between two of its arms; what lies between no two has no row. The rule random is "
    "the control to compare with. All columns are pooled. Those that end in \u201c- plain\u201d "
    "too: they are differences of pooled rates, and so not those of the table Arms. "
    f"An interval needs {LEAST} questions.",
}
EXPLAINED = ("Scores", "Pairwise")  # NOTES says all of their intervals


def run_tables(run: RunData) -> dict[str, Table]:
    """Tables by title, those that hold something: scores first."""
    rows = run.rows
    several = len({row["category"] for row in run.categories}) > 1
    parts = [*columns(category="s", arm="s", questions="d"), *metric_columns("categories")]
    answers = columns(arm="s", answers="d") + metric_columns("answers")
    gain = (METRICS[GAIN].label, GAIN, METRICS[GAIN].form)
    equal = [*columns(line="s"), gain, *columns(value=".3f"), *metric_columns("equal speed")]
    found: dict[str, Table] = {
        "Scores": (tables.SCORES, run.scores),
        "Pairwise": ([*columns(judge="s", baseline="s"), *tables.PAIRWISE], run.pairwise),
        "Arms": (columns(arm="s") + metric_columns("main"), rows),
        "Speed": (columns(arm="s", questions="d") + metric_columns("speed"), rows),
        "Cost": (columns(arm="s") + metric_columns("cost"), rows),
        "Answers": (answers, rows),
        "By category": (parts, run.categories if several else []),
        "Equal speed": (equal, equal_speed(run.records, rows)),
    }
    return {title: table for title, table in found.items() if table[1]}


def note_of(title: str, table: Table) -> str:
    """How to read a table, in sentences that are true of what it holds."""
    shown, rows = table
    if title in EXPLAINED:
        return NOTES[title]
    text = [NOTES[title]]
    cells = [row[key] for row in rows for _, key, _ in shown if isinstance(row[key], dict)]
    if any(cell["low"] is not None for cell in cells):
        text.append("In brackets stand 95 % intervals over questions, where these are known.")
    if any(cell.get("detectable") is not None for cell in cells):
        text.append(
            "In parentheses stands the smallest true difference that a test at 5 % finds with "
            "power 80 % among this number of questions."
        )
    if "questions" in rows[0]:
        text.append(few_questions(rows))
    return " ".join(text).strip()


def report_bench(
    bench: Bench, *, first: str = "", extra: str = "", further: dict | None = None
) -> str:
    """Write summary.md, .json, .csv, .svg, .pdf and by_category.csv; returns what the terminal
    shows. `first` and `extra` are further tables, above and below the others, `further` further
    entries of summary.json."""
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
    verdicts = "\n".join(f"- {row['arm']}: {tables.verdict(row, run.noise)}" for row in rows)
    notes = [f"Note: {note}." for note in [*notes, run.noise_note()] if note]
    parts = [
        f"### {title}\n\n{note_of(title, table)}\n\n{tables.markdown_table(table[1], table[0])}"
        for title, table in run_tables(run).items()
    ]
    text = [title, first, verdicts, plot, caption(rows), *parts, extra, *notes]
    write_file(folder / "summary.md", "\n\n".join(filter(None, text)) + "\n")
    page = shown_command("report.py", folder, "--output", f"{folder}_report")
    rest = (
        f"All columns, with intervals, are in {folder}: summary.md, summary.json and summary.csv; "
        f"the plot is summary.svg.\nThe report's page is made by: {page}"
    )
    shown = [title, first, tables.terminal_table(rows), verdicts, extra, *notes, rest]
    return "\n" + "\n\n".join(filter(None, shown))
