"""What a run folder holds, read without changing it: another process may be writing to it.

run.json                  options and sessions
records/ARM.jsonl         the answers; everything measured is made from them
scores/table.json         optional: rows of what a task's scorers gave
scores/ARM.jsonl          optional: what they gave to each answer, and its references
judge/JUDGE/*.json        optional: rows of what judges gave
traces/ARM.jsonl          optional: trees and sources of chosen answers
"""

import os
from pathlib import Path

from eagle_fsd.arms import parse_arm
from eagle_fsd.config import BadInput, check_text
from eagle_fsd.evaluation.report.run_data import RunData
from eagle_fsd.runs.folder import answer_key
from eagle_fsd.runs.jsonl import (
    NUMBER,
    Form,
    check_form,
    is_number,
    is_torn_text,
    read_json,
    read_lines,
)

BASELINES = ("plain", "generate", "generate_compiled", "exact")  # first in every table
# of what a report reads
ID = int | str
COSTS = ("divergence", "tv", "regret")  # of a round's tokens; null: not known


def is_whole_round(part: dict) -> bool:
    """Its lists tell of the same tokens. Element by element here, since a run has millions."""
    tokens, costs = part["tokens"], [value for key in COSTS for value in part[key]]
    return (
        {len(part[key]) for key in ("fuzzy", *COSTS)} == {len(tokens)}
        and all(isinstance(token, int) and is_number(token) for token in tokens)
        and all(flag in (0, 1) for flag in part["fuzzy"])
        and all(cost is None or cost == "inf" or is_number(cost) for cost in costs)
    )


def is_whole_turn(turn: dict) -> bool:
    """Its spans [begin, end) lie in its text, and tokens are numbers."""
    ends, spans = range(len(turn["text"]) + 1), turn["fuzzy_spans"]
    return all(isinstance(token, int) for token in turn["token_ids"]) and all(
        len(span) == 2 and all(end in ends for end in span) for span in spans
    )


def is_whole_record(record: dict) -> bool:
    """A record's, or a trace's; what older ones lack may be absent."""
    choice, tree = record.get("choice", 0), record.get("tree")
    return isinstance(choice, int) and (tree is None or isinstance(tree, str))


def is_whole_scored(row: dict) -> bool:
    """What older ones lack may be absent."""
    references = row.get("reference", [])
    return (
        isinstance(row.get("choice", 0), int)
        and all(is_number(score) for score in row["scores"].values())
        and isinstance(references, list)
        and all(is_number(r) or isinstance(r, str) and not is_torn_text(r) for r in references)
    )


def is_whole_session(session: dict) -> bool:
    """What older ones lack may be absent."""
    return isinstance(session.get("library", ""), str)


def is_whole_tree(made: dict) -> bool:
    """Parents stand before their children, and the path is in the tree."""
    parents = [node["parent"] for node in made["nodes"]]
    return (
        all(-1 <= parent < number for number, parent in enumerate(parents))
        and all(0 <= node < len(parents) for node in made["path"])
        and 0 < len(made["emitted"]) <= len(made["path"]) <= len(made["emitted"]) + 1
    )


def is_estimate(value: object) -> bool:
    """None, or {"value", "low", "high"}, of differences also "detectable": numbers, or None of what
    is not known; both bounds are known or none."""
    if not isinstance(value, dict):
        return value is None
    known = {key for key, number in value.items() if is_number(number)}
    whole = value.keys() >= {"value", "low", "high"} and ("low" in known) == ("high" in known)
    return whole and all(value[key] is None for key in value.keys() - known)


ROUND = (dict.fromkeys(("tokens", "fuzzy", *COSTS), list), is_whole_round)
TURN = {"prompt": str, "text": str, "finish": str, "fuzzy_spans": [list], "token_ids": list}
TURN |= dict.fromkeys(("seconds", "rescored_argmax_share", "rescored_mean_logp"), NUMBER)
RECORD = {"question_id": ID, "arm": str, "category": str, "session": str, "temperature": NUMBER}
RECORD |= {"turns": [(TURN | {"rounds": [ROUND]}, is_whole_turn)]}
SCORED = ({"question_id": ID, "scores": dict}, is_whole_scored)
PROB = NUMBER | str | None
NODE = {"token": int, "text": str, "target_prob": PROB, "draft_prob": PROB}
EMITTED = NODE | {"source": str, "divergence": PROB, "regret": PROB, "best": str, "best_prob": PROB}
TREE = ({"nodes": [NODE | {"parent": int}], "path": [int], "emitted": [EMITTED]}, is_whole_tree)
TRACED = {"same_as_record": bool, "first": {"token": int, "text": str}, "rounds": [TREE]}
TRACE = {"question_id": ID, "arm": str, "turns": [TRACED]}
SCORE = {"arm": str, "questions": int} | dict.fromkeys(("mean", "vs_plain"), is_estimate)
SCORE |= dict.fromkeys(("gained", "lost", "mcnemar_p"), NUMBER | None) | {"score": str}
PAIRS = {"arm": str, "judge": str, "baseline": str, "questions": int, "verdicts": int}
PAIRS |= dict.fromkeys(("win", "tie", "loss", "adjusted"), is_estimate) | {"consistent": NUMBER}
SESSION = {"session": str, "commit": str, "device": str, "timed": bool, "warnings": [str]}
SESSION |= {"versions": dict}
RUN = {"options": {"target": str, "dtype": str}, "sessions": [(SESSION, is_whole_session)]}


def read_run(folder: Path) -> RunData:
    """Read a folder.

    Raises:
        BadInput: it is no run, is empty or damaged (the line is named), or its name is no text.
    """
    check_text(str(folder))
    if not os.path.isfile(folder / "run.json"):
        raise BadInput(f"{folder} is no run: it has no run.json")
    options, sessions = read_json(folder / "run.json", **RUN)
    warnings: list[str] = []
    found = _read_arms(folder / "records", (RECORD, is_whole_record), warnings)
    if not found:
        raise BadInput(f"{folder} holds no records: let its command answer a question first")
    try:
        arms = sorted(found, key=_place)
    except BadInput as error:
        plugin = options.get("plugin")
        advice = "made by an older version? Run it again"
        if plugin:
            advice = f"the run was made with --plugin {plugin}: name that file here too"
        raise BadInput(f"{folder}: {error}; {advice}") from error
    scores = []
    for path in [*folder.glob("scores/table.json"), *sorted(folder.glob("judge/*/*.json"))]:
        (rows,) = read_json(path, rows=[dict])
        for number, row in enumerate(rows):
            check_form(row, SCORE if "score" in row else PAIRS, f"{path}, rows {number}")
        scores += [row for row in rows if row["arm"] in arms]
    # by what a table groups by, in the order of the files: a scorer's own score comes first
    kinds = list(dict.fromkeys(map(_kind, scores)))
    scores.sort(key=lambda row: (kinds.index(_kind(row)), arms.index(row["arm"])))
    return RunData(
        str(folder),
        options,
        sessions,
        records={arm: found[arm] for arm in arms},
        scores=[row for row in scores if "score" in row],
        pairwise=[row for row in scores if "score" not in row],
        scored=_read_scored(folder / "scores", arms, warnings),
        traces=_read_arms(folder / "traces", (TRACE, is_whole_record), warnings),
        warnings=warnings,
    )


def _read_arms(folder: Path, form: Form, warnings: list[str]) -> dict[str, list[dict]]:
    arms = {}
    for path in sorted(folder.glob("*.jsonl")):
        rows = read_lines(path, form=form, warn=warnings.append)
        arm = rows[0]["arm"] if rows else ""
        for number, row in enumerate(rows, start=1):
            if row["arm"] != arm:
                raise BadInput(
                    f"{path}, line {number} is of arm {row['arm']!r:.60}, line 1 of {arm!r:.60}: "
                    "one of them is damaged; make them anew, elsewhere"
                )
        if rows:
            arms[arm] = rows
    return arms


def _kind(row: dict) -> tuple:
    return tuple(row.get(key) for key in ("score", "judge", "baseline"))


def _read_scored(folder: Path, arms: list[str], warnings: list[str]) -> dict[str, dict]:
    paths = {arm: folder / f"{parse_arm(arm).slug}.jsonl" for arm in arms}
    rows = {
        arm: read_lines(path, form=SCORED, warn=warnings.append)
        for arm, path in paths.items()
        if path.is_file()
    }
    return {arm: {answer_key(row): row for row in found} for arm, found in rows.items()}


def _place(arm: str) -> tuple:
    """Where an arm stands in tables: baselines first, then by line and value."""
    parsed = parse_arm(arm)
    place = BASELINES.index(parsed.kind) if parsed.kind in BASELINES else len(BASELINES)
    return place, parsed.line, parsed.value or 0.0
