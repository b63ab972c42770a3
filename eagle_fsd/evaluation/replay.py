"""Replay of heads on the target's own text: which arms it takes, and its tables.

Tokens a round come from a walk along the text (texts.py), and nothing is decoded.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from eagle_fsd.arms import Arm, parse_arms
from eagle_fsd.config import BadInput, TreeConfig
from eagle_fsd.evaluation.run_data import RunData
from eagle_fsd.evaluation.tables import columns, markdown_table
from eagle_fsd.evaluation.texts import TOKENS_BEYOND_END
from eagle_fsd.runs.folder import Run
from eagle_fsd.stats import rate_interval

ARM_NOTE = (
    "Tokens per round are those of real decoding in float32, except where logits tie. Brackets "
    "hold 95 % intervals over questions."
)
LEVEL_NOTE = (
    "Each level drafts one token further along the text. top-1 is the share of positions at which "
    "the text's next token is the head's most likely one, top-8 that at which it is among the "
    "eight most likely, and JS is the mean Jensen-Shannon divergence of head and target in nats."
)


def read_arms(texts: Sequence[str], tree: TreeConfig) -> list[Arm]:
    """The arms, each with its tree, by default the machine's, since a run may go on elsewhere.
    Refuse one whose rounds do not follow from the text alone, or whose tree reaches beyond what is
    kept of it."""
    named = []
    for arm in parse_arms(texts):
        if arm.drafter.needs_head and not arm.tree:
            arm = arm.with_tree(tree)
        deep = arm.drafter.needs_head and arm.drafter.shape.tree_depth > TOKENS_BEYOND_END
        other_text = arm.kind != "exact" or arm.guards
        if other_text or deep or arm.drafter.needs_draft_model or arm.drafter.recycle:
            raise BadInput(
                f"arm {arm.text!r}: replay follows the target's text, so it takes exact alone, "
                f"with a head's trees of at most {TOKENS_BEYOND_END} levels or with ngram at "
                "recycle=0, and loads no draft model"
            )
        named.append(arm.text)
    return parse_arms(named)


def report(run: Run, records: Mapping[str, Sequence[dict]]) -> None:
    options = run.settings
    made = RunData("", options, run.sessions, records)
    title = (
        f"Replay of {Path(options['question_file']).name or 'MT-Bench'}, "
        f"{len(next(iter(records.values())))} first turns, {options['max_new_tokens']} new tokens "
        f"each, {options['target']} in {options['dtype']}, greedy; device {made.origin('device')}, "
        f"commit {made.origin('commit')}"
    )
    rows = {"arms": [], "levels": []}
    for head, found in records.items():
        rows["arms"] += [{"head": head} | arm_row(found, arm) for arm in found[0]["arms"]]
        rows["levels"] += [{"head": head} | row for row in level_rows(found)]
    shown = columns(head="s", arm="s", tokens_per_round=".2f", rounds="d")
    parts = [title, markdown_table(rows["arms"], shown), ARM_NOTE]
    shown = [*columns(head="s", level="d"), ("top-1", "top1", ".3f"), ("top-8", "top8", ".3f")]
    parts += [markdown_table(rows["levels"], [*shown, ("JS", "js", ".4f")]), LEVEL_NOTE]
    text = "\n\n".join(parts) + "\n"
    run.report("replay", text, title=title, **rows)


def arm_row(records: Sequence[dict], arm: str) -> dict:
    rows = [record["arms"][arm]["tokens"] for record in records]
    rate = rate_interval([(sum(tokens), len(tokens)) for tokens in rows])
    rounds = sum(map(len, rows))
    return {"arm": arm, "questions": len(rows), "rounds": rounds, "tokens_per_round": rate}


def level_rows(records: Sequence[dict]) -> list[dict]:
    """Over all questions; None where there is no position."""
    rows = []
    for level, of_questions in enumerate(zip(*(r["levels"] for r in records), strict=True), 1):
        total = Counter()
        for counts in of_questions:
            total.update(counts)
        positions = total["positions"]
        means = {name: total[name] / positions if positions else None for name in total}
        rows.append({"level": level} | means | {"positions": positions})
    return rows
