"""From a judge's verdicts to scores and win rates over questions, and their tables.

Means and rates are over all verdicts, turns and choices alike, as FastChat's show_result gives
them; intervals resample questions. A difference is over what both arms have verdicts of: the
choices of a turn are averaged, then a question's turns.
"""

from collections import defaultdict
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.stats import Interval, mcnemar, paired_difference, rate_interval
from eagle_fsd.evaluation.tables import PAIRWISE, Column, markdown_table
from eagle_fsd.runs.jsonl import write_json, write_lines
from eagle_fsd.runs.provenance import describe_run
from eagle_fsd.tasks.judge_protocol import JudgeRequest
from eagle_fsd.tasks.task_scores import compare_questions

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

Verdicts = Iterable[tuple[JudgeRequest, float | str]]
Turns = dict[int, list[float]]  # turn -> the ratings of its choices


def single_rows(verdicts: Verdicts, *, judge: str, baseline: str) -> list[dict]:
    """A row for every arm with verdicts.

    Returns:
        score ("judge NAME"), arm, questions, verdicts; first, second, mean (intervals, of each
        turn and of both); baseline, difference (to it; None without one to compare); vs_plain
        (that, where the baseline is plain) and mcnemar, as rows of task_scores have them;
        categories {category: mean}.
    """
    ratings: dict = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    categories = {}
    for request, rating in verdicts:
        ratings[request.arm][request.question_id][request.turn].append(rating)
        categories[request.question_id] = request.category
    rows = []
    for arm, mine in ratings.items():
        theirs = ratings[baseline] if baseline in ratings and arm != baseline else {}
        compared = compare_questions(*_shared_scores(mine, theirs))
        whole = {question: sum(turns.values(), []) for question, turns in mine.items()}
        row = {
            "score": f"judge {judge}",
            "arm": arm,
            "questions": len(mine),
            "verdicts": sum(map(len, whole.values())),
            "first": _rate(turns.get(1, []) for turns in mine.values()),
            "second": _rate(turns.get(2, []) for turns in mine.values()),
            "mean": _rate(whole.values()),
            "baseline": baseline,
            "difference": compared["vs_plain"],
            "vs_plain": compared["vs_plain"] if baseline == "plain" else None,
            "mcnemar": compared["mcnemar"],
            "categories": _by_category(whole, categories),
        }
        rows.append(row)
    return rows


def pairwise_rows(verdicts: Verdicts, *, judge: str, baseline: str) -> list[dict]:
    """A row for every arm of which a match has both games; a tie where these name two winners.

    Returns:
        judge, arm, baseline, questions, verdicts (matches); win, tie, loss and adjusted (win +
        tie / 2), intervals; difference (of adjusted to 1/2); consistent (share of matches whose
        games agree); gained, lost, mcnemar_p (questions with more wins than losses, with fewer,
        and how likely so uneven a split is); categories {category: adjusted}.
    """
    games: dict = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    categories = {}
    for request, verdict in verdicts:
        match = games[request.arm][request.question_id][request.choice, request.turn]
        match[request.game] = WINS[request.game][verdict]
        categories[request.question_id] = request.category
    rows = []
    for arm, questions in games.items():
        wins: dict[int | str, list[int]] = {}
        agreeing = 0
        for question, matches in questions.items():
            for match in matches.values():
                if len(match) == 2:
                    agree = match[1] == match[2]
                    wins.setdefault(question, []).append(match[1] if agree else 0)
                    agreeing += agree
        if not wins:
            continue
        points = {question: [(win + 1) / 2 for win in found] for question, found in wins.items()}
        balance = [sum(found) for found in wins.values()]
        split = mcnemar([total > 0 for total in balance], [total < 0 for total in balance])
        means = [sum(found) / len(found) for found in points.values()]
        count = sum(map(len, wins.values()))
        row = {
            "judge": judge,
            "arm": arm,
            "baseline": baseline,
            "questions": len(wins),
            "verdicts": count,
            **{
                name: _rate([win == wanted for win in found] for found in wins.values())
                for name, wanted in (("win", 1), ("tie", 0), ("loss", -1))
            },
            "adjusted": _rate(points.values()),
            "difference": paired_difference(means, [0.5] * len(means)),
            "consistent": agreeing / count,
            **{"gained": split["gained"], "lost": split["lost"], "mcnemar_p": split["p"]},
            "categories": _by_category(points, categories),
        }
        rows.append(row)
    return rows


def _rate(values_Q: Iterable[list[float]]) -> Interval:
    """The mean of all values, which belong to questions."""
    return rate_interval([(sum(values), len(values)) for values in values_Q if values])


def _by_category(
    values_Q: dict[int | str, list[float]], categories: dict[int | str, str]
) -> dict[str, Interval]:
    return {
        name: _rate(values for question, values in values_Q.items() if categories[question] == name)
        for name in dict.fromkeys(categories[question] for question in values_Q)
    }


def _shared_scores(
    mine: dict[int | str, Turns], theirs: dict[int | str, Turns]
) -> tuple[list[float], list[float]]:
    """Both sides' scores of every question of which both have a turn, over the turns that both
    have."""
    scores: tuple[list[float], list[float]] = ([], [])
    for question in mine:
        shared = sorted(mine[question].keys() & theirs.get(question, {}).keys())
        for side, found in zip((mine, theirs), scores, strict=True):
            means = [sum(side[question][turn]) / len(side[question][turn]) for turn in shared]
            found += [sum(means) / len(means)] if means else []
    return scores


def write_scores(
    folder: Path,
    replies: list[tuple[JudgeRequest, dict | None]],
    *,
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
    verdicts = [(r, line["verdict"]) for r, line in given if line["verdict"] is not None]
    make_rows = single_rows if mode == "single" else pairwise_rows
    rows = make_rows(verdicts, judge=judge, baseline=baseline)
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
    name = "single" if mode == "single" else f"pairwise_{baseline}"
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


def fastchat_rows(replies: Iterable[tuple[JudgeRequest, dict]]) -> list[dict]:
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
