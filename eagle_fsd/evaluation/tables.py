"""Rows of figures as Markdown tables and as CSV; summary.py makes the rows of a comparison."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from eagle_fsd.evaluation.metrics import GRAM, LOOP_PERIOD, LOOP_REPEATS, LOOP_TOKENS
from eagle_fsd.evaluation.stats import Interval

Column = tuple[str, str, str]  # title, key of the row, format
SPEED: tuple[Column, ...] = (
    ("arm", "arm", "s"),
    ("questions", "questions", "d"),
    ("tokens/s", "tokens_per_second", ".1f"),
    ("vs generate", "speed_vs_generate", ".2f"),
    ("vs plain", "speed_vs_plain", ".2f"),
    ("tokens/round", "tokens_per_round_interval", ".2f"),
    ("vs exact", "tokens_per_round_vs_exact", ".2f"),
    ("ceiling", "ceiling", ".2f"),
    ("of ceiling", "of_ceiling", ".2f"),
    ("rounds/answer", "rounds_per_answer", ".1f"),
    ("s/answer", "seconds_per_answer", ".2f"),
    ("s/answer vs plain", "seconds_per_answer_vs_plain", ".2f"),
)
COST: tuple[Column, ...] = (
    ("arm", "arm", "s"),
    ("fuzzy share", "fuzzy_share_interval", ".4f"),
    ("regret/token", "regret_per_token_interval", ".4f"),
    ("TV/token", "tv_per_token", ".4f"),
    ("argmax share", "argmax_share", ".4f"),
    ("argmax vs plain", "argmax_share_vs_plain", ".4f"),
    ("argmax - plain", "argmax_share_minus_plain", "+.4f"),
    ("log p/token", "mean_logp", ".3f"),
    ("log p - plain", "mean_logp_minus_plain", "+.3f"),
)
ANSWERS: tuple[Column, ...] = (
    ("arm", "arm", "s"),
    ("answers", "answers", "d"),
    ("same as plain", "same_as_plain", ".3f"),
    ("tokens/answer", "tokens_per_answer", ".1f"),
    ("tokens - plain", "tokens_per_answer_minus_plain", "+.1f"),
    ("at the limit", "at_limit", ".2f"),
    ("limit - plain", "at_limit_minus_plain", "+.2f"),
    ("repetition", "repetition", ".3f"),
    ("repetition - plain", "repetition_minus_plain", "+.3f"),
    ("looping", "looping", ".2f"),
    ("looping - plain", "looping_minus_plain", "+.2f"),
)
CATEGORY: tuple[Column, ...] = (
    ("category", "category", "s"),
    ("arm", "arm", "s"),
    ("questions", "questions", "d"),
    ("tokens/s", "tokens_per_second", ".1f"),
    ("vs plain", "speed_vs_plain", ".2f"),
    ("tokens/round", "tokens_per_round_interval", ".2f"),
    ("argmax share", "argmax_share", ".4f"),
)
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
NOTES = {
    "speed": "Speed. In brackets: 95 % bootstrap intervals over questions.",
    "cost": "Cost. - plain: mean difference of the questions' own figures, with its interval; "
    "in parentheses the smallest true difference that so many questions show (5 %, power 80 %).",
    "answers": f"Answers. repetition: share of an answer's {GRAM}-grams that occurred before in "
    f"it. looping: answers whose end repeats at most {LOOP_PERIOD} tokens at least {LOOP_REPEATS} "
    f"times, over at least {LOOP_TOKENS}.",
}


def tables(rows: list[dict]) -> str:
    """Three Markdown tables, each under a line that explains it: speed, cost, answers."""
    columns = {"speed": SPEED, "cost": COST, "answers": ANSWERS}
    return "\n\n".join(
        f"{NOTES[name]}\n\n{markdown_table(rows, chosen)}" for name, chosen in columns.items()
    )


def category_table(rows: list[dict]) -> str:
    """by_category's rows as one Markdown table."""
    return markdown_table(rows, CATEGORY)


def markdown_table(rows: list[dict], columns: Sequence[Column]) -> str:
    """Aligned; a figure with an interval as cell_text writes it, "-" where there is nothing."""
    cells = [[title for title, _, _ in columns]]
    cells += [[cell_text(row[key], form) for _, key, form in columns] for row in rows]
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
    return f"{text} ({value['detectable']:{form.lstrip('+')}})" if "detectable" in value else text


def csv_rows(rows: list[dict]) -> list[dict]:
    """Rows without nested dicts, all with the same keys, for spreadsheets.

    An interval under X or X_interval becomes X, X_low, X_high (and X_detectable), another dict
    X_KEY. Figures that no row has are left out.
    """
    flat = [{key: _flat(key, value) for key, value in row.items()} for row in rows]
    keys = dict.fromkeys(key for row in flat for key in row)
    names = dict.fromkeys(name for key in keys for row in flat for name in row.get(key, {}))
    merged = [
        {name: value for part in row.values() for name, value in part.items()} for row in flat
    ]
    return [{name: row.get(name) for name in names} for row in merged]


def _flat(key: str, value: object) -> dict[str, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        return {key: value}
    if "value" in value:
        key = key.removesuffix("_interval")
    return {key if name == "value" else f"{key}_{name}": inner for name, inner in value.items()}


def write_csv(path: Path, rows: list[dict]) -> None:
    """csv_rows under one header; an empty field where a row has nothing."""
    flat = csv_rows(rows)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(flat[0]) if flat else [])
    writer.writeheader()
    writer.writerows(flat)
    path.write_text(text.getvalue(), encoding="utf-8", newline="")
