"""A report from run folders: one page with the answer first, a plot, tables.

    python evaluate/report.py runs/mt_bench_80
    python evaluate/report.py runs/mt_bench_80 runs/warm --output runs/report

Takes the folders of mt_bench.py and tasks.py, in any number and of one target; changes nothing in
them, so that one may still be written to. Makes index.html (opens from the disk, needs no network,
prints well), tables.json and the plots, in place of an old report.
"""

import sys
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

from transformers import HfArgumentParser

from eagle_fsd.cli import ended_by, parse
from eagle_fsd.config import BadInput
from eagle_fsd.options import PluginOptions


@dataclass
class ReportOptions(PluginOptions):
    output: str = "report"
    """The folder that the report is written to."""


def report(options: ReportOptions, given: Namespace) -> None:
    from eagle_fsd.evaluation.report.write_report import write_report
    from eagle_fsd.evaluation.run_data import read_run

    runs = [read_run(Path(folder)) for folder in given.runs]
    targets = {run.target: run.name for run in runs}
    if len(targets) > 1:
        named = "; ".join(f"{name} of {target}" for target, name in targets.items())
        raise BadInput(f"the runs are of different targets ({named}): make a report of each")
    for warning in write_report(runs, Path(options.output)):
        print(f"warning: {warning}", file=sys.stderr)
    print(f"written to {options.output}: index.html, tables.json and plots")


if __name__ == "__main__":
    parser = HfArgumentParser(ReportOptions)
    parser.add_argument("runs", nargs="+", help="The folders of the runs.")
    ended_by(lambda: report(*parse(parser)))
