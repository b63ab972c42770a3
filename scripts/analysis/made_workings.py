"""Score made problems (made_problems.py) with their working: is what leads to the number right?

    python scripts/analysis/made_workings.py runs/test runs/made_problems/target/test.jsonl
    python scripts/analysis/score_front.py runs/test with_working

The run is one of evaluate/tasks.py with --scorer last_number. Its scores/ARM.jsonl get the score
`with_working`: 1 where the last number is right and every step that leads to it stands in the
answer, that is the sums, the sorted numbers, or the counted word with its numbers.
"""

import json
import sys
from pathlib import Path

from made_problems import working

from eagle_fsd.cli import ended_by
from eagle_fsd.runs.jsonl import read_lines, write_file


def score_workings(run: Path, questions: Path) -> None:
    """Add `with_working` to the scores of all arms of the run."""
    asked = {row["question_id"]: row for row in read_lines(questions)}
    for file in sorted((run / "scores").glob("*.jsonl")):
        texts = {
            (row["question_id"], choice["index"]): choice["turns"][0]
            for row in read_lines(run / "answers" / file.name)
            for choice in row["choices"]
        }
        rows = read_lines(file)
        for row in rows:
            of, text = asked[row["question_id"]], texts[row["question_id"], row["choice"]]
            kind, (right,) = of["category"].split()[0], of["reference"]
            steps = working(kind, of["turns"][0], int(right))
            found = row["scores"]["last_number"] and all(step in f" {text}" for step in steps)
            row["scores"]["with_working"] = float(found)
        write_file(file, "".join(json.dumps(row) + "\n" for row in rows).encode())


if __name__ == "__main__":
    ended_by(lambda: score_workings(Path(sys.argv[1]), Path(sys.argv[2])))
