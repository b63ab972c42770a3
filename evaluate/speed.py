"""Speed: all arms interleaved in one process, and where a round's time and memory go.

    python evaluate/speed.py                                 # embedded target, 16 MT-Bench turns
    python evaluate/speed.py --arms plain exact@eagle:{7x3x4,15x4x6} fsd:0.4@eagle:7x3x4
    python evaluate/speed.py --arms plain exact --context 500 4000 7900    # long contexts
    python evaluate/speed.py --target random:llama-3.1-8b --arms plain fsd:1    # a shape's times

First a bench of the questions' first turns (evaluate/mt_bench.py), no clock inside; then at every
--context rounds are profiled (milliseconds by phase, peak memory) and single forwards timed. A
target random:SHAPE has random weights, of llama-3.1-8b, qwen3-32b or any config.json, and a head
random:eagle or random:eagle3:DRAFT_TOKENS; --accepted is then how many drafts its rounds accept. A
killed run continues where it was: run the same command again. More questions, choices, arms or
contexts may be added.
"""

from eagle_fsd.cli import ModelOptions, SamplingOptions, run_command
from eagle_fsd.evaluation.bench_options import SpeedOptions


def run(options: SpeedOptions, sampling: SamplingOptions, model_options: ModelOptions) -> None:
    from eagle_fsd.speed.speed_run import run_speed

    run_speed(options, sampling, model_options)


def main(arguments: list[str] | None = None) -> None:
    run_command(run, [SpeedOptions, SamplingOptions, ModelOptions], arguments)


if __name__ == "__main__":
    main()
