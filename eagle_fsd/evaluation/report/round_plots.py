"""Pictures of what rounds did, and of the answers that came out."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

from eagle_fsd.evaluation.report.arm_rows import (
    accepted_by_depth,
    beside,
    divergences_by_source,
    lines,
)
from eagle_fsd.evaluation.report.plots import (
    COLORS,
    MARKS,
    MOST_LINES,
    Picture,
    axes_grid,
    bars,
    by_divergence,
    chunks,
    legends,
    save,
    small_panels,
    two_lines,
)

SOURCE_STYLES = {
    "draft": {"color": "#56B4E9", "label": "exact draft", "hatch": ""},
    "fuzzy": {"color": "#D55E00", "label": "fuzzy draft", "hatch": "///"},
    "target": {"color": "#B0B0B0", "label": "target's own", "hatch": "..."},
}
Records = dict[tuple[str, str], list[dict]]  # run, arm -> records


def plot_depths(rows: Sequence[dict], records: Records, folder: Path) -> Picture | None:
    """Share of rounds that accept at least d drafts: a panel a line, a curve a threshold."""
    named = lines(rows)
    if not named:
        return None
    figure, grid = small_panels(len(named), columns=4)
    for axes, (name, arms) in zip(grid, named.items(), strict=True):
        exact = beside(rows, arms[0], "exact")
        if exact is not None:
            shares = accepted_by_depth(records[exact["run"], exact["arm"]])
            style = {"color": "0.35", "ls": "--", "marker": "*", "label": "exact"}
            axes.plot(range(1, len(shares) + 1), shares, **style)
        for number, row in enumerate(arms):
            shares = accepted_by_depth(records[row["run"], row["arm"]])
            color = matplotlib.colormaps["viridis"](0.9 * number / max(1, len(arms) - 1))
            style = {"color": color, "marker": "o", "ms": 3, "label": f"{row['threshold']:g}"}
            axes.plot(range(1, len(shares) + 1), shares, **style)
        axes.set_title(two_lines(name), fontsize=8)
        axes.set_xlabel("drafts d")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_ylim(0, 1)
        axes.grid(alpha=0.3)
        title = "r" if arms[0]["rule"] == "random" else "T"
        axes.legend(fontsize=7, title=title, title_fontsize=7)
    grid[0].set_ylabel("share of rounds")
    note = "Share of rounds that accept at least d drafts, by threshold."
    return save(figure, folder, Picture("depths", "accepted length by depth", note))


def plot_divergences(rows: Sequence[dict], records: Records, folder: Path) -> Picture | None:
    """Divergences of the judged nodes by what was emitted after them: the lowest, a middle and the
    highest threshold of each line that judges; of many lines the middle one alone."""
    shown, named = [], lines(rows)
    for name, arms in named.items():
        judging = [row for row in arms if row["divergence"] and row["threshold"] > 0]
        middle = len(judging) // 2
        places = {middle} if len(named) > MOST_LINES else {0, middle, len(judging) - 1}
        for row in [judging[place] for place in sorted(places)] if judging else []:
            found = divergences_by_source(records[row["run"], row["arm"]])
            if any(found.values()):
                shown.append((f"{name}, T {row['threshold']:g}", row["threshold"], found))
    if not shown:
        return None
    figure, grid = small_panels(len(shown), columns=3)
    for axes, (name, threshold, found) in zip(grid, shown, strict=True):
        values = sorted(value for part in found.values() for value in part)
        # the last bin's end: the tail beyond it would press all else together
        end = values[int(0.99 * (len(values) - 1))]
        for_all = [[min(value, end) for value in part] for part in found.values()]
        styles = [SOURCE_STYLES[source] for source in found]
        _, _, bars = axes.hist(
            for_all,
            bins=30,
            range=(0, end or 1),
            stacked=True,
            weights=[[1 / len(values)] * len(part) for part in for_all],
            color=[style["color"] for style in styles],
            label=[style["label"] for style in styles],
        )
        for part, style in zip(bars, styles, strict=True):
            for bar in part:
                bar.set(hatch=style["hatch"], edgecolor="white", linewidth=0)
        if threshold <= 1.5 * end:  # a T that accepts everything may be far away
            axes.axvline(threshold, color="black", lw=1, ls="--")
        axes.set_title(two_lines(name), fontsize=8)
        axes.set_xlabel("divergence", fontsize=8)
    grid[0].legend(fontsize=7)
    grid[0].set_ylabel("share of judged nodes")
    note = "All judged nodes, by what was emitted after them; dashed: T. The last bin holds the "
    note += "largest 1 %."
    return save(figure, folder, Picture("divergences", "divergence of judged nodes", note))


def plot_lengths(rows: Sequence[dict], folder: Path) -> Picture | None:
    """Tokens an answer and share of answers at the limit, against T."""
    groups = [
        (group, {name: named[name] for name in names})
        for group, named in by_divergence(lines(rows)).items()
        for names in chunks(list(named), MOST_LINES)
    ]
    if not groups:
        return None
    down = {"tokens_per_answer": "tokens per answer", "at_limit": "share of answers at the limit"}
    figure, grid = axes_grid(len(groups), 2, height=3.2, sharey="col")
    for row_axes, (group, named) in zip(grid, groups, strict=True):
        of_runs = {row["run"] for arms in named.values() for row in arms}
        for axes, (key, words) in zip(row_axes, down.items(), strict=True):
            for row in rows:
                if row["rule"] in ("plain", "exact") and row["run"] in of_runs:
                    dashes = "--" if row["rule"] == "plain" else ":"
                    label = row["arm"] if len(of_runs) == 1 else f"{row['run']}, {row['arm']}"
                    axes.axhline(row[key], color="0.4", ls=dashes, label=label)
            for number, (line, arms) in enumerate(named.items()):
                style = {"color": COLORS[number], "marker": MARKS[number], "ms": 5, "capsize": 2}
                at = [r["threshold"] for r in arms]
                spread = bars(arms, f"{key}_interval")
                axes.errorbar(at, [r[key] for r in arms], spread, **style, lw=1, label=line)
            axes.set(ylabel=words, title=group)
            axes.set_xlabel("rate r" if group == "random" else "T")
            axes.grid(alpha=0.3)
    legends(grid[:, :1])
    note = (
        "A panel for each divergence: thresholds of different ones do not compare. Bars are 95 % "
    )
    note += "intervals of an arm by itself; the tables have the paired differences to plain."
    return save(figure, folder, Picture("lengths", "length of answers", note))
