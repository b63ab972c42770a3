"""Answers as the page holds them: texts with their fuzzy tokens from the records, and from traces
the trees, as flat arrays with one table of strings, so that thousands stay small. page.js reads
this form.

strings   every text of a tree once; texts in rounds are indices into it
runs      [{name, greedy, arms, questions}]
question  {id, choice, category, prompts, answers: one an arm, null where it has none}
answer    [turn]; turn: {parts: [[text, null or {regret, D} of a fuzzy token]], seconds, tokens}
          and with a trace {first, rounds}
round     [nodes, path, emitted]
nodes     text, parent, P, Q of node 0, of node 1, ...
path      node indices, the root first
emitted   text, place in SOURCES, D, P, Q, regret, most likely text, its P of every emitted token
"""

import json

from eagle_fsd.evaluation.arms import BY_TRANSFORMERS
from eagle_fsd.evaluation.report.read_runs import RunData
from eagle_fsd.evaluation.report.report_tables import SOURCES

MOST_BYTES = 3_000_000


class Strings:
    """Texts by the order of their first use."""

    def __init__(self):
        self.place: dict[str, int] = {}

    def add(self, text: str) -> int:
        return self.place.setdefault(text, len(self.place))


def pack_answers(
    runs: list[RunData], *, most_bytes: int = MOST_BYTES
) -> tuple[dict[str, list], int]:
    """All answers, question by question; what would make the page larger than `most_bytes` is left
    out: trees first, then whole questions.

    Returns:
        The data, and how many questions lack an answer or a tree by that.
    """
    strings, packed, size, short = Strings(), [], 0, 0
    for run in runs:
        traces = {arm: {_key(row): row for row in rows} for arm, rows in run.traces.items()}
        records = {arm: {_key(row): row for row in rows} for arm, rows in run.records.items()}
        questions = []
        deciding = [arm for arm in records if arm not in BY_TRANSFORMERS] or list(records)
        for key in {key: None for arm in deciding for key in records[arm]}:
            for known in (traces, {}):  # with trees, else without
                question = _question(key, records, known, Strings())
                length = len(json.dumps(question, ensure_ascii=False))
                if size + length <= most_bytes:
                    size += length
                    questions.append(_question(key, records, known, strings))
                    short += known is not traces
                    break
            else:
                short += 1
        temperatures = {row.get("temperature") for rows in run.records.values() for row in rows}
        packed.append(
            {
                "name": run.name,
                "greedy": temperatures == {0.0},
                "arms": list(run.records),
                "questions": questions,
            }
        )
    return {"strings": list(strings.place), "runs": packed}, short


def _key(row: dict) -> tuple:
    return row["question_id"], row.get("choice", 0)


def _question(key: tuple, records: dict, traces: dict, strings: Strings) -> dict:
    found = {arm: rows.get(key) for arm, rows in records.items()}
    record = next(row for row in found.values() if row)
    return {
        "id": key[0],
        "choice": key[1],
        "category": record.get("category", ""),
        "prompts": [turn.get("prompt", "") for turn in record["turns"]],
        "answers": [
            row and _answer(row, traces.get(arm, {}).get(key), strings)
            for arm, row in found.items()
        ],
    }


def _answer(record: dict, trace: dict | None, strings: Strings) -> list[dict]:
    answer = []
    for number, turn in enumerate(record["turns"]):
        packed = {"parts": text_parts(turn), "seconds": _short(turn["seconds"])}
        packed["tokens"] = len(turn["token_ids"])
        traced = trace and trace["turns"][number]
        if traced and traced["same_as_record"]:
            packed["first"] = strings.add(traced["first"]["text"])
            packed["rounds"] = [_pack_round(r, strings) for r in traced["rounds"]]
        answer.append(packed)
    return answer


def text_parts(turn: dict) -> list[list]:
    """The answer's text cut at its fuzzy tokens, each with its regret and D."""
    text, parts, end = turn["text"], [], 0
    flat = [
        {"regret": regret, "D": divergence}
        for r in turn["rounds"]
        for fuzzy, regret, divergence in zip(r["fuzzy"], r["regret"], r["divergence"], strict=True)
        if fuzzy
    ]
    # the last round may hold fuzzy tokens that were trimmed
    for (first, last), known in zip(turn.get("fuzzy_spans", []), flat, strict=False):
        parts += [[text[end:first], None], [text[first:last], known]]
        end = last
    return [part for part in [*parts, [text[end:], None]] if part[0]]


def _pack_round(r: dict, strings: Strings) -> list:
    nodes, emitted = [], []
    for node in r["nodes"]:
        numbers = (_short(node["target_prob"]), _short(node["draft_prob"]))
        nodes += [strings.add(node["text"]), node["parent"], *numbers]
    for token in r["emitted"]:
        keys = ("divergence", "target_prob", "draft_prob", "regret")
        emitted += [strings.add(token["text"]), SOURCES.index(token["source"])]
        emitted += [_short(token[key]) for key in keys]
        emitted += [strings.add(token.get("best", "")), _short(token.get("best_prob"))]
    return [nodes, r["path"], emitted]


def _short(value: float | str | None) -> float | str | None:
    """Four decimals; whole numbers without a point."""
    if value is None or isinstance(value, str):
        return value
    rounded = round(value, 4)
    return int(rounded) if rounded == int(rounded) else rounded
