"""What the report's pictures share: lines spread over panels that hold some sixty arms legibly,
colours, files.

A line is a way to accept (figures.lines); its points are thresholds.
"""

from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend must be chosen first)
import numpy as np  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

MOST_LINES = 7  # of a panel
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe-Ito
MARKS = "osD^vPX"
Lines = dict[str, list[dict]]


@dataclass(frozen=True)
class Picture:
    """A PNG of the report.

    Attributes:
        name: the file's, without its ending.
        title: what it shows.
        note: how to read it.
    """

    name: str
    title: str
    note: str


def save(figure: Figure, folder: Path, picture: Picture) -> Picture:
    """Write the PNG; returns the picture."""
    figure.suptitle(picture.title, fontsize=11)
    figure.savefig(folder / f"{picture.name}.png", dpi=110)
    plt.close(figure)
    return picture


def axes_grid(
    down: int, across: int, *, height: float, sharex: bool | str = False, sharey: bool | str = False
) -> tuple[Figure, np.ndarray]:
    """A figure of wide panels, `height` inches each; Axes [down, across]."""
    return plt.subplots(
        down,
        across,
        figsize=(6 * across, 1 + height * down),
        layout="constrained",
        squeeze=False,
        sharex=sharex,
        sharey=sharey,
    )


def legends(axes_array: np.ndarray) -> None:
    """In the panels that have named something."""
    for axes in axes_array.flat:
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=7)


def panels(named: Lines) -> list[tuple[str, Lines]]:
    """Lines in groups that a panel can hold, by divergence, with the group's name.

    Lines without a divergence (the control `random`) are in every group, to be compared with.
    """
    if len(named) <= MOST_LINES:
        return [("", named)] if named else []
    controls = {name: arms for name, arms in named.items() if arms[0]["divergence"] is None}
    controls = dict(list(controls.items())[: MOST_LINES // 2])
    groups = by_divergence({name: arms for name, arms in named.items() if name not in controls})
    room = MOST_LINES - len(controls)
    return [
        (group, {name: lines_of[name] for name in names} | controls)
        for group, lines_of in groups.items()
        for names in chunks(list(lines_of), room)
    ]


def by_divergence(named: Lines) -> dict[str, Lines]:
    """The lines of each divergence, or rule where there is none: their thresholds compare."""
    groups: dict[str, Lines] = {}
    for name, arms in named.items():
        groups.setdefault(arms[0]["divergence"] or arms[0]["rule"], {})[name] = arms
    return groups


def chunks(names: list[str], size: int) -> list[list[str]]:
    return [names[start : start + size] for start in range(0, len(names), size)]


def small_panels(count: int, *, columns: int) -> tuple[Figure, list[Axes]]:
    """A grid of axes, the unused ones hidden."""
    columns = min(columns, count)
    down = -(-count // columns)
    figure, grid = plt.subplots(
        down,
        columns,
        figsize=(max(6, 3.3 * columns), 1 + 2.7 * down),
        layout="constrained",
        squeeze=False,
        sharey=True,
    )
    for axes in grid.flat[count:]:
        axes.set_visible(False)
    return figure, list(grid.flat[:count])


def two_lines(name: str) -> str:
    """A panel's title in two lines."""
    if len(name) <= 34:
        return name
    cut = name.rfind(", ", 0, 34)
    return name if cut < 0 else f"{name[: cut + 1]}\n{name[cut + 2 :]}"


def bars(arms: list[dict], key: str) -> list[list[float]]:
    """Below and above; 0 without an interval."""
    return [
        [0 if row[key][end] is None else abs(row[key][end] - row[key]["value"]) for row in arms]
        for end in ("low", "high")
    ]
