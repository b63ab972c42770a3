"""A run's tables, of which its summary and its page are made."""

from collections.abc import Sequence
from typing import NamedTuple

from eagle_fsd.evaluation import tables
from eagle_fsd.evaluation.curves import GAIN, GAINS, LEAST, WIDEST, equal_gain
from eagle_fsd.evaluation.metrics import METRICS
from eagle_fsd.evaluation.plots import few_questions
from eagle_fsd.evaluation.report.run_data import RunData
from eagle_fsd.evaluation.tables import Column, columns, metric_columns


class Table(NamedTuple):
    columns: Sequence[Column]
    rows: list[dict]  # they have the columns' keys, and more for CSV and JSON
    note: str  # how to read it


POOLED = (
    "A column whose title ends in \u201c- plain\u201d is a mean over questions: of each question's "
    "own rate less plain's on it. Every other column is pooled, which is a sum over all questions "
    "divided by another such sum. So two pooled numbers need not differ by the number under "
    "\u201c- plain\u201d."
)
# title of a table -> how to read it, but for what _note adds on intervals
NOTES = {
    "Scores": tables.SCORES_NOTE,
    "Arms": POOLED,
    "Speed": "All columns are pooled: sums over all questions, divided by each other.",
    "Cost": POOLED,
    "Answers": POOLED,
    "By category": "Each category is measured by its own questions alone. All columns are pooled.",
    "Equal gain": "For every line of arms, which differ in their rule's value only: what it has "
    f"lost where its tokens per round are first {', '.join(map(str, GAINS))} times exact's, taken "
    f"as linear between two of its arms whose gains differ by {WIDEST} at most. The column between "
    "names the rule's values of these two; what lies between no two has no row. Where in between "
    "the gain is cannot be told from them: measure it. The rule random is the control to compare "
    "with. All columns are pooled. Those that end in \u201c- plain\u201d "
    "too: they are differences of pooled rates, and so not those of the table Arms. "
    f"An interval needs {LEAST} questions.",
}


def run_tables(run: RunData) -> dict[str, Table]:
    """Tables by title, those that hold something: scores first."""
    rows = run.rows
    several = len({row["category"] for row in run.categories}) > 1
    parts = [*columns(category="s", arm="s", questions="d"), *metric_columns("categories")]
    answers = columns(arm="s", answers="d") + metric_columns("answers")
    gain = (METRICS[GAIN].label, GAIN, METRICS[GAIN].form)
    equal = [*columns(line="s"), gain, *columns(between="s"), *metric_columns("equal gain")]
    contents = {
        "Scores": (tables.SCORES, run.scores),
        "Arms": (columns(arm="s") + metric_columns("main"), rows),
        "Speed": (columns(arm="s", questions="d") + metric_columns("speed"), rows),
        "Cost": (columns(arm="s") + metric_columns("cost"), rows),
        "Answers": (answers, rows),
        "By category": (parts, run.categories if several else []),
        "Equal gain": (equal, equal_gain(run.records, rows)),
    }
    return {
        title: Table(shown, rows, _note(title, shown, rows))
        for title, (shown, rows) in contents.items()
        if rows
    }


def _note(title: str, shown: Sequence[Column], rows: list[dict]) -> str:
    """How to read a table, in sentences that are true of what it holds."""
    if title == "Scores":  # its note says all of its intervals
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
