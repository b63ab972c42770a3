"""The draft tree that is fastest on this machine, and why.

    python evaluate/choose_tree.py                               # of the head alone
    python evaluate/choose_tree.py --arm exact@hybrid            # with what the text repeats
    python evaluate/choose_tree.py --output choice.json          # all candidates, for programs

Measured costs times what exact accepts of trees on seven prompts of its own: from --tree on always
the neighbours of the best one so far. It measures for a few minutes on two CPU cores.
"""

from dataclasses import dataclass
from pathlib import Path

from eagle_fsd.cli import ModelOptions, option, run_command
from eagle_fsd.config import BadInput, check_least

COLUMNS = (
    ("tree", "tree", "s"),
    ("tokens/round", "tokens_per_round", ".2f"),
    ("ms/round", "ms_per_round", ".1f"),
    ("propose", "propose", ".1f"),
    ("verify", "verify", ".1f"),
    ("x plain", "speedup", ".2f"),
)
SHOWN = 10  # candidates in the table, one of each number of drafts


@dataclass
class ChooseOptions:
    arm: str = option("exact", "The drafter whose trees are chosen, as an arm of the rule exact.")
    max_new_tokens: int = option(64, "The most tokens of each calibration prompt's answer.")
    output: str = option("", "A JSON file to write with all candidates. Empty: none.")

    def __post_init__(self):
        check_least(self, "--", max_new_tokens=1)


def run(options: ChooseOptions, model_options: ModelOptions) -> None:
    from eagle_fsd.arms import parse_arm
    from eagle_fsd.evaluation.replay import check_replayed
    from eagle_fsd.evaluation.tables import markdown_table
    from eagle_fsd.runs.jsonl import check_writable, write_json
    from eagle_fsd.runs.provenance import describe_run
    from eagle_fsd.speed.tree_choice import choose_tree, explain
    from eagle_fsd.timing import check_timing_alone

    arm = parse_arm(options.arm)
    if not arm.needs_head:
        raise BadInput(f"--arm {options.arm} has no tree of a head: give exact or exact@hybrid")
    check_replayed(arm)
    check_timing_alone(model_options.device)
    if options.output:
        check_writable(options.output, "--output")  # before the measuring
    model = model_options.load([arm])
    table = choose_tree(model, arm.drafter, max_new_tokens=options.max_new_tokens)
    rows = table.astype(object).where(table.notna(), None).to_dict("records")
    best = {row["tree"].split("x")[0]: row for row in reversed(rows)}
    shown = sorted(best.values(), key=rows.index)[:SHOWN]
    # what is taken without a choice, to compare with
    shown += [row for row in rows if row["tree"] == model_options.tree and row not in shown]
    print(f"{explain(table)}\n\n{markdown_table(shown, COLUMNS)}\n")
    print(f"The other commands take it by: --tree {table.tree[0]}")
    if options.output:
        found = {"arm": arm.text, "tree": table.tree[0], "candidates": rows}
        write_json(Path(options.output), found | describe_run(model_options.device))


def main(arguments: list[str] | None = None) -> None:
    run_command(run, [ChooseOptions, ModelOptions], arguments)


if __name__ == "__main__":
    main()
