"""Tasks with right answers: GSM8K, IFEval, HumanEval and others, by all arms, scored and compared.

    python evaluate/tasks.py --task gsm8k:test.jsonl --questions 200 --arms plain exact fsd:0.4
    python evaluate/tasks.py --task ifeval:input_data.jsonl --output runs/ifeval
    python evaluate/tasks.py --task humaneval --execute_code
    python evaluate/tasks.py --task question.jsonl --scorer contains --turns 1
    python evaluate/tasks.py --task humaneval --execute_code --output runs/humaneval --rescore

The output folder is that of evaluate/mt_bench.py, and continues like it; added are
scores/ARM.jsonl and the table as scores/table.md and table.json. `--rescore` makes these again
from the records that are there, with any scorer and without a model.
"""

from dataclasses import dataclass
from pathlib import Path

from eagle_fsd.cli import run_command
from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.questions import check_same_questions, cut, spread
from eagle_fsd.options import BenchOptions, ModelOptions, SamplingOptions, option
from eagle_fsd.tasks.humaneval import NO_SANDBOX
from eagle_fsd.tasks.scorers import SCORERS, SOURCES, check_scorable, read_task


@dataclass
class TaskOptions(BenchOptions):
    task: str = option("", f"The task: {SOURCES}.")
    scorer: str = option(
        "",
        f"The scorer: one of {', '.join(SCORERS)}. Empty: the task's usual one.",
        may_change=True,
    )
    execute_code: bool = option(
        False, f"Let the scorer humaneval run what the target wrote. {NO_SANDBOX}", may_change=True
    )
    rescore: bool = option(False, may_change=True)
    """Score the records of --output again; no model is loaded."""
    max_new_tokens: int = 256

    def __post_init__(self):
        super().__post_init__()
        if not self.task:
            raise BadInput(f"--task is missing: give {SOURCES}")
        if self.rescore and not self.output:
            raise BadInput("--rescore needs --output, the folder of the run that is scored again")


def run_task(options: TaskOptions, sampling: SamplingOptions, model_options: ModelOptions) -> None:
    from eagle_fsd.evaluation.bench import Bench
    from eagle_fsd.evaluation.report.write_report import report_bench
    from eagle_fsd.runs.folder import records_by_arm
    from eagle_fsd.tasks.task_scores import score_run

    questions, usual = read_task(options.task)
    scorer = options.scorer or usual
    count = None if options.rescore else options.questions  # rescored are all that were answered
    questions = cut(spread(questions, count), options.turns)
    check_scorable(questions, scorer, execute_code=options.execute_code)
    if scorer == "humaneval":
        print(NO_SANDBOX)
    if options.rescore:
        records = records_by_arm(options.output)
        for rows in records.values():
            check_same_questions(rows, questions, turns=1)  # what scorers look at
        print(f"\n{score_run(records, questions, scorer, options.output)[0]}")
        return
    name = Path(options.task.rpartition(":")[2]).name
    run_name, models = Path(options.task.partition(":")[0]).stem, (sampling, model_options)
    bench = Bench(name, "tasks", questions, options, *models, run_name=run_name)
    if options.plan:
        print(bench.plan())
        return
    bench.answer_all()
    if bench.processes.is_main:
        _, scores = score_run(bench.records(), questions, scorer, bench.run.folder)
        print(report_bench(bench, scores=scores, further={"scorer": scorer}))


if __name__ == "__main__":
    run_command(run_task, [TaskOptions, SamplingOptions, ModelOptions])
