"""Rounds profiled and single forwards timed at prompts of several lengths, into a run folder: a
record an arm and context, and one of the forwards."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tqdm import tqdm

from eagle_fsd.arms import PLAIN, Arm
from eagle_fsd.config import CPU_TREE, SamplingConfig, tree_name
from eagle_fsd.models.loaded import Model
from eagle_fsd.runs.folder import Run
from eagle_fsd.speed.forwards import WIDE, forward_rows, time_forwards
from eagle_fsd.speed.profiled import ROUND_PHASES, profile_arm
from eagle_fsd.timing import check_timing_alone, rotated

# How often the likeliest child of a level's best path is right, if that is (results/priced_trees)
FIRST_CHILD = 0.6
PROFILES = "profiles"  # file of records
FORWARDS = "forwards"  # in the place of an arm


def profile_contexts(
    run: Run,
    model: Callable[[], Model],
    arms: Sequence[Arm],
    lengths: Sequence[int],
    text: str,
    sampling: SamplingConfig,
    *,
    device: str,
    repeats: int,
) -> tuple[list[dict], list[dict]]:
    """Measure what is missing; returns the rows of round_rows, and those of forward_rows with their
    context.

    Args:
        run: whose key is (arm, context).
        model: loads it, or gives the one that is loaded; asked if something is missing.
        lengths: tokens of the prompts, which are the ends of a user turn of the text repeated.
        device: looked around at before something is timed.
        repeats: measurements of every single forward.
    """
    found = run.records[PROFILES]
    jobs = [
        (arm, length)
        for turn, length in enumerate(lengths)
        for arm in [*rotated(arms, turn), None]
        if (arm.text if arm else FORWARDS, length) not in found
    ]
    if jobs:
        warnings = check_timing_alone(device)
        model()  # a session records the threads that loading chose
        run.begin_session(timed=True, warnings=warnings)
    for arm, length in tqdm(jobs, desc="rounds by context", disable=not jobs):
        while len(prompt := model().prompt_ids(text)) < length:
            text += "\n\n" + text
        prompt = prompt[-length:]
        record = {"arm": arm.text if arm else FORWARDS, "context": length}
        if arm:
            record |= profile_arm(arm, model(), prompt, sampling)
        else:
            record["seconds"] = time_forwards(model(), prompt, repeats)
        run.add(PROFILES, record)
    rows = round_rows([found[arm.text, length] for length in lengths for arm in arms])
    single = [
        {"context": length} | row
        for length in lengths
        for row in forward_rows(found[FORWARDS, length]["seconds"])
    ]
    return rows, single


def price_lines(rounds: list[dict], single: list[dict]) -> list[str]:
    """By context what a node, a level of the head and a token cost, and the arm whose prices they
    are (docs/speed.md#trees-by-price).

    A node is the mean of those from a single one to WIDE nodes; a token takes what it takes the
    fastest arm with the exact rule and the head's drafts, since long prompts repeat themselves for
    the n-gram table. Without a head or such an arm there is no line.
    """
    lines = []
    for context in sorted({row["context"] for row in rounds}):
        ms = {row["forward"]: row["median_ms"] for row in single if row["context"] == context}
        node = (ms[f"verify {WIDE}"] - ms["verify 1"]) / (WIDE - 1)
        level = next((ms[name] for name in ms if name.startswith("draft level")), None)
        token = min(
            (
                row["rounds"] * row["ms_per_round"] / row["round_tokens"]
                for row in rounds
                if row["context"] == context
                and (row["arm"] == "exact" or row["arm"].startswith("exact@eagle"))
                and row["rounds"]
            ),
            default=None,
        )
        if level is None or token is None or min(node, node + level) <= 0:  # noise
            continue
        keep, deepen = node / token, (level + node) / token / FIRST_CHILD
        keep, deepen = (min(1.0, float(f"{price:.2g}")) for price in (keep, deepen))
        tree = replace(CPU_TREE, keep=keep, deepen=deepen)
        lines.append(
            f"Trees by price at {context} tokens: a node takes {node:.2f} ms, a level {level:.2f}, "
            f"a token {token:.2f}, so the tree for this machine is exact@eagle:{tree_name(tree)}"
        )
    return lines


def round_rows(records: list[dict]) -> list[dict]:
    """What an average round of every arm costs in every context: milliseconds, also by phase, and
    as a multiple of plain's; None where one draft filled the answer."""
    rows = []
    for record in records:
        count = record["rounds"] or None
        seconds = {"ms_per_round": record["round_seconds"], **record["phase_seconds"]}
        row = {key: record[key] for key in ("arm", "context", "rounds", "round_tokens")}
        for name in ("ms_per_round", *ROUND_PHASES):
            row[name] = count and 1000 * seconds[name] / count
        row["start"] = 1000 * record["start_seconds"]
        row["peak_mebibytes"] = record["peak_memory_bytes"] / 2**20
        rows.append(row)
    plain = {row["context"]: row["ms_per_round"] for row in rows if row["arm"] == PLAIN}
    for row in rows:
        mine, base = row["ms_per_round"], plain.get(row["context"])
        row["round_vs_plain"] = mine / base if mine and base else None
    return rows
