"""From a speed run's records to its metrics, tables and plot.

Speeds are total tokens / total seconds over all prompts and repeats. Intervals of ratios are 95 %
intervals over prompts, repeats of a prompt kept together; the spread over repeats is
given beside. What a round costs is the profiled answers'.
"""

from collections.abc import Callable
from pathlib import Path

from eagle_fsd.evaluation import stats
from eagle_fsd.evaluation.arms import PLAIN, Arm
from eagle_fsd.evaluation.metrics import (
    METRICS,
    Record,
    by_question,
    exact_beside,
    seconds,
    summarize,
    tokens,
)
from eagle_fsd.evaluation.tables import Column, markdown_table, terminal_table, verdict
from eagle_fsd.models.load import DTYPES, load_target_config
from eagle_fsd.models.model_options import ModelOptions
from eagle_fsd.models.random_weights import cache_row_bytes
from eagle_fsd.runs.folder import Run
from eagle_fsd.runs.jsonl import write_json
from eagle_fsd.speed.clock import ROUND_PHASES
from eagle_fsd.speed.forwards import forward_rows
from eagle_fsd.speed.roofline import weight_bytes_read
from eagle_fsd.speed.speed_options import SpeedOptions
from eagle_fsd.speed.speed_plot import plot_speed

PROFILED = -1  # in the place of a repeat's number
FORWARDS, MACHINE = "forwards", "machine"  # files of records beside the arms'
MEBIBYTE = 2**20
BytesRead = Callable[[float], float | None]
"""From the mean rows of a cache to the bytes that a forward must read, if they are known."""


def _metrics(*names: str) -> tuple[Column, ...]:
    """Columns of METRICS, under the titles that they have everywhere."""
    return tuple((METRICS[name].label, name, METRICS[name].form) for name in names)


SPEED: tuple[Column, ...] = (
    ("arm", "arm", "s"),
    ("tree", "tree", "s"),
    *_metrics("tokens_per_second", "speed_vs_generate", "speed_vs_plain"),
    ("repeats", "repeats", "s"),
    ("over exact", "speed_vs_exact", "ratio"),
    *_metrics("tokens_per_round"),
    ("break-even", "break_even", ".2f"),
)
QUALITY: tuple[Column, ...] = (
    ("arm", "arm", "s"),
    *_metrics("fuzzy_share", "tokens_per_round_vs_exact", "ceiling", "regret_per_token"),
    *_metrics("tokens_per_answer", "argmax_share", "argmax_share_minus_plain"),
)
ROUND: tuple[Column, ...] = (
    ("arm", "arm", "s"),
    ("context", "place", "s"),
    ("ms/round", "ms_per_round", ".2f"),
    ("vs plain", "round_vs_plain", ".2f"),
    ("tokens/round", "round_tokens", ".2f"),
    ("clocked", "clocked_ms_per_round", ".2f"),
    *((phase, f"{phase}_cell", "s") for phase in ROUND_PHASES),
    ("start ms", "start_ms", ".0f"),
    ("waits/round", "synchronizations", ".1f"),
)
LIMITS: tuple[Column, ...] = (
    ("arm", "arm", "s"),
    ("context", "place", "s"),
    ("GB read", "gigabytes_read", ".3f"),
    ("least ms", "roofline_ms", ".2f"),
    ("of verify", "roofline_of_verify", ".0%"),
    ("of round", "roofline_of_round", ".0%"),
    ("peak MiB", "peak_mebibytes", ".1f"),
    ("above plain", "mebibytes_above_plain", ".1f"),
    ("drafter's share", "drafter_mebibytes", ".1f"),
)
SINGLE: tuple[Column, ...] = (
    ("context", "context", "d"),
    ("forward", "forward", "s"),
    ("median ms", "median_ms", ".2f"),
    ("min ms", "min_ms", ".2f"),
    ("median vs first", "median_vs_first", ".2f"),
    ("min vs first", "min_vs_first", ".2f"),
)
NOTES = (
    "tokens/s: total tokens / total seconds of prefill and decoding, no clock inside; ratios with "
    "95 % intervals over prompts; repeats: lowest and highest ratio to plain",
    "break-even: tokens/round at which the arm is as fast as plain: ms/round over plain's",
    "ms/round: without a clock; clocked and the phases: the device is waited for at every phase; "
    "start: prefill and the first round, with the head's run over the prompt; the others' mean "
    "leaves it out",
    "GB read: weights and cache that a verification must read; least ms: that over the bandwidth "
    "measured here; its share of a clocked verification and of a round without a clock",
    "peak MiB: what torch's allocator gave out in prefill and the first rounds of an answer, with "
    "the caches for all of it, above what was there before; drafter's share: the head's cache and "
    "its draft logits, which a drafter cannot do without",
    "waits/round: host-device synchronisations, on CUDA only",
)


def context_id(length: int) -> str:
    """The question_id of a prompt that is made to have this length."""
    return f"context {length}"


# --- rows ---------------------------------------------------------------------------------------


def arm_rows(
    records: dict[str, list[Record]], rounds: list[dict], references: dict[str, float]
) -> list[dict]:
    """One row an arm: that of metrics.summarize, and the speed over exact's with the same drafter,
    the spread over repeats, the break-even, and the speed over the references'.

    Args:
        records: arm's text -> its timed records of every prompt and repeat.
        rounds: from round_rows.
        references: name -> tokens/s that were not measured here.
    """
    costs = {row["arm"]: row for row in rounds if row["place"] == "prompts"}
    rows = summarize(records)
    for row in rows:
        mine, speed = records[row["arm"]], row["tokens_per_second"]["value"]
        exact = records.get(exact_beside(row["arm"], list(records)))
        by_repeat = [
            _speed(mine, number) / _speed(records[PLAIN], number)
            for number in sorted({record["choice"] for record in mine})
            if PLAIN in records
        ]
        row |= {
            "speed_vs_exact": exact and stats.paired_ratio(_by_prompt(mine), _by_prompt(exact)),
            "speed_vs_plain_by_repeat": by_repeat,
            "repeats": f"{min(by_repeat):.2f} - {max(by_repeat):.2f}" if by_repeat else None,
            "ms_per_token": 1000 / speed,
            "break_even": costs[row["arm"]]["round_vs_plain"],
            "speed_vs_references": {name: speed / other for name, other in references.items()},
        }
    return rows


def _by_prompt(records: list[Record]) -> list[tuple[int, float]]:
    """Tokens and seconds; the repeats of a prompt belong together."""
    return [(tokens(record), seconds(record)) for record in by_question(records).values()]


def _speed(records: list[Record], repeat: int) -> float:
    """Tokens a second of one repeat."""
    chosen = [record for record in records if record["choice"] == repeat]
    return sum(map(tokens, chosen)) / sum(map(seconds, chosen))


def round_rows(
    profiles: dict[str, dict[str, list[dict]]], bytes_read: BytesRead, bandwidth: float
) -> list[dict]:
    """One row an arm and place: the columns of ROUND and LIMITS.

    Args:
        profiles: place ("prompts", or a context's length) -> arm's text -> profiled answers.
        bandwidth: bytes a second of the device.
    """
    rows = []
    for place, answers in profiles.items():
        here = {arm: _round_row(found, bytes_read, bandwidth) for arm, found in answers.items()}
        plain = here.get(PLAIN)
        for arm, row in here.items():
            row["round_vs_plain"] = row["mebibytes_above_plain"] = None
            if plain is not None:
                row["mebibytes_above_plain"] = row["peak_mebibytes"] - plain["peak_mebibytes"]
                if row["ms_per_round"] and plain["ms_per_round"]:
                    row["round_vs_plain"] = row["ms_per_round"] / plain["ms_per_round"]
            rows.append({"arm": arm, "place": place} | row)
    return rows


def _round_row(answers: list[dict], bytes_read: BytesRead, bandwidth: float) -> dict:
    """Sums over the answers' rounds / number of rounds; None is what transformers' loop has not."""
    keys = [key for _, key, _ in (*ROUND, *LIMITS) if key not in ("arm", "place")]
    row = dict.fromkeys([*keys, "phase_ms"])
    row["peak_mebibytes"] = max(answer["peak_memory_bytes"] for answer in answers) / MEBIBYTE
    rounds = sum(answer.get("rounds", 0) for answer in answers)
    if not rounds:  # transformers' own loop, or every answer ended in its first round
        return row
    phase_ms = {
        phase: 1000 * sum(answer["phase_seconds"][phase] for answer in answers) / rounds
        for phase in ROUND_PHASES
    }
    clocked = sum(phase_ms.values())
    row |= {f"{p}_cell": f"{ms:.2f} ({ms / clocked:.0%})" for p, ms in phase_ms.items()}
    waits = [answer["synchronizations_per_round"] for answer in answers]
    sizes = [answer["drafter_bytes"] for answer in answers]
    row |= {
        "phase_ms": phase_ms,
        "ms_per_round": 1000 * sum(answer["round_seconds"] for answer in answers) / rounds,
        "clocked_ms_per_round": clocked,
        "round_tokens": sum(answer["round_tokens"] for answer in answers) / rounds,
        "start_ms": 1000 * sum(answer["start_seconds"] for answer in answers) / len(answers),
        "synchronizations": None if None in waits else max(waits),
        "drafter_mebibytes": None if None in sizes else max(sizes) / MEBIBYTE,
    }
    contexts = [answer["context"] for answer in answers if answer["rounds"]]
    read = bytes_read(sum(contexts) / len(contexts))
    if read is not None:
        least = 1000 * read / bandwidth
        row |= {"gigabytes_read": read / 1e9, "roofline_ms": least}
        row["roofline_of_verify"] = least / phase_ms["verify"]
        row["roofline_of_round"] = least / row["ms_per_round"]
    return row


# --- the report ---------------------------------------------------------------------------------


def report(
    run: Run,
    options: SpeedOptions,
    model_options: ModelOptions,
    *,
    arms: list[Arm],
    asked: list[int | str],
    skipped: dict[str, str],
) -> None:
    """Write speed.md, speed.json and the plot, and print what matters most.

    Args:
        arms: those with records, in order.
        asked: question_ids of the timed prompts.
        skipped: arm that could not run here -> why.
    """
    found = {arm.text: run.records[arm.slug] for arm in arms}
    records = {
        arm: [rows[key, repeat] for key in asked for repeat in range(options.repeats)]
        for arm, rows in found.items()
    }
    places = {"prompts": asked[: options.profile_prompts]}
    places |= {str(length): [context_id(length)] for length in options.context}
    profiles = {
        place: {
            arm: [rows[key, PROFILED]["profile"] for key in keys] for arm, rows in found.items()
        }
        for place, keys in places.items()
    }
    machines = list(run.records[MACHINE].values())
    config, dtype = load_target_config(model_options.target), DTYPES[model_options.dtype]
    weights, row_bytes = weight_bytes_read(config, dtype), cache_row_bytes(config, dtype)
    rounds = round_rows(
        profiles,
        bytes_read=lambda context: weights and weights + context * row_bytes,
        bandwidth=max(machine["bandwidth"] for machine in machines),
    )
    references = options.reference_speeds()
    rows = arm_rows(records, rounds, references)
    single = [
        {"context": length} | row
        for length in options.context
        for row in forward_rows(run.records[FORWARDS][context_id(length), 0]["seconds"])
    ]
    origin, mixed = run.origin(records)
    title = _title(run.settings, len(asked), machines, origin)
    notes = _notes(machines, mixed, skipped)
    against = [
        f"{name}: {speed:g} tokens/s (published, not measured here). Of it: "
        + ", ".join(f"{row['arm']} {row['speed_vs_references'][name]:.2f}" for row in rows)
        for name, speed in references.items()
    ]
    parts = [
        title,
        markdown_table(rows, SPEED),
        *([] if options.accepted else [markdown_table(rows, QUALITY)]),  # a pattern has none
        *against,
        "Where a round's milliseconds go (profiled answers):",
        markdown_table(rounds, ROUND),
        "Memory: what a verification must read, and the peak of an answer:",
        markdown_table(rounds, LIMITS),
        "Single forwards, measured in turn:",
        markdown_table(single, SINGLE),
        "\n".join(f"- {note}" for note in notes),
    ]
    text = "\n\n".join(parts)
    (run.folder / "speed.md").write_text(text + "\n")
    write_json(
        run.folder / "speed.json",
        {
            "title": title,
            "options": run.settings,
            "sessions": run.sessions,
            "machines": machines,
            "skipped": skipped,
            "notes": notes,
            "references_not_measured_here": references,
            "arms": rows,
            "rounds": rounds,
            "forwards": single,
        },
    )
    plot_speed(rows, rounds, references, run.folder / "speed", title=title)
    shown = [markdown_table(rows, SPEED)] if options.accepted else [terminal_table(rows)]
    shown += [] if options.accepted else ["\n".join(f"- {verdict(row)}" for row in rows)]
    rest = (
        f"Intervals, rounds by phase, memory and single forwards: {run.folder}/speed.md and .json; "
        "the plot: speed.svg"
    )
    print("\n" + "\n\n".join([title, *shown, *against, rest]))


def _title(settings: dict, prompts: int, machines: list[dict], origin: str) -> str:
    """What was run, on what, in one line; engine time says what it is."""
    engines = " / ".join(dict.fromkeys(machine["engine"] for machine in machines))
    waits = " / ".join(dict.fromkeys(machine["wait_policy"] for machine in machines))
    pattern = " ".join(map(str, settings["accepted"]))
    engine_time = f"engine time, no quality: accepted drafts {pattern} in turn; " if pattern else ""
    return (
        f"Speed on {Path(settings['question_file']).name or 'MT-Bench'}, {prompts} first turns x "
        f"{settings['max_new_tokens']} tokens x {settings['repeats']} repeats, "
        f"{settings['target']} in {settings['dtype']}, temperature {settings['temperature']:g}; "
        f"{engine_time}engine {engines}, {origin}, OMP_WAIT_POLICY {waits}"
    )


def _notes(machines: list[dict], mixed: int, skipped: dict[str, str]) -> list[str]:
    """How it was measured, and what a reader must know."""
    first: dict[str, float] = {}
    for machine in machines:
        first = machine["first_answer_seconds"] | first
    calls = ", ".join(f"{arm} {seconds:.1f}" for arm, seconds in first.items())
    notes = [
        *NOTES,
        f"seconds of an arm's first answer, compilation and recording included: {calls}",
        f"bandwidth: {max(machine['bandwidth'] for machine in machines) / 1e9:.1f} GB/s",
        *(f"{arm} left out, it cannot run here: {why}" for arm, why in skipped.items()),
    ]
    if mixed:
        notes.append(f"{mixed} prompts had their arms timed in more than one process")
    loads = [machine["load_by_others"] for machine in machines]
    if None not in loads:
        notes.append(f"load by other processes when a session began: at most {max(loads):g} cores")
    return notes
