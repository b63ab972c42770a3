"""Scores of several tasks as one, each question once: results.md#tasks-pooled.

    python docs/pooled_scores.py runs/humaneval:pass@1 runs/ifeval:prompt_strict

Of the arms that all runs have.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from eagle_fsd.evaluation.arms import parse_arm  # noqa: E402
from eagle_fsd.evaluation.report.read_runs import read_run  # noqa: E402
from eagle_fsd.runs.jsonl import read_records  # noqa: E402
from eagle_fsd.tasks.task_scores import compare_scores, score_table  # noqa: E402


def pooled(runs: list[str]) -> list[dict]:
    """The values of compare_scores, a score named after all of them."""
    parts = [(Path(folder), score) for folder, _, score in (run.rpartition(":") for run in runs)]
    arms = [list(read_run(folder).records) for folder, _ in parts]
    name = " + ".join(score for _, score in parts)
    return [
        {"score": name, "arm": arm, "question_id": f"{folder} {row['question_id']}"}
        | {"value": row["scores"][score]}
        for arm in arms[0]
        if all(arm in others for others in arms)
        for folder, score in parts
        for _, row in read_records(folder / "scores" / f"{parse_arm(arm).slug}.jsonl")
    ]


if __name__ == "__main__":
    print(score_table(compare_scores(pooled(sys.argv[1:]))))
