"""From records to rows and tables: tokens per round, accuracy by level."""

from collections.abc import Mapping, Sequence

import pandas as pd

from eagle_fsd.evaluation.stats import rate_interval
from eagle_fsd.evaluation.tables import Column, columns, markdown_table

# table -> its columns after the head's name, and how to read it
TABLES: dict[str, tuple[list[Column], str]] = {
    "trees": (
        columns(tree="s", tokens_per_round=".2f", rounds="d"),
        "tokens/round: as real decoding in float32.",
    ),
    "levels": (
        [*columns(level="d"), ("top-1", "top1", ".3f"), ("top-8", "top8", ".3f")]
        + [("JS", "js", ".4f")],
        "By drafted level, along the text below every position.",
    ),
}


def tables(records: Mapping[str, Sequence[dict]]) -> dict[str, list[dict]]:
    """The rows of every table, from each head's records."""
    rows: dict[str, list[dict]] = {name: [] for name in TABLES}
    for head, found in records.items():
        rows["trees"] += [{"head": head} | tree_row(found, tree) for tree in found[0]["trees"]]
        rows["levels"] += [{"head": head} | row for row in level_rows(found)]
    return rows


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


def tree_row(records: Sequence[dict], name: str) -> dict:
    """One tree over all questions: tokens_per_round {value, low, high} (95 % interval over
    questions) and rounds."""
    accepted = [record["trees"][name] for record in records]
    return {
        "tree": name,
        "questions": len(records),
        "rounds": sum(map(len, accepted)),
        "tokens_per_round": rate_interval([(sum(a) + len(a), len(a)) for a in accepted]),
    }
