"""Speed: where a round's time and memory go, by arm and length of the prompt.

    python evaluate/speed.py                                               # embedded target
    python evaluate/speed.py --arms plain exact --context 500 4000 7900    # long contexts
    python evaluate/speed.py --target random:llama-3.1-8b --arms plain exact    # a shape's forwards

At every --context rounds are profiled (milliseconds by phase, peak memory) and single forwards
timed, and from these come the prices of the tree for this machine; tokens a second are
evaluate/mt_bench.py's. A target random:SHAPE has random weights, of llama-3.1-8b or any
config.json, and a head random:eagle or random:eagle3:DRAFT_TOKENS: whether such drafts are accepted
is chance. A killed run continues where it was: run the same command again. More arms or contexts
may be added.
"""

from dataclasses import dataclass
from functools import cache
from operator import itemgetter

from eagle_fsd.cli import run_command
from eagle_fsd.config import DEFAULT_ARM, BadInput, check_least
from eagle_fsd.evaluation.questions import read_questions
from eagle_fsd.options import FolderOptions, ModelOptions, SamplingOptions, option

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
class SpeedOptions(FolderOptions):
    arms: list[str] = option(
        ["plain", "exact", DEFAULT_ARM, "exact@hybrid", "exact@ngram"], may_change=True
    )
    """The arms whose rounds are profiled; see docs/evaluate.md."""
    context: list[int] = option([200], may_change=True)
    """The lengths of prompts, in tokens, at which rounds are profiled and forwards timed."""

    def __post_init__(self):
        check_least(self, "--", context=2)
        self.context = sorted(set(self.context))


def run_speed(
    options: SpeedOptions, sampling_options: SamplingOptions, model_options: ModelOptions
) -> None:
    from eagle_fsd.arms import parse_arms
    from eagle_fsd.evaluation.tables import columns, markdown_table
    from eagle_fsd.models.load import load_target_config
    from eagle_fsd.runs.folder import Run
    from eagle_fsd.speed.forwards import ROWS_NEEDED
    from eagle_fsd.speed.rounds import ROUND_PHASES, price_lines, profile_contexts
    from eagle_fsd.timing import check_one_process

    # 1. What needs no weights is checked: a context must leave room for the measurements after it.
    check_one_process()
    most = getattr(load_target_config(model_options.target), "max_position_embeddings", None)
    if most is not None and options.context[-1] + ROWS_NEEDED > most:
        raise BadInput(
            f"--context {options.context[-1]} and the {ROWS_NEEDED} positions of the measurements "
            f"after it are more than the target's {most}: shorten it"
        )
    arms, sampling = parse_arms(options.arms, tree=model_options.tree), sampling_options.sampling()
    for arm in arms:
        arm.check_answers()
        arm.check(sampling)
    # 2. What the run lacks is measured.
    run = Run.of(
        *(options, sampling_options, model_options),
        further={"command": "speed"} | model_options.digests(),
        name="speed",
        key=itemgetter("arm", "context"),
    )
    turns = [question.turns[0] for question in read_questions("")]  # MT-Bench's
    rounds, single = profile_contexts(
        run,
        cache(lambda: model_options.load(arms, date=run.date, keep_stock=True)),
        arms,
        options.context,
        "\n\n".join(turns),
        sampling,
        device=model_options.device,
    )
    # 3. The tables.
    of_round = [
        *columns(arm="s", context="d", ms_per_round=".2f"),
        ("break-even", "round_vs_plain", ".2f"),
        *columns(**dict.fromkeys(ROUND_PHASES, ".2f"), start=".0f"),
        ("peak MiB", "peak_mebibytes", ".1f"),
    ]
    of_forward = columns(
        context="d", forward="s", median_ms=".2f", min_ms=".2f", median_vs_first=".2f"
    )
    last = run.sessions[-1]
    title = f"{model_options.target} in {model_options.dtype}; {last['device']}, {last['commit']}"
    parts = [title, "Rounds, in milliseconds:", markdown_table(rounds, of_round)]
    parts += ["Single forwards in milliseconds, measured in turn:"]
    parts += [markdown_table(single, of_forward), NOTES, *price_lines(rounds, single)]
    text = "\n\n".join(parts) + "\n"
    run.report("speed", text, rounds=rounds, forwards=single)


if __name__ == "__main__":
    run_command(run_speed, [SpeedOptions, SamplingOptions, ModelOptions])
