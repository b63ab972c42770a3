"""Traces as the page holds them: flat arrays and one table of strings, so that thousands of trees
stay small. page.js reads this form.

strings   every text once; texts below are indices into it
traces    [run, arm, question, choice, category, turns], question by question
turn      [prompt, first token, rounds, whether the tokens are the record's]
round     [nodes, path, emitted]
nodes     text, parent, P, Q of node 0, of node 1, ...
path      node indices, the root first
emitted   text, place in SOURCES, divergence, P, Q, regret of every emitted token
"""

import json

from eagle_fsd.evaluation.report.arm_rows import SOURCES
from eagle_fsd.evaluation.report.read_runs import RunData

MOST_BYTES = 3_000_000


class Strings:
    """Texts by the order of their first use."""

    def __init__(self):
        self.place: dict[str, int] = {}

    def add(self, text: str) -> int:
        return self.place.setdefault(text, len(self.place))


def pack_traces(
    runs: list[RunData], *, most_bytes: int = MOST_BYTES
) -> tuple[dict[str, list], int]:
    """All runs' traces; what would make the page larger than `most_bytes` is left out.

    Returns:
        The data, and how many traces were left out.
    """
    strings, packed, size, left_out = Strings(), [], 0, 0
    for run in runs:
        arms = [arm for arm in run.records if arm in run.traces]
        rows = [(row, arm) for arm in arms for row in run.traces[arm]]
        order = list(dict.fromkeys(_key(row) for row, _ in rows))
        for row, arm in sorted(rows, key=lambda pair: order.index(_key(pair[0]))):
            length = len(json.dumps(_pack_row(row, arm, run.name, Strings()), ensure_ascii=False))
            if size + length > most_bytes:
                left_out += 1
                continue
            size += length
            packed.append(_pack_row(row, arm, run.name, strings))
    return {"strings": list(strings.place), "traces": packed}, left_out


def _key(row: dict) -> tuple:
    return row["question_id"], row.get("choice", 0)


def _pack_row(row: dict, arm: str, run: str, strings: Strings) -> list:
    turns = [
        [
            strings.add(turn["prompt"]),
            strings.add(turn["first"]["text"]),
            [_pack_round(r, strings) for r in turn["rounds"]],
            int(turn["same_as_record"]),
        ]
        for turn in row["turns"]
    ]
    question = [row["question_id"], row.get("choice", 0), row.get("category", "")]
    return [strings.add(run), strings.add(arm), *question, turns]


def _pack_round(r: dict, strings: Strings) -> list:
    nodes, emitted = [], []
    for node in r["nodes"]:
        numbers = (_short(node["target_prob"]), _short(node["draft_prob"]))
        nodes += [strings.add(node["text"]), node["parent"], *numbers]
    for token in r["emitted"]:
        keys = ("divergence", "target_prob", "draft_prob", "regret")
        numbers = (_short(token[key]) for key in keys)
        emitted += [strings.add(token["text"]), SOURCES.index(token["source"]), *numbers]
    return [nodes, r["path"], emitted]


def _short(value: float | str | None) -> float | str | None:
    """Four decimals; whole numbers without a point."""
    if value is None or isinstance(value, str):
        return value
    rounded = round(value, 4)
    return int(rounded) if rounded == int(rounded) else rounded
