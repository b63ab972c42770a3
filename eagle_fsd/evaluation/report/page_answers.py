"""Answers as the page holds them, question by question: texts with their fuzzy tokens from the
records, and from traces the rounds. page.js reads this form.

run       {name, greedy, arms, questions}
question  {id, choice, category, prompts, answers: one an arm, null where it has none}
answer    [turn]; turn: {parts: [[text, null or {regret, D} of a fuzzy token]], tokens}, and with a
          trace {first: text, rounds: as in traces.py}
"""

import json
from collections.abc import Sequence

from eagle_fsd.evaluation.report.read_runs import RunData
from eagle_fsd.runs.folder import answer_key

MOST_BYTES = 10_000_000
ByArm = dict[str, dict[tuple, dict]]  # arm -> question and choice -> record, or trace


def pack_answers(
    runs: Sequence[RunData], *, most_bytes: int = MOST_BYTES
) -> tuple[list[dict], int]:
    """All answers; questions that would make the page larger than `most_bytes` are left out.

    Returns:
        The data, and how many questions are not there.
    """
    packed, left, short = [], most_bytes, 0
    for run in runs:
        records, traces = (
            {arm: {answer_key(row): row for row in rows} for arm, rows in of.items()}
            for of in (run.records, run.traces)
        )
        questions = []
        for key in dict.fromkeys(key for rows in records.values() for key in rows):
            question = _question(key, records, traces)
            size = len(json.dumps(question, ensure_ascii=False))
            if size <= left:
                questions.append(question)
                left -= size
            else:
                short += 1
        greedy = all(row["temperature"] == 0 for rows in run.records.values() for row in rows)
        place = {"name": run.name, "greedy": greedy, "arms": list(records)}
        packed.append(place | {"questions": questions})
    return packed, short


def _question(key: tuple, records: ByArm, traces: ByArm) -> dict:
    found = {arm: rows.get(key) for arm, rows in records.items()}
    record = next(row for row in found.values() if row)
    return {
        "id": key[0],
        "choice": key[1],
        "category": record["category"],
        "prompts": [turn["prompt"] for turn in record["turns"]],
        "answers": [
            row and _answer(row, traces.get(arm, {}).get(key)) for arm, row in found.items()
        ],
    }


def _answer(record: dict, trace: dict | None) -> list[dict]:
    answer = []
    for number, turn in enumerate(record["turns"]):
        packed = {"parts": text_parts(turn), "tokens": len(turn["token_ids"])}
        traced = trace and trace["turns"][number]
        if traced and traced["same_as_record"]:
            packed |= {"first": traced["first"]["text"], "rounds": traced["rounds"]}
        answer.append(packed)
    return answer


def text_parts(turn: dict) -> list[list]:
    """The answer's text cut at its fuzzy tokens, each with its regret and D."""
    text, parts, end = turn["text"], [], 0
    known = [
        {"regret": regret, "D": divergence}
        for r in turn["rounds"]
        for fuzzy, regret, divergence in zip(r["fuzzy"], r["regret"], r["divergence"], strict=True)
        if fuzzy
    ]
    # the last round may hold fuzzy tokens that were trimmed
    for (first, last), of_token in zip(turn["fuzzy_spans"], known, strict=False):
        parts += [[text[end:first], None], [text[first:last], of_token]]
        end = last
    return [part for part in [*parts, [text[end:], None]] if part[0]]
