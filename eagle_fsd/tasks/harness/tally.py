"""Figures of the answers that lm-evaluation-harness asked for, as sums: none of them is kept."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields

from eagle_fsd.decoding.loop import Generation
from eagle_fsd.evaluation.tables import Column, markdown_table

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


@dataclass
class Tally:
    """Sums over answers and their rounds, as summary.py counts them."""

    answers: int = 0
    at_limit: int = 0
    tokens: int = 0
    seconds: float = 0.0
    rounds: int = 0
    round_tokens: int = 0
    fuzzy: int = 0
    regret: float = 0.0
    tv: float = 0.0

    def add(self, result: Generation, seconds: float) -> None:
        self.answers += 1
        self.at_limit += result.finish == "length"
        self.tokens += len(result.tokens)
        self.seconds += seconds
        self.rounds += len(result.rounds)
        for one in result.rounds:
            self.round_tokens += len(one.tokens)
            self.fuzzy += sum(one.fuzzy)
            self.regret += sum(one.regret)
            self.tv += sum(one.tv)

    @classmethod
    def total(cls, tallies: Iterable["Tally"]) -> "Tally":
        rows = [asdict(tally) for tally in tallies]
        return cls(**{field.name: sum(row[field.name] for row in rows) for field in fields(cls)})

    def figures(self) -> dict[str, float | int | None]:
        """JSON-able; names as in summary.py, None where there is nothing to divide by."""
        return {
            "answers": self.answers,
            "answers_at_limit": self.at_limit,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "rounds": self.rounds,
            "tokens_per_second": _ratio(self.tokens, self.seconds),
            "tokens_per_answer": _ratio(self.tokens, self.answers),
            "tokens_per_round": _ratio(self.round_tokens, self.rounds),
            "fuzzy_share": _ratio(self.fuzzy, self.round_tokens),
            "regret_per_token": _ratio(self.regret, self.round_tokens),
            "tv_per_token": _ratio(self.tv, self.round_tokens),
        }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole and math.isfinite(part) else None


def figures_by_task(tallies: Iterable[Mapping[str, Tally]]) -> dict[str, dict]:
    """Figures under "tasks", by task, and under "all"; empty without any answer.

    Args:
        tallies: task -> Tally, of each process.
    """
    by_task: dict[str, list[Tally]] = {}
    for of_process in tallies:
        for task, tally in of_process.items():
            by_task.setdefault(task, []).append(tally)
    if not by_task:
        return {}
    totals = {task: Tally.total(parts) for task, parts in by_task.items()}
    return {
        "tasks": {task: total.figures() for task, total in totals.items()},
        "all": Tally.total(totals.values()).figures(),
    }


def task_table(figures: dict[str, dict]) -> str:
    """figures_by_task's as one Markdown table, with a row of all where there are several tasks."""
    rows = [{"task": task, **row} for task, row in figures["tasks"].items()]
    rows += [{"task": "all", **figures["all"]}] if len(rows) > 1 else []
    return markdown_table(rows, COLUMNS)
