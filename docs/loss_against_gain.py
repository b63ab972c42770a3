"""Draws loss_against_gain.svg, the README's plot, from results/evaluation/arms.csv.

    python docs/loss_against_gain.py

That file has the arm names of its commit; a run of today is drawn by evaluate/report.py.
"""

import sys
import tempfile
from pathlib import Path

import pandas as pd

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from eagle_fsd.evaluation.curves import GAIN, INK, LOSS, plot_curves  # noqa: E402

NAMES = {"exact": "exact (EAGLE-2)", "fsd": "fsd, by its threshold T"}
NAMES |= {"random": "random, the control, by its rate r"}


def rows() -> list[dict]:
    """The arms on MT-Bench, as evaluation/metrics.py gives them today."""
    arms = pd.read_csv(HERE.parent / "results/evaluation/arms.csv")
    found = []
    for arm in arms[arms["run"] == "mt_bench_80"].to_dict("records"):
        if name := NAMES.get(arm["rule"]):
            row = {"rule": arm["rule"], "arm": name, "line": name}
            row["value"] = None if arm["rule"] == "exact" else arm["threshold"]
            for key in (GAIN, LOSS):
                row[key] = {"value": arm[key], "low": arm[f"{key}_low"], "high": arm[f"{key}_high"]}
            found.append(row)
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        svg = plot_curves(rows(), Path(folder) / "plot")
    # a page of its own, whatever the reader's theme
    svg = svg.replace(INK, "#24292f").replace("<svg ", '<svg style="background: #ffffff" ', 1)
    (HERE / "loss_against_gain.svg").write_text(svg, encoding="utf-8")
