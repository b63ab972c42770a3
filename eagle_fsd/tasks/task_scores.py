"""The scores of a run, by a scorer or by a judge's ratings, and their tables.

They are made from what is on disk as often as one likes; questions are the unit of every interval
and test.
"""

from pathlib import Path
from statistics import fmean

from tqdm import tqdm

from eagle_fsd.arms import PLAIN, parse_arm
from eagle_fsd.config import BadInput
from eagle_fsd.evaluation import tables
from eagle_fsd.evaluation.questions import Question
from eagle_fsd.runs.folder import answer_key, lock_folder
from eagle_fsd.runs.jsonl import write_file, write_json, write_lines
from eagle_fsd.stats import mcnemar, mean_interval, paired_difference, share_interval
from eagle_fsd.tasks.scorers import SCORERS
from eagle_fsd.thoughts import answer_of


def score_run(
    records: dict[str, list[dict]], questions: list[Question], scorer: str, folder: str | Path
) -> tuple[str, list[dict]]:
    """Score every record's first turn; returns the table as text and the rows of compare_scores.

    Beside a scorer's own score, as_plain: 1 where the answer comes to what plain's does, right or
    wrong, of the answers of plain that come to something. Written below folder/scores: ARM.jsonl of
    {"question_id", "choice", "scores": name -> value, "reference": right answers}, and the table.
    """
    by_id = {question.question_id: question for question in questions}
    for row in (row for rows in records.values() for row in rows):
        if row["question_id"] not in by_id:
            raise BadInput(
                f"{folder} holds answers to questions that the task does not have, such as "
                f"{row['question_id']!r}: give the --task that was answered"
            )
    target, final = Path(folder) / "scores", SCORERS[scorer].final

    # 1. What plain's answers come to, of those that come to something.
    finals = {}
    for row in records.get(PLAIN, ()) if final else ():
        if (value := final(answer_of(row["turns"][0]))) not in (None, ""):
            finals[answer_key(row)] = value

    # 2. The scores of all, arm by arm on disk.
    with lock_folder(target):
        values, silent = [], 0
        for arm, rows in records.items():
            scored = []
            for row in tqdm(rows, unit="answer", desc=f"scores of {arm}"):
                question, answer = by_id[row["question_id"]], answer_of(row["turns"][0])
                silent += not answer
                given = SCORERS[scorer].score(answer, question)
                if arm != PLAIN and answer_key(row) in finals:
                    given["as_plain"] = float(final(answer) == finals[answer_key(row)])
                place = {"question_id": row["question_id"], "choice": row.get("choice", 0)}
                scored.append(place | {"scores": given, "reference": question.reference})
                values += [place | {"arm": arm, "score": s, "value": v} for s, v in given.items()]
            write_lines(target / f"{parse_arm(arm).slug}.jsonl", scored)

        # 3. The table, and what a reader must know of it.
        compared, note = compare_scores(values), ""
        if silent:  # a budget that ends within thoughts tells of the budget
            note = f"{silent} answers say nothing, or nothing behind their thought."
        return write_scores(target / "table", compared, note), compared


def compare_scores(values: list[dict]) -> list[dict]:
    """A row for every score of every arm. A question's score is the mean over its turns, a turn's
    over its choices; arms are compared over the questions and turns that both have.

    Args:
        values: {"score", "arm", "question_id", "turn" if it has several, "value"}.

    Returns:
        JSON-able rows: score, arm, questions, mean {"value", "low", "high"}, and against plain
        vs_plain {"value", "low", "high", "detectable"}, gained, lost and mcnemar_p, which are None
        where there is nothing to compare, the last three also of scores other than 0 and 1.
    """
    # score -> arm -> (question, turn) -> what its choices have
    held: dict[str, dict] = {}
    for row in values:
        of_arm = held.setdefault(row["score"], {}).setdefault(row["arm"], {})
        of_arm.setdefault((row["question_id"], row.get("turn", 1)), []).append(row["value"])
    compared = []
    for name, arms in held.items():
        means = {arm: {at: fmean(v) for at, v in of_arm.items()} for arm, of_arm in arms.items()}
        for arm, mine in means.items():
            mine_Q = by_question(mine)
            row = {"score": name, "arm": arm, "questions": len(mine_Q)}
            row |= dict.fromkeys(("vs_plain", "gained", "lost", "mcnemar_p"))
            row["mean"] = mean_interval(mine_Q)
            if all(0 <= value <= 1 for value in mine_Q):  # no judge's ratings
                row["mean"] = share_interval([(value, 1) for value in mine_Q])
            if arm != PLAIN and (theirs := means.get(PLAIN)):
                shared = [at for at in mine if at in theirs]
                pair = [by_question({at: of[at] for at in shared}) for of in (mine, theirs)]
                if pair[0]:
                    row["vs_plain"] = paired_difference(*pair)
                    if {*pair[0], *pair[1]} <= {0, 1}:
                        row |= mcnemar(*pair)
            compared.append(row)
    return compared


def by_question(scores: dict[tuple[int | str, int], float]) -> list[float]:
    """The mean of every question over its turns."""
    turns: dict[int | str, list[float]] = {}
    for (question_id, _), score in scores.items():
        turns.setdefault(question_id, []).append(score)
    return [fmean(found) for found in turns.values()]


def write_scores(path: Path, rows: list[dict], note: str = "") -> str:
    """Write PATH.json, which the report shows, and PATH.md: the rows as a table, how to read it,
    and the note. Returns that text."""
    table = tables.markdown_table(rows, tables.SCORES)
    text = "\n\n".join(filter(None, (table, tables.SCORES_NOTE, note)))
    write_file(path.with_name(f"{path.name}.md"), f"{text}\n")
    write_json(path.with_name(f"{path.name}.json"), {"rows": rows})
    return text
