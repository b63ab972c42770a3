"""A speed run: a bench of all arms, then rounds profiled and single forwards timed by context.

OUTPUT/           the bench's folder (evaluation/bench.py): answers timed without a clock inside
OUTPUT/rounds/    a run folder too: a record an arm and context, and one of single forwards
"""

from dataclasses import asdict, replace
from pathlib import Path

from tqdm import tqdm

from eagle_fsd.config import BadInput, SamplingConfig
from eagle_fsd.evaluation.arms import Arm
from eagle_fsd.evaluation.bench import Bench
from eagle_fsd.evaluation.questions import read_questions
from eagle_fsd.evaluation.report.report_tables import report_bench
from eagle_fsd.evaluation.tables import markdown_table
from eagle_fsd.models.assets import asset_dir
from eagle_fsd.models.load import load_target_config
from eagle_fsd.models.loaded import Model
from eagle_fsd.models.random_weights import PREFIX
from eagle_fsd.runs.command import ModelOptions, SamplingOptions
from eagle_fsd.runs.folder import Run
from eagle_fsd.speed.forwards import rotated, rows_needed, time_forwards
from eagle_fsd.speed.pattern import Pattern
from eagle_fsd.speed.profiled import profile_arm
from eagle_fsd.speed.quiet import check_timing_alone
from eagle_fsd.speed.round_tables import FORWARDS, NOTES, ROUND, SINGLE, round_rows, single_rows
from eagle_fsd.speed.speed_options import SpeedOptions

RANDOM_PATTERN = (0, 1, 2, 3)  # 2.5 tokens a round
PROFILES = "profiles"  # file of records


def run_speed(
    options: SpeedOptions, sampling: SamplingOptions, model_options: ModelOptions
) -> None:
    """Answer and measure what is missing, and report.

    Raises:
        BadInput: what Bench refuses; several processes; a context that leaves no room.
    """
    if model_options.target.startswith(PREFIX):
        options.accepted = options.accepted or list(RANDOM_PATTERN)
    most = getattr(load_target_config(model_options.target), "max_position_embeddings", None)
    needed = max(options.context, default=0) + rows_needed(options.step_repeats)
    if most is not None and needed > most:
        raise BadInput(
            f"--context {max(options.context)} needs {needed} positions with the measurements "
            f"after it, the target has {most}: shorten it, or lower --step_repeats"
        )
    warnings = check_timing_alone(model_options.device)
    questions = read_questions(options.question_file or asset_dir("mt_bench") / "question.jsonl")
    bench = Bench(
        f"Speed on {Path(options.question_file).name or 'MT-Bench'}",
        "speed",
        options.choose(questions),
        options,
        sampling,
        model_options,
        free={"context"},
    )
    if options.accepted:
        pattern = tuple(options.accepted)
        bench.name += f" (engine time, no quality: accepted drafts {pattern} in turn)"
        bench.arms = [
            replace(arm, rule=Pattern(arm.rule, pattern)) if arm.drafts else arm
            for arm in bench.arms
        ]
    bench.answer_all()
    settings = asdict(sampling) | asdict(model_options)
    settings |= {"accepted": options.accepted, "step_repeats": options.step_repeats}
    run = Run(bench.run.folder / "rounds", settings, key=lambda row: (row["arm"], row["context"]))
    arms = [arm for arm in bench.arms if arm.runs_our_loop]
    jobs = [
        (arm, length)
        for turn, length in enumerate(options.context)
        for arm in [*rotated(arms, turn), None]
        if (arm.text if arm else FORWARDS, length) not in run.records[PROFILES]
    ]
    if jobs:
        run.begin_session(timed=True, warnings=warnings)
        model = bench.model
        text = "\n\n".join(question.turns[0] for question in questions)
        for arm, length in tqdm(jobs, desc="rounds by context"):
            prompt = context_prompt(model, text, length)
            run.add(
                PROFILES, measure(model, arm, prompt, sampling.sampling(), options.step_repeats)
            )
    names = [*(arm.text for arm in arms), FORWARDS]
    records = [run.records[PROFILES][name, n] for n in options.context for name in names]
    rows, single = round_rows(records), single_rows(records)
    parts = ["Rounds, in milliseconds:", markdown_table(rows, ROUND)]
    parts += ["Single forwards, measured in turn:", markdown_table(single, SINGLE), NOTES]
    further = {"rounds": rows, "forwards": single}
    print(report_bench(bench, extra="\n\n".join(parts), further=further))


def measure(
    model: Model, arm: Arm | None, prompt: list[int], sampling: SamplingConfig, repeats: int
) -> dict:
    """An arm's profile, or without one the single forwards."""
    record = {"arm": arm.text if arm else FORWARDS, "context": len(prompt)}
    if arm is None:
        return record | {"seconds": time_forwards(model, prompt, repeats)}
    return record | profile_arm(arm, model, prompt, sampling)


def context_prompt(model: Model, text: str, length: int) -> list[int]:
    """A user turn of the text over and over, its beginning cut off."""
    while len(ids := model.prompt_ids(text)) < length:
        text += "\n\n" + text
    return ids[-length:]
