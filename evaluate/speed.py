"""Speed: all arms interleaved in one process, and where a round's time and memory go.

    python evaluate/speed.py                                 # embedded target, 16 MT-Bench prompts
    python evaluate/speed.py --arms plain exact@eagle:{7x3x4,auto} fsd:0.4@eagle:7x3x4
    python evaluate/speed.py --arms plain exact --context 500 4000 7900    # long contexts
    python evaluate/speed.py --prompts 4 --repeats 1 --reference_tokens_per_second "llama.cpp=100"
    python evaluate/speed.py --target random:llama-3.1-8b --arms plain fsd:1    # a shape's times

First every arm answers every prompt, in rotated order, --repeats times, no clock inside; then a few
prompts, and one of each --context, are profiled (milliseconds by phase, against the memory
roofline; peak memory; synchronisations), and single forwards are timed. A target random:SHAPE has
random weights, of llama-3.1-8b, qwen3-32b or any config.json, and a head random:eagle or
random:eagle3:DRAFT_TOKENS; --accepted is then how many drafts its rounds accept: engine time, no
quality. In the output folder: speed.md, speed.json, speed.svg and .pdf, and the records that they
are made from. A killed run continues where it was: run the same command again. More prompts,
repeats, arms or contexts may be added.
"""

from eagle_fsd.models.model_options import ModelOptions, SamplingOptions
from eagle_fsd.runs.command import run_command
from eagle_fsd.speed.speed_options import SpeedOptions


def run(options: SpeedOptions, sampling: SamplingOptions, model_options: ModelOptions) -> None:
    from eagle_fsd.speed.speed_run import run_speed

    run_speed(options, sampling, model_options)


def main(arguments: list[str] | None = None) -> None:
    run_command(run, [SpeedOptions, SamplingOptions, ModelOptions], arguments)


if __name__ == "__main__":
    main()
