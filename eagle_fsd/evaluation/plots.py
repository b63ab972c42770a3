"""Plots of a comparison: what every arm loses, or its score, against its gain in tokens per round
or its speed, with the Pareto front; and a caption that says what is drawn. Rows are those of
metrics.summarize; where they are of several runs, with "run", the run's name; and with an interval
as score_key(SCORE) of every score."""

from collections.abc import Sequence
from io import BytesIO
from itertools import cycle

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from eagle_fsd.arms import PLAIN
from eagle_fsd.evaluation.curves import GAIN, curves
from eagle_fsd.evaluation.tables import few_questions

SPEED = "tokens_per_second"  # across, or GAIN
# upwards, or a score: the price of the tokens, which of exact is 0, and the likelihood of the text
REGRET, TV = "regret_per_token", "tv_per_token"
LOSS, LIKELIHOOD = "mean_logp_minus_plain", "mean_logp"  # the second without plain
LOSSES = (REGRET, TV)  # larger is worse: their axis grows downwards, so that up is better in all
LABELS = {
    GAIN: "tokens per round over exact's",
    SPEED: "tokens per second",
    REGRET: "regret per token (nats),\nlarger is worse",
    TV: "TV per token,\nlarger is worse",
    LOSS: "log-probability per token,\nminus plain's (nats)",
    LIKELIHOOD: "log-probability per token\n(nats)",
}
FURTHER_UP = {  # what it says of an arm
    REGRET: "the less its tokens cost, in regret",
    TV: "the nearer its tokens are to the target's distribution",
    LOSS: "the more likely its text is by the target",
    LIKELIHOOD: "the more likely its text is by the target",
}
NOT_QUALITY = (
    "This is not quality: a lossy arm can lie above exact and plain, since a text is not the most "
    "likely by each token being so, and one that repeats itself is likely. "
)
INK = "#010203"  # of axes and words: whoever shows a plot puts in the ink of its page
STYLE = {"svg.fonttype": "none", "text.parse_math": False}  # a run's name may hold dollars
STYLE |= {f"{part}.color": INK for part in ("text", "xtick", "ytick", "grid")}
STYLE |= {"axes.labelcolor": INK, "axes.edgecolor": INK, "figure.facecolor": "none"}
STYLE |= {"axes.facecolor": "none", "axes.spines.top": False, "axes.spines.right": False}


def score_key(score: str) -> str:
    return f"score {score}"


def heights(rows: Sequence[dict], *, sampled: bool, scores: Sequence[str] = ()) -> dict[str, str]:
    """What a plot of these rows can show upwards, each with its name, the first thing first: what
    tokens cost, which above temperature 0 (`sampled`) is their TV, since there the target's own
    draws have regret too; log-probabilities against plain's, or as they are where no arm is plain;
    and the scores."""
    likelihood = LOSS if any(row[LOSS]["value"] is not None for row in rows) else LIKELIHOOD
    named = {TV: "TV"} if sampled else {REGRET: "regret"}
    return named | {likelihood: "log p"} | {score_key(score): score for score in scores}


def plot_curves(rows: Sequence[dict], *, across: str = GAIN, up: str = REGRET) -> str:
    """Rows as SVG; "" where no arm has what is drawn, as caption explains."""
    if not drawn_rows(rows, across, up):
        return ""
    # of two plots on one page the ids differ, and a plot is the same every time
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": f"eagle_fsd {across} {up}"}):
        return as_svg(draw_curves(rows, across, up))


def as_svg(figure: Figure) -> str:
    drawing = BytesIO()
    figure.savefig(drawing, format="svg", metadata={"Date": None})
    return drawing.getvalue().decode()


def caption(rows: Sequence[dict], *, across: str = GAIN, up: str = REGRET) -> str:
    """What plot_curves draws of these rows, or why it draws nothing, in sentences."""
    drawn = drawn_rows(rows, across, up)
    unknown = all(
        row[across]["value"] is None for row in rows if across == SPEED or row["rule"] != PLAIN
    )
    if unknown and across == SPEED:
        return "There is no plot of speed, because the seconds of these answers are no timings."
    if unknown:
        return (
            "There is no plot of gain, because a gain is over the arm exact with the same drafter, "
            "and no arm here has one that emitted tokens: add exact to the run."
        )
    if not drawn:
        return "There is no plot of these two, because no arm here has both numbers."
    right = "round over exact with the same drafter" if across == GAIN else "second"
    above, likely = FURTHER_UP.get(up, "the higher its score"), up in (LOSS, LIKELIHOOD)
    better = f", so up and to the right is better{'' if up in FURTHER_UP else ' by that score'}"
    text = [
        f"Each point is an arm: the further right, the more tokens per {right}; the further up, "
        f"{above}{'' if likely else better}. ",
        NOT_QUALITY if likely else "",
        "The grey steps are the Pareto front of a run: no other arm of the run is both further up "
        "and further right than an arm on it. The legend names the values of a line's points in "
        "their order along the line, from the end that is nearest to exact. ",
    ]
    if any(row[key]["low"] is not None for row in drawn for key in (across, up)):
        text.append("Bars are 95 % intervals over questions, where these are known. ")
    text.append(few_questions(drawn))
    lacking = [row["arm"] for row in rows if row not in drawn and row["rule"] != PLAIN]
    if lacking:
        text.append(f"Not drawn, because they lack one of the two numbers: {', '.join(lacking)}. ")
    return "".join(text).strip()


def drawn_rows(rows: Sequence[dict], across: str, up: str) -> list[dict]:
    """The rows that a plot shows. Plain itself is no point of a gain."""
    drawn = [row for row in rows if None not in (row[across]["value"], row[up]["value"])]
    return [row for row in drawn if across != GAIN or row["rule"] != PLAIN]


def line_styles(rows: Sequence[dict]) -> dict[str, dict[str, str]]:
    """Colour and marker of each line of arms, the same in every plot of these rows, in whatever
    order they are. Of ten colours and seven markers, no two of 70 lines look alike."""
    lines = sorted({row["line"] for row in rows})
    looks = zip(lines, cycle(f"C{number}" for number in range(10)), cycle("osD^vPX"), strict=False)
    return {
        line: {"color": matplotlib.colors.to_hex(color), "marker": mark}
        for line, color, mark in looks
    }


@matplotlib.rc_context(STYLE)
def draw_curves(rows: Sequence[dict], across: str, up: str) -> Figure:
    drawn = drawn_rows(rows, across, up)
    styles = line_styles(rows)
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=LABELS[across], ylabel=LABELS.get(up, up.removeprefix(score_key(""))))
    axes.grid(alpha=0.15)
    axes.margins(0.1)
    legend = {}
    # 1. the arms, those of a line as its points
    for arms in [[row] for row in drawn if row["value"] is None] + list(curves(drawn).values()):
        label = arms[0]["arm"]
        if len(arms) > 1:
            label = f"{arms[0]['line']}: {', '.join(format(row['value'], 'g') for row in arms)}"
        place_2A, low_2A, high_2A = (
            np.array([[row[key][end] for row in arms] for key in (across, up)], dtype=np.float64)
            for end in ("value", "low", "high")
        )
        xerr, yerr = np.nan_to_num([place_2A - low_2A, high_2A - place_2A]).swapaxes(0, 1)
        style = {"ms": 5, "elinewidth": 0.7} | styles[arms[0]["line"]]
        legend[label] = axes.errorbar(*place_2A, xerr=xerr, yerr=yerr, **style)
        for bars in legend[label].lines[2]:  # behind the points of all arms, and fainter
            bars.set(alpha=0.5, zorder=1)
    # 2. the front of every run, from the left side of the plot to its bottom
    if up in LOSSES:
        axes.invert_yaxis()
    limits = axes.axis()
    for run in dict.fromkeys(row.get("run") for row in drawn):
        front_N2 = front_of([row for row in drawn if row.get("run") == run], across, up)
        end_N2 = [(limits[0], front_N2[0, 1]), *front_N2, (front_N2[-1, 0], limits[2])]
        style = {"color": INK, "alpha": 0.25, "lw": 3, "zorder": 0, "drawstyle": "steps-pre"}
        (legend["Pareto front"],) = axes.plot(*np.array(end_N2).T, **style)
    axes.axis(limits)
    height = 3.6 + 0.2 * len(legend)
    figure.set_size_inches(5.6, height)
    # named one by one: by itself matplotlib leaves out labels that begin with _
    box = figure.legend(legend.values(), legend.keys(), loc="outside lower center", frameon=False)
    # constrained layout makes no room across for what is below
    figure.set_size_inches(max(5.6, box.get_window_extent().width / figure.dpi + 0.1), height)
    return figure


def front_of(rows: Sequence[dict], across: str, up: str) -> np.ndarray:
    """The points [N, 2], from left to right, of the arms that none is better than in both."""
    sign = -1 if up in LOSSES else 1
    places = sorted({(row[across]["value"], sign * row[up]["value"]) for row in rows}, reverse=True)
    front = places[:1]
    for place in places:
        if place[1] > front[-1][1]:
            front.append(place)
    return np.array(front[::-1]) * (1, sign)
