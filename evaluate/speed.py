"""Speed: all arms interleaved in one process, and where a round's time goes.

    python evaluate/speed.py                                 # embedded target, 16 MT-Bench prompts
    python evaluate/speed.py --trees auto --context 200 4000 7900 --output runs/speed_long
    python evaluate/speed.py --prompts 4 --repeats 1 --reference_tokens_per_second "llama.cpp=100"

Three passes, one after the other: timed (no clock inside, every arm answers every prompt, in
rotated order, --repeats times), profile (few prompts: seconds by phase, peak memory,
synchronisations) and steps (single forwards). In the output folder: speed.md, speed.json,
speed.png, and the rows they are made from. A killed run continues where it was: run the same
command again. More prompts, repeats, arms, trees, thresholds or contexts may be added.
"""

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace

from tqdm import tqdm

from eagle_fsd.api import Model
from eagle_fsd.config import AcceptConfig, BadInput, parse_tree
from eagle_fsd.decoding.loop import StopConfig
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.drafters.lookup import LookupDrafter
from eagle_fsd.evaluation.arms import BASELINES, COMPILED, Arm
from eagle_fsd.evaluation.questions import Question, read_questions, spread
from eagle_fsd.models.assets import mt_bench_dir
from eagle_fsd.models.load import load_target_config
from eagle_fsd.models.model_options import DecodeOptions, ModelOptions, option
from eagle_fsd.runs.command import run_command
from eagle_fsd.speed.machine import describe_machine
from eagle_fsd.speed.profiling import profile_answer
from eagle_fsd.speed.quiet import check_timing_alone
from eagle_fsd.speed.schedule import Job, context_key, jobs, profile_file, record_file
from eagle_fsd.speed.speed_folder import SpeedFolder
from eagle_fsd.speed.speed_report import report
from eagle_fsd.speed.steps import context_rows, measure_steps
from eagle_fsd.speed.throughput import timed_answer
from eagle_fsd.speed.timed_arms import Contest, Prompt
from eagle_fsd.speed.tree_choice.auto import auto_tree

# Not in a row's settings: what a run may be continued with, although it differs.
EXTENDABLE = (
    *("output", "prompts", "arms", "thresholds", "trees", "repeats"),
    *("profile_prompts", "context", "reference_tokens_per_second"),
)


@dataclass
class SpeedOptions:
    output: str = option("runs/speed", "folder of the run")
    prompts: int = option(16, "how many first turns, over all categories")
    question_file: str = option("", "question.jsonl in FastChat's format; empty: MT-Bench")
    arms: list[str] = field(
        default_factory=lambda: [*BASELINES, COMPILED, "exact", "fsd", "lookup"],
        metadata={"help": "of generate, generate_compiled, plain, exact, fsd, fsd-paper, lookup"},
    )
    thresholds: list[float] = field(
        default_factory=lambda: [0.2, 0.4], metadata={"help": "T of the fsd and fsd-paper arms"}
    )
    trees: list[str] = field(
        default_factory=lambda: [""],
        metadata={
            "help": "an arm for each: drafts x levels x top-k, such as 15x4x6, or auto (chosen for "
            "each rule by measurement); empty: that of --num_draft_tokens and so on"
        },
    )
    lookup_drafts: int = option(10, "drafts of the lookup arm")
    lookup_ngram: int = option(3, "its longest n-gram")
    max_new_tokens: int = option(128, "budget of an answer")
    repeats: int = option(3, "how often every arm answers every prompt")
    profile_prompts: int = option(2, "first prompts that are profiled")
    context: list[int] = field(
        default_factory=lambda: [200],
        metadata={"help": "prompt lengths that are profiled and at which single steps are timed"},
    )
    step_repeats: int = option(20, "measurements of every single step")
    reference_tokens_per_second: list[str] = field(
        default_factory=list, metadata={"help": "NAME=TOKENS/S published elsewhere, shown beside"}
    )

    def __post_init__(self):
        StopConfig(self.max_new_tokens)  # its own check
        for name in ("repeats", "profile_prompts", "step_repeats"):
            if getattr(self, name) < 1:
                raise BadInput(f"--{name} must be at least 1, got {getattr(self, name)}")
        if any(length < 1 for length in self.context):
            raise BadInput(f"--context must be at least 1, got {self.context}")
        if self.profile_prompts > self.prompts:
            raise BadInput(
                f"--profile_prompts {self.profile_prompts} is more than --prompts {self.prompts}"
            )
        self.context = sorted(set(self.context))
        self.references()

    def references(self) -> dict[str, float]:
        """Name -> tokens/s."""
        speeds = {}
        for text in self.reference_tokens_per_second:
            name, _, number = text.rpartition("=")
            try:
                speeds[name] = float(number)
            except ValueError:
                speeds[name] = 0.0
            if not name or not 0 < speeds[name] < float("inf"):
                raise BadInput(
                    f"--reference_tokens_per_second takes NAME=TOKENS_PER_SECOND, got {text!r}"
                )
        return speeds

    def build_arms(self, decoding: DecodeOptions) -> list[Arm]:
        """The arms, checked; every rule gets an arm per threshold and tree."""
        built: list[Arm] = []
        for name in dict.fromkeys(self.arms):
            if name in (*BASELINES, COMPILED):
                built.append(Arm(name))
            elif name == "lookup":
                self._lookup_drafter()  # its own check
                exact = AcceptConfig("exact")
                built.append(Arm(name, exact, make_drafter=lambda _: self._lookup_drafter()))
            else:
                thresholds = [0.0] if name == "exact" else dict.fromkeys(self.thresholds)
                rules = [Arm.with_rule(decoding.accept(name, t)) for t in thresholds]
                built += [r.with_tree(label) for label in dict.fromkeys(self.trees) for r in rules]
        return built

    def _lookup_drafter(self) -> LookupDrafter:
        return LookupDrafter(num_draft_tokens=self.lookup_drafts, max_ngram=self.lookup_ngram)


def check_positions(options: SpeedOptions, target: str) -> None:
    """Refuse contexts that leave no room for an answer, before weights load."""
    most = getattr(load_target_config(target), "max_position_embeddings", None)
    for length in options.context:
        needed = length + max(options.max_new_tokens, context_rows(options.step_repeats))
        if most is not None and needed > most:
            raise BadInput(
                f"--context {length} needs {needed} positions with the tokens after it, the target "
                f"has {most}: shorten it, or lower --max_new_tokens or --step_repeats"
            )


def run_speed(options: SpeedOptions, decoding: DecodeOptions, model_options: ModelOptions) -> None:
    arms = options.build_arms(decoding)
    model_options.tree()
    questions = read_questions(options.question_file or mt_bench_dir() / "question.jsonl")
    questions = spread(questions, options.prompts)
    check_positions(options, model_options.target)
    machine = describe_machine()
    every = asdict(options) | asdict(decoding) | asdict(model_options)
    settings = {key: value for key, value in every.items() if key not in EXTENDABLE}
    settings |= {key: machine[key] for key in ("threads", "wait_policy")}
    folder = SpeedFolder(options.output, settings, machine)
    asked = [question.question_id for question in questions]
    timed = [
        job
        for repeat in range(1, options.repeats + 1)
        for job in jobs(folder, arms, asked, record_file(repeat), first=repeat - 1)
    ]
    places = asked[: options.profile_prompts] + [context_key(n) for n in options.context]
    profiled = jobs(folder, arms, places, profile_file)
    contexts = [length for length in options.context if length not in folder.rows("steps")]
    skipped: dict[str, str] = {}
    if timed or profiled or contexts:
        for warning in check_timing_alone(model_options.device):
            print(f"warning: {warning}", file=sys.stderr)
        folder.open([*dict.fromkeys(file for file, _, _ in timed + profiled), "steps"])
        contest, prompts = prepare(options, decoding, model_options, arms, questions, folder)
        run_jobs(folder, contest, prompts, timed, timed_answer, "timed")
        run_jobs(folder, contest, prompts, profiled, profile_answer, "profile")
        time_steps(options, folder, contest, prompts, contexts)
        skipped = contest.skipped
    report(
        folder,
        [arm.name for arm in arms if arm.name not in skipped],
        asked,
        every,
        skipped,
        options.references(),
    )


def prepare(
    options: SpeedOptions,
    decoding: DecodeOptions,
    model_options: ModelOptions,
    arms: list[Arm],
    questions: list[Question],
    folder: SpeedFolder,
) -> tuple[Contest, dict[int | str, Prompt]]:
    """Load, choose trees, make prompts, warm up."""
    drafts = any(arm.accept and arm.make_drafter is None for arm in arms)
    model = model_options.load(drafts=drafts, keep_stock=True)
    text = "\n\n".join(question.turns[0] for question in questions)
    prompts = {
        q.question_id: Prompt(q.question_id, q.category, model.prompt_ids(q.turns[0]))
        for q in questions
    }
    for length in options.context:
        key = context_key(length)
        prompts[key] = Prompt(key, "context", long_prompt(model, text, length), length)
    contest = Contest(
        model,
        [with_chosen_tree(model, arm, decoding, folder) for arm in arms],
        decoding.sampling(),
        seed=decoding.seed,
        max_new_tokens=options.max_new_tokens,
    )
    longest = max((prompts[q.question_id] for q in questions), key=lambda p: len(p.ids))
    folder.begin_session(model.target.engine.name, contest.warm_up(longest))
    return contest, prompts


def long_prompt(model: Model, text: str, length: int) -> list[int]:
    """A user turn of repeated text, its beginning cut off so that `length` tokens are left."""
    times = 1
    while len(ids := model.prompt_ids("\n\n".join([text] * times))) < length:
        times *= 2
    return ids[-length:]


def with_chosen_tree(model: Model, arm: Arm, decoding: DecodeOptions, folder: SpeedFolder) -> Arm:
    """An arm of an `auto` tree with its tree: what its rows have, else chosen now."""
    if arm.tree_label != "auto":
        return arm
    rows = folder.rows(record_file(1)(arm.name))
    if rows:
        return replace(arm, tree=parse_tree(next(iter(rows.values()))["tree"]))
    choice = auto_tree(model, arm.accept, decoding.sampling())
    print(f"{arm.name}: {choice.text}", file=sys.stderr)
    return replace(arm, tree=choice.tree)


def run_jobs(
    folder: SpeedFolder,
    contest: Contest,
    prompts: dict[int | str, Prompt],
    todo: list[Job],
    make: Callable[[Contest, Arm, Prompt], dict],
    name: str,
) -> None:
    """Make the rows of a pass, one answer after the other."""
    arms = {arm.name: arm for arm in contest.arms}
    todo = [job for job in todo if job[1] in arms]
    bar = tqdm(todo, unit="answer", desc=name)
    for file, arm, key in bar:
        bar.set_postfix_str(f"{key}, {arm}")
        folder.add(file, make(contest, arms[arm], prompts[key]))


def time_steps(
    options: SpeedOptions, folder: SpeedFolder, contest: Contest, prompts: dict, contexts: list[int]
) -> None:
    model = contest.model
    drafter = model.drafter if isinstance(model.drafter, EagleDrafter) else None
    for length in tqdm(contexts, unit="context", desc="steps"):
        ids = prompts[context_key(length)].ids
        seconds = measure_steps(model.target, drafter, ids, options.step_repeats)
        folder.add("steps", {"question_id": length, "seconds": seconds})


def main(arguments: list[str] | None = None) -> None:
    run_command(run_speed, [SpeedOptions, DecodeOptions, ModelOptions], arguments)


if __name__ == "__main__":
    main()
