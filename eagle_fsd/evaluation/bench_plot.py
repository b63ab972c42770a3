"""Pictures of a comparison."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend must be chosen first)


def plot_speed_against_regret(rows: list[dict], path: Path, *, title: str) -> None:
    """Two panels over the arms that draft: speed against what it cost, and the ceiling.

    Left: tokens/s relative to the plain loop against regret per token (nats), thresholds labelled.
    Right: tokens_per_round relative to exact against fuzzy share, with the ceiling 1/(1 - f tau).
    Bars are 95 % intervals.

    Args:
        rows: from eagle_fsd.evaluation.metrics.summarize; must hold a plain arm.
        path: the PNG.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.8), layout="constrained")
    drafted = [r for r in rows if r["accept"] and r["tokens_per_round"] is not None]
    for row in rows:
        if row["arm"] in ("generate", "plain"):
            style = "--" if row["arm"] == "plain" else ":"
            left.axhline(row["speed_vs_plain"]["value"], color="0.4", ls=style, label=row["arm"])
    _draw_rules(left, drafted, "regret_per_token", "speed_vs_plain")
    exact = next((r for r in drafted if r["arm"] == "exact"), None)
    if exact is not None:
        most = max(r["fuzzy_share"] for r in drafted)
        _draw_ceiling(right, most, exact["tokens_per_round"])
        _draw_rules(right, drafted, "fuzzy_share", "tokens_per_round_vs_exact")
    left.set_xlabel("regret per token (nats)")
    left.set_ylabel("tokens/s, relative to the plain loop")
    left.set_title("speed against what it cost", fontsize=10)
    right.set_xlabel("fuzzy share f")
    right.set_ylabel("tokens per round, relative to exact")
    right.set_title("what fuzzy tokens bought", fontsize=10)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8)
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw_rules(axes, drafted: list[dict], x_key: str, y_key: str) -> None:
    """One line a rule, its arms in the order of T."""
    lines: dict[str, list[dict]] = {}
    for row in drafted:
        lines.setdefault(_rule_name(row), []).append(row)
    axes.margins(0.12)
    for number, (rule, arms) in enumerate(lines.items()):
        x = [r[x_key] for r in arms]
        y = [r[y_key]["value"] for r in arms]
        bars = [
            [0 if r[y_key][end] is None else abs(r[y_key][end] - r[y_key]["value"]) for r in arms]
            for end in ("low", "high")
        ]
        style = {"color": f"C{number}", "capsize": 3, "ms": 5, "alpha": 0.85}
        mark = "*" if rule == "exact" else "o"
        axes.errorbar(x, y, yerr=bars, marker=mark, label=rule, **style)
    for number, (rule, arms) in enumerate(lines.items()):
        if rule != "exact":
            _label_thresholds(axes, arms, x_key, y_key, color=f"C{number}")


def _rule_name(row: dict) -> str:
    """Everything but the threshold."""
    accept = row["accept"]
    if accept["rule"] == "exact":
        return "exact"
    return ", ".join(accept[key] for key in ("rule", "divergence", "logits", "child"))


def _label_thresholds(axes, arms: list[dict], x_key: str, y_key: str, *, color: str) -> None:
    """T beside the points; points that nearly coincide share one label."""
    width, height = (abs(a - b) for a, b in (axes.get_xlim(), axes.get_ylim()))
    groups: list[list[dict]] = []
    for row in arms:
        if groups:
            last = groups[-1][-1]
            near_x = abs(row[x_key] - last[x_key]) < 0.06 * width
            near_y = abs(row[y_key]["value"] - last[y_key]["value"]) < 0.05 * height
            if near_x and near_y:
                groups[-1].append(row)
                continue
        groups.append([row])
    for group in groups:
        names = ", ".join(f"{row['accept']['threshold']:g}" for row in group)
        at = (group[-1][x_key], group[-1][y_key]["value"])
        place = {"xytext": (7, -11), "textcoords": "offset points"}
        axes.annotate(f"T={names}", at, fontsize=8, color=color, **place)


def _draw_ceiling(axes, most: float, tau: float) -> None:
    shares = [most * i / 50 for i in range(51) if most * i / 50 * tau < 0.8]
    if most > 0:
        axes.plot(
            shares, [1 / (1 - f * tau) for f in shares], color="0.4", ls="--", label="ceiling"
        )
