"""Answers as the page holds them: texts with their fuzzy tokens from the records, and from traces
the trees, as short lists, so that thousands stay small. page.js reads this form.

run       {name, greedy, arms, questions}
question  {id, choice, category, prompts, answers: one an arm, null where it has none}
answer    [turn]; turn: {parts: [[text, null or {regret, D} of a fuzzy token]], tokens}, and with a
          trace {first: text, rounds}
round     [nodes, path: node indices from the root, emitted]
nodes     [text, parent, P, Q]
emitted   [text, place in SOURCES, D, P, Q, regret, most likely text, its P]
"""

import json
from collections.abc import Sequence

from eagle_fsd.evaluation.arms import BY_TRANSFORMERS
from eagle_fsd.evaluation.report.read_runs import RunData
from eagle_fsd.evaluation.report.report_tables import SOURCES

MOST_BYTES = 3_000_000
NODE = ("text", "parent", "target_prob", "draft_prob")
EMITTED = ("divergence", "target_prob", "draft_prob", "regret", "best", "best_prob")


def pack_answers(
    runs: Sequence[RunData], *, most_bytes: int = MOST_BYTES
) -> tuple[list[dict], int]:
    """All answers, question by question; what would make the page larger than `most_bytes` is left
    out: trees first, then whole questions.

    Returns:
        The data, and how many questions lack an answer or its trees by that.
    """
    packed, size, short = [], 0, 0
    for run in runs:
        records, traces = _by_question(run.records), _by_question(run.traces)
        questions = []
        deciding = [arm for arm in records if arm not in BY_TRANSFORMERS] or list(records)
        for key in {key: None for arm in deciding for key in records[arm]}:
            for known in (traces, {}):  # with trees, else without
                question = _question(key, records, known)
                length = len(json.dumps(question, ensure_ascii=False))
                if size + length <= most_bytes:
                    size += length
                    questions.append(question)
                    short += known is not traces
                    break
            else:
                short += 1
        temperatures = {row.get("temperature") for rows in run.records.values() for row in rows}
        place = {"name": run.name, "greedy": temperatures == {0.0}, "arms": list(run.records)}
        packed.append(place | {"questions": questions})
    return packed, short


def _by_question(arms: dict[str, list[dict]]) -> dict[str, dict[tuple, dict]]:
    return {
        arm: {(row["question_id"], row.get("choice", 0)): row for row in rows}
        for arm, rows in arms.items()
    }


def _question(key: tuple, records: dict, traces: dict) -> dict:
    found = {arm: rows.get(key) for arm, rows in records.items()}
    record = next(row for row in found.values() if row)
    return {
        "id": key[0],
        "choice": key[1],
        "category": record.get("category", ""),
        "prompts": [turn.get("prompt", "") for turn in record["turns"]],
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
            packed["first"] = traced["first"]["text"]
            packed["rounds"] = [_round(r) for r in traced["rounds"]]
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
    for (first, last), of_token in zip(turn.get("fuzzy_spans", []), known, strict=False):
        parts += [[text[end:first], None], [text[first:last], of_token]]
        end = last
    return [part for part in [*parts, [text[end:], None]] if part[0]]


def _round(r: dict) -> list:
    nodes = [[_short(node[key]) for key in NODE] for node in r["nodes"]]
    emitted = [
        [token["text"], SOURCES.index(token["source"]), *(_short(token[key]) for key in EMITTED)]
        for token in r["emitted"]
    ]
    return [nodes, r["path"], emitted]


def _short(value: float | str | None) -> float | str | None:
    """Four decimals."""
    return round(value, 4) if isinstance(value, float) else value
