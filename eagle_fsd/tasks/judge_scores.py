"""From a judge's verdicts to scores and win rates over questions, and their tables.

Means and rates are over all verdicts, turns and choices alike, as FastChat's show_result gives
them; intervals resample questions. A difference is over what both arms have verdicts of: the
choices of a turn are averaged, then a question's turns.
"""

from pathlib import Path
from urllib.parse import quote

import pandas as pd

from eagle_fsd.evaluation.stats import Interval, mcnemar, paired_difference, rate_interval
from eagle_fsd.evaluation.tables import PAIRWISE, Column, markdown_table
from eagle_fsd.runs.jsonl import write_json
from eagle_fsd.tasks.task_scores import BASELINE, compare_questions

MATCH = ["question_id", "category", "choice", "turn"]
# who wins by a verdict in game 1: the arm 1, the baseline -1; in game 2 the other way round
WINS = {"A": 1, "B": -1, "tie": 0}
SINGLE: tuple[Column, ...] = (
    ("arm", "arm", "s"),
    ("first turn", "first", "ratio"),
    ("second turn", "second", "ratio"),
    ("both", "mean", "ratio"),
    ("- baseline", "difference", "+.2f"),
    ("questions", "questions", "d"),
    ("verdicts", "verdicts", "d"),
)
NOTES = {
    "single": "- baseline: less {baseline}, over the questions and turns that both have.",
    "pairwise": "Against {baseline}, each match in both orders; a tie too where they disagree. "
    "gained, lost: questions with more wins than losses, and with fewer; McNemar's exact p.",
}
BRACKETS = (
    "Brackets: 95 % bootstrap intervals over questions; in parentheses the smallest true "
    "difference that so many questions show four times in five."
)


def single_rows(lines: list[dict], *, judge: str, baseline: str) -> list[dict]:
    """A row for every arm with verdicts.

    Args:
        lines: records of judge_all, all with a verdict.

    Returns:
        score ("judge NAME"), arm, questions, verdicts; first, second, mean (intervals, of each
        turn and of both); baseline, difference (to it; None without one to compare); vs_plain
        (that, where the baseline is plain) and mcnemar, as rows of task_scores have them;
        categories {category: mean}.
    """
    by_arm = pd.DataFrame(lines).groupby("arm", sort=False)
    arms = {arm: part.set_index(MATCH)["verdict"] for arm, part in by_arm}
    rows = []
    for arm, ratings in arms.items():
        theirs = arms[baseline] if baseline in arms and arm != baseline else ratings[:0]
        sides = [
            side.groupby(level=["question_id", "turn"], sort=False).mean()
            for side in (ratings, theirs)
        ]
        shared = pd.concat(sides, axis=1, join="inner").groupby(level="question_id", sort=False)
        compared = compare_questions(*shared.mean().to_numpy().T.tolist())
        per_turn = {turn: _rate(part) for turn, part in ratings.groupby(level="turn")}
        row = {"score": f"judge {judge}", "arm": arm, "baseline": baseline} | _counts(ratings)
        row |= {"first": per_turn.get(1), "second": per_turn.get(2), "mean": _rate(ratings)}
        row |= compared | {"difference": compared["vs_plain"]}
        row |= {} if baseline == BASELINE else {"vs_plain": None}
        rows.append(row | {"categories": _by_category(ratings)})
    return rows


def pairwise_rows(lines: list[dict], *, judge: str, baseline: str) -> list[dict]:
    """A row for every arm of which a match has both games; a tie where these name two winners.

    Args:
        lines: records of judge_all, all with a verdict and against this baseline.

    Returns:
        judge, arm, baseline, questions, verdicts (matches); win, tie, loss and adjusted (win +
        tie / 2), intervals; difference (of adjusted to 1/2); consistent (share of matches whose
        games agree); gained, lost, mcnemar_p (questions with more wins than losses, with fewer,
        and how likely so uneven a split is); categories {category: adjusted}.
    """
    rows = []
    for arm, part in pd.DataFrame(lines).groupby("arm", sort=False):
        # a column a game; nothing is said of a match that lacks one
        games = part.set_index([*MATCH, "game"])["verdict"].map(WINS).unstack("game")
        games = games.reindex(columns=[1, 2]).dropna()
        if games.empty:
            continue
        agree = games[1] == -games[2]
        wins = games[1].where(agree, 0)
        points = (wins + 1) / 2
        balance = wins.groupby(level="question_id").sum()
        mean_Q = points.groupby(level="question_id").mean().tolist()
        row = {"judge": judge, "arm": arm, "baseline": baseline} | _counts(wins)
        row |= {name: _rate(wins == w) for name, w in (("win", 1), ("tie", 0), ("loss", -1))}
        row |= {"adjusted": _rate(points), "consistent": float(agree.mean())}
        row["difference"] = paired_difference(mean_Q, [0.5] * len(mean_Q))
        split = mcnemar((balance > 0).tolist(), (balance < 0).tolist())
        row |= {"gained": split["gained"], "lost": split["lost"], "mcnemar_p": split["p"]}
        rows.append(row | {"categories": _by_category(points)})
    return rows


def _counts(values: pd.Series) -> dict[str, int]:
    return {"questions": values.index.unique("question_id").size, "verdicts": len(values)}


def _rate(values: pd.Series) -> Interval:
    """The mean of all values, which belong to questions."""
    parts_Q2 = values.groupby(level="question_id", sort=False).agg(["sum", "count"])
    return rate_interval(parts_Q2.to_numpy(dtype=float))


def _by_category(values: pd.Series) -> dict[str, Interval]:
    return {name: _rate(part) for name, part in values.groupby(level="category", sort=False)}


def write_scores(folder: Path, lines: list[dict], *, judge: str, mode: str, baseline: str) -> str:
    """Write what the verdicts come to; returns the tables.

    Below `folder`, as single or pairwise_BASELINE: .json {judge, mode, baseline, rows: of
    single_rows or pairwise_rows, which the report shows as they are, categories: by arm}, and .md.

    Args:
        lines: records of judge_all, all with a verdict; not none.
    """
    make_rows = single_rows if mode == "single" else pairwise_rows
    rows = make_rows(lines, judge=judge, baseline=baseline)
    categories = [{"arm": row["arm"]} | row.pop("categories") for row in rows]
    table = markdown_table(rows, SINGLE if mode == "single" else PAIRWISE)
    text = f"{table}\n\n{NOTES[mode].format(baseline=baseline)} {BRACKETS}"
    names = list(dict.fromkeys(name for row in categories for name in row))
    if len(names) > 2:  # beside "arm"
        cells = [dict.fromkeys(names) | row for row in categories]
        table = markdown_table(cells, [(n, n, "s" if n == "arm" else "ratio") for n in names])
        what = "Both turns" if mode == "single" else "Wins + ties / 2"
        text += f"\n\n{what} by category:\n\n{table}"
    name = verdicts_name(mode, baseline)
    whole = {"judge": judge, "mode": mode, "baseline": baseline}
    (folder / f"{name}.md").write_text(f"{text}\n")
    write_json(folder / f"{name}.json", whole | {"rows": rows, "categories": categories})
    return text


def verdicts_name(mode: str, baseline: str) -> str:
    """What a mode's files are called."""
    return "single" if mode == "single" else f"pairwise_{quote(baseline, safe='')}"
