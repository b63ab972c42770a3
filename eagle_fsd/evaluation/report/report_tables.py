"""The report's tables: one description each, written as Markdown, CSV and HTML."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

from eagle_fsd.evaluation.metrics import by_category
from eagle_fsd.evaluation.report.arm_rows import ISO_LOSSES, SAMPLING, score_rows
from eagle_fsd.evaluation.report.read_runs import RunData
from eagle_fsd.evaluation.tables import (
    ANSWERS,
    CATEGORY,
    COST,
    NOTES,
    PAIRWISE,
    SPEED,
    Column,
    cell_text,
    markdown_table,
)

MANY_ARMS = 8  # of a run that is an ablation
MANY_ROWS = 100  # of a table that the page shows when asked
SCORES: tuple[Column, ...] = (
    ("score", "score", "s"),
    ("arm", "arm", "s"),
    ("questions", "questions", "d"),
    ("mean", "mean", ".4f"),
    ("- plain", "vs_plain", "+.4f"),
)
SPLIT: tuple[Column, ...] = (
    ("gained", "gained", "d"),
    ("lost", "lost", "d"),
    ("McNemar p", "mcnemar_p", ".3f"),
)
ABLATION: tuple[Column, ...] = (
    ("rule", "rule", "s"),
    ("divergence", "divergence", "s"),
    ("logits", "logits", "s"),
    ("child", "child", "s"),
    ("T or r", "threshold", "g"),
    ("tree", "tree", "s"),
    *((key, key, "s") for key in SAMPLING),
    ("tokens/round", "tokens_per_round_interval", ".2f"),
    ("vs exact", "tokens_per_round_vs_exact", ".2f"),
    ("of ceiling", "of_ceiling", ".2f"),
    ("tokens/s vs plain", "speed_vs_plain", ".2f"),
    ("fuzzy share", "fuzzy_share", ".4f"),
    ("regret/token", "regret_per_token", ".4f"),
    ("argmax share - plain", "argmax_share_minus_plain", "+.4f"),
    ("log p - plain", "mean_logp_minus_plain", "+.3f"),
    ("looping", "looping", ".2f"),
)
ISO: tuple[Column, ...] = (
    ("line", "line", "s"),
    ("loss", "loss", "s"),
    *((f"{loss:g}", f"at_{loss:g}", ".2f") for loss in ISO_LOSSES),
)


EQUAL_SPEED: tuple[Column, ...] = (
    ("line", "line", "s"),
    ("tokens/round vs exact", "gain", ".2f"),
    ("T or r", "threshold", ".3f"),
    ("fuzzy share", "fuzzy_share", ".4f"),
    ("regret/token", "regret_per_token", ".3f"),
    ("argmax share - plain", "argmax_share", "+.4f"),
    ("log p - plain", "mean_logp", "+.3f"),
    ("tokens/answer - plain", "tokens_per_answer", "+.1f"),
    ("at the limit - plain", "at_limit", "+.3f"),
    ("repetition - plain", "repetition", "+.3f"),
    ("looping - plain", "looping", "+.3f"),
)


@dataclass(frozen=True)
class Table:
    """A table and how to read it.

    Attributes:
        name: of its CSV file; tables of one name (of several runs) share the file.
        title, note: above it.
        columns: as in eagle_fsd.evaluation.tables.
        rows: with the columns' keys; the CSV holds all keys.
        run: whose it is; empty: of all runs.
    """

    name: str
    title: str
    note: str
    columns: Sequence[Column]
    rows: list[dict]
    run: str = ""

    def markdown(self) -> str:
        return f"### {self.title}\n\n{self.note}\n\n{markdown_table(self.rows, self.columns)}"

    def html(self) -> str:
        """A heading, the note, and the table in a box that scrolls; a long one is folded."""
        kinds = [' class="text"' if form == "s" else "" for _, _, form in self.columns]
        lines = [[title for title, _, _ in self.columns]]
        lines += [[cell_text(row[key], form) for _, key, form in self.columns] for row in self.rows]
        written = []
        for number, line in enumerate(lines):
            tag = "td" if number else "th"
            cells = [
                f"<{tag}{kind}>{html.escape(cell)}</{tag}>"
                for cell, kind in zip(line, kinds, strict=True)
            ]
            written.append(f"<tr>{''.join(cells)}</tr>")
        body = "\n".join(written[1:])
        table = (
            f'<p class="note">{html.escape(self.note)}</p>\n<div class="scroll"><table>\n'
            f"<thead>{written[0]}</thead>\n<tbody>\n{body}\n</tbody>\n"
            "</table></div>"
        )
        if len(self.rows) <= MANY_ROWS:
            return f"<h3>{html.escape(self.title)}</h3>\n{table}"
        words = f"{html.escape(self.title)}, {len(self.rows)} rows"
        return f"<details><summary><strong>{words}</strong></summary>\n{table}\n</details>"


def run_tables(run: RunData, rows: list[dict]) -> list[Table]:
    """A run's tables.

    Args:
        rows: from figures.arm_rows.
    """
    tables = []
    for name, columns in {"speed": SPEED, "cost": COST, "answers": ANSWERS}.items():
        title, _, note = NOTES[name].partition(". ")
        tables.append(Table("arms", title, note, columns, rows, run.name))
    tables += _score_tables(run)
    if len(rows) > MANY_ARMS:
        note = "Every arm by its settings; - where one does not apply."
        tables.append(Table("arms", "Ablation", note, ABLATION, rows, run.name))
    categories = by_category(run.records, timed=run.timed)
    if len({row["category"] for row in categories}) > 1:
        rows = [{"run": run.name} | row for row in categories]
        note = "Few questions each: the intervals of a category are wide, or missing."
        tables.append(Table("categories", "By category", note, CATEGORY, rows, run.name))
    return tables


def _score_tables(run: RunData) -> list[Table]:
    """What scorers and judges gave; none where there is nothing."""
    tables = []
    scores = score_rows(run)
    if scores:
        note = "Means with 95 % intervals over questions; - plain: paired difference over the "
        note += "questions and turns that both have, in parentheses the smallest that so many "
        note += "questions show."
        columns = SCORES
        if any(row["mcnemar_p"] is not None for row in scores):
            columns += SPLIT
            note += " gained, lost: questions right only here, or only by plain; McNemar's exact p."
        tables.append(Table("scores", "Scores", note, columns, scores, run.name))
    if run.pairwise:
        note = "Against the baseline, each match in both orders; a tie too where the orders "
        note += "disagree. With 95 % intervals over questions. gained, lost: questions with more "
        note += "wins than losses, and with fewer; McNemar's exact p."
        columns = (("judge", "judge", "s"), ("baseline", "baseline", "s"), *PAIRWISE)
        tables.append(Table("pairwise", "Pairwise verdicts", note, columns, run.pairwise, run.name))
    return tables


def equal_speed_table(table: list[dict]) -> list[Table]:
    """equal_speed's rows as a table; none if no line gains enough."""
    note = (
        "What every line has lost where its tokens per round are 1.05, 1.1 and 1.2 times exact's "
    )
    note += "(between measured thresholds, with 95 % intervals): compare a rule with random."
    return [Table("equal_speed", "Loss at equal speed", note, EQUAL_SPEED, table)] if table else []


def iso_table(table: list[dict]) -> list[Table]:
    """figures.iso_quality as a table; none if no line reaches a loss."""
    if not any(row[f"at_{loss:g}"] is not None for row in table for loss in ISO_LOSSES):
        return []
    note = "tokens per round relative to exact at a loss of .01, .02, ...: interpolated between a "
    note += "line's measured thresholds; - outside of them."
    return [Table("iso_quality", "Speed at equal quality", note, ISO, table)]
