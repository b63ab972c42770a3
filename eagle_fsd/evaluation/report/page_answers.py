"""Answers as the page holds them, question by question: texts with their fuzzy tokens from the
records, and from traces the rounds. page.js reads this form.

run       {name, greedy, arms, questions}
question  {id, choice, category, prompts, answers: one an arm, null where it has none}
answer    [turn]; turn: {parts: [[text, null or {regret, D} of a fuzzy token]], tokens}, and with a
          trace {first: text, rounds: as in traces.py}
"""

from collections.abc import Sequence

from eagle_fsd.evaluation.report.read_runs import RunData
from eagle_fsd.runs.folder import answer_key


def pack_answers(runs: Sequence[RunData]) -> list[dict]:
    """All answers of all runs."""
    packed = []
    for run in runs:
        records, traces = (
            {arm: {answer_key(row): row for row in rows} for arm, rows in of.items()}
            for of in (run.records, run.traces)
        )
        questions: dict[tuple, dict] = {}
        for arm, rows in records.items():
            for key, row in rows.items():
                place = {"id": key[0], "choice": key[1], "category": row["category"]}
                place["prompts"] = [turn["prompt"] for turn in row["turns"]]
                question = questions.setdefault(key, place | {"answers": [None] * len(records)})
                answer = _answer(row, traces.get(arm, {}).get(key))
                question["answers"][list(records).index(arm)] = answer
        greedy = all(row["temperature"] == 0 for rows in run.records.values() for row in rows)
        place = {"name": run.name, "greedy": greedy, "arms": list(records)}
        packed.append(place | {"questions": list(questions.values())})
    return packed


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
