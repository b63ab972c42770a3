"""Metrics of the answers that lm-evaluation-harness asked for, as sums: no answer is kept."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from eagle_fsd.decoding.loop import Generation
from eagle_fsd.evaluation.tables import Column, markdown_table

Sums = Counter[str]
# metric, as evaluation/metrics.py names and counts it -> numerator and denominator
RATES = {
    "tokens_per_second": ("tokens", "seconds"),
    "tokens_per_answer": ("tokens", "answers"),
    "tokens_per_round": ("round_tokens", "rounds"),
    "fuzzy_share": ("fuzzy", "round_tokens"),
    "regret_per_token": ("regret", "round_tokens"),
    "tv_per_token": ("tv", "round_tokens"),
}
COUNTS = ("answers", "answers_at_limit", "tokens", "seconds", "rounds")
COLUMNS: tuple[Column, ...] = (
    ("task", "task", "s"),
    ("answers", "answers", "d"),
    ("at the limit", "answers_at_limit", "d"),
    ("tokens", "tokens", "d"),
    ("tokens/s", "tokens_per_second", ".1f"),
    ("rounds", "rounds", "d"),
    ("tokens/round", "tokens_per_round", ".2f"),
    ("fuzzy share", "fuzzy_share", ".4f"),
    ("regret/token", "regret_per_token", ".4f"),
    ("TV/token", "tv_per_token", ".4f"),
)


def count_answer(result: Generation, seconds: float) -> Sums:
    """The sums of one answer and its rounds."""
    rounds = result.rounds
    return Counter(
        answers=1,
        answers_at_limit=int(result.finish == "length"),
        tokens=len(result.tokens),
        seconds=seconds,
        rounds=len(rounds),
        round_tokens=sum(len(one.tokens) for one in rounds),
        fuzzy=sum(sum(one.fuzzy) for one in rounds),
        regret=sum(sum(one.regret) for one in rounds),
        tv=sum(sum(one.tv) for one in rounds),
    )


def metrics_by_task(sums: Iterable[Mapping[str, Sums]]) -> dict[str, dict]:
    """Metrics under "tasks", by task, and under "all"; empty without any answer.

    Args:
        sums: task -> sums, of each process.
    """
    tasks: dict[str, Sums] = {}
    every: Sums = Counter()
    for of_process in sums:
        for task, found in of_process.items():
            tasks.setdefault(task, Counter()).update(found)
            every.update(found)
    if not tasks:
        return {}
    return {"tasks": {task: _metrics(s) for task, s in tasks.items()}, "all": _metrics(every)}


def _metrics(sums: Sums) -> dict[str, float | int | None]:
    """JSON-able; None where there is nothing to divide by."""
    metrics: dict[str, float | int | None] = {name: sums[name] for name in COUNTS}
    for name, (part, whole) in RATES.items():
        known = sums[whole] and math.isfinite(sums[part])
        metrics[name] = sums[part] / sums[whole] if known else None
    return metrics


def task_table(metrics: dict[str, dict]) -> str:
    """What metrics_by_task gives as one Markdown table, with a row of all if tasks are several."""
    rows = [{"task": task, **row} for task, row in metrics["tasks"].items()]
    rows += [{"task": "all", **metrics["all"]}] if len(rows) > 1 else []
    return markdown_table(rows, COLUMNS)
