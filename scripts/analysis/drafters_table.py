"""Tables of drafters from replay runs: all questions, by category, loops and copies apart.

    python scripts/analysis/drafters_table.py TEXTS RUN [RUN ...] > results/drafters/NAME.md

TEXTS is the folder of plain texts (--texts of evaluate/replay.py), RUN folders of replays of one
head on the same questions. An answer loops if its end repeats (docs/glossary.md#columns); it copies
if at least a quarter of its 6-grams are in the prompt.
"""

import json
import sys
from pathlib import Path

import pandas as pd

from eagle_fsd.evaluation.record_numbers import is_looping
from eagle_fsd.evaluation.tables import cell_text
from eagle_fsd.stats import rate_interval

LENGTH, SHARE = 6, 0.25  # of what is copied


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def grams(tokens: list[int]) -> list[tuple[int, ...]]:
    return [tuple(tokens[i : i + LENGTH]) for i in range(len(tokens) - LENGTH + 1)]


def kind(text: dict, tokens: int) -> str:
    """Of an answer with this number of tokens."""
    answer = text["greedy_ids"][:tokens]
    known = set(grams(text["prompt_ids"]))
    copied = [gram in known for gram in grams(answer)]
    if is_looping(answer):
        return "loops"
    return "copies" if copied and sum(copied) / len(copied) >= SHARE else "neither"


def main(texts: str, *runs: str) -> None:
    known = {row["question_id"]: row for row in lines(Path(texts, "records/texts.jsonl"))}
    parts: dict[str, dict[str, list[tuple[int, int]]]] = {}
    for run in runs:
        (path,) = Path(run, "records").glob("*.jsonl")
        for record in lines(path):
            emitted = sum(next(iter(record["arms"].values()))["tokens"])
            groups = ["all", record["category"], kind(known[record["question_id"]], emitted)]
            for arm, counts in record["arms"].items():
                for group in groups:
                    part = sum(counts["tokens"]), len(counts["tokens"])
                    parts.setdefault(arm, {}).setdefault(group, []).append(part)
    table = pd.DataFrame(
        {
            arm: {f"{g} ({len(p)})": cell_text(rate_interval(p), ".2f") for g, p in groups.items()}
            for arm, groups in parts.items()
        }
    ).T
    ends = [column for column in table if column.split(" (")[0] in ("neither", "copies", "loops")]
    first = [column for column in table if column.startswith("all (")]
    table = table[[*first, *ends, *(c for c in table if c not in (*first, *ends))]]
    print(table.rename_axis("arm").reset_index().to_markdown(index=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
