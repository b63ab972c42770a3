"""Draws three plots from the tables of results/:

    python extras/readme_plots.py

For the README docs/speeds.svg from speed_side_by_side and docs/loss_against_gain.svg from
mt_bench_80; for the page heads its tokens_seen.svg. A run of one's own is drawn by
evaluate/report.py.
"""

import re
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from eagle_fsd.arms import parse_arm
from eagle_fsd.evaluation.plots import GAIN, INK, REGRET, STYLE, as_svg, plot_curves

ROOT = Path(__file__).resolve().parents[1]
PAGE = """
svg { color: #24292f; background: #ffffff }
@media (prefers-color-scheme: dark) { svg { color: #e6edf3; background: #0d1117 } }
"""
# (engine, arm) of results/speed_side_by_side, and how the bar is named
BARS = {
    ("transformers", "generate"): "transformers' generate",
    ("`packed`", "plain"): "our loop, no drafts (plain)",
    ("`packed`", "exact"): "EAGLE-2, lossless (exact)",
    ("llama.cpp, F16", "its plain loop"): "llama.cpp F16, no drafts",
    ("`packed`", "exact@hybrid"): "head and text, lossless (exact@hybrid)",
    ("`packed`", "path:0.9@hybrid"): "head and text, lossy (path:0.9@hybrid)",
}


def table(page: str, under: str = "") -> list[dict[str, str]]:
    """The rows of a page's first table, or of the first below the heading `under`."""
    text = (ROOT / "results" / page / "README.md").read_text(encoding="utf-8")
    text = text[text.index(under) :]
    header, _, *rows = re.search(r"(?:^\|.*\n)+", text, re.M)[0].splitlines()
    names, *cells = (
        [cell.strip() for cell in row.strip("|").split("|")] for row in [header, *rows]
    )
    return [dict(zip(names, row, strict=True)) for row in cells]


def with_interval(cell: str) -> dict[str, float | None]:
    """The numbers of `1.26 [1.18, 1.35]`, or of `1.00`, which has no interval."""
    value, *bounds = (float(number) for number in re.findall(r"-?[\d.]+", cell))
    low, high = bounds or (None, None)
    return {"value": value, "low": low, "high": high}


def loss_against_gain() -> str:
    """Regret against gain, of the lossy arms on hybrid trees and of exact beside them."""
    rows = []
    for row in table("mt_bench_80"):
        if row["arm"].endswith("@hybrid"):
            arm = parse_arm(row["arm"])
            named = {"arm": row["arm"], "rule": arm.kind, "line": arm.line, "value": arm.value}
            numbers = {GAIN: row["over exact"], REGRET: row["regret/token"]}
            rows.append(named | {key: with_interval(cell) for key, cell in numbers.items()})
    return plot_curves(rows, up=REGRET)


@matplotlib.rc_context(STYLE | {"svg.hashsalt": "eagle_fsd speeds"})
def speeds() -> str:
    """A bar a program, in tokens a second."""
    rows = {
        (row["engine"], row["arm"]): float(row["tokens/s"]) for row in table("speed_side_by_side")
    }
    figure = Figure(figsize=(7, 2.4), layout="constrained")
    axes = figure.subplots()
    colors = ["C0" if engine == "`packed`" else "#8c959f" for engine, _ in BARS]
    bars = axes.barh(list(BARS.values()), [rows[key] for key in BARS], color=colors)
    axes.bar_label(bars, fmt="%.0f", padding=3)
    axes.invert_yaxis()
    axes.set(xlabel="tokens a second, one answer at a time, two cores")
    return as_svg(figure)


@matplotlib.rc_context(STYLE | {"svg.hashsalt": "eagle_fsd tokens seen"})
def tokens_seen() -> str:
    """Tokens a round of the shipped head's training, by tree, against the tokens it had seen."""
    rows = table("heads", "## Training the shipped head on")
    seen = [float(row["million seen"]) for row in rows]
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    for tree in ("59x6x10", "15x4x6"):
        rounds = [with_interval(row[tree])["value"] for row in rows]
        axes.plot(seen, rounds, marker="o", label=tree)
    axes.set(xlabel="million answer tokens seen in this run", ylabel="tokens a round")
    axes.legend(frameon=False)
    return as_svg(figure)


if __name__ == "__main__":
    for path, svg in (
        ("docs/loss_against_gain.svg", loss_against_gain()),
        ("docs/speeds.svg", speeds()),
        ("results/heads/tokens_seen.svg", tokens_seen()),
    ):
        # a page of its own, light or dark as the reader's theme is
        svg = svg.replace(INK, "currentColor")
        svg = svg.replace("<defs>", f"<style>{PAGE}</style>\n <defs>", 1)
        (ROOT / path).write_text(svg, encoding="utf-8")
