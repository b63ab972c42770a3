"""A finished run as a table, a picture and JSON."""

from pathlib import Path

from eagle_fsd.runs.checkout import without_checkout
from eagle_fsd.runs.jsonl import write_json
from eagle_fsd.speed.resident_memory import METHODS
from eagle_fsd.speed.schedule import context_key, profile_file, record_file
from eagle_fsd.speed.speed_folder import SpeedFolder
from eagle_fsd.speed.speed_metrics import arm_rows, profile_rows
from eagle_fsd.speed.speed_plot import plot_speed
from eagle_fsd.speed.speed_table import arm_tables, round_table, steps_table
from eagle_fsd.speed.steps import step_rows


def report(
    folder: SpeedFolder,
    arms: list[str],
    asked: list[int | str],
    options: dict,
    skipped: dict[str, str],
    references: dict[str, float],
) -> None:
    """Write speed.md, speed.json and speed.png, and print the first.

    Args:
        arms: those with rows, in order.
        asked: question_ids of the timed prompts.
        options: of the command, all of them.
        skipped: arm that could not run here -> why.
        references: name -> tokens/s that were not measured here.
    """
    repeats = [
        {arm: [folder.rows(record_file(number)(arm))[key] for key in asked] for arm in arms}
        for number in range(1, options["repeats"] + 1)
    ]
    places = asked[: options["profile_prompts"]] + [context_key(n) for n in options["context"]]
    answers = {arm: [folder.rows(profile_file(arm))[key] for key in places] for arm in arms}
    profile = profile_rows(answers)
    rows = arm_rows(repeats, profile, references)
    steps = [
        {"context": length} | row
        for length in options["context"]
        for row in step_rows(folder.rows("steps")[length]["seconds"])
    ]
    timed = [row for repeat in repeats for records in repeat.values() for row in records]
    title = _title(options, len(asked), folder.origin(timed))
    notes = _notes(folder, repeats, skipped, options["device"])
    text = "\n\n".join(
        [
            title,
            arm_tables(rows, references),
            "Where a round's milliseconds go (profile pass, under a clock):",
            round_table(profile),
            "Single steps, measured in turn:",
            steps_table(steps),
            "\n".join(f"- {note}" for note in notes),
        ]
    )
    (folder.path / "speed.md").write_text(text + "\n")
    write_json(
        folder.path / "speed.json",
        {
            "title": title,
            "options": without_checkout(options),
            "sessions": folder.sessions,
            "skipped": skipped,
            "notes": notes,
            "references_not_measured_here": references,
            "arms": rows,
            "rounds": profile,
            "steps": steps,
        },
    )
    plot_speed(rows, profile, references, folder.path / "speed.png", title=title)
    print(f"\n{text}\n\nwritten to {folder.path}: speed.md, speed.json, speed.png")


def _title(options: dict, prompts: int, origin: str) -> str:
    target = without_checkout({"": options["target"]})[""]
    return (
        f"Speed on {Path(options['question_file']).name or 'MT-Bench'}, {prompts} first turns x "
        f"{options['max_new_tokens']} tokens x {options['repeats']} repeats, {target} in "
        f"{options['dtype']}, temperature {options['temperature']:g}; {origin}"
    )


def _notes(folder: SpeedFolder, repeats: list, skipped: dict[str, str], device: str) -> list[str]:
    """How it was measured, and what a reader must know."""
    kind = "cpu" if device == "cpu" else "cuda"
    notes = [
        "tokens/s: total tokens / total seconds of prefill and decoding, no clock inside; ratios "
        "with 95 % bootstrap intervals over prompts; repeats: lowest and highest ratio to plain",
        "break-even: tokens/round at which the arm is as fast as plain, from the profile's rounds",
        f"peak memory: {METHODS[kind]}, above what was there before the answer",
        "waits/round: host-device synchronisations, on CUDA only",
    ]
    first: dict[str, float] = {}
    for session in folder.sessions:
        first = session["first_call_seconds"] | first
    calls = ", ".join(f"{arm} {seconds:.1f}" for arm, seconds in first.items())
    notes.append(f"seconds of an arm's first answer, compilation and recording included: {calls}")
    notes.append("propose: with the head's run over the prompt, in an answer's first round")
    notes += [f"{arm} left out, it cannot run here: {why}" for arm, why in skipped.items()]
    mixed = sum(
        len({records[place]["session"] for records in repeat.values()}) > 1
        for repeat in repeats
        for place in range(len(next(iter(repeat.values()))))
    )
    if mixed:
        notes.append(f"{mixed} prompts had their arms timed in more than one process")
    loads = [session["machine"]["load_by_others"] for session in folder.sessions]
    if None not in loads:
        notes.append(f"load by other processes when a session began: at most {max(loads):g} cores")
    return notes
