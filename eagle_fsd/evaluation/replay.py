"""A replay of heads on the questions of a file, into one folder that a killed run goes on with.

What is heavy is imported where it is used, since the options are read first.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from eagle_fsd.config import BadInput, TreeConfig, default_tree
from eagle_fsd.options import (
    ChatOptions,
    PluginOptions,
    QuestionOptions,
    TargetOptions,
    option,
    other_default,
)
from eagle_fsd.runs.folder import Run
from eagle_fsd.runs.provenance import digest, source_digest, without_checkout

if TYPE_CHECKING:
    from eagle_fsd.arms import Arm

LEVELS = 6  # of the table by level
ARM_NOTE = (
    "Tokens per round are those of real decoding in float32, except where logits tie. Brackets "
    "hold 95 % intervals over questions."
)
LEVEL_NOTE = (
    "Each level drafts one token further along the text. top-1 is the share of positions at which "
    "the text's next token is the head's most likely one, top-8 that at which it is among the "
    "eight most likely, and JS is the mean Jensen-Shannon divergence of head and target in nats."
)


@dataclass
class ReplayOptions(QuestionOptions, ChatOptions, PluginOptions):
    heads: list[str] = option(
        [],
        "The draft heads: folders or hub ids. Empty: the one that ships for smollm2.",
        may_change=True,
    )
    # in any other a replay does not equal decoding
    dtype: str = other_default(TargetOptions, "dtype", "float32")
    arms: list[str] = option(
        [f"exact@eagle:{tree}" for tree in ("7x4x6", "15x4x6", "23x5x8", "59x6x10")],
        "The arms that are replayed: exact, with any drafters.",
    )
    texts: str = option(
        "",
        "The folder of the target's stored texts. Empty: one for this target and this code.",
        may_change=True,
    )

    def __post_init__(self):
        from eagle_fsd.models.assets import EMBEDDED_TARGET
        from eagle_fsd.models.load import default_head

        super().__post_init__()
        ChatOptions.__post_init__(self)
        self.heads = list(dict.fromkeys(self.heads or [default_head(EMBEDDED_TARGET)]))
        kind = [self.target, self.dtype, self.conv_template, self.system, source_digest()]
        own = f"{Path(self.target).name}-{digest(kind)}"  # of changed code they are made anew
        self.texts = self.texts or f"runs/plain_texts/{own}"


def run_replay(options: ReplayOptions) -> None:
    from eagle_fsd.decoding.target import Target
    from eagle_fsd.decoding.tree import RootDrafter
    from eagle_fsd.drafters.eagle import head_drafter
    from eagle_fsd.evaluation.bench import check_lengths
    from eagle_fsd.evaluation.questions import check_same_questions, cut, read_questions, spread
    from eagle_fsd.evaluation.texts import TOKENS_BEYOND_END, judge_levels, plain_texts
    from eagle_fsd.models import load
    from eagle_fsd.models.load import head_digests, target_digests
    from eagle_fsd.models.loaded import Model, check_system

    # 1. What is replayed, and the folders of the texts and of this run.
    tree = default_tree(options.device)
    arms = read_arms(options.arms, tree)
    questions = spread(read_questions(options.question_file), options.questions)
    chat = {"conv_template": options.conv_template, "system": options.system or ""}
    check_system(options.target, **chat)
    config = load.load_target_config(options.target)
    heads = {name: load.load_head(name, config, target=options.target) for name in options.heads}
    # distinguished by their weights: a head that was trained on since is another one
    files = {name: f"{Path(name).name}-{digest(head_digests(name))}" for name in heads}
    digests = target_digests(options.target)
    named = ("target", "dtype", "conv_template", "system")
    identity = {key: asdict(options)[key] for key in named}
    store = Run(options.texts, identity | digests)
    options.arms = [arm.text for arm in arms]  # with their trees, which the machine may choose
    further = {"command": "replay"} | digests | options.plugin_digest()
    run = Run.of(options, further=further, name="replay")
    for records in run.records.values():
        check_same_questions(records.values(), questions, turns=1)

    # 2. The questions that a head lacks, with the target's text of each.
    missing = {
        name: [q for q in questions if (q.question_id, 0) not in run.records[files[name]]]
        for name in heads
    }
    if todo := {q.question_id: q for lacked in missing.values() for q in lacked}:
        target, tokenizer = load.load_target(
            options.target, dtype=options.dtype, device=options.device
        )
        plain = Model(target, tokenizer, RootDrafter(), **chat)
        models = {}
        for name, head in heads.items():  # what is refused here has written nothing
            layers = head.config.fused_layers(target.num_layers)
            own = Target(target.model, feature_layers=layers) if layers else target
            drafter = head_drafter(head, own, tree)
            model = Model(own, tokenizer, drafter, **chat)
            models[name] = model, {arm.text: arm.build_drafter(model) for arm in arms}
        budget = options.max_new_tokens
        check_lengths(plain, cut([*todo.values()], 1), budget, last=budget + TOKENS_BEYOND_END)
        prompts = {key: plain.prompt_ids(question.messages()) for key, question in todo.items()}
        texts = plain_texts(store, target, prompts, plain.stop(budget))
        del store  # another replay may have it

        # 3. Every head on every text: the rounds of each arm, and what it says by level.
        run.begin_session()
        for name, (model, drafters) in models.items():
            for question in tqdm(missing[name], desc=name):
                text = texts[question.question_id]
                hidden_LD, features_LF = text.states(model.target)
                levels = judge_levels(model.drafter, text, hidden_LD, features_LF, levels=LEVELS)
                rounds = {
                    arm: {"tokens": text.rounds(drafter, features_LF)}
                    for arm, drafter in drafters.items()
                }
                record = question.named() | {"turns": [{"prompt": question.turns[0]}]}
                run.add(files[name], record | {"arms": rounds, "levels": levels})
    chosen = {
        without_checkout(name): [run.records[file][q.question_id, 0] for q in questions]
        for name, file in files.items()
    }
    report(run, chosen)


def read_arms(texts: Sequence[str], tree: TreeConfig) -> "list[Arm]":
    """The arms, each with its tree, by default the machine's, since a run may go on elsewhere.
    Refuse one whose rounds do not follow from the text alone, or whose tree reaches beyond what is
    kept of it."""
    from eagle_fsd.arms import parse_arms
    from eagle_fsd.evaluation.texts import TOKENS_BEYOND_END

    named = []
    for arm in parse_arms(texts):
        if arm.needs_head and not arm.tree:
            arm = arm.with_tree(tree)
        deep = arm.needs_head and arm.drafter.shape.tree_depth > TOKENS_BEYOND_END
        other_text = arm.kind != "exact" or arm.guards
        if other_text or deep or arm.needs_draft_model or arm.drafter.recycle:
            raise BadInput(
                f"arm {arm.text!r}: replay follows the target's text, so it takes exact alone, "
                f"with a head's trees of at most {TOKENS_BEYOND_END} levels or with ngram at "
                "recycle=0, and loads no draft model"
            )
        named.append(arm.text)
    return parse_arms(named)


def report(run: Run, records: Mapping[str, Sequence[dict]]) -> None:
    from eagle_fsd.evaluation.run_data import RunData
    from eagle_fsd.evaluation.tables import columns, markdown_table

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
    from eagle_fsd.stats import rate_interval

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
