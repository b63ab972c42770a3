"""Pictures of speed against quality."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from eagle_fsd.evaluation.report.arm_rows import ISO_LOSSES, lines
from eagle_fsd.evaluation.report.plots import (
    COLORS,
    MARKS,
    Picture,
    axes_grid,
    bars,
    legends,
    panels,
    save,
)


def plot_quality(
    rows: Sequence[dict], folder: Path, *, name: str, key: str, words: str
) -> Picture | None:
    """Speed to the right, quality upwards, with 95 % intervals; None if there is nothing to draw.

    Args:
        rows: of all arms.
        name: of the file.
        key: of the figure that says quality, {"value", "low", "high"}.
        words: what it is.
    """
    across = {
        "speed_vs_plain": "tokens/s, relative to the plain loop",
        "tokens_per_round_vs_exact": "tokens per round, relative to exact",
    }
    drawn = [row for row in rows if row.get(key) and row[key]["value"] is not None]
    across = {x: label for x, label in across.items() if any(_value(row, x) for row in drawn)}
    groups = panels(lines(drawn))
    if not across or not groups:
        return None
    figure, grid = axes_grid(len(groups), len(across), height=3.9, sharex="col", sharey=True)
    for row_axes, (group, named) in zip(grid, groups, strict=True):
        for axes, (x, label) in zip(row_axes, across.items(), strict=True):
            # plain's tokens per round, always 1, would only press the others together
            for rule, mark in {"exact": "*", "plain": "P"}.items():
                wanted = rule == "exact" or x == "speed_vs_plain"
                baselines = [row for row in drawn if wanted and row["rule"] == rule]
                _draw_points(axes, baselines, x, key, rule, "0.35", mark)
            for number, (line, arms) in enumerate(named.items()):
                _draw_points(axes, arms, x, key, line, COLORS[number], MARKS[number])
            axes.set(xlabel=label, title=group)
            _label_thresholds(axes, [row for arms in named.values() for row in arms], x, key)
        row_axes[0].set_ylabel(words)
    legends(grid[:, :1])
    for axes in grid.flat:
        axes.grid(alpha=0.3)
    note = "Up and to the right is better. Points of a line are thresholds T (rates r for random); "
    picture = Picture(name, f"speed against quality: {words}", note + "bars are 95 % intervals.")
    return save(figure, folder, picture)


def _value(row: dict, key: str) -> float | None:
    return row[key]["value"] if row.get(key) else None


def _draw_points(
    axes: Axes, arms: list[dict], x: str, y: str, label: str, color: str, mark: str
) -> None:
    arms = [row for row in arms if _value(row, x) is not None]
    if not arms:
        return
    spread = {f"{side}err": bars(arms, key) for side, key in (("x", x), ("y", y))}
    places = [[_value(row, key) for row in arms] for key in (x, y)]
    style = {"marker": mark, "ms": 9 if mark == "*" else 5, "elinewidth": 0.7, "capsize": 2}
    joined = "none" if arms[0]["threshold"] is None else "-"
    axes.errorbar(*places, **spread, **style, color=color, ls=joined, alpha=0.9, label=label)


def _label_thresholds(axes: Axes, arms: list[dict], x: str, y: str) -> None:
    """T beside the points that stand alone."""
    axes.margins(0.1)
    width, height = (abs(a - b) for a, b in (axes.get_xlim(), axes.get_ylim()))
    taken: list[tuple[float, float]] = []
    for row in arms:
        place = (_value(row, x), _value(row, y))
        if place[0] is None:
            continue
        near = [
            abs(place[0] - a) < 0.07 * width and abs(place[1] - b) < 0.06 * height for a, b in taken
        ]
        if not any(near):
            taken.append(place)
            offset = {"xytext": (5, 5), "textcoords": "offset points"}
            axes.annotate(f"{row['threshold']:g}", place, fontsize=7, color="0.25", **offset)


def plot_iso_quality(rows: Sequence[dict], table: Sequence[dict], folder: Path) -> Picture | None:
    """The table of figures.iso_quality, a column of panels for each kind of loss."""
    keys = [f"at_{loss:g}" for loss in ISO_LOSSES]
    table = [row for row in table if any(row[key] is not None for key in keys)]
    kinds = list(dict.fromkeys(row["loss"] for row in table))
    reaching = {row["line"] for row in table}
    groups = panels({name: arms for name, arms in lines(rows).items() if name in reaching})
    if not groups:
        return None
    figure, grid = axes_grid(len(groups), len(kinds), height=3.3, sharey=True)
    for row_axes, (group, named) in zip(grid, groups, strict=True):
        for axes, kind in zip(row_axes, kinds, strict=True):
            for number, name in enumerate(named):
                found = [
                    (place, row[key])
                    for row in table
                    if row["loss"] == kind and row["line"] == name
                    for place, key in enumerate(keys)
                    if row[key] is not None
                ]
                style = {"color": COLORS[number], "marker": MARKS[number], "ms": 5, "alpha": 0.9}
                axes.plot([x for x, _ in found], [y for _, y in found], **style, label=name)
            axes.axhline(1, color="0.5", ls="--", lw=0.8)
            axes.set_xticks(range(len(keys)), [f"{loss:g}" for loss in ISO_LOSSES])
            axes.set(xlabel=kind, title=group)
            axes.grid(alpha=0.3)
        row_axes[0].set_ylabel("tokens per round, relative to exact")
    legends(grid[:, :1])
    note = "Interpolated between the measured thresholds of a line; nothing is extrapolated."
    return save(figure, folder, Picture("iso_quality", "speed at equal quality", note))
