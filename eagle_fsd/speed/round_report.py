"""From the rounds' times to the figures of an engine, and their table."""

from collections.abc import Callable
from statistics import median

from eagle_fsd.evaluation.tables import Column, markdown_table
from eagle_fsd.speed.round_times import RoundTimes

LABEL = "engine time; random weights, no quality"
LOOPS: tuple[Column, ...] = (
    ("loop", "loop", "s"),
    ("width", "width", "d"),
    ("propose", "propose", ".3f"),
    ("verify", "verify", ".3f"),
    ("accept", "accept", ".3f"),
    ("commit + host", "commit_and_host", ".3f"),
    ("round, clocked", "clocked_round_ms", ".3f"),
    ("round", "round_ms", ".3f"),
    ("tokens/round", "tokens_per_round", ".2f"),
    ("tokens/s", "tokens_per_second", ".1f"),
)
ROOFLINE: tuple[Column, ...] = (
    ("forward", "forward", "s"),
    ("GB read", "gigabytes", ".3f"),
    ("least ms", "roofline_ms", ".3f"),
    ("ms", "verify", ".3f"),
    ("share", "roofline_share", ".0%"),
    ("share of the round", "roofline_share_of_round", ".0%"),
)


def figures(
    passes: dict[str, list[tuple[RoundTimes, RoundTimes]]],
    *,
    bytes_read: Callable[[float], float],
    bandwidth: float,
) -> dict[str, dict]:
    """One entry a loop, and what the two give together.

    Args:
        passes: "plain" and "tree" -> repeats of (rounds with the clock, rounds without).
        bytes_read: mean rows in the cache -> bytes that a forward must read.
        bandwidth: bytes a second of the device.

    Returns:
        plain, tree: width, tokens_per_round, context (rows), ms by phase with the clock (medians
            over repeats), clocked_round_ms (their sum), round_ms (without the clock),
            tokens_per_second, bytes_read, roofline_ms, roofline_share (of the forward: roofline_ms
            / verify) and roofline_share_of_round.
        both: verify_vs_plain_step, draft_and_host_vs_verify ((propose + accept + commit + host) /
            verify), round_vs_plain_round, speed_vs_plain.
    """
    loops = {
        name: _loop_figures(repeats, bytes_read=bytes_read, bandwidth=bandwidth)
        for name, repeats in passes.items()
    }
    plain, tree = loops["plain"], loops["tree"]
    others = tree["clocked_round_ms"] - tree["ms"]["verify"]
    both = {
        "verify_vs_plain_step": tree["ms"]["verify"] / plain["ms"]["verify"],
        "draft_and_host_vs_verify": others / tree["ms"]["verify"],
        "round_vs_plain_round": tree["round_ms"] / plain["round_ms"],
        "speed_vs_plain": tree["tokens_per_second"] / plain["tokens_per_second"],
    }
    return {"plain": plain, "tree": tree, "both": both}


def _loop_figures(
    repeats: list[tuple[RoundTimes, RoundTimes]],
    *,
    bytes_read: Callable[[float], float],
    bandwidth: float,
) -> dict:
    clocked = [with_clock for with_clock, _ in repeats]
    free = [without for _, without in repeats]
    ms = {
        phase: median(1e3 * r.phase_seconds[phase] / r.rounds for r in clocked)
        for phase in clocked[0].phase_seconds
    }
    round_ms = median(1e3 * r.seconds / r.rounds for r in free)
    needed = bytes_read(clocked[0].context)
    roofline_ms = 1e3 * needed / bandwidth
    return {
        "width": clocked[0].width,
        "tokens_per_round": free[0].tokens_per_round,
        "context": clocked[0].context,
        "ms": ms,
        "clocked_round_ms": sum(ms.values()),
        "round_ms": round_ms,
        "tokens_per_second": 1e3 * free[0].tokens_per_round / round_ms,
        "bytes_read": needed,
        "roofline_ms": roofline_ms,
        "roofline_share": roofline_ms / ms["verify"],
        "roofline_share_of_round": roofline_ms / round_ms,
    }


def table(found: dict[str, dict], *, bandwidth: float) -> str:
    """The figures as Markdown."""
    rows = [
        found[name]
        | found[name]["ms"]
        | {
            "loop": name,
            "forward": forward,
            "commit_and_host": found[name]["ms"]["commit"] + found[name]["ms"]["host"],
            "gigabytes": found[name]["bytes_read"] / 1e9,
        }
        for name, forward in (("plain", "plain step"), ("tree", "verify"))
    ]
    both = found["both"]
    return "\n".join(
        [
            f"{LABEL}. Milliseconds; the phases and `round, clocked` wait for the device at every",
            "phase, `round` does not.",
            "",
            markdown_table(rows, LOOPS),
            "",
            f"Memory roofline at {bandwidth / 1e9:.1f} GB/s, measured here:",
            "",
            markdown_table(rows, ROOFLINE),
            "",
            f"verify / plain step {both['verify_vs_plain_step']:.2f}, (draft + host) / verify "
            f"{both['draft_and_host_vs_verify']:.2f}, round / plain round "
            f"{both['round_vs_plain_round']:.2f}, tokens/s at the pattern / plain "
            f"{both['speed_vs_plain']:.2f}",
        ]
    )
