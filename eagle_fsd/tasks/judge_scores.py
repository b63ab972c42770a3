"""From a judge's verdicts to scores and win rates over questions, and their tables."""

from pathlib import Path
from urllib.parse import quote

import pandas as pd

from eagle_fsd.evaluation.stats import Interval, mcnemar, paired_difference, rate_interval
from eagle_fsd.evaluation.tables import PAIRWISE, markdown_table
from eagle_fsd.tasks.task_scores import compare_scores, score_tables, write_table

MATCH = ["question_id", "choice", "turn"]
# who wins by a verdict in game 1: the arm 1, the baseline -1; in game 2 the other way round
WINS = {"A": 1, "B": -1, "tie": 0}
NOTE = (
    "Each match in both orders; a tie too where they disagree. Brackets: 95 % intervals "
    "over questions; in parentheses the smallest true difference that so many questions show four "
    "times in five. gained, lost: questions with more wins than losses, and with fewer; McNemar's "
    "exact p."
)


def single_rows(verdicts: list[dict], *, judge: str) -> list[dict]:
    """Rows of compare_scores for the ratings of each turn and of all.

    Args:
        verdicts: records of judge_all, all with a verdict.
    """
    scores: dict[str, list[dict]] = {}
    for row in verdicts:
        names = f"judge {judge}", f"judge {judge}, turn {row['turn']}"
        given = {"question_id": row["question_id"], "turn": row["turn"]}
        given["scores"] = dict.fromkeys(names, row["verdict"])
        scores.setdefault(row["arm"], []).append(given)
    return compare_scores(scores)


def pairwise_rows(verdicts: list[dict], *, judge: str, baseline: str) -> list[dict]:
    """A row for every arm of which a match has both games; a tie where these name two winners.

    Rates are over all matches, turns and choices alike, as FastChat's show_result gives them.

    Args:
        verdicts: records of judge_all, all with a verdict and against this baseline.

    Returns:
        judge, arm, baseline, questions, verdicts (matches); win, tie, loss and adjusted (win +
        tie / 2), intervals; difference (of adjusted to 1/2); consistent (share of matches whose
        games agree); gained, lost, mcnemar_p (questions with more wins than losses, with fewer,
        and how likely so uneven a split is).
    """
    rows = []
    for arm, part in pd.DataFrame(verdicts).groupby("arm", sort=False):
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
        split = mcnemar((balance > 0).tolist(), (balance < 0).tolist())
        row = {"judge": judge, "arm": arm, "baseline": baseline}
        row |= {"questions": len(balance), "verdicts": len(wins)}
        row |= {name: _rate(wins == w) for name, w in (("win", 1), ("tie", 0), ("loss", -1))}
        row |= {"adjusted": _rate(points), "consistent": float(agree.mean())}
        row["difference"] = paired_difference(mean_Q, [0.5] * len(mean_Q))
        rows.append(
            row | {"gained": split["gained"], "lost": split["lost"], "mcnemar_p": split["p"]}
        )
    return rows


def _rate(values: pd.Series) -> Interval:
    """The mean of all values, which belong to questions."""
    parts_Q2 = values.groupby(level="question_id", sort=False).agg(["sum", "count"])
    return rate_interval(parts_Q2.to_numpy(dtype=float))


def verdicts_name(mode: str, baseline: str) -> str:
    """What a mode's files are called."""
    return "single" if mode == "single" else f"pairwise_{quote(baseline, safe='')}"


def write_scores(
    folder: Path, verdicts: list[dict], *, judge: str, mode: str, baseline: str
) -> str:
    """Write what the verdicts come to as verdicts_name, .md and .json, whose rows the report shows
    as they are; returns the tables."""
    if mode == "single":
        rows = single_rows(verdicts, judge=judge)
        text = score_tables(rows)
    else:
        rows = pairwise_rows(verdicts, judge=judge, baseline=baseline)
        text = f"Against {baseline}:\n\n{markdown_table(rows, PAIRWISE)}\n\n{NOTE}"
    write_table(folder / verdicts_name(mode, baseline), text, rows)
    return text
