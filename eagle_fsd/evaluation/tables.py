"""Rows of metrics as Markdown, as CSV, on a terminal and in a sentence; metrics.py makes them."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from eagle_fsd.evaluation.metrics import METRICS
from eagle_fsd.evaluation.stats import Interval

Column = tuple[str, str, str]  # title, key of the row, format
# columns before the metrics
PLACES: dict[str, tuple[Column, ...]] = {
    "speed": (("arm", "arm", "s"), ("questions", "questions", "d")),
    "cost": (("arm", "arm", "s"),),
    "answers": (("arm", "arm", "s"), ("answers", "answers", "d")),
    "categories": (
        ("category", "category", "s"),
        ("arm", "arm", "s"),
        ("questions", "questions", "d"),
    ),
}
# table -> its title, and how to read it
NOTES = {
    "speed": ("Speed", "In brackets: 95 % bootstrap intervals over questions."),
    "cost": (
        "Cost",
        "- plain: mean difference of the questions' own rates, with its interval; in parentheses "
        "the smallest true difference that so many questions show (5 %, power 80 %).",
    ),
    "answers": ("Answers", "Differences as under Cost."),
    "categories": ("By category", "Few questions each: intervals are wide, or missing."),
}
# what a judge says of pairs of answers
PAIRWISE: tuple[Column, ...] = (
    ("arm", "arm", "s"),
    ("wins", "win", "ratio"),
    ("ties", "tie", "ratio"),
    ("losses", "loss", "ratio"),
    ("wins + ties / 2", "adjusted", "ratio"),
    ("less 1/2", "difference", "ratio"),
    ("gained", "gained", "d"),
    ("lost", "lost", "d"),
    ("McNemar p", "mcnemar_p", ".3f"),
    ("orders agree", "consistent", ".2f"),
    ("questions", "questions", "d"),
    ("verdicts", "verdicts", "d"),
)
WIDTH = 100  # of a terminal
# text that a spreadsheet would take for a formula
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def columns(table: str) -> list[Column]:
    """The columns of a printed table."""
    shown = [(m.label, key, m.form) for key, m in METRICS.items() if table in m.tables]
    return [*PLACES.get(table, ()), *shown]


def markdown_table(rows: list[dict], columns: Sequence[Column]) -> str:
    """Aligned; a metric with an interval as cell_text writes it, "-" where there is nothing."""
    cells = [[title for title, _, _ in columns]]
    cells += [[cell_text(row[key], form) for _, key, form in columns] for row in rows]
    cells = [[" ".join(text.split()).replace("|", "\\|") for text in line] for line in cells]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = [
        "| "
        + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True))
        + " |"
        for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def cell_text(value: str | float | Interval | None, form: str) -> str:
    """value [low, high] (detectable), the latter two where they are; "ratio" is ".2f"."""
    form = ".2f" if form == "ratio" else form
    if not isinstance(value, dict):
        return "-" if value is None else format(value, form)
    if value["value"] is None:
        return "-"
    text = format(value["value"], form)
    if value["low"] is None or value["low"] == value["high"]:  # one question, or all alike
        return text
    text += f" [{value['low']:{form}}, {value['high']:{form}}]"
    detectable = value.get("detectable")
    return text if detectable is None else f"{text} ({detectable:{form.lstrip('+')}})"


# --- for people ---------------------------------------------------------------------------------


def terminal_table(rows: list[dict]) -> str:
    """The main columns without intervals, at most 100 wide; a long arm has a line to itself."""
    shown = [(metric, key) for key, metric in METRICS.items() if "main" in metric.tables]
    heads = [_in_two(metric.label) for metric, _ in shown]
    cells = [[_brief(row[key], metric.form) for metric, key in shown] for row in rows]
    texts = [list(column) for column in zip(*heads, strict=True)] + cells
    widths = [max(len(line[i]) for line in texts) for i in range(len(shown))]
    room = WIDTH - sum(width + 2 for width in widths)
    arms = min(room, max(len(row["arm"]) for row in rows))
    written = []
    for name, line in zip(["", "arm", *(row["arm"] for row in rows)], texts, strict=True):
        numbers = "".join(f"  {text:>{width}}" for text, width in zip(line, widths, strict=True))
        if len(name) > arms:
            written.append(name)
            name = ""
        written.append(f"{name:<{arms}}{numbers}")
    return "\n".join(written)


def _in_two(label: str) -> tuple[str, str]:
    """A title in two lines: "tokens/s" "over plain"; "" "tokens/round"."""
    for word in (" over ", " - ", " "):
        first, space, last = label.partition(word)
        if space:
            return first, f"{word.strip()} {last}".strip()
    return "", label


def _brief(value: Interval, form: str) -> str:
    return "-" if value["value"] is None else format(value["value"], form)


def verdict(row: dict) -> str:
    """An arm in a sentence: "fsd:0.4: +10 % tokens a round over exact, 4 % fuzzy, -0.12 log p a
    token"."""
    speed, rate, taus, gain, fuzzy, logp = (
        row[key]["value"]
        for key in (
            "speed_vs_plain",
            "tokens_per_second",
            "tokens_per_round",
            "tokens_per_round_vs_exact",
            "fuzzy_share",
            "mean_logp_minus_plain",
        )
    )
    said = []
    if row["rule"] == "plain":
        said += ["what the others are compared with"]
        said += [] if rate is None else [f"{rate:.1f} tokens/s"]
    elif speed is not None:
        said.append(f"{speed:.2f} times plain's tokens/s")
    if gain is not None and row["rule"] != "exact":
        said.append(f"{100 * (gain - 1):+.0f} % tokens a round over exact")
    elif taus is not None and row["rule"] != "plain":
        said.append(f"{taus:.2f} tokens a round")
    if row["rule"] not in ("plain", "exact") and fuzzy is not None:
        said.append(f"{_percent(fuzzy)} fuzzy")
        said += [] if logp is None else [f"{logp:+.2f} log p a token"]
    return f"{row['arm']}: {', '.join(said) or 'nothing to compare with'}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if 0 < share < 0.1 else f"{100 * share:.0f} %"


def columns_text() -> str:
    """The dictionary of columns, as Markdown."""
    rows = [
        {"column": key, "title": metric.label, "meaning": metric.meaning}
        for key, metric in METRICS.items()
    ]
    note = (
        "Every column X is also X_low and X_high, its 95 % bootstrap interval over questions; "
        "differences to plain have X_detectable, the smallest true difference that so many "
        "questions show (two-sided 5 %, power 80 %)."
    )
    return f"{markdown_table(rows, [(key, key, 's') for key in rows[0]])}\n\n{note}"


# --- for programs -------------------------------------------------------------------------------


def write_csv(path: Path, rows: list[dict]) -> None:
    """A line a row under one header: {"value", "low", "high"} under X becomes X, X_low, X_high, any
    other dict X_KEY; empty where there is nothing, columns without anything are left out. Texts
    that a spreadsheet would take for a formula begin with an apostrophe."""
    frame = pd.json_normalize(rows, sep="_").dropna(axis="columns", how="all")
    frame = frame.rename(columns=lambda name: name.removesuffix("_value"))
    frame.map(_no_formula).to_csv(path, index=False, lineterminator="\n")


def _no_formula(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
