"""From records to rows and tables: tokens per round, accuracy by level, rules with T."""

from collections.abc import Mapping, Sequence

import pandas as pd

from eagle_fsd.evaluation.metrics import ceiling
from eagle_fsd.evaluation.stats import rate_interval
from eagle_fsd.evaluation.tables import Column, columns, markdown_table

# table -> its columns after the head's name, and how to read it
TABLES: dict[str, tuple[list[Column], str]] = {
    "trees": (
        columns(tree="s", tokens_per_round=".2f", rounds="d", all_positions=".3f"),
        "tokens/round: as real decoding in float32; all positions: mean over every position, "
        "visited or not.",
    ),
    "levels": (
        [
            *columns(level="d"),
            ("top-1", "top1", ".3f"),
            ("top-8", "top8", ".3f"),
            ("JS", "js", ".4f"),
            ("text is argmax", "agree", ".4f"),
        ],
        "By drafted level, along the text below every position.",
    ),
    "rules": (
        columns(tree="s", arm="s", fuzzy_rounds=".3f", tokens_per_walk=".2f")
        + columns(fuzzy_share=".4f", ceiling=".2f"),
        "First-order: each walk is followed to its first fuzzy token; behind it the text would be "
        "another. Ceiling: most that tokens/round can gain over exact.",
    ),
}


def tables(records: Mapping[str, Sequence[dict]]) -> dict[str, list[dict]]:
    """The rows of every table, from each head's records."""
    rows: dict[str, list[dict]] = {name: [] for name in TABLES}
    for head, found in records.items():
        trees = found[0]["trees"]
        made = {"trees": [tree_row(found, tree) for tree in trees], "levels": level_rows(found)}
        made["rules"] = [row for tree in trees for row in rule_rows(found, tree)]
        for name in TABLES:
            rows[name] += [{"head": head} | row for row in made[name]]
    return rows


def in_words(rows: Mapping[str, list[dict]]) -> str:
    """The tables that are not empty, each with a line on how to read it."""
    return "\n\n".join(
        f"{markdown_table(rows[name], columns(head='s') + shown)}\n\n{note}"
        for name, (shown, note) in TABLES.items()
        if rows[name]
    )


def level_rows(records: Sequence[dict]) -> list[dict]:
    """Top-1, top-8, mean JS and agreement by level, over all questions."""
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
    questions) and rounds; all_positions, the same over every position, visited or not."""
    rows = [record["trees"][name] for record in records]
    counts = [count for row in rows for count in row["accepted"]]
    parts = [(sum(row["accepted"]) + len(row["accepted"]), len(row["accepted"])) for row in rows]
    positions = sum(record["tokens"] - 1 for record in records)
    anywhere = sum(row["accepted_anywhere"] for row in rows)
    return {
        "tree": name,
        "questions": len(rows),
        "rounds": len(counts),
        "tokens_per_round": rate_interval(parts),
        "all_positions": anywhere / positions + 1 if positions else None,
    }


def rule_rows(records: Sequence[dict], name: str) -> list[dict]:
    """First-order metrics of every rule on one tree: after a fuzzy token the text would be another.

    A walk is followed up to and with its first fuzzy token, or to its end. With a share p of walks
    that take one, and tau tokens a walk, the fuzzy share is f = p / tau.
    """
    found = pd.DataFrame(
        {"arm": arm, **part}
        for record in records
        for arm, part in record["trees"][name]["rules"].items()
    )
    if found.empty:
        return []
    exact = tree_row(records, name)["tokens_per_round"]["value"]
    total = found.groupby("arm", sort=False).sum()
    table = pd.DataFrame({"tree": name}, index=total.index)
    table["fuzzy_rounds"] = total["fuzzy"] / total["rounds"]
    table["tokens_per_walk"] = total["emitted"] / total["rounds"]
    table["fuzzy_share"] = total["fuzzy"] / total["emitted"]
    rows = table.reset_index().to_dict("records")
    return [row | {"ceiling": ceiling(row["fuzzy_share"], exact)} for row in rows]
