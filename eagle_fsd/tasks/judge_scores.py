"""From a judge's verdicts to scores and win rates over questions, and their tables.

Means and rates are over all verdicts, turns and choices alike, as FastChat's show_result gives
them; intervals resample questions. A difference is over what both arms have verdicts of: the
choices of a turn are averaged, then a question's turns.
"""

from importlib.metadata import version
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.stats import Interval, mcnemar, paired_difference, rate_interval
from eagle_fsd.evaluation.tables import PAIRWISE, Column, markdown_table
from eagle_fsd.runs.jsonl import write_json, write_lines
from eagle_fsd.runs.provenance import describe_run
from eagle_fsd.tasks.judge_protocol import JudgeRequest
from eagle_fsd.tasks.task_scores import compare_questions

MATCH = ["question_id", "category", "choice", "turn"]
# who wins by a verdict in game 1 and 2: the arm 1, the baseline -1
WINS = {1: {"A": 1, "B": -1, "tie": 0}, 2: {"A": -1, "B": 1, "tie": 0}}
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
        lines: of a verdict file, all with a verdict.

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
        row = {
            "score": f"judge {judge}",
            "arm": arm,
            "questions": ratings.index.unique("question_id").size,
            "verdicts": len(ratings),
            "first": per_turn.get(1),
            "second": per_turn.get(2),
            "mean": _rate(ratings),
            "baseline": baseline,
            "difference": compared["vs_plain"],
            "vs_plain": compared["vs_plain"] if baseline == "plain" else None,
            "mcnemar": compared["mcnemar"],
            "categories": _by_category(ratings),
        }
        rows.append(row)
    return rows


def pairwise_rows(lines: list[dict], *, judge: str, baseline: str) -> list[dict]:
    """A row for every arm of which a match has both games; a tie where these name two winners.

    Args:
        lines: of a verdict file, all with a verdict and against this baseline.

    Returns:
        judge, arm, baseline, questions, verdicts (matches); win, tie, loss and adjusted (win +
        tie / 2), intervals; difference (of adjusted to 1/2); consistent (share of matches whose
        games agree); gained, lost, mcnemar_p (questions with more wins than losses, with fewer,
        and how likely so uneven a split is); categories {category: adjusted}.
    """
    rows = []
    won = [line | {"win": WINS[line["game"]][line["verdict"]]} for line in lines]
    for arm, part in pd.DataFrame(won).groupby("arm", sort=False):
        # a column a game; nothing is said of a match that lacks one
        games = part.set_index([*MATCH, "game"])["win"].unstack("game")
        games = games.reindex(columns=[1, 2]).dropna()
        if games.empty:
            continue
        agree = games[1] == games[2]
        wins = games[1].where(agree, 0)
        points = (wins + 1) / 2
        balance = wins.groupby(level="question_id").sum()
        mean_Q = points.groupby(level="question_id").mean().tolist()
        split = mcnemar((balance > 0).tolist(), (balance < 0).tolist())
        row = {
            "judge": judge,
            "arm": arm,
            "baseline": baseline,
            "questions": len(balance),
            "verdicts": len(wins),
            "win": _rate(wins == 1),
            "tie": _rate(wins == 0),
            "loss": _rate(wins == -1),
            "adjusted": _rate(points),
            "difference": paired_difference(mean_Q, [0.5] * len(mean_Q)),
            "consistent": float(agree.mean()),
            "gained": split["gained"],
            "lost": split["lost"],
            "mcnemar_p": split["p"],
            "categories": _by_category(points),
        }
        rows.append(row)
    return rows


def _rate(values: pd.Series) -> Interval:
    """The mean of all values, which belong to questions."""
    parts_Q2 = values.groupby(level="question_id", sort=False).agg(["sum", "count"])
    return rate_interval(parts_Q2.to_numpy(dtype=float))


def _by_category(values: pd.Series) -> dict[str, Interval]:
    return {name: _rate(part) for name, part in values.groupby(level="category", sort=False)}


def write_scores(
    folder: Path,
    replies: list[tuple[JudgeRequest, dict | None]],
    judge: str,
    mode: str,
    baseline: str,
) -> str:
    """Write what the verdicts come to; returns the tables.

    Below `folder`, as single or pairwise_BASELINE: .json {judge, mode, baseline, hosts, made: by
    which command, commit and versions, rows: of single_rows or pairwise_rows, which the report
    shows as they are, categories: by arm}; .md; and .fastchat.jsonl, which FastChat's show_result
    reads.

    Args:
        replies: requests with their lines of the verdict file, if there.

    Raises:
        BadInput: there is no verdict.
    """
    given = [(request, line) for request, line in replies if line]
    lines = [line for _, line in given if line["verdict"] is not None]
    make_rows = single_rows if mode == "single" else pairwise_rows
    rows = make_rows(lines, judge=judge, baseline=baseline) if lines else []
    if not rows:
        raise BadInput(
            f"{judge} gave no verdict on what there is: see its replies in "
            f"{folder / 'verdicts.jsonl'}; --retry_unparsed asks again"
        )
    categories = [{"arm": row["arm"]} | row.pop("categories") for row in rows]
    text = judge_tables(rows, categories, mode, baseline)
    hosts = sorted({line["host"] for _, line in given})
    if len(hosts) > 1:
        text += f"\n\nThe replies come from {', '.join(hosts)}: is it the same model?"
    name = "single" if mode == "single" else f"pairwise_{quote(baseline, safe='')}"
    described = describe_run("cpu")
    described["versions"]["openai"] = version("openai")
    made = {key: described[key] for key in ("command", "commit", "versions")}
    whole = {"judge": judge, "mode": mode, "baseline": baseline, "hosts": hosts, "made": made}
    write_lines(folder / f"{name}.fastchat.jsonl", fastchat_rows(given))
    (folder / f"{name}.md").write_text(f"{text}\n")
    write_json(folder / f"{name}.json", whole | {"rows": rows, "categories": categories})
    return text


def judge_tables(rows: list[dict], categories: list[dict], mode: str, baseline: str) -> str:
    """The rows as Markdown, with a line on what they are; by category where there are several."""
    columns = SINGLE if mode == "single" else PAIRWISE
    text = f"{markdown_table(rows, columns)}\n\n{NOTES[mode].format(baseline=baseline)} {BRACKETS}"
    names = list(dict.fromkeys(name for row in categories for name in row))
    if len(names) > 2:  # beside "arm"
        cells = [dict.fromkeys(names) | row for row in categories]
        table = markdown_table(cells, [(n, n, "s" if n == "arm" else "ratio") for n in names])
        what = "Both turns" if mode == "single" else "Wins + ties / 2"
        text += f"\n\n{what} by category:\n\n{table}"
    return text


def fastchat_rows(replies: list[tuple[JudgeRequest, dict]]) -> list[dict]:
    """The verdicts as FastChat's play_a_match_single and play_a_match_pair write them, and the
    choice; a reply without a verdict is -1 or "error" there.

    Args:
        replies: requests with their lines of the verdict file.
    """
    rows: dict[tuple, dict] = {}
    for request, line in replies:
        place = request.question_id, request.choice, request.turn, request.arm
        row = rows.setdefault(place, {"question_id": request.question_id})
        row |= {"judge": [line["model"], request.prompt], "turn": request.turn}
        row |= {"tstamp": line["time"], "choice": request.choice}
        said = {"user_prompt": request.messages[-1]["content"], "judgment": line["reply"]}
        if request.baseline is None:
            score = -1 if line["verdict"] is None else line["verdict"]
            row |= {"model": request.arm, "score": score} | said
        else:
            names = {1: "model_1", -1: "model_2", 0: "tie", None: "error"}
            said["winner"] = names[WINS[request.game].get(line["verdict"])]
            row |= {"model_1": request.arm, "model_2": request.baseline}
            row |= {f"g{request.game}_{name}": value for name, value in said.items()}
    return [
        row for row in rows.values() if "model" in row or {"g1_winner", "g2_winner"} <= set(row)
    ]
