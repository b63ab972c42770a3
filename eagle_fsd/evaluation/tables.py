"""Rows of metrics as Markdown, on a terminal and in a sentence, and the tables of a run, of
which its summary and its page are made; metrics.py makes the rows."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tabulate import tabulate

from eagle_fsd.arms import BY_TRANSFORMERS, PLAIN
from eagle_fsd.evaluation.curves import GAIN, GAINS, LEAST, WIDEST, equal_gain
from eagle_fsd.evaluation.metrics import EXACT, METRICS
from eagle_fsd.evaluation.record_numbers import Record
from eagle_fsd.stats import LEAST_QUESTIONS, Interval

Column = tuple[str, str, str]  # title, key of the row, format


def columns(**form_by_key: str) -> list[Column]:
    """Titled by their keys in words: tokens/round for tokens_per_round."""
    titles = [key.replace("_per_", "/").replace("_", " ") for key in form_by_key]
    return list(zip(titles, form_by_key, form_by_key.values(), strict=True))


# what scorers and judges give to answers
SCORES: tuple[Column, ...] = (
    *columns(score="s", arm="s", questions="d", mean=".4f"),
    ("- plain", "vs_plain", "+.4f"),
    *columns(gained="d", lost="d"),
    ("McNemar p", "mcnemar_p", ".3f"),
)
SCORES_NOTE = (
    "Every mean is over questions, with its 95 % interval in brackets where that is known. The "
    "column \u201c- plain\u201d is the mean difference to plain over the questions and turns that "
    "both answered; in parentheses stands the smallest true difference that a test at 5 % finds "
    "with power 80 % among this number of questions (it is 0 where no question differs, which says "
    "nothing about other questions). Gained and lost count the questions that only this arm, or "
    "only plain, has right; McNemar p is the exact p of his test on these two counts. The score "
    "as_plain is the share of answers that come to what plain's comes to, right or wrong."
)
ARM_WIDTH, TITLE_WIDTH = 20, 12  # of 100 on a terminal
# metric -> its words in a verdict
PHRASES = {
    "tokens_per_second": "{:.1f} tokens per second",
    "speed_vs_plain": "{:.2f} times plain's tokens per second",
    "tokens_per_round": "{:.2f} tokens per round",
    "tokens_per_round_vs_exact": "{:+.0%} tokens per round over exact",
    "fuzzy_share": "{:.1%} of its tokens fuzzy",
    "regret_per_token": "a regret of {:.3f} nats per token",
    "tv_per_token": "a TV of {:.3f} per token",
    "repetition_minus_plain": "{:.0%} more of its text repeated than of plain's",
    "tokens_per_answer": "{:.1f} tokens per answer",
}
REPEATS = 0.1  # more of it than in plain's: its gain is of another text
PLAINS_SPEED = "plain's speed within noise ({:.2f} times)"
OF_BASELINES = {PLAIN: ["tokens_per_second"], EXACT: ["speed_vs_plain", "tokens_per_round"]}


def metric_columns(table: str) -> list[Column]:
    return [(m.label, key, m.form) for key, m in METRICS.items() if table in m.tables]


def markdown_table(rows: list[dict], shown: Sequence[Column]) -> str:
    titles = [title for title, _, _ in shown]
    lines = [titles, *([cell_text(row[key], form) for _, key, form in shown] for row in rows)]
    lines = [[" ".join(text.split()).replace("|", "\\|") for text in line] for line in lines]
    return tabulate(lines[1:], lines[0], tablefmt="github", disable_numparse=True)


def cell_text(value: str | float | Interval | None, form: str) -> str:
    """value [low, high] (detectable), the latter two where they are; "-" for nothing."""
    if not isinstance(value, dict):
        return "-" if value is None else format(value, form)
    if value["value"] is None:
        return "-"
    text, low, high = format(value["value"], form), value["low"], value["high"]
    if low is None or low == high:  # few questions, or all alike
        return text
    text += f" [{low:{form}}, {high:{form}}]"
    detectable = value.get("detectable")
    return text if detectable is None else f"{text} ({detectable:{form.lstrip('+')}})"


def terminal_table(rows: list[dict]) -> str:
    """The main columns without intervals, at most 100 wide."""
    shown = metric_columns("main")
    titles = ["arm", *(title for title, _, _ in shown)]
    table = [
        [row["arm"], *(cell_text(row[key]["value"], form) for _, key, form in shown)]
        for row in rows
    ]
    return tabulate(
        [titles, *table],
        tablefmt="plain",
        disable_numparse=True,
        maxcolwidths=[ARM_WIDTH, *(TITLE_WIDTH for _ in shown)],
        colalign=["left", *("right" for _ in shown)],
    )


def verdict(
    row: dict, noise: float = 0.0, *, sampled: bool = False, score: dict | None = None
) -> str:
    """Such as "+10 % tokens per round over exact, 4.1 % of its tokens fuzzy, a regret of 0.032 nats
    per token", or its TV where answers were `sampled`, behind its `score`, a row of
    task_scores.compare_scores. A speed that the noise (RunData's) or its own interval explains is
    called plain's. An arm of which nothing else is known has the length of its answers."""
    gain = "tokens_per_round_vs_exact"
    tokens = "tokens_per_round" if row[gain]["value"] is None else gain
    cost = "tv_per_token" if sampled else "regret_per_token"
    keys = ["speed_vs_plain", tokens, "fuzzy_share", cost]
    if (row["repetition_minus_plain"]["value"] or 0) >= REPEATS:
        keys.append("repetition_minus_plain")
    keys = OF_BASELINES.get(row["rule"], keys)
    keys = [key for key in keys if row[key]["value"] is not None] or ["tokens_per_answer"]
    parts = []
    if score and score["mean"]["value"] is not None:
        parts.append(f"{score['score']} {score['mean']['value']:.3f}")
        if score["vs_plain"] and score["vs_plain"]["value"] is not None:
            parts[0] += f" ({score['vs_plain']['value']:+.3f} against plain)"
    for key in keys:
        value, low, high = (row[key].get(end) for end in ("value", "low", "high"))
        phrase = PHRASES[key]
        if key == "speed_vs_plain":
            by_noise = 1 / (1 + noise) <= value <= 1 + noise
            if by_noise or low is not None and low <= 1 <= high:
                phrase = PLAINS_SPEED
        parts.append(phrase.format(value - 1 if key == gain else value))
    return ", ".join(parts).replace("%", " %")


class Table(NamedTuple):
    columns: Sequence[Column]
    rows: list[dict]  # they have the columns' keys, and more for JSON
    note: str  # how to read it


POOLED = (
    "A column whose title ends in \u201c- plain\u201d is a mean over questions: of each question's "
    "own rate less plain's on it. Every other column is pooled, which is a sum over all questions "
    "divided by another such sum. So two pooled numbers need not differ by the number under "
    "\u201c- plain\u201d."
)
DETECTABLE = (
    "In parentheses stands the smallest true difference that a test at 5 % finds with power 80 % "
    "among this number of questions."
)
# title of a table -> how to read it, but for what run_tables adds on intervals
NOTES = {
    "Scores": SCORES_NOTE,
    "Arms": POOLED,
    "Speed": "All columns but the median are pooled: sums over all questions, divided by each "
    "other.",
    "Cost": POOLED,
    "Answers": POOLED,
    "By category": "Each category is measured by its own questions alone. All columns are pooled.",
    "Equal gain": "For every line of arms, which differ in their rule's value only: what it has "
    f"lost where its tokens per round are first {', '.join(map(str, GAINS))} times exact's, taken "
    f"as linear between two of its arms whose gains differ by {WIDEST} at most. The column between "
    "names the rule's values of these two; what lies between no two has no row. Where in between "
    "the gain is cannot be told from them: measure it. The rule random is the control to compare "
    "with. All columns are pooled. Those that end in \u201c- plain\u201d too: they are differences "
    f"of pooled rates, and so not those of the table Arms. An interval needs {LEAST} questions.",
}


def run_tables(
    records: Mapping[str, Sequence[Record]],
    rows: list[dict],
    by_category: list[dict],
    scores: list[dict],
) -> dict[str, Table]:
    """Tables by title, those that hold something, scores first. Rows are those of summarize, of
    by_category and of task_scores.compare_scores."""
    gain = (METRICS[GAIN].label, GAIN, METRICS[GAIN].form)
    arm, of_category = columns(arm="s"), columns(category="s", arm="s", questions="d")
    contents = {
        "Scores": (SCORES, scores),
        "Arms": (arm + metric_columns("main"), rows),
        "Speed": (columns(arm="s", questions="d") + metric_columns("speed"), rows),
        "Cost": (arm + metric_columns("cost"), rows),
        "Answers": (columns(arm="s", answers="d") + metric_columns("answers"), rows),
        "By category": (of_category + metric_columns("categories"), by_category),
        "Equal gain": (
            [*columns(line="s"), gain, *columns(between="s"), *metric_columns("equal gain")],
            equal_gain(records, rows),
        ),
    }
    if len({row["category"] for row in by_category}) < 2:
        del contents["By category"]
    tables = {}
    for title, (shown, rows) in contents.items():
        if not rows:
            continue
        # how to read it, in sentences that are true of what it holds; SCORES_NOTE says it all
        text = [NOTES[title]]
        cells = [row[key] for row in rows for _, key, _ in shown if isinstance(row[key], dict)]
        if title != "Scores":
            if any(cell["low"] is not None for cell in cells):
                text.append(
                    "In brackets stand 95 % intervals over questions, where these are known."
                )
            if any(cell.get("detectable") is not None for cell in cells):
                text.append(DETECTABLE)
            if "questions" in rows[0]:
                text.append(few_questions(rows))
        tables[title] = Table(shown, rows, " ".join(text).strip())
    return tables


def few_questions(rows: Sequence[dict]) -> str:
    """A sentence where arms were asked too few questions to be ranked, else ""."""
    ours = [row for row in rows if row["rule"] not in BY_TRANSFORMERS]  # those may have fewer
    fewest = min(row["questions"] for row in ours or rows)
    if fewest >= LEAST_QUESTIONS:
        return ""
    return (
        f"Arms cannot be ranked by fewer than {LEAST_QUESTIONS} questions, here {fewest}, and "
        "no interval is given. "
    )
