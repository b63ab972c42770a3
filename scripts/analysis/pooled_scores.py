"""Scores of several tasks as one, each question once: results/tasks.

    python scripts/analysis/pooled_scores.py runs/humaneval:pass@1 runs/ifeval:prompt_strict

Of the arms that all runs have.
"""

import sys
from pathlib import Path

from eagle_fsd.arms import PLAIN, parse_arm
from eagle_fsd.cli import ended_by
from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.report.read_runs import read_run
from eagle_fsd.runs.jsonl import read_records
from eagle_fsd.tasks.task_scores import compare_scores, score_table


def scored(run: str) -> tuple[Path, str]:
    """The folder and the score that FOLDER:SCORE names."""
    folder, _, score = run.rpartition(":")
    if not folder:
        raise BadInput(f"{run!r} is no FOLDER:SCORE, such as runs/humaneval:pass@1")
    return Path(folder), score


def scores_of(folder: Path, arm: str, score: str) -> list[tuple[dict, float]]:
    """An arm's rows of a scored run that have the score, and their values."""
    rows = [row for _, row in read_records(folder / "scores" / f"{parse_arm(arm).slug}.jsonl")]
    found = [(row, row["scores"][score]) for row in rows if score in row["scores"]]
    if not found and arm != PLAIN:  # which has no as_plain
        known = ", ".join(dict.fromkeys(name for row in rows for name in row["scores"]))
        raise BadInput(f"{folder} has no score {score!r}; it has {known}")
    return found


def pooled(runs: list[str]) -> list[dict]:
    """The values of compare_scores, a score named after all of them."""
    parts = [scored(run) for run in runs]
    if not parts:
        raise BadInput("no run is given: FOLDER:SCORE of each, such as runs/humaneval:pass@1")
    arms = [list(read_run(folder).records) for folder, _ in parts]
    name = " + ".join(score for _, score in parts)
    return [
        {"score": name, "arm": arm, "question_id": f"{folder} {row['question_id']}"}
        | {"value": value}
        for arm in arms[0]
        if all(arm in others for others in arms)
        for folder, score in parts
        for row, value in scores_of(folder, arm, score)
    ]


if __name__ == "__main__":
    ended_by(lambda: print(score_table(compare_scores(pooled(sys.argv[1:])))))
