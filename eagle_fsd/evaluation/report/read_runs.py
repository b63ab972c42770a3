"""What a run folder holds, read without changing it: another process may be writing to it.

run.json                  options and sessions
records/ARM.jsonl         the answers; everything measured is made from them (runs/folder.py)
scores/table.json         optional: rows of what a task's scorers gave
scores/ARM.jsonl          optional: what they gave to each answer, and its references
judge/JUDGE/single.json   optional: rows of what judges gave
traces/ARM.jsonl          optional: trees and sources of chosen answers
"""

import os
from pathlib import Path

from eagle_fsd.arms import parse_arm
from eagle_fsd.config import BadInput, check_text
from eagle_fsd.evaluation.report.run_data import RunData
from eagle_fsd.runs.folder import answer_key, record_files
from eagle_fsd.runs.jsonl import Fields, check_fields, read_json, read_lines

BASELINES = ("plain", "generate", "generate_compiled", "exact")  # first in every table


def fields(*names: str, **lists: Fields) -> Fields:
    """Names of fields, and of lists with their entries' fields."""
    return dict.fromkeys(names) | lists


# what a report reads of each kind of row; the values are ours and taken as they are
ROUND = fields("tokens", "fuzzy", "divergence", "tv", "regret")
TURN = fields(
    *("prompt", "text", "finish", "fuzzy_spans", "token_ids", "seconds"),
    *("rescored_argmax_share", "rescored_mean_logp"),
    rounds=ROUND,
)
RECORD = fields("question_id", "arm", "category", "session", "temperature", turns=TURN)
TRACED = fields("first", rounds=fields("nodes", "path", "emitted"))
TRACE = fields("question_id", "arm", turns=TRACED)
SCORED = fields("question_id", "scores")
SCORE = fields("score", "arm", "questions", "mean", "vs_plain", "gained", "lost", "mcnemar_p")
SESSION = fields("session", "commit", "device", "timed", "warnings", "versions")


def read_run(folder: Path) -> RunData:
    """Read a folder.

    Raises:
        BadInput: it is no run, is empty or damaged (the line is named), or its name is no text.
    """
    check_text(str(folder))
    if not os.path.isfile(folder / "run.json"):
        raise BadInput(f"{folder} is no run: it has no run.json")
    options, sessions = read_json(folder / "run.json", options=dict, sessions=SESSION)
    check_fields(options, fields("target", "dtype"), f"{folder / 'run.json'}, options")
    warnings: list[str] = []
    records = _read_arms(record_files(folder), RECORD, warnings)
    if not records:
        raise BadInput(f"{folder} holds no records: let its command answer a question first")
    try:
        arms = sorted(records, key=_place)
    except BadInput as error:
        plugin = options.get("plugin")
        advice = "made by an older version? Run it again"
        if plugin:
            advice = f"the run was made with --plugin {plugin}: name that file here too"
        raise BadInput(f"{folder}: {error}; {advice}") from error
    scores = []
    for path in [*folder.glob("scores/table.json"), *sorted(folder.glob("judge/*/single.json"))]:
        (rows,) = read_json(path, rows=SCORE)
        scores += [row for row in rows if row["arm"] in arms]
    names = list(dict.fromkeys(row["score"] for row in scores))  # a scorer's own comes first
    scores.sort(key=lambda row: (names.index(row["score"]), arms.index(row["arm"])))
    scored = {}
    for arm in arms:
        path = folder / "scores" / f"{parse_arm(arm).slug}.jsonl"
        if path.is_file():
            rows = read_lines(path, fields=SCORED, key=answer_key, warn=warnings.append)
            scored[arm] = {answer_key(row): row for row in rows}
    return RunData(
        str(folder),
        options,
        sessions,
        records={arm: records[arm] for arm in arms},
        scores=scores,
        scored=scored,
        traces=_read_arms(sorted(folder.glob("traces/*.jsonl")), TRACE, warnings),
        warnings=warnings,
    )


def _read_arms(paths: list[Path], wanted: Fields, warnings: list[str]) -> dict[str, list[dict]]:
    """By arm; of two rows of one answer the later counts."""
    arms: dict[str, dict[tuple, dict]] = {}
    for path in paths:
        rows = read_lines(path, fields=wanted, key=answer_key, warn=warnings.append)
        arm = rows[0]["arm"] if rows else ""
        for number, row in enumerate(rows, start=1):
            if row["arm"] != arm:
                raise BadInput(
                    f"{path}, line {number} is of arm {row['arm']!r:.60}, line 1 of {arm!r:.60}: "
                    "one of them is damaged; make them anew, elsewhere"
                )
        if rows:
            arms.setdefault(arm, {}).update({answer_key(row): row for row in rows})
    return {arm: list(rows.values()) for arm, rows in arms.items()}


def _place(arm: str) -> tuple:
    """Where an arm stands in tables: baselines first, then by line and value."""
    parsed = parse_arm(arm)
    place = BASELINES.index(parsed.kind) if parsed.kind in BASELINES else len(BASELINES)
    return place, parsed.line, parsed.value or 0.0
