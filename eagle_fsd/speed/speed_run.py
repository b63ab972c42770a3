"""A speed run: all arms interleaved in one process, into a folder that a killed run goes on with.

What is kept in the folder's records, a line an answer (runs/folder.py):

    ARM.jsonl        choice 0, 1, ..: the timed answers, by repeat; choice -1: profiled ones
    forwards.jsonl   single forwards, a line a context
    machine.jsonl    a line a process: threads, load, bandwidth, engine, seconds of first answers
"""

import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from tqdm import tqdm

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.arms import Arm, parse_arms
from eagle_fsd.evaluation.questions import (
    Question,
    check_same_questions,
    question_digests,
    read_questions,
    spread,
)
from eagle_fsd.models.assets import mt_bench_dir
from eagle_fsd.models.load import load_target_config
from eagle_fsd.models.loaded import Model
from eagle_fsd.models.model_options import ModelOptions, SamplingOptions
from eagle_fsd.models.random_weights import PREFIX
from eagle_fsd.runs.folder import Run
from eagle_fsd.speed.forwards import rotated, rows_needed, time_forwards
from eagle_fsd.speed.quiet import check_timing_alone, describe_machine
from eagle_fsd.speed.roofline import measure_bandwidth
from eagle_fsd.speed.speed_options import EXTENDABLE, SpeedOptions
from eagle_fsd.speed.speed_report import FORWARDS, MACHINE, PROFILED, context_id, report
from eagle_fsd.speed.timed_arms import Prompt, TimedArms
from eagle_fsd.speed.tree_choice import choose_tree

RANDOM_PATTERN = (0, 1, 2, 3)  # 2.5 tokens a round


@dataclass(frozen=True)
class Job:
    """One answer to be made: by an arm to a question, timed in a repeat or profiled."""

    arm: Arm
    question_id: int | str
    repeat: int


def run_speed(
    options: SpeedOptions, sampling: SamplingOptions, model_options: ModelOptions
) -> None:
    """Measure what is missing, and report."""
    arms = check(options, sampling, model_options)
    every = read_questions(options.question_file or mt_bench_dir() / "question.jsonl")
    questions = spread(every, options.prompts)
    machine = describe_machine()  # before this process is at work itself
    settings = {"command": "speed"}
    settings |= asdict(options) | asdict(sampling) | asdict(model_options)
    settings |= {key: machine[key] for key in ("threads", "wait_policy")}
    run = Run(options.output, settings, free=EXTENDABLE)
    for records in run.records.values():
        check_same_questions(records.values(), questions)
    todo = list(missing_jobs(run, options, arms, [q.question_id for q in questions]))
    lengths = [n for n in options.context if (context_id(n), 0) not in run.records[FORWARDS]]
    skipped: dict[str, str] = {}
    if todo or lengths:
        found = check_timing_alone(model_options.device)
        for warning in found:
            print(f"warning: {warning}", file=sys.stderr)
        run.begin_session(timed=True, warnings=found)
        keep_stock = any(not arm.runs_our_loop for arm in arms)
        drafts = any(arm.drafts and arm.drafter.needs_head for arm in arms)
        model = model_options.load(drafts=drafts, keep_stock=keep_stock)
        timed = TimedArms(
            model,
            {arm.text: with_chosen_tree(model, arm, options, run) for arm in arms},
            sampling.sampling(),
            seed=sampling.seed,
            max_new_tokens=options.max_new_tokens,
            accepted=tuple(options.accepted),
        )
        prompts = question_prompts(model, questions)
        longest = max(prompts.values(), key=lambda prompt: len(prompt.ids))
        machine["first_answer_seconds"] = timed.warm_up(longest)
        machine["engine"] = model.target.engine.name
        machine["bandwidth"] = measure_bandwidth(model.target.device)
        add(run, MACHINE, f"session {len(run.sessions)}", machine)
        prompts |= context_prompts(model, every, options.context)
        answer(run, timed, prompts, todo)
        for length in lengths:
            key = context_id(length)
            seconds = time_forwards(model, prompts[key].ids, options.step_repeats)
            add(run, FORWARDS, key, {"seconds": seconds, "context": length})
        skipped = timed.skipped
    run.finish()
    report(
        run,
        options,
        model_options,
        arms=[arm for arm in arms if arm.text not in skipped],
        asked=[question.question_id for question in questions],
        skipped=skipped,
    )


def check(
    options: SpeedOptions, sampling: SamplingOptions, model_options: ModelOptions
) -> list[Arm]:
    """The arms; a target of random weights gets its pattern.

    Raises:
        BadInput: an arm that is none, or contexts that leave no room for an answer.
    """
    arms = parse_arms(options.arms)
    # all of this before weights load
    for arm in arms:
        arm.check(sampling.sampling())
    if model_options.target.startswith(PREFIX):
        options.accepted = options.accepted or list(RANDOM_PATTERN)
    most = getattr(load_target_config(model_options.target), "max_position_embeddings", None)
    for length in options.context:
        needed = length + max(options.max_new_tokens, rows_needed(options.step_repeats))
        if most is not None and needed > most:
            raise BadInput(
                f"--context {length} needs {needed} positions with the tokens after it, the "
                f"target has {most}: shorten it, or lower --max_new_tokens or --step_repeats"
            )
    return arms


def missing_jobs(
    run: Run, options: SpeedOptions, arms: list[Arm], asked: list[int | str]
) -> Iterator[Job]:
    """What is still to be measured, prompt by prompt with the arms rotated: the timed repeats, each
    begun by another arm, then the profiled answers."""
    contexts = [context_id(length) for length in options.context]
    passes = [(repeat, asked) for repeat in range(options.repeats)]
    passes.append((PROFILED, asked[: options.profile_prompts] + contexts))
    for repeat, keys in passes:
        for number, key in enumerate(keys, start=repeat):
            for arm in rotated(arms, number):
                if (key, repeat) not in run.records[arm.slug]:
                    yield Job(arm, key, repeat)


def question_prompts(model: Model, questions: list[Question]) -> dict[int | str, Prompt]:
    """The questions' first turns, by question_id."""
    return {
        q.question_id: Prompt(
            q.question_id, q.category, model.prompt_ids(q.turns[0]), question_digests(q)[:2]
        )
        for q in questions
    }


def context_prompts(
    model: Model, questions: list[Question], lengths: list[int]
) -> dict[int | str, Prompt]:
    """For every length a user turn of all questions over and over, its beginning cut off."""
    prompts, text = {}, "\n\n".join(question.turns[0] for question in questions)
    for length in lengths:
        times = 1
        while len(ids := model.prompt_ids("\n\n".join([text] * times))) < length:
            times *= 2
        prompts[context_id(length)] = Prompt(context_id(length), "context", ids[-length:])
    return prompts


def with_chosen_tree(model: Model, arm: Arm, options: SpeedOptions, run: Run) -> Arm:
    """An arm of an `auto` tree with its tree: what its records have, else chosen now."""
    if arm.tree != "auto":
        return arm
    known = next(iter(run.records[arm.slug].values()), None)
    if known is not None:
        return arm.with_tree(known["tree"])
    choice = choose_tree(model, arm.rule, hold_fuzzy_share=options.hold_fuzzy_share)
    print(f"{arm.text}: {choice.text}", file=sys.stderr)
    return arm.with_tree(choice.tree)


def answer(run: Run, timed: TimedArms, prompts: dict[int | str, Prompt], todo: list[Job]) -> None:
    """Make the records, one answer after the other."""
    todo = [job for job in todo if job.arm.text in timed.arms]
    bar = tqdm(todo, unit="answer", desc="speed")
    for job in bar:
        name, prompt = job.arm.text, prompts[job.question_id]
        bar.set_postfix_str(f"{job.question_id}, {name}")
        if job.repeat == PROFILED:
            found = {"turns": [], "profile": timed.profiled(name, prompt)}
        else:
            found = {"turns": [timed.timed(name, prompt)]}
        found |= {"category": prompt.category, "question": prompt.digests}
        found["tree"] = timed.tree(name)
        add(run, name, job.question_id, found, choice=job.repeat, file=job.arm.slug)


def add(
    run: Run, arm: str, key: int | str, found: dict, *, choice: int = 0, file: str = ""
) -> None:
    """Add a record, with what every record of a run has."""
    record = {"question_id": key, "choice": choice, "arm": arm, "turns": []}
    record |= {"answer_id": uuid.uuid4().hex, "tstamp": time.time()}
    run.add(file or arm, record | found)
