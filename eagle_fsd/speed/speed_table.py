"""A speed run's figures as Markdown."""

from eagle_fsd.evaluation.tables import Column, markdown_table
from eagle_fsd.speed.clock import ROUND_PHASES

SPEED: tuple[Column, ...] = (
    ("arm", "arm", "s"),
    ("tree", "tree", "s"),
    ("tokens/s", "tokens_per_second", ".1f"),
    ("vs generate", "speed_vs_generate", "ratio"),
    ("vs plain", "speed_vs_plain", "ratio"),
    ("repeats", "repeats", "s"),
    ("vs exact", "speed_vs_exact", "ratio"),
    ("tokens/round", "tokens_per_round", ".2f"),
    ("break-even", "break_even", ".2f"),
)
QUALITY: tuple[Column, ...] = (
    ("arm", "arm", "s"),
    ("fuzzy share", "fuzzy_share", ".4f"),
    ("tokens/round vs exact", "tokens_per_round_vs_exact", "ratio"),
    ("ceiling", "ceiling", ".2f"),
    ("of ceiling", "of_ceiling", ".2f"),
    ("regret/token", "regret_per_token", ".4f"),
    ("tokens/answer", "tokens_per_answer", ".1f"),
    ("argmax share", "argmax_share", ".4f"),
    ("vs plain", "argmax_share_vs_plain", ".4f"),
)
ROUND: tuple[Column, ...] = (
    ("arm", "arm", "s"),
    ("context", "place", "s"),
    ("ms/round", "ms_per_round", ".2f"),
    *((phase, f"{phase}_cell", "s") for phase in ROUND_PHASES),
    ("accept+commit+host", "rest_share", ".1%"),
    ("vs plain round", "round_vs_plain", ".2f"),
    ("prefill ms", "prefill_ms", ".0f"),
    ("waits/round", "synchronizations", ".1f"),
    ("peak MiB", "peak_mebibytes", ".1f"),
    ("above plain", "memory_above_plain", ".1f"),
)
STEPS: tuple[Column, ...] = (
    ("context", "context", "d"),
    ("step", "step", "s"),
    ("median ms", "median_ms", ".2f"),
    ("min ms", "min_ms", ".2f"),
    ("median vs stock", "median_vs_stock", ".2f"),
    ("min vs stock", "min_vs_stock", ".2f"),
)


def arm_tables(rows: list[dict], references: dict[str, float]) -> str:
    """How fast and at what cost, and where the references stand."""
    lines = [markdown_table(rows, SPEED), "", markdown_table(rows, QUALITY)]
    for name, speed in references.items():
        ratios = ", ".join(f"{r['arm']} {r['speed_vs_references'][name]:.2f}" for r in rows)
        lines += ["", f"{name}: {speed:g} tokens/s (published, not measured here). Of it: {ratios}"]
    return "\n".join(lines)


def round_table(rows: list[dict]) -> str:
    """Milliseconds of a round by phase, with shares."""
    return markdown_table([row | _phase_cells(row) for row in rows], ROUND)


def _phase_cells(row: dict) -> dict[str, str | None]:
    if row["phase_ms"] is None:
        return {f"{phase}_cell": None for phase in ROUND_PHASES}
    return {
        f"{phase}_cell": f"{row['phase_ms'][phase]:.2f} ({row['phase_share'][phase]:.0%})"
        for phase in ROUND_PHASES
    }


def steps_table(rows: list[dict]) -> str:
    return markdown_table(rows, STEPS)
