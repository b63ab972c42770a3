"""Metrics of the answers that lm-evaluation-harness asked for, as sums: no answer is kept."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from eagle_fsd.decoding.loop import Generation
from eagle_fsd.evaluation.metrics import METRICS
from eagle_fsd.evaluation.tables import Column, markdown_table

RATES = (
    *("tokens_per_second", "tokens_per_answer", "at_limit", "rounds_per_answer"),
    *("tokens_per_round", "fuzzy_share", "regret_per_token", "tv_per_token"),
)
COUNTS: tuple[Column, ...] = (("answers", "answers", "d"), ("tokens", "tokens", "d"))
Sums = Counter  # of COUNTS, and of each rate's numerator and denominator


def count_answer(result: Generation, seconds: float) -> Sums:
    """The sums of one answer."""
    turn = {"token_ids": result.tokens, "seconds": seconds, "finish": result.finish}
    turn["rounds"] = [vars(accepted) for accepted in result.rounds]
    record = {"turns": [turn]}
    sums = Counter(answers=1, tokens=len(result.tokens))
    for name in RATES:
        sums[name, "numerator"] = METRICS[name].numerator(record)
        sums[name, "denominator"] = METRICS[name].denominator(record)
    return sums


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
    metrics: dict[str, float | int | None] = {key: sums[key] for _, key, _ in COUNTS}
    for name in RATES:
        part, whole = sums[name, "numerator"], sums[name, "denominator"]
        metrics[name] = part / whole if whole and math.isfinite(part) else None
    return metrics


def task_table(metrics: dict[str, dict]) -> str:
    """What metrics_by_task gives as one Markdown table, with a row of all if tasks are several."""
    rows = [{"task": task, **row} for task, row in metrics["tasks"].items()]
    rows += [{"task": "all", **metrics["all"]}] if len(rows) > 1 else []
    rates = [(METRICS[name].label, name, METRICS[name].form) for name in RATES]
    return markdown_table(rows, [("task", "task", "s"), *COUNTS, *rates])
