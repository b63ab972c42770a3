"""Two panels: where a round's milliseconds go, and what speed follows from tokens_per_round."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eagle_fsd.evaluation.arms import BY_TRANSFORMERS, PLAIN
from eagle_fsd.speed.clock import ROUND_PHASES

# below the axis label, whatever the figure's height
BELOW = {"fontsize": 8, "loc": "upper center", "bbox_to_anchor": (0.5, 0), "borderaxespad": 5}


def plot_speed(
    rows: list[dict], rounds: list[dict], references: dict[str, float], path: Path, *, title: str
) -> None:
    """Draw both panels.

    Args:
        rows: from arm_rows.
        rounds: from round_rows; the prompts' are drawn.
        references: name -> tokens/s that were not measured here.
        path: with the suffixes .svg and .pdf.
    """
    height = max(4.8, 1.2 + 0.55 * len(rows))
    figure = Figure(figsize=(14, height), layout="constrained")
    left, right = figure.subplots(1, 2)
    costs = {row["arm"]: row for row in rounds if row["place"] == "prompts"}
    _draw_rounds(left, rows, costs)
    _draw_break_even(right, rows, references)
    figure.suptitle(title, fontsize=9)
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None})


def _draw_rounds(axes: Axes, rows: list[dict], costs: dict[str, dict]) -> None:
    """A stacked bar an arm; transformers' generate has no phases, its bar is a token's time."""
    for place, row in enumerate(rows):
        cost = costs.get(row["arm"])
        left = 0.0
        if cost is None or cost["phase_ms"] is None:
            left = row["ms_per_token"]
            axes.barh(place, left, color="0.8", hatch="//", edgecolor="0.6")
        else:
            for number, phase in enumerate(ROUND_PHASES):
                label = None if axes.get_legend_handles_labels()[1].count(phase) else phase
                width = cost["phase_ms"][phase]
                axes.barh(place, width, left=left, color=f"C{number}", label=label)
                left += width
        tau = row["tokens_per_round"]["value"]
        words = f"{tau:.2f} tokens/round, " if tau is not None else ""
        axes.text(left, place, f"  {words}{row['ms_per_token']:.1f} ms/token", va="center")
    axes.set_yticks(range(len(rows)), [row["arm"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(right=1.7 * axes.get_xlim()[1])  # room for the words
    axes.set_xlabel("milliseconds of a round (hatched: of a token, with prefill)")
    axes.set_title("where a round's time goes", fontsize=10)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(ncols=5, **BELOW)


def _draw_break_even(axes: Axes, rows: list[dict], references: dict[str, float]) -> None:
    """Points are measured; the line of an arm is tokens_per_round / (its round / plain's)."""
    plain = next((row for row in rows if row["arm"] == PLAIN), None)
    drafted = [r for r in rows if r["arm"] not in (PLAIN, *BY_TRANSFORMERS)]
    drafted = [r for r in drafted if r["tokens_per_round"]["value"] and plain is not None]
    most = max([row["tokens_per_round"]["value"] for row in drafted] + [2.0]) * 1.15
    axes.axhline(1, color="0.3", lw=1.2, label="plain: break-even")
    at_height: dict[float, list[str]] = {}  # baselines of about the same speed share a label
    for row in rows:
        if row["arm"] in BY_TRANSFORMERS and plain is not None:
            value = row["speed_vs_plain"]["value"]
            axes.axhline(value, color="0.5", lw=1, ls=":")
            at_height.setdefault(round(value, 1), []).append(row["arm"])
    for value, names in at_height.items():
        words = ", ".join(names)
        axes.text(most, value, words, fontsize=8, ha="right", va="bottom", color="0.4")
    for number, row in enumerate(drafted):
        _draw_arm(axes, row, most, color=f"C{number}")
    for name, speed in references.items() if plain is not None else ():
        value = speed / plain["tokens_per_second"]["value"]
        axes.axhline(value, color="0.6", lw=1, ls="--")
        words = f"{name}, {speed:g} tokens/s: not measured here"
        axes.text(1, value, words, fontsize=8, va="bottom", color="0.4")
    axes.set_xlim(0.95, most)
    axes.set_xlabel("tokens per round")
    axes.set_ylabel("tokens/s, relative to the plain loop")
    axes.set_title("speed by tokens per round; lines: from the round's cost alone", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(ncols=2, **BELOW)


def _draw_arm(axes: Axes, row: dict, most: float, *, color: str) -> None:
    speed, tau = row["speed_vs_plain"], row["tokens_per_round"]["value"]
    bar = None
    if speed["low"] is not None:
        bar = [[abs(speed["value"] - speed[end])] for end in ("low", "high")]
    label = row["arm"]
    if row["break_even"]:
        cost = row["break_even"]
        axes.plot([1, most], [1 / cost, most / cost], color=color, lw=1, alpha=0.6)
        if cost < most:
            axes.plot([cost], [1], marker="|", ms=12, color=color)
        label += f" (break-even {cost:.2f})"
    axes.errorbar([tau], [speed["value"]], yerr=bar, fmt="o", color=color, capsize=3, label=label)
