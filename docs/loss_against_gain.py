"""Draws loss_against_gain.svg, the README's plot, from results/evaluation/arms.csv.

    python docs/loss_against_gain.py

That file has the arm names of its commit; a run of today is drawn by evaluate/report.py.
"""

import csv
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
INK, PAPER = "#24292f", "#ffffff"
X, Y = "tokens_per_round_vs_exact", "mean_logp_minus_plain"
CURVES = {  # rule -> label, colour, mark
    "fsd": ("fsd, by its threshold T", "#0072B2", "o"),
    "random": ("random, the control, by its rate r", "#D55E00", "s"),
}


def points(rule: str) -> list[dict[str, float]]:
    """The rule's arms on MT-Bench, with the ends of their 95 % intervals; what is empty is 1."""
    with open(HERE.parent / "results/evaluation/arms.csv", encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if (r["run"], r["rule"]) == ("mt_bench_80", rule)]
    keys = ["threshold", *(key + end for key in (X, Y) for end in ("", "_low", "_high"))]
    return [{key: float(row[key] or 1) for key in keys} for row in rows]


def bars(arms: list[dict[str, float]], key: str) -> list[list[float]]:
    """Lengths of the intervals below and above the values."""
    return [[abs(arm[key] - arm[key + end]) for arm in arms] for end in ("_low", "_high")]


def draw() -> Figure:
    figure = Figure(figsize=(6.6, 3.7), layout="constrained", facecolor=PAPER)
    axes = figure.subplots()
    axes.set_facecolor(PAPER)
    for rule in ("exact", *CURVES):
        label, color, mark = CURVES.get(rule, (None, INK, "*"))
        arms = points(rule)
        style = {"color": color, "marker": mark, "ms": 5 if label else 11}
        places = [[arm[key] for arm in arms] for key in (X, Y)]
        lengths = {"yerr": bars(arms, Y), "xerr": bars(arms, X)}
        axes.errorbar(*places, **lengths, label=label, elinewidth=0.8, capsize=2, **style)
        for arm in arms:
            text = f"{arm['threshold']:g}" if label else "exact (EAGLE-2): nothing lost"
            offset = {"xytext": (5, 5) if label else (11, 4), "textcoords": "offset points"}
            axes.annotate(text, (arm[X], arm[Y]), color=color, **offset)
    axes.set_xlabel("gain: tokens a round over exact's")
    axes.set_ylabel("log p a token, less plain's (nats)")
    axes.legend(loc="lower left", frameon=False, labelcolor=INK)
    axes.grid(alpha=0.15, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    styles = {f"{part}.color": INK for part in ("text", "xtick", "ytick")}
    styles |= {"axes.labelcolor": INK, "axes.edgecolor": INK, "svg.hashsalt": "eagle_fsd"}
    with matplotlib.rc_context(styles):
        draw().savefig(HERE / "loss_against_gain.svg", metadata={"Date": None})
