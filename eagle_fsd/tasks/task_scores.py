"""The scores of a run: scores/ARM.jsonl, made from its records as often as one likes, and a table.

The scored text is that of a record's first turn; questions are the unit of every interval and test.
"""

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
    """Score every record: arm -> rows {"question_id", "choice", "scores": name -> value}, which are
    also written to scores/ARM.jsonl below `folder`.

    Raises:
        BadInput: a record answers a question that is not among `questions`.
    """
    by_id = {question.question_id: question for question in questions}
    strange = {row["question_id"] for rows in records.values() for row in rows} - by_id.keys()
    if strange:
        raise BadInput(
            f"{folder} holds answers to questions that the task does not have, such as "
            f"{strange.pop()!r}: give the --task that was answered"
        )
    target = Path(folder) / "scores"
    target.mkdir(parents=True, exist_ok=True)
    scores: dict[str, list[dict]] = {}
    with tqdm(total=sum(map(len, records.values())), unit="answer", desc="scores") as bar:
        for arm, rows in records.items():
            scores[arm] = []
            for row in rows:
                given = score(row["turns"][0]["text"], by_id[row["question_id"]])
                place = {"question_id": row["question_id"], "choice": row.get("choice", 0)}
                scores[arm].append(place | {"scores": given})
                bar.update()
            write_lines(target / f"{parse_arm(arm).slug}.jsonl", scores[arm])
    return scores


def compare_scores(scores: dict[str, list[dict]]) -> list[dict]:
    """A row for every score of every arm. A question's score is the mean over its turns, a turn's
    over its choices; arms are compared over the questions and turns that both have.

    Args:
        scores: arm -> rows {"question_id", "turn": 1 unless given, "scores": name -> value}.

    Returns:
        JSON-able rows: score, arm, questions, mean {"value", "low", "high"}, and against the plain
        loop vs_plain {"value", "low", "high", "detectable"} and mcnemar {"gained", "lost", "p"};
        both None for itself and without it, mcnemar also where a score is neither 0 nor 1.
    """
    flat = [
        {"name": name, "arm": arm, "value": value, "turn": 1} | row
        for arm, rows in scores.items()
        for row in rows
        for name, value in row["scores"].items()
    ]
    places = ["arm", "question_id", "turn"]
    compared = []
    for name, frame in pd.DataFrame(flat).groupby("name", sort=False):
        values = frame.groupby(places, sort=False)["value"].mean()
        for arm in values.index.unique("arm"):
            mine_Q = values[arm].groupby("question_id", sort=False).mean()
            row = {"score": name, "arm": arm, "questions": len(mine_Q), "vs_plain": None}
            row |= {"mean": mean_interval(mine_Q), "mcnemar": None}
            if arm != BASELINE and BASELINE in values.index.unique("arm"):
                both = pd.concat([values[arm], values[BASELINE]], axis=1, join="inner")
                pair = both.groupby("question_id", sort=False).mean().to_numpy().T.tolist()
                if pair[0]:
                    row["vs_plain"] = paired_difference(*pair)
                    binary = {*pair[0], *pair[1]} <= {0, 1}
                    row["mcnemar"] = mcnemar(*pair) if binary else None
            compared.append(row)
    return compared


def score_tables(compared: list[dict]) -> str:
    """A Markdown table for each score, and how to read them."""
    tables = []
    for name in dict.fromkeys(row["score"] for row in compared):
        rows = [NO_TEST | (row["mcnemar"] or {}) | row for row in compared if row["score"] == name]
        tables.append(markdown_table(rows, [("arm", "arm", "s"), (name, "mean", ".3f"), *COLUMNS]))
    return "\n\n".join([*tables, NOTE])


def write_table(path: Path, text: str, rows: list[dict]) -> None:
    """Write PATH.md, and PATH.json {"rows"}, which the report shows as they are."""
    path.with_name(f"{path.name}.md").write_text(f"{text}\n")
    write_json(path.with_name(f"{path.name}.json"), {"rows": rows})


def score_run(
    records: dict[str, list[dict]], questions: list[Question], scorer: str, folder: str | Path
) -> tuple[str, list[dict]]:
    """Score a run, and write scores/table beside; returns the table as text and as rows."""
    compared = compare_scores(score_records(records, questions, SCORERS[scorer].score, folder))
    text = score_tables(compared)
    if scorer == "humaneval":
        place = "in bubblewrap" if bubblewrap() else "without isolation"
        text += f"\n\nThe answers' code ran {place}."
    write_table(Path(folder) / "scores" / "table", text, compared)
    return text, compared
