"""From verdicts to figures: means, differences and win rates over questions, and their tables.

Means and rates are over all verdicts, turns and choices alike, as FastChat's show_result gives
them; intervals resample questions. A difference is over what both arms have verdicts of: the
choices of a turn are averaged, then a question's turns.
"""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from eagle_fsd.evaluation.stats import Interval, paired_difference, rate_interval
from eagle_fsd.evaluation.tables import Column, markdown_table
from eagle_fsd.runs.jsonl import whole_lines
from eagle_fsd.tasks.judge.matches import judgment_folder

TURNS = {"first": (1,), "second": (2,), "both": (1, 2)}
OUTCOMES = {"win": (1, 0, 0), "tie": (0, 1, 0), "loss": (0, 0, 1)}

# keys of a verdict by kind, as in file names
KEYS = {
    "single": ("question_id", "judge", "model", "turn", "score"),
    "pair": ("question_id", "judge", "model_1", "model_2", "g1_winner", "g2_winner"),
}

Choices = dict[int, list[float]]  # turn -> the scores of its choices
Turns = dict[int, float]  # turn -> score
SINGLE: tuple[Column, ...] = (
    ("arm", "arm", "s"),
    ("first turn", "first", "ratio"),
    ("second turn", "second", "ratio"),
    ("both", "both", "ratio"),
    ("questions", "questions", "d"),
    ("verdicts", "verdicts", "d"),
)
DIFFERENCE: tuple[Column, ...] = (
    ("arm", "arm", "s"),
    ("difference", "difference", "ratio"),
    ("detectable", "detectable", ".2f"),
    ("shared questions", "shared", "d"),
)
PAIRWISE: tuple[Column, ...] = (
    ("arm", "arm", "s"),
    ("wins", "win", "ratio"),
    ("ties", "tie", "ratio"),
    ("losses", "loss", "ratio"),
    ("wins + ties / 2", "adjusted", "ratio"),
    ("less 1/2", "difference", "ratio"),
    ("detectable", "detectable", ".2f"),
    ("orders agree", "consistent", ".2f"),
    ("questions", "questions", "d"),
    ("verdicts", "verdicts", "d"),
)


def read_verdicts(run_folder: str | Path, kind: str, warnings: list[str]) -> dict[str, list[dict]]:
    """Verdicts by judge; {} without any. A judge may be adding to them, see whole_lines.

    Args:
        kind: of KEYS.

    Raises:
        ValueError: a line is broken; names it.
    """
    judges: dict[str, list[dict]] = {}
    for path in sorted(judgment_folder(Path(run_folder)).glob(f"*_{kind}.jsonl")):
        for row in whole_lines(path, KEYS[kind], warnings):
            judges.setdefault(row["judge"][0], []).append(row)
    return judges


def judge_scores(
    run_folder: str | Path, warnings: list[str]
) -> dict[str, dict[str, dict[int | str, Turns]]]:
    """Scores of answers judged alone: {judge: {arm: {question_id: {turn: mean over choices}}}}.

    {} without verdicts.

    Raises:
        ValueError: see read_verdicts.
    """
    return {
        judge: {arm: _by_turn(questions) for arm, questions in _scores(rows).items()}
        for judge, rows in read_verdicts(run_folder, "single", warnings).items()
    }


def mean_turns(turns: Turns) -> float:
    """A question's score."""
    return sum(turns.values()) / len(turns)


def shared_scores(
    mine: dict[int | str, Turns], theirs: dict[int | str, Turns]
) -> tuple[list[float], list[float]]:
    """Both sides' scores of every question of which both have a turn, over the turns that both
    have."""
    shared = {key: sorted(mine[key].keys() & theirs[key].keys()) for key in mine if key in theirs}
    kept = {key: turns for key, turns in shared.items() if turns}
    mine_Q, theirs_Q = (
        [mean_turns({turn: side[key][turn] for turn in turns}) for key, turns in kept.items()]
        for side in (mine, theirs)
    )
    return mine_Q, theirs_Q


def single_rows(verdicts: Iterable[dict], baseline: str) -> list[dict]:
    """Figures of every arm with verdicts; differences to the baseline where that has some."""
    scores = _scores(verdicts)
    theirs = scores.get(baseline, {})
    return [
        {
            "arm": arm,
            **{name: _mean_score(mine, turns) for name, turns in TURNS.items()},
            "questions": len(mine),
            "verdicts": sum(len(choices) for turns in mine.values() for choices in turns.values()),
            **_difference(mine, {} if arm == baseline else theirs),
        }
        for arm, mine in scores.items()
    ]


def pairwise_rows(verdicts: Iterable[dict], baseline: str) -> list[dict]:
    """Figures of every arm that was compared with the baseline.

    A match is a tie where its two orders do not name the same winner.
    """
    matches: dict[str, dict[int | str, list[dict]]] = defaultdict(lambda: defaultdict(list))
    for row in verdicts:
        if row["model_2"] == baseline:
            matches[row["model_1"]][row["question_id"]].append(row)
    return [_pairwise_row(arm, list(questions.values())) for arm, questions in matches.items()]


def tables(rows: list[dict], mode: str, baseline: str) -> str:
    """The figures as Markdown, with a line on what they are."""
    if mode == "pairwise":
        return (
            f"{markdown_table(rows, PAIRWISE)}\n\n"
            f"Against {baseline}, each match in both orders; a tie too where the orders disagree."
            f" {_DETECTABLE}"
        )
    compared = [row for row in rows if row["difference"] is not None]
    text = markdown_table(rows, SINGLE)
    if compared:
        text += f"\n\nLess {baseline}, over the questions and turns that both have:\n\n"
        text += f"{markdown_table(compared, DIFFERENCE)}\n\n{_DETECTABLE}"
    return text


_DETECTABLE = (
    "Brackets: 95 % bootstrap intervals over questions. detectable: the smallest true difference "
    "that so many questions show four times in five."
)


def _scores(verdicts: Iterable[dict]) -> dict[str, dict[int | str, Choices]]:
    """By arm and question."""
    scores: dict = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for row in verdicts:
        scores[row["model"]][row["question_id"]][row["turn"]].append(row["score"])
    return scores


def _mean_score(questions: dict[int | str, Choices], turns: Iterable[int]) -> Interval:
    kept = [
        [score for turn in turns for score in of_question.get(turn, [])]
        for of_question in questions.values()
    ]
    return rate_interval([(sum(scores), len(scores)) for scores in kept if scores])


def _by_turn(questions: dict[int | str, Choices]) -> dict[int | str, Turns]:
    return {
        key: {turn: sum(scores) / len(scores) for turn, scores in of_question.items()}
        for key, of_question in questions.items()
    }


def _difference(
    mine: dict[int | str, Choices], theirs: dict[int | str, Choices]
) -> dict[str, Interval | float | int | None]:
    pair = shared_scores(_by_turn(mine), _by_turn(theirs))
    if not pair[0]:
        return {"difference": None, "detectable": None, "shared": 0}
    difference = paired_difference(*pair)
    return {
        "difference": difference,
        "detectable": difference.pop("detectable"),
        "shared": len(pair[0]),
    }


def _pairwise_row(arm: str, questions: list[list[dict]]) -> dict:
    counts = [
        [sum(column) for column in zip(*(OUTCOMES[_outcome(r)] for r in rows), strict=True)]
        for rows in questions
    ]
    sizes = [len(rows) for rows in questions]
    adjusted = [win + tie / 2 for win, tie, _ in counts]
    rates = [count / size for count, size in zip(adjusted, sizes, strict=True)]
    difference = paired_difference(rates, [0.5] * len(rates))
    agreeing = sum(row["g1_winner"] == row["g2_winner"] for rows in questions for row in rows)
    return {
        "arm": arm,
        **{
            name: rate_interval([(c[i], size) for c, size in zip(counts, sizes, strict=True)])
            for i, name in enumerate(OUTCOMES)
        },
        "adjusted": rate_interval(list(zip(adjusted, sizes, strict=True))),
        "difference": difference,
        "detectable": difference.pop("detectable"),
        "consistent": agreeing / sum(sizes),
        "questions": len(questions),
        "verdicts": sum(sizes),
    }


def _outcome(row: dict) -> str:
    if row["g1_winner"] == "tie" or row["g1_winner"] != row["g2_winner"]:
        return "tie"
    return "win" if row["g1_winner"] == "model_1" else "loss"
