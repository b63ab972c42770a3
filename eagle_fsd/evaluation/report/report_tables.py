"""A run's tables, from which Markdown, CSV and the page come."""

from collections.abc import Sequence

import pandas as pd

from eagle_fsd.evaluation.curves import equal_speed
from eagle_fsd.evaluation.metrics import rounds_of
from eagle_fsd.evaluation.report.read_runs import RunData
from eagle_fsd.evaluation.tables import PAIRWISE, Column, metric_columns

Table = tuple[Sequence[Column], list[dict]]  # rows have the columns' keys, and more for the CSV
DEPTHS = range(1, 9)  # of accepted drafts
ARM: Column = ("arm", "arm", "s")
QUESTIONS: Column = ("questions", "questions", "d")
EQUAL_SPEED: tuple[Column, ...] = (
    ("line", "line", "s"),
    ("tokens/round over exact", "gain", ".2f"),
    ("value", "value", ".3f"),
)
SCORES: tuple[Column, ...] = (
    ("score", "score", "s"),
    ARM,
    QUESTIONS,
    ("mean", "mean", ".4f"),
    ("- plain", "vs_plain", "+.4f"),
    ("gained", "gained", "d"),
    ("lost", "lost", "d"),
    ("McNemar p", "p", ".3f"),
)
NO_TEST = dict.fromkeys(("gained", "lost", "p"))
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
    judged = [("judge", "judge", "s"), ("baseline", "baseline", "s"), *PAIRWISE]
    parts = [("category", "category", "s"), ARM, QUESTIONS, *metric_columns("categories")]
    answers = [ARM, ("answers", "answers", "d"), *metric_columns("answers")]
    equal = [*EQUAL_SPEED, *metric_columns("equal speed")]
    tables: dict[str, Table] = {
        "Arms": ([ARM, *metric_columns("main")], rows),
        "Speed": ([ARM, QUESTIONS, *metric_columns("speed")], rows),
        "Cost": ([ARM, *metric_columns("cost")], rows),
        "Answers": (answers, rows),
        "By category": (parts, run.categories if several else []),
        "Equal speed": (equal, equal_speed(run.records, rows)),
        "Scores": (SCORES, scores),
        "Pairwise": (judged, run.pairwise),
        "Accepted drafts": ([ARM, *depths], _depth_rows(run)),
    }
    return {title: table for title, table in tables.items() if table[1]}


def _depth_rows(run: RunData) -> list[dict]:
    rows = []
    for arm, found in run.records.items():
        accepted = pd.Series([len(r["tokens"]) - 1 for record in found for r in rounds_of(record)])
        if accepted.max() > 0:
            shares = {f"at_least_{depth}": float((accepted >= depth).mean()) for depth in DEPTHS}
            rows.append({"arm": arm} | shares)
    return rows
