"""The scores of a run: scores/ARM.jsonl, made from its records as often as one likes, and a table.

The scored text is that of a record's first turn. A question's score is the mean over its choices;
questions are the unit of every interval and test.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.arms import parse_arm
from eagle_fsd.evaluation.questions import Question
from eagle_fsd.evaluation.stats import mcnemar, mean_interval, paired_difference
from eagle_fsd.evaluation.tables import Column, markdown_table
from eagle_fsd.runs.jsonl import read_lines, write_json, write_lines
from eagle_fsd.tasks.sandbox import bubblewrap
from eagle_fsd.tasks.scorers import SCORERS, Score

BASELINE = "plain"  # the arms of a task share their sampling, so that there is one
RECORD_KEYS = ("question_id", "arm", "turns")
COLUMNS: tuple[Column, ...] = (
    ("questions", "questions", "d"),
    ("- plain", "vs_plain", "+.3f"),
    ("gained", "gained", "d"),
    ("lost", "lost", "d"),
    ("McNemar p", "p", ".3f"),
)
NO_TEST = dict.fromkeys(("gained", "lost", "p"))
NOTE = (
    "Means over questions with 95 % intervals; - plain: paired difference, in parentheses the "
    "smallest true one that so many questions show with power 80 % (0 where no question differs, "
    "which says nothing of other questions)."
)


def records_by_arm(folder: str | Path) -> dict[str, list[dict]]:
    """The records of a finished or unfinished run; nothing is written.

    Raises:
        BadInput: the folder holds no records, or a line is broken.
    """
    paths = sorted((Path(folder) / "records").glob("*.jsonl"))
    found = [read_lines(path, keys=RECORD_KEYS) for path in paths]
    records = {rows[0]["arm"]: rows for rows in found if rows}
    if not records:
        raise BadInput(f"{folder} holds no records: name the folder of a run")
    return records


def score_records(
    records: dict[str, list[dict]], questions: list[Question], score: Score, folder: str | Path
) -> dict[str, list[dict]]:
    """Score every record; writes scores/ARM.jsonl below `folder`.

    Returns:
        arm -> rows {"question_id", "choice", "scores": name -> value}.

    Raises:
        BadInput: a record answers a question that is not among `questions`.
    """
    by_id = {question.question_id: question for question in questions}
    strange = [r["question_id"] for rows in records.values() for r in rows]
    strange = [question_id for question_id in strange if question_id not in by_id]
    if strange:
        raise BadInput(
            f"{folder} holds answers to {len(strange)} questions that the task does not have, such "
            f"as {strange[0]!r}: give the --task that was answered"
        )
    target = Path(folder) / "scores"
    target.mkdir(parents=True, exist_ok=True)
    scores: dict[str, list[dict]] = {arm: [] for arm in records}
    with tqdm(total=sum(map(len, records.values())), unit="answer", desc="scores") as bar:
        for arm, rows in records.items():
            for row in rows:
                given = score(row["turns"][0]["text"], by_id[row["question_id"]])
                place = {"question_id": row["question_id"], "choice": row.get("choice", 0)}
                scores[arm].append(place | {"scores": given})
                bar.update()
            write_lines(target / f"{parse_arm(arm).slug}.jsonl", scores[arm])
    return scores


def compare_scores(scores: dict[str, list[dict]]) -> list[dict]:
    """A row for every score of every arm.

    Returns:
        JSON-able rows: score, arm, questions, mean {"value", "low", "high"}, and what
        compare_questions says against the plain loop, on the questions both have answered.
    """
    flat = [
        {"name": name, "arm": arm, "question_id": row["question_id"], "value": value}
        for arm, rows in scores.items()
        for row in rows
        for name, value in row["scores"].items()
    ]
    compared = []
    for name, frame in pd.DataFrame(flat).groupby("name", sort=False):
        means = frame.groupby(["arm", "question_id"], sort=False)["value"].mean()
        values = {arm: means[arm] for arm in scores}
        for arm, mine in values.items():
            theirs = values[BASELINE] if BASELINE in values and arm != BASELINE else mine[:0]
            pairs = pd.concat([mine, theirs], axis=1, join="inner")
            row = {"score": name, "arm": arm, "questions": len(mine), "mean": mean_interval(mine)}
            compared.append(row | compare_questions(*pairs.to_numpy().T.tolist()))
    return compared


def compare_questions(mine_Q: Sequence[float], theirs_Q: Sequence[float]) -> dict:
    """Scores of the same questions against each other.

    Returns:
        vs_plain {"value", "low", "high", "detectable"} and mcnemar {"gained", "lost", "p"}; both
        None without questions, mcnemar also where a score is neither 0 nor 1.
    """
    if not mine_Q:
        return {"vs_plain": None, "mcnemar": None}
    binary = {*mine_Q, *theirs_Q} <= {0, 1}
    return {
        "vs_plain": paired_difference(mine_Q, theirs_Q),
        "mcnemar": mcnemar(mine_Q, theirs_Q) if binary else None,
    }


def write_table(folder: str | Path, compared: list[dict], *, scorer: str, note: str = "") -> str:
    """Write scores/table.md, a table for each score and how to read it, and scores/table.json
    {scorer, note, rows}, whose rows the report shows as they are; returns the text."""
    tables = []
    for name in dict.fromkeys(row["score"] for row in compared):
        rows = [NO_TEST | (row["mcnemar"] or {}) | row for row in compared if row["score"] == name]
        tables.append(markdown_table(rows, [("arm", "arm", "s"), (name, "mean", ".3f"), *COLUMNS]))
    text = "\n\n".join([*tables, NOTE, *([note] if note else [])])
    target = Path(folder) / "scores"
    (target / "table.md").write_text(text + "\n")
    write_json(target / "table.json", {"scorer": scorer, "note": note, "rows": compared})
    return text


def score_run(
    records: dict[str, list[dict]], questions: list[Question], scorer: str, folder: str | Path
) -> tuple[str, list[dict]]:
    """Score a run and write what that gives; returns the table as text and as rows."""
    place = "in bubblewrap" if bubblewrap() else "without isolation"
    note = f"The answers' code ran {place}." if scorer == "humaneval" else ""
    compared = compare_scores(score_records(records, questions, SCORERS[scorer].score, folder))
    return write_table(folder, compared, scorer=scorer, note=note), compared
