"""The one plot: what every arm lost against what it gained, a curve a line of arms."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eagle_fsd.evaluation.curves import curves
from eagle_fsd.evaluation.metrics import EXACT

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#888888")  # Okabe-Ito
MARKS = "osD^vPX"
# the first that the rows know: key -> axis title
GAINED = {
    "tokens_per_round_vs_exact": "tokens per round, relative to exact",
    "tokens_per_round": "tokens per round",
}
LOST = {
    "mean_logp_minus_plain": "log p of the text a token, less plain's (nats)",
    "regret_per_token": "regret a token (nats)",
}
INK = "#010203"  # of axes and words: the page makes it the colour of its own text


def plot_curves(rows: Sequence[dict], path: Path) -> str:
    """Draw rows of summarize; bars are 95 % intervals. Up and to the right is better.

    Args:
        path: without its ending; written are .svg and .pdf.

    Returns:
        The SVG, "" where there is nothing to draw.
    """
    gained, lost = (_first_known(rows, keys) for keys in (GAINED, LOST))
    if not gained or not lost:
        return ""
    drawn = [row for row in rows if _known(row, gained) and _known(row, lost)]
    named = curves(drawn)
    single = [row for row in drawn if row["value"] is None and row["rule"] != "plain"]
    styles = {"svg.fonttype": "none", "svg.hashsalt": "eagle_fsd", "font.size": 10}
    styles |= {f"{part}.color": INK for part in ("text", "xtick", "ytick")}
    styles |= {"axes.labelcolor": INK, "axes.edgecolor": INK, "grid.color": INK}
    with matplotlib.rc_context(styles):
        names = len(named) + len({row["arm"] for row in single})
        figure = Figure(figsize=(5.6, 3.8 + 0.12 * names), layout="constrained")
        axes = figure.subplots()
        for row in single:
            color = INK if row["rule"] == EXACT else COLORS[6]
            _draw(axes, [row], gained, lost, color=color, marker="*", ms=11, label=row["arm"])
        for number, (line, arms) in enumerate(named.items()):
            style = {"color": COLORS[number % 7], "marker": MARKS[(number // 7 + number) % 7]}
            _draw(axes, arms, gained, lost, label=line, ms=5, **style)
        _label_values(axes, [row for arms in named.values() for row in arms], gained, lost)
        axes.set(xlabel=GAINED[gained], ylabel=LOST[lost])
        if lost == "regret_per_token":
            axes.invert_yaxis()
        axes.grid(alpha=0.15)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside lower center", ncols=2 if names > 3 else names, frameon=False)
        figure.patch.set_visible(False)
        axes.patch.set_visible(False)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
        figure.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None})
    return path.with_suffix(".svg").read_text(encoding="utf-8")


def _first_known(rows: Sequence[dict], keys: dict[str, str]) -> str:
    drafted = [row for row in rows if row["rule"] != "plain"]
    return next((key for key in keys if any(_known(row, key) for row in drafted)), "")


def _known(row: dict, key: str) -> bool:
    return row[key]["value"] is not None


def _draw(axes: Axes, arms: list[dict], x: str, y: str, *, label: str, **style) -> None:
    bars = {f"{side}err": _bars(arms, key) for side, key in (("x", x), ("y", y))}
    places = [[row[key]["value"] for row in arms] for key in (x, y)]
    axes.errorbar(*places, **bars, label=label, elinewidth=0.7, capsize=2, alpha=0.9, **style)


def _bars(arms: list[dict], key: str) -> list[list[float]]:
    """Below and above; 0 without an interval."""
    return [
        [0 if row[key][end] is None else abs(row[key][end] - row[key]["value"]) for row in arms]
        for end in ("low", "high")
    ]


def _label_values(axes: Axes, arms: list[dict], x: str, y: str) -> None:
    """The rule's value beside the points that stand alone."""
    axes.margins(0.1)
    width, height = (abs(a - b) for a, b in (axes.get_xlim(), axes.get_ylim()))
    taken: list[tuple[float, float]] = []
    for row in arms:
        at = (row[x]["value"], row[y]["value"])
        near = [abs(at[0] - a) < 0.07 * width and abs(at[1] - b) < 0.06 * height for a, b in taken]
        if not any(near):
            taken.append(at)
            offset = {"xytext": (6, 5), "textcoords": "offset points"}
            axes.annotate(f"{row['value']:g}", at, fontsize=8, **offset)
