"""Ablations: a grid of acceptance settings on the same questions, one row a cell.

    python evaluate/ablate.py --axes rule=fsd,fsd-paper divergence=js,tv child=draft,target \
        threshold@js=0.3,0.4 threshold@tv=0.5,0.6 --questions 16 --output runs/ablate
    python evaluate/ablate.py --axes tree=7x3x4,15x4x6,23x5x8 threshold=0.3,0.4
    python evaluate/ablate.py --axes temperature=0.7,1 logits=raw,processed child=draft,sample

Axes: rule, divergence, threshold (the rate, for rule random), logits, child, tree (DRAFTSxLEVELSx
TOPK), temperature, top_p, top_k; what is no axis is set by the option of its name.
AXIS@VALUE=... holds only where another axis has that value. Combinations without a meaning are left
out; plain, generate and exact are added to compare with. The folder is a run's
(evaluate/report.py reads it) with cells.csv and cells.md beside: one row a cell with its whole
configuration. A killed run continues; no cell is answered twice; further values of the axes may be
added.
"""

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from transformers import HfArgumentParser

from eagle_fsd.evaluation.bench import Bench
from eagle_fsd.evaluation.bench_options import RunOptions
from eagle_fsd.evaluation.bench_report import is_timed, report_bench
from eagle_fsd.evaluation.grid import AXES, build_grid, cell_columns
from eagle_fsd.evaluation.metrics import summarize
from eagle_fsd.evaluation.questions import read_questions
from eagle_fsd.evaluation.tables import markdown_table, write_csv
from eagle_fsd.models.assets import mt_bench_dir
from eagle_fsd.models.model_options import DecodeOptions, ModelOptions, option

CELLS = (
    ("arm", "arm", "s"),
    ("tokens/round", "tokens_per_round_interval", ".2f"),
    ("vs exact", "tokens_per_round_vs_exact", ".2f"),
    ("fuzzy share", "fuzzy_share", ".4f"),
    ("ceiling", "ceiling", ".2f"),
    ("regret/token", "regret_per_token_interval", ".3f"),
    ("argmax share - plain", "argmax_share_minus_plain", "+.3f"),
    ("log p - plain", "mean_logp_minus_plain", "+.3f"),
    ("looping", "looping", ".2f"),
)


@dataclass
class AblateOptions(RunOptions):
    axes: list[str] = field(
        default_factory=lambda: ["threshold=0.2,0.3,0.4"],
        metadata={"help": "AXIS=V,V or AXIS@WHERE=V,V; the axes are listed above"},
    )
    output: str = option("runs/ablate", "folder of the run")
    question_file: str = option("", "question.jsonl in FastChat's format; empty: MT-Bench")
    questions: int | None = option(16, "how many, over all categories")
    turns: int = option(1, "turns of each question; 0: all")
    generate_questions: int | None = option(2, "questions that `generate` answers")


def run_ablation(
    options: AblateOptions, decoding: DecodeOptions, model_options: ModelOptions
) -> None:
    base = {key: value for key, value in asdict(decoding).items() if key in AXES}
    arms = build_grid(options.axes, base=base)
    questions = read_questions(options.question_file or mt_bench_dir() / "question.jsonl")
    questions = options.choose(questions, model_options.device)
    name = f"ablation on {Path(options.question_file).name or 'MT-Bench'}"
    extendable = frozenset({"axes"})
    bench = Bench(
        name, "ablate", arms, questions, options, decoding, model_options, extendable=extendable
    )
    bench.answer_all()
    if not bench.processes.is_main:
        return
    tree = model_options.tree()
    columns = {arm.name: cell_columns(arm, tree=tree) for arm in bench.arms}
    rows = summarize(bench.records(), timed=is_timed(bench))
    rows = [{"arm": row["arm"], **columns[row["arm"]], **row} for row in rows]
    write_csv(bench.run.folder / "cells.csv", rows)
    cells = markdown_table(rows, CELLS)
    (bench.run.folder / "cells.md").write_text(f"{cells}\n")
    print(report_bench(bench, extra=f"Cells\n\n{cells}") + ", cells.md, cells.csv")


def main(arguments: list[str] | None = None) -> None:
    parser = HfArgumentParser([AblateOptions, DecodeOptions, ModelOptions])
    try:
        run_ablation(*parser.parse_args_into_dataclasses(arguments))
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
