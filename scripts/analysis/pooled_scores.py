"""Scores of one or several tasks as one, each question once: results/tasks, results/harm_signals.

    python scripts/analysis/pooled_scores.py runs/humaneval:pass@1 runs/ifeval:prompt_strict
    python scripts/analysis/pooled_scores.py runs/gsm8k:as_plain --against random:0.9@hybrid

Of the arms that all runs have; differences are to plain, or to the arm that is named.
"""

import argparse
from pathlib import Path

from eagle_fsd.arms import PLAIN, parse_arm
from eagle_fsd.cli import ended_by
from eagle_fsd.config import BadInput
from eagle_fsd.evaluation import tables
from eagle_fsd.evaluation.report.read_runs import read_run
from eagle_fsd.runs.jsonl import read_records
from eagle_fsd.tasks.task_scores import compare_scores


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
    """The values of compare_scores, a score named after all of them; of plain only where it has the
    score in all runs."""
    parts = [scored(run) for run in runs]
    arms = [list(read_run(folder).records) for folder, _ in parts]
    shared = [arm for arm in arms[0] if all(arm in others for others in arms)]
    found = {arm: [scores_of(folder, arm, score) for folder, score in parts] for arm in shared}
    if not any(map(all, found.values())):
        raise BadInput(f"{' '.join(runs)}: no arm has these scores in all runs")
    name = " + ".join(score for _, score in parts)
    return [
        {"score": name, "arm": arm, "question_id": f"{folder} {row['question_id']}"}
        | {"value": value}
        for arm, of_runs in found.items()
        if all(of_runs)
        for (folder, _), rows in zip(parts, of_runs, strict=True)
        for row, value in rows
    ]


def compared(runs: list[str], against: str) -> str:
    """The table, and how to read it."""
    values = pooled(runs)
    known = dict.fromkeys(value["arm"] for value in values)
    if against not in known and against != PLAIN:  # plain's own as_plain is none
        raise BadInput(f"--against {against!r} is no arm of the runs; known: {', '.join(known)}")
    rows = compare_scores(values, baseline=against)
    columns = [
        (f"- {against}" if key == "vs_plain" else title, key, form)
        for title, key, form in tables.SCORES
    ]
    note = tables.SCORES_NOTE
    if against != PLAIN:
        note = f"Gained, lost and McNemar's test are against {against}, not against plain."
    return f"{tables.markdown_table(rows, columns)}\n\n{note}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="+", help="FOLDER:SCORE of each, such as runs/gsm8k:as_plain")
    parser.add_argument("--against", default=PLAIN, help="the arm to compare with (default: plain)")
    given = parser.parse_args()
    ended_by(lambda: print(compared(given.runs, given.against)))
