"""What rounds cost by context, as rows and tables."""

from eagle_fsd.evaluation.arms import PLAIN
from eagle_fsd.evaluation.tables import Column
from eagle_fsd.speed.clock import ROUND_PHASES
from eagle_fsd.speed.forwards import forward_rows

FORWARDS = "forwards"  # in the place of an arm
ROUND: tuple[Column, ...] = (
    ("arm", "arm", "s"),
    ("context", "context", "d"),
    ("ms/round", "ms_per_round", ".2f"),
    ("break-even", "round_vs_plain", ".2f"),
    *((phase, phase, ".2f") for phase in ROUND_PHASES),
    ("start", "start", ".0f"),
    ("peak MiB", "peak_mebibytes", ".1f"),
)
SINGLE: tuple[Column, ...] = (
    ("context", "context", "d"),
    ("forward", "forward", "s"),
    ("median ms", "median_ms", ".2f"),
    ("min ms", "min_ms", ".2f"),
    ("median vs first", "median_vs_first", ".2f"),
)
NOTES = """\
- ms/round: without a clock. break-even: the same over plain's, so the tokens a round at which the
  arm is as fast as plain.
- propose to host, in milliseconds: the device is waited for at every phase. start: prefill and the
  first round, with the head's run over the prompt, which the others leave out.
- peak MiB: what torch's allocator gave out in prefill and the first rounds of an answer, above what
  was there before."""


def round_rows(records: list[dict]) -> list[dict]:
    """What an average round of every arm costs in every context; see ROUND.

    Args:
        records: from speed_run.measure.
    """
    rows = []
    for record in records:
        if record["arm"] == FORWARDS:
            continue
        count = record["rounds"] or None  # one draft may have filled the answer
        row = {key: record[key] for key in ("arm", "context", "rounds", "round_tokens")}
        row["ms_per_round"] = count and 1000 * record["round_seconds"] / count
        for phase in ROUND_PHASES:
            row[phase] = count and 1000 * record["phase_seconds"][phase] / count
        row["start"] = 1000 * record["start_seconds"]
        row["peak_mebibytes"] = record["peak_memory_bytes"] / 2**20
        rows.append(row)
    plain = {row["context"]: row["ms_per_round"] for row in rows if row["arm"] == PLAIN}
    for row in rows:
        mine, base = row["ms_per_round"], plain.get(row["context"])
        row["round_vs_plain"] = mine / base if mine and base else None
    return rows


def single_rows(records: list[dict]) -> list[dict]:
    """The single forwards of every context; see SINGLE."""
    return [
        {"context": record["context"]} | row
        for record in records
        if record["arm"] == FORWARDS
        for row in forward_rows(record["seconds"])
    ]
