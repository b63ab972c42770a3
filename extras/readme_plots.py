"""Draws the two plots of the README from the tables of results/:

    python extras/readme_plots.py

docs/speeds.svg from results/speed_side_by_side, and docs/loss_against_gain.svg from
results/mt_bench_80. A run of one's own is drawn by evaluate/report.py.
"""

import re
from io import BytesIO
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from eagle_fsd.arms import parse_arm
from eagle_fsd.evaluation.plots import GAIN, INK, REGRET, STYLE, plot_curves

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


def table(page: str) -> list[dict[str, str]]:
    """The rows of a page's first table."""
    text = (ROOT / "results" / page / "README.md").read_text(encoding="utf-8")
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
    drawing = BytesIO()
    figure.savefig(drawing, format="svg", metadata={"Date": None})
    return drawing.getvalue().decode()


if __name__ == "__main__":
    for name, svg in (("loss_against_gain", loss_against_gain()), ("speeds", speeds())):
        # a page of its own, light or dark as the reader's theme is
        svg = svg.replace(INK, "currentColor")
        svg = svg.replace("<defs>", f"<style>{PAGE}</style>\n <defs>", 1)
        (ROOT / f"docs/{name}.svg").write_text(svg, encoding="utf-8")
