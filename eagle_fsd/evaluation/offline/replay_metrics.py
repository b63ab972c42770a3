"""From records to rows and tables: tokens per round, fuzzy tokens, accuracy by level."""

from collections.abc import Mapping, Sequence

import pandas as pd

from eagle_fsd.evaluation.metrics import ceiling
from eagle_fsd.evaluation.stats import rate_interval
from eagle_fsd.evaluation.tables import Column, columns, markdown_table

# table -> its columns after the head's name, and how to read it
TABLES: dict[str, tuple[list[Column], str]] = {
    "arms": (
        columns(arm="s", tokens_per_round=".2f", rounds="d", fuzzy_rounds=".3f")
        + columns(fuzzy_share=".4f", ceiling=".2f"),
        "Exact: as real decoding in float32. Of other rules a round is followed to its first fuzzy "
        "token; behind it the text would be another. Ceiling: most that tokens/round can gain.",
    ),
    "levels": (
        [
            *columns(level="d"),
            ("top-1", "top1", ".3f"),
            ("top-8", "top8", ".3f"),
            ("JS", "js", ".4f"),
        ],
        "By drafted level, along the text below every position.",
    ),
}


def tables(records: Mapping[str, Sequence[dict]]) -> dict[str, list[dict]]:
    """The rows of every table, from each head's records."""
    return {
        "arms": [
            {"head": head} | arm_row(found, arm)
            for head, found in records.items()
            for arm in found[0]["arms"]
        ],
        "levels": [
            {"head": head} | row for head, found in records.items() for row in level_rows(found)
        ],
    }


def in_words(rows: Mapping[str, list[dict]]) -> str:
    """The tables that are not empty, each with a line on how to read it."""
    return "\n\n".join(
        f"{markdown_table(rows[name], columns(head='s') + shown)}\n\n{note}"
        for name, (shown, note) in TABLES.items()
        if rows[name]
    )


def level_rows(records: Sequence[dict]) -> list[dict]:
    """Top-1, top-8 and mean JS by level, over all questions."""
    counts = pd.DataFrame(
        {"level": number, **level}
        for record in records
        for number, level in enumerate(record["levels"], start=1)
    )
    if counts.empty:
        return []
    total = counts.groupby("level").sum()
    means = total.div(total["positions"], axis=0).assign(positions=total["positions"])
    means = means.reset_index().astype(object)
    return means.where(means.notna(), None).to_dict("records")


def arm_row(records: Sequence[dict], name: str) -> dict:
    """One arm over all questions: rounds; tokens_per_round {value, low, high} (95 % interval over
    questions); the share of rounds that end with a fuzzy token, that of fuzzy tokens, and the
    ceiling that follows, of rounds as long as these."""
    rows = [record["arms"][name] for record in records]
    parts = [(sum(row["tokens"]), len(row["tokens"])) for row in rows]
    tokens, rounds = map(sum, zip(*parts, strict=True))
    fuzzy = sum(row["fuzzy"] for row in rows)
    return {
        "arm": name,
        "questions": len(rows),
        "rounds": rounds,
        "tokens_per_round": rate_interval(parts),
        "fuzzy_rounds": fuzzy / rounds if rounds else None,
        "fuzzy_share": fuzzy / tokens if rounds else None,
        "ceiling": ceiling(fuzzy / tokens, tokens / rounds) if rounds else None,
    }
