"""Speed: all arms interleaved in one process, and where a round's time and memory go.

    python evaluate/speed.py                                 # embedded target, 16 MT-Bench turns
    python evaluate/speed.py --arms plain exact@eagle:{7x3x4,15x4x6} fsd:0.4@eagle:7x3x4
    python evaluate/speed.py --arms plain exact --context 500 4000 7900    # long contexts
    python evaluate/speed.py --target random:llama-3.1-8b --arms plain exact    # a shape's forwards

First a bench of the questions' first turns (evaluate/mt_bench.py), no clock inside; then at every
--context rounds are profiled (milliseconds by phase, peak memory) and single forwards timed, in
OUTPUT/rounds/, a run folder too, and from these come the prices of the tree for this machine. A
target random:SHAPE has random weights, of llama-3.1-8b or any config.json, and a head random:eagle
or random:eagle3:DRAFT_TOKENS: of these only the forwards mean something, since whether such drafts
are accepted is chance. A killed run continues where it was: run the same command again. More
questions, choices, arms or contexts may be added.
"""

from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from eagle_fsd.cli import run_command
from eagle_fsd.config import DEFAULT_ARM, BadInput, check_least
from eagle_fsd.evaluation.questions import cut, read_questions, spread
from eagle_fsd.options import (
    BenchOptions,
    ModelOptions,
    QuestionOptions,
    SamplingOptions,
    option,
    other_default,
)

NOTES = """\
- ms/round is measured without a clock inside the round. break-even is the arm's ms/round over
  plain's, which is the tokens per round at which the arm is as fast as plain.
- The columns from propose to host are the milliseconds of a round's phases, for which the device is
  waited for after each. start is prefill and the first round, with the head's run over the prompt,
  which the other columns leave out.
- text, among the forwards, is what eagle_fsd.stream does for the text of a plain round; no arm's
  tokens a second have it.
- peak MiB is what torch's allocator gave out in prefill and the first rounds of an answer, above
  what was there before."""


@dataclass
class SpeedOptions(BenchOptions, QuestionOptions):
    arms: list[str] = other_default(
        BenchOptions,
        "arms",
        ["generate", "plain", "exact", DEFAULT_ARM, "exact@hybrid", "exact@ngram"],
    )
    turns: int = other_default(BenchOptions, "turns", 1)
    num_choices: int = other_default(BenchOptions, "num_choices", 3)
    context: list[int] = option(
        [200],
        "The lengths of prompts, in tokens, at which rounds are profiled and forwards timed.",
        may_change=True,
    )

    def __post_init__(self):
        super().__post_init__()
        check_least(self, "--", context=2)
        if self.questions is None and not self.question_file:
            self.questions = 16
        self.context = sorted(set(self.context))


def run_speed(
    options: SpeedOptions, sampling: SamplingOptions, model_options: ModelOptions
) -> None:
    from eagle_fsd.evaluation.bench import Bench
    from eagle_fsd.evaluation.report.write_report import report_bench
    from eagle_fsd.evaluation.tables import columns, markdown_table
    from eagle_fsd.models.load import load_target_config
    from eagle_fsd.runs.folder import Run
    from eagle_fsd.speed.forwards import ROWS_NEEDED
    from eagle_fsd.speed.rounds import ROUND_PHASES, price_lines, profile_contexts
    from eagle_fsd.timing import check_one_process

    check_one_process()
    # a context must leave room for the measurements after it, which come after the whole bench
    most = getattr(load_target_config(model_options.target), "max_position_embeddings", None)
    if most is not None and options.context[-1] + ROWS_NEEDED > most:
        raise BadInput(
            f"--context {options.context[-1]} and the {ROWS_NEEDED} positions of the measurements "
            f"after it are more than the target's {most}: shorten it"
        )
    questions = cut(spread(read_questions(options.question_file), options.questions), options.turns)
    name = f"Speed on {Path(options.question_file).name or 'MT-Bench'}"
    bench = Bench(name, "speed", questions, options, sampling, model_options)
    bench.answer_all()
    rounds, single = profile_contexts(
        Run(
            bench.run.folder / "rounds",
            bench.run.settings,
            free=bench.run.free,
            key=itemgetter("arm", "context"),
        ),
        lambda: bench.model,
        [arm for arm in bench.arms if arm.runs_our_loop],
        options.context,
        "\n\n".join(question.turns[0] for question in bench.questions),
        sampling.sampling(),
        device=model_options.device,
    )
    of_round = [
        *columns(arm="s", context="d", ms_per_round=".2f"),
        ("break-even", "round_vs_plain", ".2f"),
        *columns(**dict.fromkeys(ROUND_PHASES, ".2f"), start=".0f"),
        ("peak MiB", "peak_mebibytes", ".1f"),
    ]
    of_forward = columns(
        context="d", forward="s", median_ms=".2f", min_ms=".2f", median_vs_first=".2f"
    )
    parts = ["Rounds, in milliseconds:", markdown_table(rounds, of_round)]
    parts += ["Single forwards in milliseconds, measured in turn:"]
    parts += [markdown_table(single, of_forward), NOTES, *price_lines(rounds, single)]
    further = {"rounds": rounds, "forwards": single}
    print(report_bench(bench, extra="\n\n".join(parts), further=further))


def main(arguments: list[str] | None = None) -> None:
    run_command(run_speed, [SpeedOptions, SamplingOptions, ModelOptions], arguments)


if __name__ == "__main__":
    main()
