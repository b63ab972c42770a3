"""Calibrate: which parameter of a rule keeps to a stated cost on your prompts, and what it brings.

    python evaluate/calibrate.py --question_file mine.jsonl --cost 0.03
    python evaluate/calibrate.py --arms path:{0.2,0.5,0.77,1.25}@hybrid --verify 4

Half of the questions are answered once, by exact; at every round each arm is asked what it would
do, which predicts its tokens per round, its fuzzy share and its cost. The arm of most tokens per
round within the tolerated cost is chosen (of equals the cheapest) and measured on the other half,
as are others over the range if --verify is above 1. Both are printed, with a warning if the chosen
one costs more there than is tolerated. A killed run continues where it was: run the same command
again. Arms, questions and the cost may change.
"""

from eagle_fsd.cli import ModelOptions, SamplingOptions, run_command
from eagle_fsd.evaluation.calibrate import CalibrateOptions, run_calibration


def main(arguments: list[str] | None = None) -> None:
    run_command(run_calibration, [CalibrateOptions, SamplingOptions, ModelOptions], arguments)


if __name__ == "__main__":
    main()
