"""Pictures of a comparison."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend must be chosen first)


def plot_speed_against_regret(rows: list[dict], path: Path, *, title: str) -> None:
    """Two panels over the arms that draft: speed against what it cost, and the ceiling.

    Left: tokens/s relative to the plain loop against regret per token (nats), every arm labelled.
    Right: tokens_per_round relative to exact against fuzzy share, with the ceiling 1/(1 - f tau).

    Args:
        rows: from eagle_fsd.summary.summarize; must hold a plain arm.
        path: the PNG.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.8), layout="constrained")
    drafted = [r for r in rows if r["tokens_per_round"] is not None and r["arm"] != "plain"]
    rules = sorted({r["arm"].split("_T")[0] for r in drafted})
    for number, rule in enumerate(rules):
        arms = [r for r in drafted if r["arm"].split("_T")[0] == rule]
        arms.sort(key=lambda r: r["regret_per_token"])
        _line(left, arms, "regret_per_token", "speed_vs_plain", rule, f"C{number}")
        if arms[0]["tokens_per_round_vs_exact"] is not None:
            _line(right, arms, "fuzzy_share", "tokens_per_round_vs_exact", rule, f"C{number}")
    for row in rows:
        if row["arm"] in ("generate", "plain"):
            style = "--" if row["arm"] == "plain" else ":"
            left.axhline(row["speed_vs_plain"]["value"], color="0.4", ls=style, label=row["arm"])
    left.set_xlabel("regret per token (nats)")
    left.set_ylabel("tokens/s, relative to the plain loop")
    left.set_title("speed against what it cost")
    _draw_ceiling(right, drafted)
    right.set_xlabel("fuzzy share f")
    right.set_ylabel("tokens per round, relative to exact")
    right.set_title("drafts gained per fuzzy token")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.margins(0.12)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _line(axes, arms: list[dict], x_key: str, y_key: str, label: str, color: str) -> None:
    x = [r[x_key] for r in arms]
    y = [r[y_key]["value"] for r in arms]
    low = [
        v - (r[y_key]["low"] if r[y_key]["low"] is not None else v)
        for r, v in zip(arms, y, strict=True)
    ]
    high = [
        (r[y_key]["high"] if r[y_key]["high"] is not None else v) - v
        for r, v in zip(arms, y, strict=True)
    ]
    axes.errorbar(x, y, yerr=[low, high], fmt="o-", color=color, capsize=3, ms=5, label=label)
    for row, at_x, at_y in zip(arms, x, y, strict=True):
        name = "T=" + row["arm"].split("_T")[1] if "_T" in row["arm"] else row["arm"]
        axes.annotate(name, (at_x, at_y), xytext=(5, 6), textcoords="offset points", fontsize=8)


def _draw_ceiling(axes, drafted: list[dict]) -> None:
    exact = next((r for r in drafted if r["arm"] == "exact"), None)
    if exact is None:
        return
    most = max(r["fuzzy_share"] for r in drafted)
    tau = exact["tokens_per_round"]
    shares = [most * i / 50 for i in range(51) if most * i / 50 * tau < 0.8]
    if len(shares) > 1:
        axes.plot(
            shares, [1 / (1 - f * tau) for f in shares], color="0.4", ls="--", label="ceiling"
        )
