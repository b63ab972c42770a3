"""Draws loss_against_gain.svg, the README's plot, from results/evaluation/arms.csv.

    python docs/loss_against_gain.py

That file has the arm names of its commit; a run of today is drawn by evaluate/report.py.
"""

import csv
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from eagle_fsd.evaluation.curves import GAIN, INK, LOSS, plot_curves  # noqa: E402

NAMES = {"exact": "exact (EAGLE-2)", "fsd": "fsd, by its threshold T"}
NAMES |= {"random": "random, the control, by its rate r"}


def rows() -> list[dict]:
    """The arms on MT-Bench, as evaluation/metrics.py gives them today."""
    with open(HERE.parent / "results/evaluation/arms.csv", encoding="utf-8") as file:
        arms = [row for row in csv.DictReader(file) if row["run"] == "mt_bench_80"]
    found = []
    for arm in (arm for arm in arms if arm["rule"] in NAMES):
        row = {"rule": arm["rule"], "value": float(arm["threshold"] or "nan")}
        row |= {"arm": NAMES[arm["rule"]], "line": NAMES[arm["rule"]]}
        if arm["rule"] == "exact":
            row["value"] = None
        for key in (GAIN, LOSS):
            ends = {"value": key, "low": f"{key}_low", "high": f"{key}_high"}
            row[key] = {end: float(arm[name] or "nan") for end, name in ends.items()}
        found.append(row)
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        svg = plot_curves(rows(), Path(folder) / "plot")
    # a page of its own, whatever the reader's theme
    svg = svg.replace(INK, "#24292f").replace("<svg ", '<svg style="background: #ffffff" ', 1)
    (HERE / "loss_against_gain.svg").write_text(svg, encoding="utf-8")
