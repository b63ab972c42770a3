"""MT-Bench: plain decoding against EAGLE-2 against FSD in EAGLE-2, interleaved in one process.

    python evaluate/mt_bench.py                                  # embedded target, 8 questions
    python evaluate/mt_bench.py --questions 80 --thresholds 0.1 0.2 0.3 --output runs/mt_bench_80
    python evaluate/mt_bench.py --question_file question.jsonl   # Spec-Bench, EAGLE's sets, yours

Every question is answered by every arm, all turns; the next turn continues the arm's own answer.
In the output folder: records/ARM.jsonl (tokens, times, rounds), answers/ARM.jsonl (in
FastChat's answer format), traces/ARM.jsonl (with --traces), run.json, and the summary as md, json,
csv and png. A killed run continues where it was: run the same command again. More questions, arms,
thresholds, choices or traces may be added. A launcher (`accelerate launch --config_file
scripts/accelerate/ddp.yaml`, on a CPU with ACCELERATE_USE_CPU=true) shares the questions out over
processes: the same answers, no speeds.
"""

from dataclasses import dataclass
from pathlib import Path

from eagle_fsd.evaluation.bench import Bench
from eagle_fsd.evaluation.bench_options import BenchOptions
from eagle_fsd.evaluation.bench_report import report_bench
from eagle_fsd.evaluation.questions import read_questions
from eagle_fsd.models.assets import mt_bench_dir
from eagle_fsd.models.model_options import DecodeOptions, ModelOptions, option
from eagle_fsd.runs.command import run_command


@dataclass
class MTBenchOptions(BenchOptions):
    output: str = option("runs/mt_bench", "folder of the run")
    question_file: str = option("", "question.jsonl in FastChat's format; empty: MT-Bench")
    published_tau: float = option(0.0, "tokens_per_round from a paper, printed beside; 0: none")


def run_mt_bench(
    options: MTBenchOptions, decoding: DecodeOptions, model_options: ModelOptions
) -> None:
    arms = options.build_arms(decoding)
    questions = read_questions(options.question_file or mt_bench_dir() / "question.jsonl")
    name = Path(options.question_file).name or "MT-Bench"
    questions = options.choose(questions, model_options.device)
    bench = Bench(name, "mt_bench", arms, questions, options, decoding, model_options)
    bench.answer_all()
    if bench.processes.is_main:
        print(report_bench(bench, published_tau=options.published_tau))


def main(arguments: list[str] | None = None) -> None:
    run_command(run_mt_bench, [MTBenchOptions, DecodeOptions, ModelOptions], arguments)


if __name__ == "__main__":
    main()
