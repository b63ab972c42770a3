"""The draft tree that is fastest on this machine, and why.

    python evaluate/choose_tree.py                               # by the exact rule
    python evaluate/choose_tree.py --arm fsd:0.4                 # no more fuzzy tokens than now
    python evaluate/choose_tree.py --retune                      # measure again
    python evaluate/choose_tree.py --output choice.json          # all candidates, for programs

Measured costs times what every tree accepts on seven prompts of its own by the exact rule; for
`fsd` trees are refused whose fuzzy share would exceed that of the default tree by more than
--hold_fuzzy_share. The first call measures, for about a minute on two CPU cores; what it has
measured is kept in $EAGLE_FSD_CACHE/tuning and is what `@eagle:auto` in evaluate/speed.py uses.
"""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from eagle_fsd.config import BadInput
from eagle_fsd.models.model_options import ModelOptions, option
from eagle_fsd.runs.command import run_command

COLUMNS = (
    ("tree", "tree", "s"),
    ("tokens/round", "tokens_per_round", ".2f"),
    ("ms/round", "ms_per_round", ".1f"),
    ("propose", "propose", ".1f"),
    ("verify", "verify", ".1f"),
    ("settle", "settle", ".1f"),
    ("x plain", "speedup", ".2f"),
    ("fuzzy share", "fuzzy_share", ".3f"),
)


@dataclass
class ChooseOptions:
    arm: str = option("exact", "the rule that will use the tree, as in fsd:0.4")
    hold_fuzzy_share: float = option(0.01, "most above the default tree's, for rule fsd")
    max_new_tokens: int = option(64, "budget of each calibration prompt; auto uses the default")
    retune: bool = option(False, "measure again, whatever is kept")
    rows: int = option(10, "candidates in the table, one of each number of drafts")
    output: str = option("", "JSON file with all candidates; empty: none")

    def __post_init__(self):
        if self.rows < 0:
            raise BadInput(f"--rows must be 0 (no table) or above, got {self.rows}")
        if self.max_new_tokens < 2:
            raise BadInput(f"--max_new_tokens must be at least 2, got {self.max_new_tokens}")
        if self.output and not Path(self.output).parent.is_dir():
            raise BadInput(f"--output {self.output}: {Path(self.output).parent} is no folder")


def run(options: ChooseOptions, model_options: ModelOptions) -> None:
    from eagle_fsd.evaluation.arms import parse_arm
    from eagle_fsd.evaluation.tables import markdown_table
    from eagle_fsd.runs.jsonl import write_json
    from eagle_fsd.runs.provenance import describe_run
    from eagle_fsd.speed.quiet import check_timing_alone
    from eagle_fsd.speed.tree_choice import choose_tree

    arm = parse_arm(options.arm)
    if not (arm.drafts and arm.drafter.needs_head):
        raise BadInput(f"--arm {options.arm} has no tree of a head: give a rule, such as fsd:0.4")
    for warning in check_timing_alone(model_options.device):
        print(f"warning: {warning}", file=sys.stderr)
    choice = choose_tree(
        model_options.load(),
        arm.rule,
        hold_fuzzy_share=options.hold_fuzzy_share,
        max_new_tokens=options.max_new_tokens,
        retune=options.retune,
    )
    print(choice.text)
    rows = [asdict(row) | {"ms_per_round": row.ms_per_round} for row in choice.table]
    best: dict[str, dict] = {}
    for row in rows:
        if row["held"]:
            best.setdefault(row["tree"].split("x")[0], row)
    if options.rows:
        print(f"\n{markdown_table(list(best.values())[: options.rows], COLUMNS)}")
    print(f"\nfor the other commands: --tree {choice.tree}, or @eagle:{choice.tree} in an arm")
    if options.output:
        found = {"arm": arm.text, "tree": choice.tree, "candidates": rows}
        write_json(Path(options.output), found | describe_run(model_options.device))


def main(arguments: list[str] | None = None) -> None:
    run_command(run, [ChooseOptions, ModelOptions], arguments)


if __name__ == "__main__":
    main()
