"""Draws loss_against_gain.svg, the plot of docs/results.md, from rule_front's hybrid_guards.csv.

    python extras/loss_against_gain.py

A run of one's own is drawn by evaluate/report.py.
"""

import csv
from pathlib import Path

from eagle_fsd.evaluation.plots import GAIN, INK, LOSS, plot_curves

ROOT = Path(__file__).resolve().parents[1]

PAGE = """
svg { color: #24292f; background: #ffffff }
@media (prefers-color-scheme: dark) { svg { color: #e6edf3; background: #0d1117 } }
"""
GUARDS = ",ends=0@hybrid"
NUMBERS = {name + end for name in (GAIN, LOSS) for end in ("", "_low", "_high")}
SHOWN = ["exact@hybrid", *(rule + GUARDS for rule in ("path", "relaxed", "fsd", "random"))]


def rows() -> list[dict]:
    """The arms of the lines shown, as evaluation/metrics.py gives them."""
    with (ROOT / "results/rule_front/hybrid_guards.csv").open() as file:
        found = [row for row in csv.DictReader(file) if row["line"] in SHOWN]
    for arm in found:
        arm |= {name: float(arm[name] or "nan") for name in NUMBERS}
        arm["value"] = None if arm["rule"] == "exact" else float(arm["value"])
        arm["line"] = arm["line"].replace(GUARDS, ", guarded")
        for key in (GAIN, LOSS):
            arm[key] = {"value": arm[key], "low": arm[f"{key}_low"], "high": arm[f"{key}_high"]}
    return found


if __name__ == "__main__":
    svg = plot_curves(rows(), up=LOSS)
    # a page of its own, light or dark as the reader's theme is
    svg = svg.replace(INK, "currentColor").replace("<defs>", f"<style>{PAGE}</style>\n <defs>", 1)
    (ROOT / "docs/loss_against_gain.svg").write_text(svg, encoding="utf-8")
