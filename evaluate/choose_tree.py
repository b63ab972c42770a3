"""The draft tree that is fastest on this machine, and why.

    python evaluate/choose_tree.py                               # fsd at the default T
    python evaluate/choose_tree.py --rule exact
    python evaluate/choose_tree.py --threshold 0.4 --retune      # measure again
    python evaluate/choose_tree.py --output choice.json          # all candidates, for programs

The first call measures, for about a minute on two CPU cores; what it has measured is kept in
$EAGLE_FSD_CACHE/tuning and is what `--trees auto` of evaluate/speed.py uses.
"""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from eagle_fsd.config import AcceptConfig, BadInput
from eagle_fsd.models.model_options import DecodeOptions, ModelOptions, option
from eagle_fsd.runs.command import run_command
from eagle_fsd.runs.jsonl import write_json
from eagle_fsd.runs.provenance import describe_run
from eagle_fsd.speed.quiet import check_timing_alone
from eagle_fsd.speed.tree_choice.auto import auto_tree
from eagle_fsd.speed.tree_choice.calibration import TuningConfig
from eagle_fsd.speed.tree_choice.choice import TreeChoice, shape


@dataclass
class ChooseOptions:
    rule: str = option("fsd", "exact, fsd or fsd-paper")
    threshold: float = option(AcceptConfig.threshold, "T: larger accepts more, deeper trees pay")
    retune: bool = option(False, "measure again, whatever is kept")
    max_new_tokens: int = option(
        TuningConfig.max_new_tokens, "budget of each calibration prompt; `auto` uses the default"
    )
    rows: int = option(10, "candidates in the table, one of each number of drafts")
    output: str = option("", "JSON file with all candidates; empty: none")

    def __post_init__(self):
        if self.rows < 0:
            raise BadInput(f"--rows must be 0 (no table) or above, got {self.rows}")
        self.tuning()
        if self.output and not Path(self.output).parent.is_dir():
            raise BadInput(f"--output {self.output}: {Path(self.output).parent} is no folder")

    def tuning(self) -> TuningConfig:
        return TuningConfig(max_new_tokens=self.max_new_tokens)


def table(choice: TreeChoice, rows: int) -> str:
    """The best candidate of each number of drafts, the fastest first."""
    best = {}
    for row in choice.table:
        best.setdefault(row.tree.num_draft_tokens, row)
    lines = ["| tree | tokens/round | ms/round | propose | verify | accept | commit | x plain |"]
    lines.append("|---|" + "---:|" * 7)
    for row in list(best.values())[:rows]:
        lines.append(
            f"| {shape(row.tree)} | {row.tokens_per_round:.2f} | {row.ms_per_round:.1f} | "
            f"{row.propose:.1f} | {row.verify:.1f} | {row.accept:.1f} | {row.commit:.1f} | "
            f"{row.speedup:.2f} |"
        )
    return "\n".join(lines)


def run(options: ChooseOptions, decoding: DecodeOptions, model_options: ModelOptions) -> None:
    accept = decoding.accept(options.rule, options.threshold)  # checked before weights load
    for warning in check_timing_alone(model_options.device):
        print(f"warning: {warning}", file=sys.stderr)
    model = model_options.load()
    choice = auto_tree(
        model, accept, decoding.sampling(), retune=options.retune, tuning=options.tuning()
    )
    print(choice.text)
    if options.rows:
        print(f"\n{table(choice, options.rows)}")
    tree = choice.tree
    print(
        f"\nfor the other commands: --num_draft_tokens {tree.num_draft_tokens} "
        f"--tree_depth {tree.tree_depth} --branch_top_k {tree.branch_top_k}"
    )
    if options.output:
        write_json(
            Path(options.output),
            {
                "accept": asdict(accept),
                "sampling": asdict(decoding.sampling()),
                **describe_run(model_options.device),
                "choice": asdict(choice),
            },
        )


def main(arguments: list[str] | None = None) -> None:
    run_command(run, [ChooseOptions, DecodeOptions, ModelOptions], arguments)


if __name__ == "__main__":
    main()
