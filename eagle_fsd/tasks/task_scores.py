"""The scores of a run: scores/ARM.jsonl, made from its records as often as one likes, and a table.

The scored text is that of a record's first turn. A question's score is the mean over its choices;
questions are the unit of every interval and test.
"""

from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.arms import parse_arm
from eagle_fsd.evaluation.questions import Question
from eagle_fsd.evaluation.stats import mcnemar, mean_interval, paired_difference
from eagle_fsd.evaluation.tables import Column, markdown_table
from eagle_fsd.runs.jsonl import read_lines, write_json, write_lines
from eagle_fsd.tasks.sandbox import isolation
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


def read_records(folder: str | Path) -> dict[str, list[dict]]:
    """The records of a finished or unfinished run, by arm; nothing is written.

    A torn last line, as a killed or running writer leaves it, is skipped with a warning.

    Raises:
        BadInput: the folder holds no records, or a line is broken.
    """
    paths = sorted((Path(folder) / "records").glob("*.jsonl"))
    found = [read_lines(path, keys=RECORD_KEYS) for path in paths]
    records = {rows[0]["arm"]: rows for rows in found if rows}
    if not records:
        raise BadInput(f"{folder} holds no records: name the folder of a run with --output")
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
    for arm, rows in records.items():
        strange = [row["question_id"] for row in rows if row["question_id"] not in by_id]
        if strange:
            raise BadInput(
                f"{folder} holds answers of {arm} to {len(strange)} questions that the task does "
                f"not have, such as {strange[0]!r}: give the --task that was answered"
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
        JSON-able rows: score, arm, questions, mean {"value", "low", "high"}, and against the plain
        loop on the questions both have answered (None for itself and without it): vs_plain
        {"value", "low", "high", "detectable"}, and mcnemar {"gained", "lost", "p"}, None also
        where a question's score is neither 0 nor 1.
    """
    names = dict.fromkeys(
        name for rows in scores.values() for row in rows for name in row["scores"]
    )
    compared = []
    for name in names:
        values = {arm: _by_question(rows, name) for arm, rows in scores.items()}
        for arm, mine in values.items():
            theirs = values.get(BASELINE, {}) if arm != BASELINE else {}
            common = [key for key in mine if key in theirs]
            mean = mean_interval(list(mine.values()))
            row = {"score": name, "arm": arm, "questions": len(mine), "mean": mean}
            pair = [mine[key] for key in common], [theirs[key] for key in common]
            compared.append(row | compare_questions(*pair))
    return compared


def compare_questions(mine_Q: Sequence[float], theirs_Q: Sequence[float]) -> dict:
    """Scores of the same questions against each other.

    Returns:
        vs_plain {"value", "low", "high", "detectable"} and mcnemar {"gained", "lost", "p"}; both
        None without questions, mcnemar also where a score is neither 0 nor 1.
    """
    if not mine_Q:
        return {"vs_plain": None, "mcnemar": None}
    binary = all(value in (0, 1) for value in [*mine_Q, *theirs_Q])
    sides = ([bool(value) for value in side] for side in (mine_Q, theirs_Q))
    return {
        "vs_plain": paired_difference(mine_Q, theirs_Q),
        "mcnemar": mcnemar(*sides) if binary else None,
    }


def _by_question(rows: list[dict], name: str) -> dict[int | str, float]:
    """A score by question, the mean over choices."""
    found: dict[int | str, list[float]] = {}
    for row in rows:
        found.setdefault(row["question_id"], []).append(row["scores"][name])
    return {key: sum(values) / len(values) for key, values in found.items()}


def score_tables(compared: list[dict]) -> str:
    """A Markdown table for each score, and how to read them."""
    tables = []
    for name in dict.fromkeys(row["score"] for row in compared):
        rows = [NO_TEST | (row["mcnemar"] or {}) | row for row in compared if row["score"] == name]
        tables.append(markdown_table(rows, [("arm", "arm", "s"), (name, "mean", ".3f"), *COLUMNS]))
    return "\n\n".join([*tables, NOTE])


def write_table(folder: str | Path, compared: list[dict], *, scorer: str, note: str = "") -> str:
    """Write scores/table.md, and scores/table.json {scorer, note, rows}, whose rows the report
    shows as they are; returns the text."""
    text = "\n\n".join([score_tables(compared), *([note] if note else [])])
    target = Path(folder) / "scores"
    (target / "table.md").write_text(text + "\n")
    write_json(target / "table.json", {"scorer": scorer, "note": note, "rows": compared})
    return text


def score_run(
    records: dict[str, list[dict]], questions: list[Question], scorer: str, folder: str | Path
) -> tuple[str, list[dict]]:
    """Score a run and write what that gives; returns the table as text and as rows."""
    note = f"The answers' code ran with: {isolation()}." if scorer == "humaneval" else ""
    compared = compare_scores(score_records(records, questions, SCORERS[scorer].score, folder))
    return write_table(folder, compared, scorer=scorer, note=note), compared
