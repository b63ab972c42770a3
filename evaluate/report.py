"""A report from run folders: tables, pictures, and one page with the answers token by token.

    python evaluate/report.py runs/mt_bench_80
    python evaluate/report.py runs/mt_bench_80 runs/ablation --output runs/report

Takes the folders of mt_bench.py, tasks.py and ablation.py, in any number, and changes nothing in
them; a run that is still being written may be reported on. In the output folder: index.html (opens
from the disk, needs no network), report.md, report.json, tables/*.csv, plots/*.png. An old report
there is replaced when the new one is whole.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from transformers import HfArgumentParser

from eagle_fsd.evaluation.report.read_runs import read_runs
from eagle_fsd.evaluation.report.write_report import check_output, write_report
from eagle_fsd.models.model_options import option
from eagle_fsd.runs.command import ended_by, parse


@dataclass
class ReportOptions:
    output: str = option("report", "folder of the report")
    allow_different_targets: bool = option(False, "put runs of different targets side by side")


def report(folders: list[str], options: ReportOptions) -> None:
    output = Path(options.output)
    check_output(output, [Path(folder) for folder in folders])
    runs = read_runs(folders, allow_different_targets=options.allow_different_targets)
    for warning in write_report(runs, output):
        print(f"warning: {warning}", file=sys.stderr)
    print(f"written to {output}: index.html, report.md, report.json, tables/, plots/")


def main(arguments: list[str] | None = None) -> None:
    parser = HfArgumentParser(ReportOptions)
    parser.add_argument("runs", nargs="+", help="folders of runs")

    def work() -> None:
        options, others = parse(parser, arguments)
        report(others.runs, options)

    ended_by(work)


if __name__ == "__main__":
    main()
