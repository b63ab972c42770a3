"""How many disturbed turns a report names, and what a disturbance does to a speed.

    python extras/disturb.py runs/mt_bench runs/another

Every turn of a stored run in its turn is made so many times as long, and then as it was.
"""

import sys
from pathlib import Path

import numpy as np
from tqdm import tqdm

from eagle_fsd.arms import BY_TRANSFORMERS, PLAIN
from eagle_fsd.evaluation.disturbed import disturbed_turns
from eagle_fsd.evaluation.metrics import summarize
from eagle_fsd.evaluation.report.run_data import read_run

FACTORS = (1.5, 2, 3, 4, 6)
SPEEDS = ("speed_vs_plain", "median_speed_vs_plain")


def speeds(records: dict[str, list[dict]], arm: str) -> list[float]:
    row = summarize({PLAIN: records[PLAIN], arm: records[arm]})[-1]
    return [row[key]["value"] for key in SPEEDS]


def disturb(records: dict[str, list[dict]], factor: float) -> dict[str, str]:
    """A row of the page's table."""
    named = others = count = 0
    moved = []
    for arm, rows in tqdm(records.items(), desc=f"{factor:g} times", leave=False):
        before = speeds(records, arm) if arm not in (PLAIN, *BY_TRANSFORMERS) else None
        for row in rows:
            for number, turn in enumerate(row["turns"], start=1):
                seconds, place = turn["seconds"], (arm, row["question_id"], number)
                turn["seconds"] = seconds * factor
                found = [(one.arm, one.question_id, one.turn) for one in disturbed_turns(records)]
                named, others = named + (place in found), others + len({*found} - {place})
                count += 1
                if before:
                    moved.append(np.abs(np.divide(speeds(records, arm), before) - 1))
                turn["seconds"] = seconds
    middle, largest = np.median(moved, axis=0), np.max(moved, axis=0)
    shown = [f"{mid:.1%} (most {most:.1%})" for mid, most in zip(middle, largest, strict=True)]
    return {"times": f"{factor:g}", "named": f"{named} of {count}", "others named": f"{others}"} | {
        key: text for key, text in zip(SPEEDS, shown, strict=True)
    }


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        records = read_run(Path(folder)).records
        names = [f"{one.arm} {one.question_id}" for one in disturbed_turns(records)]
        print(f"{folder}, as it is, names {len(names)}: {', '.join(names) or 'none'}")
        for factor in FACTORS:
            print(disturb(records, factor))
