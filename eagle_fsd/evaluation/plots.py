"""Plots of a comparison: the loss of every arm against its gain in tokens per round, or against its
speed, with the Pareto front; and a caption that says what is drawn.

Rows are those of metrics.summarize; where they are of several runs, with "run", the run's name.
"""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from eagle_fsd.arms import BY_TRANSFORMERS, COMPILED, GENERATE, PLAIN
from eagle_fsd.evaluation.curves import curves
from eagle_fsd.evaluation.metrics import EXACT
from eagle_fsd.runs.jsonl import write_file
from eagle_fsd.stats import LEAST_QUESTIONS

GAIN, SPEED = "tokens_per_round_vs_exact", "tokens_per_second"  # across
LOSS, LIKELIHOOD = "mean_logp_minus_plain", "mean_logp"  # upwards; the second without plain
LABELS = {
    GAIN: "tokens per round over exact's",
    SPEED: "tokens per second",
    LOSS: "log-probability per token,\nminus plain's (nats)",
    LIKELIHOOD: "log-probability per token\n(nats)",
}
INK = "#010203"  # of axes, words and baselines: whoever shows a plot puts in the ink of its page
# rule -> (colour, mark), the same in every plot and on the page. The colours are near Okabe and
# Ito's, which colour-blind readers tell apart, and as light or dark as makes them stand out both
# from white and from black pages. Rules that share a colour differ in their mark.
MARKS = {
    PLAIN: (INK, "o"),
    GENERATE: (INK, "s"),
    COMPILED: (INK, "D"),
    EXACT: (INK, "*"),
    "path": ("#D55E00", "v"),
    "fsd": ("#0E7ABF", "o"),
    "relaxed": ("#009E73", "^"),
    "random": ("#CC79A7", "X"),
    "fsd-paper": ("#0E7ABF", "D"),
    "ratio": ("#B8860B", "s"),
    "hold": ("#D55E00", "P"),
    "typical": ("#009E73", "D"),
    "asd": ("#3A9BD9", "s"),
    "fly": ("#B8860B", "X"),
    "sglang": ("#3A9BD9", "^"),
    "cactus": ("#B8860B", "D"),
    "mentored": ("#CC79A7", "P"),
    "rejection": ("#888888", "s"),
    "accept-all": ("#888888", "P"),
}
OTHER = ("#888888", "X")  # a rule of somebody else's
DASHES = ("-", "--", ":", "-.")  # of the lines of one rule
SIZES = {"*": 11}  # of marks, in points; others 5
STYLE = {"svg.fonttype": "none", "font.size": 10}
STYLE |= {"text.parse_math": False}  # a run's name may hold dollars
STYLE |= {f"{part}.color": INK for part in ("text", "xtick", "ytick", "grid")}
STYLE |= {"axes.labelcolor": INK, "axes.edgecolor": INK, "figure.facecolor": "none"}
STYLE |= {"axes.facecolor": "none", "axes.spines.top": False, "axes.spines.right": False}
# where the value of a point may stand, in points from it; the first place that is free is taken
PLACES = [(x, y) for far in (1, 2, 3) for x in (6, -6) for y in (5 * far, -5 * far)]
NARROW = 32  # letters of a name of which two stand side by side in a legend


def plot_curves(rows: Sequence[dict], path: Path, *, across: str = GAIN) -> str:
    """Draw rows, with their 95 % intervals where these are known, to path.svg and path.pdf.

    Returns:
        The SVG; "" where no arm has what is drawn, as caption explains.
    """
    drawn, up = drawn_rows(rows, across)
    if not drawn:
        return ""
    figure = draw_curves(drawn, across, up)
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": f"eagle_fsd {across}"}):
        for form, date in {"svg": "Date", "pdf": "CreationDate"}.items():
            drawing = BytesIO()
            figure.savefig(drawing, format=form, metadata={date: None})
            write_file(path.with_suffix(f".{form}"), drawing.getvalue())
    return path.with_suffix(".svg").read_text(encoding="utf-8")


def caption(rows: Sequence[dict], *, across: str = GAIN) -> str:
    """What plot_curves draws of these rows, or why it draws nothing, in sentences."""
    drawn, up = drawn_rows(rows, across)
    if not drawn and across == SPEED:
        return "There is no plot of speed, because the seconds of these answers are no timings."
    if not drawn:
        return (
            "There is no plot of gain, because a gain is over the arm exact with the same drafter, "
            "and no arm here has one that emitted tokens: add exact to the run."
        )
    text = [
        "Each point is an arm: the further right, the more tokens per round over exact with the "
        "same drafter"
        if across == GAIN
        else "Each point is an arm: the further right, the more tokens per second",
        "; the further up, the more likely its text is by the target, so up and to the right is "
        "better. ",
    ]
    if len(drawn) > 1:
        whose = "of each run" if len({row.get("run") for row in drawn}) > 1 else "of the arms"
        text.append(
            f"The grey steps are the Pareto front {whose}: for each arm on it, no other arm is "
            "better in both. "
        )
    if any(row[key]["low"] is not None for row in drawn for key in (across, up)):
        text.append("Bars are 95 % intervals over questions, where these are known. ")
    if any(len(arms) > 1 for arms in _lines(drawn).values()):
        text.append("The number beside a point is the value of its rule. ")
    text.append(few_questions(drawn))
    if up == LIKELIHOOD:
        text.append(
            "No arm is plain, so log-probabilities are drawn as they are, not against plain's. "
        )
    kept = {id(row) for row in drawn}
    lacking = [row["arm"] for row in rows if id(row) not in kept and row["rule"] != PLAIN]
    if lacking:
        text.append(f"Not drawn, because they lack one of the two numbers: {', '.join(lacking)}. ")
    return "".join(text).strip()


def few_questions(rows: Sequence[dict]) -> str:
    """A sentence where arms were asked too few questions to be ranked, else ""."""
    ours = [row for row in rows if row["rule"] not in BY_TRANSFORMERS]  # those may have fewer
    fewest = min(row["questions"] for row in ours or rows)
    if fewest >= LEAST_QUESTIONS:
        return ""
    questions = "1 question is" if fewest == 1 else f"{fewest} questions are"
    return (
        f"{questions} too few to rank arms: with fewer than {LEAST_QUESTIONS} no interval is "
        "given. "
    )


def drawn_rows(rows: Sequence[dict], across: str) -> tuple[list[dict], str]:
    """The rows that a plot shows, and what it shows upwards: log-probabilities against plain's, or
    as they are where no arm is plain. Plain itself is no point of a gain."""
    up = LOSS if any(row[LOSS]["value"] is not None for row in rows) else LIKELIHOOD
    found = [row for row in rows if across != GAIN or row["rule"] != PLAIN]
    return [row for row in found if None not in (row[across]["value"], row[up]["value"])], up


def _lines(drawn: Sequence[dict]) -> dict[str, list[dict]]:
    """Points and curves by name; rule path comes last and so is drawn over the others."""
    found = {row["arm"]: [row] for row in drawn if row["value"] is None} | curves(drawn)
    named = {line if len(arms) > 1 else arms[0]["arm"]: arms for line, arms in found.items()}
    return dict(sorted(named.items(), key=lambda pair: pair[1][0]["rule"] == "path"))


@matplotlib.rc_context(STYLE)
def draw_curves(drawn: Sequence[dict], across: str, up: str) -> Figure:
    """A figure of these rows, all of which have both numbers."""
    lines = _lines(drawn)
    fronts = [front_of(rows, across, up) for rows in _by_run(drawn).values() if len(rows) > 1]
    columns = 2 if max(map(len, lines)) <= NARROW and len(lines) > 1 else 1
    legend_rows = -(-(len(lines) + bool(fronts)) // columns)
    figure = Figure(figsize=(5.6, 3.6 + 0.2 * legend_rows), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=LABELS[across], ylabel=LABELS[up])
    named: dict[str, ErrorbarContainer | Line2D] = {}
    rules: list[str] = []  # of the lines so far
    values: list[tuple[str, np.ndarray, str]] = []
    for line, arms in lines.items():
        rule = arms[0]["rule"]
        color, mark = MARKS.get(rule, OTHER)
        style = {"color": color, "marker": mark, "ms": SIZES.get(mark, 5)}
        style |= {"ls": DASHES[rules.count(rule) % len(DASHES)]}
        style |= {"mfc": "none"} if rules.count(rule) % 2 else {}
        rules.append(rule)
        named[line], place_A2 = _draw(axes, arms, across, up, style)
        if len(arms) > 1:
            both = zip(arms, place_A2, strict=True)
            values += [(f"{row['value']:g}", at, color) for row, at in both]
    axes.grid(alpha=0.15)
    axes.margins(0.1)
    limits = axes.axis()
    for place_N2 in fronts:  # from the left side of the plot to its bottom
        end_N2 = [(limits[0], place_N2[0, 1]), *place_N2, (place_N2[-1, 0], limits[2])]
        how = {"color": INK, "alpha": 0.25, "lw": 3, "zorder": 0}
        (named["Pareto front"],) = axes.plot(*np.array(end_N2).T, drawstyle="steps-pre", **how)
    axes.axis(limits)
    # named one by one: by itself matplotlib leaves out labels that begin with _
    how = {"loc": "outside lower center", "ncols": columns, "frameon": False}
    figure.legend(named.values(), named.keys(), **how)
    place_labels(axes, values)
    return figure


def _by_run(drawn: Sequence[dict]) -> dict[str, list[dict]]:
    found: dict[str, list[dict]] = {}
    for row in drawn:
        found.setdefault(row.get("run", ""), []).append(row)
    return found


def front_of(rows: Sequence[dict], across: str, up: str) -> np.ndarray:
    """The points [N, 2], from left to right, of the arms that none is better than in both."""
    places = sorted({(row[across]["value"], row[up]["value"]) for row in rows}, reverse=True)
    kept: list[tuple[float, float]] = []
    for place in places:
        if not kept or place[1] > kept[-1][1]:
            kept.append(place)
    return np.array(kept[::-1])


def _draw(
    axes: Axes, arms: list[dict], across: str, up: str, style: dict
) -> tuple[ErrorbarContainer, np.ndarray]:
    """A curve with its intervals; returns its points [A, 2] too."""
    place_2A, low_2A, high_2A = (
        np.array([[row[key][end] for row in arms] for key in (across, up)], dtype=np.float64)
        for end in ("value", "low", "high")
    )
    xerr, yerr = np.nan_to_num([place_2A - low_2A, high_2A - place_2A]).swapaxes(0, 1)
    has_bars = not np.isnan(low_2A).all()
    style = {"elinewidth": 0.7, "capsize": 2 if has_bars else 0, "alpha": 0.9} | style
    return axes.errorbar(*place_2A, xerr=xerr, yerr=yerr, **style), place_2A.T


def place_labels(axes: Axes, labels: Sequence[tuple[str, np.ndarray, str]]) -> list[Bbox]:
    """Write each text beside its point in its colour, where it covers no other text and no point,
    if one of PLACES is such; returns where they stand, in pixels."""
    axes.figure.draw_without_rendering()  # settles the scale
    half = 4  # of a mark
    points = axes.transData.transform([place for _, place, _ in labels] or np.empty((0, 2)))
    marks = [Bbox([[x - half, y - half], [x + half, y + half]]) for x, y in points]
    taken: list[Bbox] = []
    for text, place, color in labels:
        how = {"fontsize": 8, "color": color, "textcoords": "offset points", "xytext": (0, 0)}
        written = axes.annotate(text, place, **how)
        boxes = []
        for x, y in PLACES:
            written.set(position=(x, y), ha="left" if x > 0 else "right")
            written.set_va("bottom" if y > 0 else "top")
            boxes.append(written.get_window_extent())
        covered = [Bbox.count_overlaps(box, taken + marks) for box in boxes]
        best = covered.index(min(covered))
        x, y = PLACES[best]
        written.set(position=(x, y), ha="left" if x > 0 else "right")
        written.set_va("bottom" if y > 0 else "top")
        taken.append(boxes[best])
    return taken
