"""The one plot: what every arm lost against what it gained, a curve a line of arms."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eagle_fsd.evaluation.arms import PLAIN
from eagle_fsd.evaluation.curves import curves
from eagle_fsd.evaluation.metrics import EXACT

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#888888")  # Okabe-Ito
MARKS = "osD^vPX"
GAIN, LOSS = "tokens_per_round_vs_exact", "mean_logp_minus_plain"
INK = "#010203"  # of axes and words: the page makes it the colour of its own text
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "eagle_fsd", "font.size": 10}
STYLE |= {f"{part}.color": INK for part in ("text", "xtick", "ytick", "grid")}
STYLE |= {"axes.labelcolor": INK, "axes.edgecolor": INK, "figure.facecolor": "none"}
STYLE |= {"axes.facecolor": "none", "axes.spines.top": False, "axes.spines.right": False}


def plot_curves(rows: Sequence[dict], path: Path) -> str:
    """Draw rows of summarize; bars are 95 % intervals. Up and to the right is better.

    Args:
        path: without its ending; written are .svg and .pdf.

    Returns:
        The SVG; "" without plain, exact, or an arm to compare with them.
    """
    drawn = [row for row in rows if row[GAIN]["value"] is not None and row["rule"] != PLAIN]
    drawn = [row for row in drawn if row[LOSS]["value"] is not None]
    if not drawn:
        return ""
    lines = {row["arm"]: [row] for row in drawn if row["value"] is None} | curves(drawn)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.6, 3.8 + 0.12 * len(lines)), layout="constrained")
        axes = figure.subplots()
        axes.set(
            xlabel="tokens per round, relative to exact",
            ylabel="log p of the text a token, less plain's (nats)",
        )
        for number, (line, arms) in enumerate(lines.items()):
            style = {"color": COLORS[number % 7], "marker": MARKS[(number // 7 + number) % 7]}
            style |= {"color": INK, "marker": "*", "ms": 11} if arms[0]["rule"] == EXACT else {}
            _draw(axes, arms, label=line if len(arms) > 1 else arms[0]["arm"], style=style)
        axes.grid(alpha=0.15)
        axes.margins(0.1)
        figure.legend(loc="outside lower center", ncols=min(len(lines), 2), frameon=False)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
        figure.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None})
    return path.with_suffix(".svg").read_text(encoding="utf-8")


def _draw(axes: Axes, arms: list[dict], *, label: str, style: dict) -> None:
    """A curve with its intervals, and the rule's value at each of its points."""
    place_2A, low_2A, high_2A = (
        np.array([[row[key][end] for row in arms] for key in (GAIN, LOSS)], dtype=np.float64)
        for end in ("value", "low", "high")
    )
    xerr, yerr = np.nan_to_num([place_2A - low_2A, high_2A - place_2A]).swapaxes(0, 1)
    style = {"elinewidth": 0.7, "capsize": 2, "alpha": 0.9, "ms": 5} | style
    axes.errorbar(*place_2A, xerr=xerr, yerr=yerr, label=label, **style)
    for row, place in zip(arms, place_2A.T, strict=True):
        if len(arms) > 1:
            offset = {"xytext": (6, 5), "textcoords": "offset points"}
            axes.annotate(f"{row['value']:g}", place, fontsize=8, **offset)
