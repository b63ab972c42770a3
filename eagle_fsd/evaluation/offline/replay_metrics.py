"""From records to rows and tables: tokens per round, accuracy by level, rules with T."""

from collections.abc import Sequence

from eagle_fsd.evaluation.metrics import ceiling
from eagle_fsd.evaluation.stats import rate_interval
from eagle_fsd.evaluation.tables import Column, markdown_table


def level_rows(records: Sequence[dict]) -> list[dict]:
    """Top-1, top-8, mean JS and agreement by level, over all questions."""
    rows = []
    for levels in zip(*(r["levels"] for r in records if r["levels"]), strict=True):
        total = {key: sum(level[key] for level in levels) for key in levels[0]}
        count = total.pop("positions")
        means = {key: value / count if count else None for key, value in total.items()}
        rows.append({"level": len(rows) + 1, "positions": count} | means)
    return rows


def tree_row(records: Sequence[dict], name: str) -> dict:
    """Tokens per round of one tree over all questions, and what a cruder estimate would say.

    Keys: tokens_per_round {value, low, high} (95 % interval over questions) and rounds;
    all_positions, the mean over every position instead of the visited ones; true_features, from
    trees that see the target's features, and both together; accepted_share of rounds that accept at
    least 1, 2, .. drafts; rules.
    """
    rows = [record["trees"][name] for record in records]
    tokens, rounds = _emitted(rows)
    depth = int(name.split("x")[1])
    visited = [count for row in rows for count in row["accepted"]]
    result = {
        "tree": name,
        "questions": len(rows),
        "rounds": rounds,
        "tokens_per_round": rate_interval([_emitted([row]) for row in rows]) if rounds else None,
        "all_positions": _anywhere(rows),
        "true_features": None,
        "true_features_all_positions": None,
        "accepted_share": [
            sum(count >= d for count in visited) / rounds if rounds else None
            for d in range(1, depth + 1)
        ],
    }
    # a question whose first token ended its answer has neither
    cheats = [row["true_features"] for row in rows if "true_features" in row]
    if cheats:
        cheat_tokens, cheat_rounds = _emitted(cheats)
        result["true_features"] = cheat_tokens / cheat_rounds
        result["true_features_all_positions"] = _anywhere(cheats)
    arms = dict.fromkeys(arm for row in rows for arm in row.get("rules", {}))
    result["rules"] = [_rule_row(rows, arm, tokens / rounds) for arm in arms]
    return result


def _rule_row(rows: Sequence[dict], arm: str, exact: float) -> dict:
    """First-order metrics of a rule: after a fuzzy token the text would be another one.

    A walk is followed up to and with its first fuzzy token, or to its end. With a share p of walks
    that take one, and tau tokens a walk, the fuzzy share is f = p / tau.
    """
    parts = [row["rules"][arm] for row in rows if arm in row.get("rules", {})]
    rounds, emitted, fuzzy = (
        sum(part[key] for part in parts) for key in ("rounds", "emitted", "fuzzy")
    )
    share = fuzzy / emitted
    return {
        "arm": arm,
        "fuzzy_rounds": fuzzy / rounds,
        "tokens_per_walk": emitted / rounds,
        "fuzzy_share": share,
        "ceiling": ceiling(share, exact),
    }


def _emitted(rows: Sequence[dict]) -> tuple[int, int]:
    rounds = sum(len(row["accepted"]) for row in rows)
    return sum(sum(row["accepted"]) for row in rows) + rounds, rounds


def _anywhere(rows: Sequence[dict]) -> float | None:
    positions = sum(row["positions"] for row in rows)
    return sum(row["accepted_anywhere"] for row in rows) / positions + 1 if positions else None


# --- tables -------------------------------------------------------------------------------------

TREES: tuple[Column, ...] = (
    ("head", "head", "s"),
    ("tree", "tree", "s"),
    ("tokens/round", "tokens_per_round", "ratio"),
    ("rounds", "rounds", "d"),
    ("all positions", "all_positions", ".3f"),
    ("true features", "true_features", ".3f"),
    ("both", "true_features_all_positions", ".3f"),
)
LEVELS: tuple[Column, ...] = (
    ("head", "head", "s"),
    ("level", "level", "d"),
    ("top-1", "top1", ".3f"),
    ("top-8", "top8", ".3f"),
    ("JS", "js", ".4f"),
    ("text is argmax", "agree", ".4f"),
)
RULES: tuple[Column, ...] = (
    ("head", "head", "s"),
    ("tree", "tree", "s"),
    ("rule", "arm", "s"),
    ("fuzzy rounds", "fuzzy_rounds", ".3f"),
    ("tokens/walk", "tokens_per_walk", ".2f"),
    ("fuzzy share", "fuzzy_share", ".4f"),
    ("ceiling", "ceiling", ".2f"),
)
DECODED: tuple[Column, ...] = (
    ("head", "head", "s"),
    ("tree", "tree", "s"),
    ("questions", "questions", "d"),
    ("same rounds", "equal", "d"),
    ("same text", "same_text", "d"),
    ("decoded", "decoded_tokens_per_round", ".3f"),
    ("replayed", "replayed_tokens_per_round", ".3f"),
)
NOTES = {
    "decoded": "The same questions really decoded: how many agree with the replay in every round, "
    "and tokens per round of both.",
    "trees": "tokens/round: as real decoding in float32; all positions: mean over every position, "
    "visited or not; true features: with the target's features below the root, which no drafter "
    "sees.",
    "levels": "By drafted level, along the text below every position.",
    "rules": "First-order: each walk is followed to its first fuzzy token; behind it the text "
    "would be another. Ceiling: most that tokens/round can gain over exact.",
}


def tables(heads: list[dict]) -> str:
    """All tables, each with a line on how to read it."""
    trees = [{"head": head["head"]} | row for head in heads for row in head["trees"]]
    levels = [{"head": head["head"]} | row for head in heads for row in head["levels"]]
    rules = [
        {"head": row["head"], "tree": row["tree"]} | rule for row in trees for rule in row["rules"]
    ]
    parts = [f"{markdown_table(trees, TREES)}\n\n{NOTES['trees']}"]
    if levels:
        parts.append(f"{markdown_table(levels, LEVELS)}\n\n{NOTES['levels']}")
    decoded = [{"head": head["head"]} | row for head in heads for row in head["decoded"]]
    if decoded:
        parts.append(f"{markdown_table(decoded, DECODED)}\n\n{NOTES['decoded']}")
    if rules:
        parts.append(f"{markdown_table(rules, RULES)}\n\n{NOTES['rules']}")
    return "\n\n".join(parts)
