"""A speed run: a bench of all arms, then rounds profiled and single forwards timed by context.

OUTPUT/           the bench's folder (evaluation/bench.py): answers timed without a clock inside
OUTPUT/rounds/    a run folder too: a record an arm and context, and one of single forwards
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

from tqdm import tqdm

from eagle_fsd.arms import PLAIN, Arm
from eagle_fsd.cli import ModelOptions, SamplingOptions
from eagle_fsd.config import BadInput, SamplingConfig
from eagle_fsd.decoding.rule import Guard, Rule, State
from eagle_fsd.decoding.rule import Path as TreePath
from eagle_fsd.decoding.verified import VerifiedTree
from eagle_fsd.evaluation.bench import FREE, Bench, rotated
from eagle_fsd.evaluation.bench_options import SpeedOptions
from eagle_fsd.evaluation.questions import read_questions
from eagle_fsd.evaluation.report.report_tables import report_bench
from eagle_fsd.evaluation.tables import Column, columns, markdown_table
from eagle_fsd.models.load import load_target_config
from eagle_fsd.models.random_weights import PREFIX
from eagle_fsd.runs.folder import Run
from eagle_fsd.speed.forwards import forward_rows, rows_needed, time_forwards
from eagle_fsd.speed.profiled import ROUND_PHASES, profile_arm
from eagle_fsd.timing import check_one_process, check_timing_alone

RANDOM_PATTERN = (0, 1, 2, 3)  # 2.5 tokens a round
PROFILES = "profiles"  # file of records
FORWARDS = "forwards"  # in the place of an arm
ROUND: tuple[Column, ...] = (
    *columns(arm="s", context="d", ms_per_round=".2f"),
    ("break-even", "round_vs_plain", ".2f"),
    *columns(**dict.fromkeys(ROUND_PHASES, ".2f"), start=".0f"),
    ("peak MiB", "peak_mebibytes", ".1f"),
)
SINGLE = columns(context="d", forward="s", median_ms=".2f", min_ms=".2f", median_vs_first=".2f")
NOTES = """\
- ms/round: without a clock. break-even: the same over plain's, so the tokens a round at which the
  arm is as fast as plain.
- propose to host, in milliseconds: the device is waited for at every phase. start: prefill and the
  first round, with the head's run over the prompt, which the others leave out.
- peak MiB: what torch's allocator gave out in prefill and the first rounds of an answer, above what
  was there before."""


@dataclass(frozen=True)
class Pattern(Rule):
    """A fixed acceptance pattern in the place of a rule's own decisions: engine time, no quality.

    Random weights accept what chance gives. So that they commit what a trained head would, the rule
    does all its work, and its time counts; then drafts are accepted as the pattern says, round by
    round and from its start again, clipped to the tree's depth.
    """

    rule: Rule
    accepted: tuple[int, ...]

    # what accept() asks of a rule; divergence, law and chances are not asked of a pattern
    columns = property(lambda self: self.rule.now(self.rule.start()).columns)
    ahead = property(lambda self: self.rule.now(self.rule.start()).ahead)

    def check(self, sampling: SamplingConfig, draft_vocab_size: int | None) -> None:
        self.rule.check(sampling, draft_vocab_size)

    def start(self) -> State:
        return 0, self.rule.start()

    def choose(self, tree: VerifiedTree, state: State) -> TreePath:
        rounds, of_rule = state
        self.rule.choose(tree, of_rule)
        count = self.accepted[rounds % len(self.accepted)]
        return pattern_path(tree.parents, tree.depths, count)

    def after(self, tree: VerifiedTree, path: TreePath, state: State) -> State:
        rounds, of_rule = state
        return rounds + 1, self.rule.after(tree, path, of_rule)

    def tv(self, tree: VerifiedTree, v: int) -> float:
        return 0.0


def kept(arm: Arm) -> tuple[Guard, ...]:
    """The arm's guards, without those that would cut a pattern short."""
    return tuple(guard for guard in arm.guards if guard.cut is None)


def pattern_path(parents: Sequence[int], depths: Sequence[int], accepted: int) -> TreePath:
    """The first `accepted` drafts of the path to the first of the deepest nodes, after the root.

    Example: parents 0 0 0 2 3, depths 0 1 1 2 3 and 2 accepted drafts give [0, 2, 3].
    """
    path = [max(range(len(depths)), key=depths.__getitem__)]
    while path[-1] != 0:
        path.append(parents[path[-1]])
    return path[::-1][: accepted + 1]


def run_speed(
    options: SpeedOptions, sampling: SamplingOptions, model_options: ModelOptions
) -> None:
    """Answer and measure what is missing, and report.

    Raises:
        BadInput: what Bench refuses; several processes; a context that leaves no room.
    """
    check_one_process()
    if model_options.target.startswith(PREFIX):
        options.accepted = options.accepted or list(RANDOM_PATTERN)
    most = getattr(load_target_config(model_options.target), "max_position_embeddings", None)
    needed = max(options.context, default=0) + rows_needed(options.step_repeats)
    if most is not None and needed > most:
        raise BadInput(
            f"--context {max(options.context)} needs {needed} positions with the measurements "
            f"after it, the target has {most}: shorten it, or lower --step_repeats"
        )
    name = f"Speed on {Path(options.question_file).name or 'MT-Bench'}"
    questions = options.choose(read_questions(options.question_file))
    bench = Bench(name, "speed", questions, options, sampling, model_options, free={"context"})
    if options.accepted:
        pattern = tuple(options.accepted)
        bench.name += f" (engine time, no quality: accepted drafts {pattern} in turn)"
        bench.arms = [
            replace(arm, rule=Pattern(arm.rule, pattern), guards=kept(arm)) if arm.drafts else arm
            for arm in bench.arms
        ]
    bench.answer_all()
    place, key = bench.run.folder / "rounds", itemgetter("arm", "context")
    run = Run(place, bench.run.settings, free=FREE | {"context"}, key=key)
    arms = [arm for arm in bench.arms if arm.runs_our_loop]
    jobs = [
        (arm, length)
        for turn, length in enumerate(options.context)
        for arm in [*rotated(arms, turn), None]
        if (arm.text if arm else FORWARDS, length) not in run.records[PROFILES]
    ]
    if jobs:
        _measure(run, bench, jobs, sampling.sampling(), options.step_repeats)
    found = run.records[PROFILES]
    rows = round_rows([found[arm.text, length] for length in options.context for arm in arms])
    single = [
        {"context": length} | row
        for length in options.context
        for row in forward_rows(found[FORWARDS, length]["seconds"])
    ]
    parts = ["Rounds, in milliseconds:", markdown_table(rows, ROUND)]
    parts += ["Single forwards, measured in turn:", markdown_table(single, SINGLE), NOTES]
    further = {"rounds": rows, "forwards": single}
    print(report_bench(bench, extra="\n\n".join(parts), further=further))


def _measure(
    run: Run,
    bench: Bench,
    jobs: list[tuple[Arm | None, int]],
    sampling: SamplingConfig,
    repeats: int,
) -> None:
    """Add a profile an arm and context, or for no arm the single forwards."""
    run.begin_session(timed=True, warnings=check_timing_alone(bench.model_options.device))
    text = "\n\n".join(question.turns[0] for question in bench.questions)
    for arm, length in tqdm(jobs, desc="rounds by context"):
        # a user turn of the text over and over, its beginning cut off
        while len(prompt := bench.model.prompt_ids(text)) < length:
            text += "\n\n" + text
        prompt = prompt[-length:]
        record = {"arm": arm.text if arm else FORWARDS, "context": length}
        if arm:
            record |= profile_arm(arm, bench.model, prompt, sampling)
        else:
            record["seconds"] = time_forwards(bench.model, prompt, repeats)
        run.add(PROFILES, record)


def round_rows(records: list[dict]) -> list[dict]:
    """What an average round of every arm costs in every context; see ROUND."""
    rows = []
    for record in records:
        count = record["rounds"] or None  # one draft may have filled the answer
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
