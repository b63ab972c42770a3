"""From answer records to the figures of a comparison: speed, length, fuzziness, and their spread.

All speeds are total tokens / total seconds, over the questions that every arm has answered. Ratios
carry a 95 % percentile bootstrap interval over questions: both arms answered the same prompts, so
the resampled ratio is paired. tokens_per_round, fuzzy share, regret and TV are over the tokens of
all rounds, before trimming and without the token that prefill yields; lengths and speeds are of
what was answered.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

Record = dict  # one question answered by one arm: question_id, arm, accept, turns
RESAMPLES = 2000


def summarize(records: dict[str, list[Record]]) -> list[dict]:
    """One row an arm.

    Args:
        records: arm name -> its records; questions that not all arms have are left out.

    Returns:
        JSON-able rows in the order of the arms. Ratios are {"value", "low", "high"}; figures that
        an arm does not have, or that are not finite, are None.

    Raises:
        ValueError: there is no arm, or no question that all arms have answered.
    """
    if not records:
        raise ValueError("nothing to summarize: no arm has answered a question")
    common = set.intersection(*({r["question_id"] for r in rows} for rows in records.values()))
    if not common:
        raise ValueError(f"no question was answered by all of: {', '.join(records)}")
    order = [r["question_id"] for r in next(iter(records.values())) if r["question_id"] in common]
    kept = {}
    for arm, rows in records.items():
        by_id = {r["question_id"]: r for r in rows}
        kept[arm] = [by_id[key] for key in order]
    exact = _round_figures(kept["exact"]) if "exact" in kept else None
    plain_share = _argmax_share(kept["plain"]) if "plain" in kept else None
    rows = [_row(arm, kept, exact, plain_share) for arm in kept]
    return [{key: _finite(value) for key, value in row.items()} for row in rows]


def _row(
    arm: str,
    kept: dict[str, list[Record]],
    exact: dict[str, float] | None,
    plain_share: float | None,
) -> dict:
    rows = kept[arm]
    turns = _turns(rows)
    tokens = sum(len(t["token_ids"]) for t in turns)
    seconds = sum(t["seconds"] for t in turns)
    share = _argmax_share(rows)
    row = {
        "arm": arm,
        "accept": rows[0].get("accept"),
        "questions": len(rows),
        "answers": len(turns),
        "tokens_per_second": tokens / seconds,
        "speed_vs_generate": paired_ratio(rows, kept.get("generate"), _tokens_and_seconds),
        "speed_vs_plain": paired_ratio(rows, kept.get("plain"), _tokens_and_seconds),
        "seconds_per_answer": seconds / len(turns),
        "tokens_per_answer": tokens / len(turns),
        "at_limit": sum(t["finish"] == "length" for t in turns) / len(turns),
        "same_as_plain": _same_answers(rows, kept.get("plain")),
        "argmax_share": share,
        "argmax_share_vs_plain": share / plain_share if plain_share else None,
        "mean_logp": sum(t["rescored_mean_logp"] * len(t["token_ids"]) for t in turns) / tokens,
        "rounds_per_answer": None,
        "tokens_per_round": None,
        "fuzzy_share": None,
        "regret_per_token": None,
        "tv_per_token": None,
        "tokens_per_round_vs_exact": None,
        "ceiling": None,
    }
    if not any(t["rounds"] for t in turns):
        return row
    row |= _round_figures(rows)
    row["rounds_per_answer"] = sum(len(t["rounds"]) for t in turns) / len(turns)
    if exact is not None and exact["tokens_per_round"] is not None:
        row["tokens_per_round_vs_exact"] = paired_ratio(rows, kept["exact"], _tokens_and_rounds)
        row["ceiling"] = ceiling(row["fuzzy_share"], exact["tokens_per_round"])
    return row


def ceiling(fuzzy_share: float, exact_tokens_per_round: float) -> float:
    """Most that tokens_per_round can gain over exact at this fuzzy share: 1 / (1 - f tau).

    A fuzzy token replaces the token that would have ended the round. The bound holds while a run
    after a fuzzy token is on average no longer than a fresh one; repetitive text breaks it.
    """
    left = 1 - fuzzy_share * exact_tokens_per_round
    return 1 / left if left > 0 else math.inf


def _turns(rows: Sequence[Record]) -> list[dict]:
    return [turn for row in rows for turn in row["turns"]]


def _same_answers(rows: Sequence[Record], plain: Sequence[Record] | None) -> float | None:
    """Share of answers that equal the plain loop's token for token."""
    if plain is None:
        return None
    pairs = list(zip(_turns(rows), _turns(plain), strict=True))
    return sum(mine["token_ids"] == theirs["token_ids"] for mine, theirs in pairs) / len(pairs)


def _argmax_share(rows: Sequence[Record]) -> float:
    turns = _turns(rows)
    hits = sum(t["rescored_argmax_share"] * len(t["token_ids"]) for t in turns)
    return hits / sum(len(t["token_ids"]) for t in turns)


def _round_figures(rows: Sequence[Record]) -> dict[str, float | None]:
    rounds = [r for turn in _turns(rows) for r in turn["rounds"]]
    tokens = sum(len(r["tokens"]) for r in rounds)
    if not rounds:  # every answer ended with its first token
        return dict.fromkeys(
            ("tokens_per_round", "fuzzy_share", "regret_per_token", "tv_per_token")
        )
    return {
        "tokens_per_round": tokens / len(rounds),
        "fuzzy_share": sum(sum(r["fuzzy"]) for r in rounds) / tokens,
        "regret_per_token": sum(float(x) for r in rounds for x in r["regret"]) / tokens,
        "tv_per_token": sum(float(x) for r in rounds for x in r["tv"]) / tokens,
    }


def _tokens_and_seconds(row: Record) -> tuple[float, float]:
    turns = row["turns"]
    return sum(len(t["token_ids"]) for t in turns), sum(t["seconds"] for t in turns)


def _tokens_and_rounds(row: Record) -> tuple[float, float]:
    rounds = [r for turn in row["turns"] for r in turn["rounds"]]
    return sum(len(r["tokens"]) for r in rounds), len(rounds)


def paired_ratio(
    rows: Sequence[Record],
    baseline: Sequence[Record] | None,
    parts: Callable[[Record], tuple[float, float]],
) -> dict[str, float | None] | None:
    """Rate of rows over rate of baseline, a rate being sum / sum of `parts` over the questions,
    with its paired bootstrap interval; the interval needs two questions."""
    if baseline is None:
        return None
    # [questions, (numerator, denominator) of rows and of baseline]
    part_Q4 = np.array([[*parts(a), *parts(b)] for a, b in zip(rows, baseline, strict=True)])
    value = _rate_ratio(part_Q4.sum(0))
    if len(rows) < 2:
        return {"value": value, "low": None, "high": None}
    pick = np.random.default_rng(0).integers(len(rows), size=(RESAMPLES, len(rows)))
    resampled = _rate_ratio(part_Q4[pick].sum(1).T)
    resampled = resampled[np.isfinite(resampled)]  # questions without a round have no rate
    low, high = np.percentile(resampled, [2.5, 97.5]) if len(resampled) else (np.nan, np.nan)
    return {"value": value, "low": low, "high": high}


def _rate_ratio(total_4: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return (total_4[0] / total_4[1]) / (total_4[2] / total_4[3])


def _finite(value):
    """Numpy to Python, and None for what JSON cannot hold."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value


Column = tuple[str, str, str]  # title, key of the row, format
SPEED: tuple[Column, ...] = (
    ("arm", "arm", "s"),
    ("tokens/s", "tokens_per_second", ".1f"),
    ("vs generate", "speed_vs_generate", "ratio"),
    ("vs plain", "speed_vs_plain", "ratio"),
    ("tokens/round", "tokens_per_round", ".2f"),
    ("vs exact", "tokens_per_round_vs_exact", "ratio"),
    ("ceiling", "ceiling", ".2f"),
    ("rounds/answer", "rounds_per_answer", ".1f"),
    ("s/answer", "seconds_per_answer", ".2f"),
    ("tokens/answer", "tokens_per_answer", ".1f"),
)
COST: tuple[Column, ...] = (
    ("arm", "arm", "s"),
    ("fuzzy share", "fuzzy_share", ".4f"),
    ("regret/token", "regret_per_token", ".4f"),
    ("TV/token", "tv_per_token", ".4f"),
    ("same answer as plain", "same_as_plain", ".3f"),
    ("argmax share", "argmax_share", ".4f"),
    ("vs plain", "argmax_share_vs_plain", ".4f"),
    ("log p/token", "mean_logp", ".3f"),
    ("answers at the limit", "at_limit", ".2f"),
)


def tables(rows: list[dict]) -> str:
    """Two Markdown tables: how fast, and at what cost."""
    return f"{markdown_table(rows, SPEED)}\n\n{markdown_table(rows, COST)}"


def markdown_table(rows: list[dict], columns: Sequence[Column]) -> str:
    """Aligned; 95 % intervals in brackets, "-" where there is nothing."""
    cells = [[title for title, _, _ in columns]]
    cells += [[_cell(row[key], form) for _, key, form in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = [
        "| "
        + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True))
        + " |"
        for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _cell(value, form: str) -> str:
    if value is None:
        return "-"
    if form == "ratio":
        if value["value"] is None:
            return "-"
        if value["low"] is None:
            return f"{value['value']:.2f}"
        return f"{value['value']:.2f} [{value['low']:.2f}, {value['high']:.2f}]"
    return format(value, form)
