"""From a speed run's rows to its figures.

Speeds are total tokens / total seconds over all prompts and repeats. Intervals of ratios are 95 %
bootstrap intervals over prompts (metrics.paired_ratio), repeats of a prompt kept
together; the spread over repeats is given beside. The cost of a round is the profile pass's,
prefill left out.
"""

from eagle_fsd.evaluation.metrics import Record, paired_ratio, summarize
from eagle_fsd.speed.clock import PHASES, ROUND_PHASES

MEBIBYTE = 2**20
Repeat = dict[str, list[Record]]  # arm -> one record a prompt, in the order of the prompts


def arm_rows(repeats: list[Repeat], profile: list[dict], references: dict[str, float]) -> list:
    """One row an arm: that of metrics.summarize, and beside it the speed against exact on
    the same kind of tree, the spread over repeats, and the break-even.

    Args:
        repeats: the timed pass; every arm has every prompt in each.
        profile: from profile_rows.
        references: name -> tokens/s that were not measured here.
    """
    merged = _merged(repeats)
    rows: dict[str, dict] = {}
    for label in dict.fromkeys(records[0]["tree_label"] for records in merged.values()):
        group = {
            arm: records
            for arm, records in merged.items()
            if records[0]["tree_label"] == label or records[0]["accept"] is None
        }
        for row in _group_rows(group):
            rows.setdefault(row["arm"], row)
    costs = {row["arm"]: row for row in profile if row["context"] is None}
    for arm in merged:
        per_repeat = [_ratio_of(repeat, arm, "plain") for repeat in repeats]
        known = [value for value in per_repeat if value is not None]
        rows[arm]["speed_vs_plain_by_repeat"] = per_repeat
        rows[arm]["repeats"] = f"{min(known):.2f} - {max(known):.2f}" if known else None
        rows[arm]["ms_per_token"] = 1000 / rows[arm]["tokens_per_second"]
        rows[arm]["break_even"] = costs.get(arm, {}).get("round_vs_plain")
        rows[arm]["speed_vs_references"] = {
            name: rows[arm]["tokens_per_second"] / speed for name, speed in references.items()
        }
    return [rows[arm] for arm in merged]


def _merged(repeats: list[Repeat]) -> Repeat:
    """All repeats of a prompt as the turns of one record, so that they are resampled together."""
    merged: Repeat = {}
    for arm in repeats[0]:
        merged[arm] = [
            {**same[0], "turns": [turn for record in same for turn in record["turns"]]}
            for same in zip(*(repeat[arm] for repeat in repeats), strict=True)
        ]
    return merged


def _group_rows(group: Repeat) -> list[dict]:
    """Rows of the baselines and of the arms of one kind of tree, whose exact arm they share."""
    exact = next((arm for arm in group if arm.split("_")[0] == "exact"), None)
    # summarize compares with the arm of this name
    rows = summarize({"exact" if arm == exact else arm: records for arm, records in group.items()})
    for row, (arm, records) in zip(rows, group.items(), strict=True):
        row["arm"] = arm
        row["tree"] = records[0]["tree"]
        row["speed_vs_exact"] = row["of_ceiling"] = None
        if exact is None:
            continue
        row["speed_vs_exact"] = paired_ratio(records, group[exact], tokens_and_seconds)
        if row["tree"] != group[exact][0]["tree"]:  # the bound is about one and the same tree
            row["tokens_per_round_vs_exact"] = row["ceiling"] = None
        elif row["ceiling"]:
            row["of_ceiling"] = row["tokens_per_round_vs_exact"]["value"] / row["ceiling"]
    return rows


def tokens_and_seconds(record: Record) -> tuple[float, float]:
    """Of all turns: answer tokens after trimming, and seconds of prefill and decoding."""
    turns = record["turns"]
    return sum(len(t["token_ids"]) for t in turns), sum(t["seconds"] for t in turns)


def _ratio_of(repeat: Repeat, arm: str, baseline: str) -> float | None:
    if baseline not in repeat:
        return None
    speeds = []
    for name in (arm, baseline):
        parts = [tokens_and_seconds(record) for record in repeat[name]]
        speeds.append(sum(tokens for tokens, _ in parts) / sum(seconds for _, seconds in parts))
    return speeds[0] / speeds[1]


def profile_rows(answers: dict[str, list[dict]]) -> list[dict]:
    """One row an arm and place: the prompts together (context None), and each context alone.

    Args:
        answers: arm -> profiled answers (speed/profile.py).

    Returns:
        Milliseconds of a round and of its phases with their shares, `rest_share` (accept, commit
        and host), `round_vs_plain` (the tokens_per_round at which the arm is as fast as plain),
        milliseconds of a prefill, waits a round, and the peak memory (MiB, the largest of the
        answers) with its difference to plain's.
    """
    places = dict.fromkeys(answer["context"] for rows in answers.values() for answer in rows)
    rows = []
    for context in places:
        here = {
            arm: [answer for answer in arm_answers if answer["context"] == context]
            for arm, arm_answers in answers.items()
        }
        place = [_place_row(arm, context, found) for arm, found in here.items() if found]
        plain = next((row for row in place if row["arm"] == "plain"), None)
        rows += [row | _against_plain(row, plain) for row in place]
    return rows


def _place_row(arm: str, context: int | None, answers: list[dict]) -> dict:
    rounds = sum(answer["rounds"] for answer in answers)
    waits = [answer["synchronizations_per_round"] for answer in answers]
    peaks = [answer["peak_memory_bytes"] for answer in answers]
    row = {
        "arm": arm,
        "context": context,
        "place": "prompts" if context is None else f"{context}",
        "answers": len(answers),
        "rounds": rounds,
        "ms_per_token": 1000
        * sum(answer["seconds"] for answer in answers)
        / sum(answer["tokens"] for answer in answers),
        "synchronizations": max(waits) if None not in waits else None,
        "peak_mebibytes": max(peaks) / MEBIBYTE if None not in peaks else None,
    }
    keys = ("ms_per_round", "phase_ms", "phase_share", "rest_share", "prefill_ms")
    row |= dict.fromkeys([*keys, "tokens_per_round"])
    if not rounds or answers[0]["phases"] is None:
        return row
    total = {phase: sum(answer["phases"][phase] for answer in answers) for phase in PHASES}
    in_rounds = sum(total[phase] for phase in ROUND_PHASES)
    share = {phase: total[phase] / in_rounds for phase in ROUND_PHASES}
    return row | {
        "tokens_per_round": sum(answer["round_tokens"] for answer in answers) / rounds,
        "ms_per_round": 1000 * in_rounds / rounds,
        "phase_ms": {phase: 1000 * total[phase] / rounds for phase in ROUND_PHASES},
        "phase_share": share,
        "rest_share": share["accept"] + share["commit"] + share["host"],
        "prefill_ms": 1000 * total["prefill"] / len(answers),
    }


def _against_plain(row: dict, plain: dict | None) -> dict:
    against = {"round_vs_plain": None, "memory_above_plain": None}
    if plain is None:
        return against
    if row["ms_per_round"] and plain["ms_per_round"]:
        against["round_vs_plain"] = row["ms_per_round"] / plain["ms_per_round"]
    if row["peak_mebibytes"] is not None and plain["peak_mebibytes"] is not None:
        against["memory_above_plain"] = row["peak_mebibytes"] - plain["peak_mebibytes"]
    return against
