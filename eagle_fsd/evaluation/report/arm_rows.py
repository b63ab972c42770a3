"""Figures that the pictures and the page need beside summarize's: cells, lines over T, depths,
divergences by what was emitted, speed at equal quality.

A line is a way to accept without its threshold; its points are arms in the order of T. For the rule
`random` T is the rate r.

Axes: Q questions.
"""

import math
from collections.abc import Sequence

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.metrics import kind, summarize
from eagle_fsd.evaluation.report.read_runs import RunData

SAMPLING = ("temperature", "top_k", "top_p")
CELL = ("rule", "divergence", "logits", "child", "threshold", "tree", *SAMPLING)
LINE = ("rule", "divergence", "logits", "child", "tree", *SAMPLING)
ALWAYS_NAMED = ("rule", "divergence")
SOURCES = ("draft", "fuzzy", "target")
LOST = {"argmax_share_lost": "argmax_share_minus_plain", "logp_lost": "mean_logp_minus_plain"}
ISO_LOSSES = (0.01, 0.02, 0.05, 0.1)


def cell(records: Sequence[dict], options: dict) -> dict:
    """Where an arm stands in an ablation; None for what does not apply to it.

    Args:
        records: the arm's.
        options: the run's, for what its records do not say themselves.
    """
    record, sampling = records[0], {}
    for key in SAMPLING:
        found = {row.get(key, options.get(key, 0)) for row in records}
        sampling[key] = "by category" if len(found) > 1 else f"{found.pop():g}"
    if record.get("accept") is None:
        return dict.fromkeys(CELL) | {"rule": kind(record["arm"])} | sampling
    accept = record["accept"]
    shape = record.get("tree") or options
    numbers = [shape.get(key) for key in ("num_draft_tokens", "tree_depth", "branch_top_k")]
    values = {key: accept[key] for key in CELL[:5]}
    if accept["rule"] == "exact":  # judges nothing
        values |= dict.fromkeys(("divergence", "logits", "child", "threshold"))
    if accept["rule"] == "random":
        values |= dict.fromkeys(("divergence", "logits"))
    return values | {"tree": "x".join(str(n) for n in numbers)} | sampling


def arm_rows(run: RunData) -> list[dict]:
    """summarize's rows with the run, the cell, the figures of LOST (against plain, as mean
    differences) and "score NAME" for every score of the run.

    Raises:
        BadInput: see summarize; the run is named.
    """
    try:
        rows = summarize(run.records, timed=run.timed)
    except BadInput as error:
        raise BadInput(f"{run.folder}: {error}") from error
    found = []
    names = dict.fromkeys(row["score"] for row in run.scores)
    means = {(row["score"], row["arm"]): row["mean"] for row in run.scores}
    for row in rows:
        lost = {
            key: None if row[difference] is None else -row[difference]["value"]
            for key, difference in LOST.items()
        }
        mine = {f"score {name}": means.get((name, row["arm"])) for name in names}
        place = {"run": run.name, "arm": row["arm"]} | cell(run.records[row["arm"]], run.options)
        found.append(place | row | lost | mine)
    return found


def score_rows(run: RunData) -> list[dict]:
    """What scorers and judges gave, as they wrote it, with gained, lost and mcnemar_p of the test
    for scores of 0 and 1; None where there is none."""
    table = []
    for row in run.scores:
        split = row["mcnemar"] or {}
        test = {
            "gained": split.get("gained"),
            "lost": split.get("lost"),
            "mcnemar_p": split.get("p"),
        }
        plain = {key: value for key, value in row.items() if key != "mcnemar"}
        table.append({"run": run.name} | plain | test)
    return table


def lines(rows: Sequence[dict]) -> dict[str, list[dict]]:
    """Rows of arms that judge drafts, by line and in the order of T; named by what differs.

    Args:
        rows: with a run and the keys of CELL.
    """
    judged = [row for row in rows if row["threshold"] is not None]
    keys = ("run", *LINE)
    values = {key: {row[key] for row in judged} - {None} for key in keys}
    differing = {key for key, found in values.items() if len(found) > 1}
    by_key: dict[tuple, list[dict]] = {}
    for row in judged:
        by_key.setdefault(tuple(row[key] for key in keys), []).append(row)
    named = {}
    for arms in by_key.values():
        row = arms[0]
        shown = [k for k in keys if row[k] is not None and (k in ALWAYS_NAMED or k in differing)]
        words = [f"{k} {row[k]}" if k in SAMPLING else str(row[k]) for k in shown]
        named[", ".join(words)] = sorted(arms, key=lambda row: row["threshold"])
    return named


def beside(rows: Sequence[dict], row: dict, rule: str) -> dict | None:
    """The arm of another rule of the same run and sampling, and where it drafts the same tree."""
    for other in rows:
        same = ("run", *SAMPLING, *(("tree",) if other["tree"] else ()))
        if other["rule"] == rule and all(other[key] == row[key] for key in same):
            return other
    return None


def accepted_by_depth(records: Sequence[dict]) -> list[float]:
    """Share of rounds that accept at least d drafts, for d = 1 up to the most accepted."""
    counts = [len(r["tokens"]) - 1 for row in records for t in row["turns"] for r in t["rounds"]]
    return [
        sum(count >= depth for count in counts) / len(counts)
        for depth in range(1, max(counts, default=0) + 1)
    ]


def divergences_by_source(records: Sequence[dict]) -> dict[str, list[float]]:
    """D of the judged nodes, by what was emitted after them: a draft that the exact test accepts
    too, a fuzzy draft, or the target's own token. Infinite values are left out."""
    found: dict[str, list[float]] = {source: [] for source in SOURCES}
    for r in [r for record in records for turn in record["turns"] for r in turn["rounds"]]:
        last = len(r["tokens"]) - 1
        for place, (value, fuzzy) in enumerate(zip(r["divergence"], r["fuzzy"], strict=True)):
            if value is not None and math.isfinite(float(value)):
                source = "fuzzy" if fuzzy else "draft" if place < last else "target"
                found[source].append(float(value))
    return found


def at_loss(points: Sequence[tuple[float, float]], loss: float) -> float | None:
    """A line's gain at a loss, linear between the two measured points around it.

    Args:
        points: (loss, gain) of every arm of a line, exact among them.

    Returns:
        None outside the measured losses: nothing is extrapolated.
    """
    ordered = sorted(points)
    for (low, before), (high, after) in zip(ordered, ordered[1:], strict=False):
        if low <= loss <= high:
            return (
                before if high == low else before + (after - before) * (loss - low) / (high - low)
            )
    return None


def iso_quality(rows: Sequence[dict], losses: dict[str, str]) -> list[dict]:
    """tokens_per_round relative to exact at equal losses, one row a line and kind of loss.

    Args:
        rows: from arm_rows.
        losses: what is lost, in words -> key of the row that holds it.
    """
    table = []
    for name, arms in lines(rows).items():
        exact = beside(rows, arms[0], "exact")
        if exact is None:
            continue
        for words, key in losses.items():
            points = [
                (row[key], row["tokens_per_round_vs_exact"]["value"])
                for row in [exact, *arms]
                if row[key] is not None and row["tokens_per_round_vs_exact"]
            ]
            gains = {f"at_{loss:g}": at_loss(points, loss) for loss in ISO_LOSSES}
            table.append({"line": name, "loss": words, **gains})
    return table
