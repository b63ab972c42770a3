"""MT-Bench: plain decoding against EAGLE-2 against FSD in EAGLE-2, interleaved in one process.

    python evaluate/mt_bench.py                                  # embedded target, 8 questions
    python evaluate/mt_bench.py --questions 80 --output runs/mt_bench_80 \\
        --arms plain exact fsd:{0.3,0.4},child={draft,target} path exact@eagle:7x3x4
    python evaluate/mt_bench.py --question_file question.jsonl   # Spec-Bench, EAGLE's sets, yours

What is written is in eagle_fsd/evaluation/bench.py. A killed run continues where it was: run the
same command again. More questions, arms or choices may be added, so that an ablation is a
run with more arms; another temperature is another run, and evaluate/report.py joins them. With a
launcher (`accelerate launch --config_file scripts/accelerate/ddp.yaml`, on a CPU with
ACCELERATE_USE_CPU=true) processes share the questions: the same answers, no speeds.
"""

from dataclasses import dataclass
from pathlib import Path

from eagle_fsd.cli import run_command
from eagle_fsd.evaluation.questions import asked, cut
from eagle_fsd.options import BenchOptions, ModelOptions, QuestionOptions, SamplingOptions


@dataclass
class MTBenchOptions(BenchOptions, QuestionOptions):
    """The bench's options, on the questions of a file."""


def run_mt_bench(
    options: MTBenchOptions, sampling: SamplingOptions, model_options: ModelOptions
) -> None:
    from eagle_fsd.evaluation.bench import Bench
    from eagle_fsd.evaluation.report.write_report import report_bench

    questions = asked(options, of_mt_bench=8 if model_options.device == "cpu" else None)
    questions = cut(questions, options.turns)
    name = Path(options.question_file).name or "MT-Bench"
    bench = Bench(name, "mt_bench", questions, options, sampling, model_options)
    if options.plan:
        print(bench.plan())
        return
    bench.answer_all()
    if bench.processes.is_main:
        print(report_bench(bench))


if __name__ == "__main__":
    run_command(run_mt_bench, [MTBenchOptions, SamplingOptions, ModelOptions])
