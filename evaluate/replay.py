"""Replay: judge heads and drafters on the target's own text, without decoding.

    python evaluate/replay.py                                  # shipped head on 80 MT-Bench turns
    python evaluate/replay.py --heads runs/a runs/b --questions 24 --max_new_tokens 64 \
        --arms exact exact@eagle:59x6x10 exact@hybrid --output runs/replay_ab

Greedy exact decoding emits the target's own text whatever the head, so the plain answers are made
once (--texts, shared by all heads and runs of a target) and each head is replayed on them:
tokens_per_round of every drafter as real float32 decoding gives it (logit ties aside), and the
heads' accuracy and divergence by level. A killed run continues where it was: run the same command
again. More questions and heads may be added.
"""

from dataclasses import dataclass
from pathlib import Path

from eagle_fsd.cli import run_command
from eagle_fsd.options import ChatOptions, PluginOptions, QuestionOptions, option
from eagle_fsd.runs.provenance import digest, source_digest, without_checkout

LEVELS = 6  # of the table by level


@dataclass
class ReplayOptions(QuestionOptions, ChatOptions, PluginOptions):
    heads: list[str] = option([], may_change=True)
    """The draft heads: folders or hub ids. Empty: the one that ships for smollm2."""
    dtype: str = "float32"
    """The dtype: bfloat16, float16 or float32, the one in which a replay equals decoding."""
    arms: list[str] = option(
        [f"exact@eagle:{tree}" for tree in ("7x4x6", "15x4x6", "23x5x8", "59x6x10")]
    )
    """The arms that are replayed: exact, with any drafters."""
    texts: str = option("", may_change=True)
    """The folder of the target's stored texts. Empty: one for this target and this code."""

    def __post_init__(self):
        from eagle_fsd.models.assets import EMBEDDED_TARGET
        from eagle_fsd.models.load import default_head

        super().__post_init__()
        ChatOptions.__post_init__(self)
        self.heads = list(dict.fromkeys(self.heads or [default_head(EMBEDDED_TARGET)]))
        kind = [*self.of_texts.values(), source_digest()]  # of changed code they are made anew
        self.texts = self.texts or f"runs/plain_texts/{Path(self.target).name}-{digest(kind)}"

    @property
    def of_texts(self) -> dict[str, object]:
        """What the target's texts depend on, beside its files."""
        named = ("target", "dtype", "conv_template", "system", "template_settings")
        return {name: getattr(self, name) for name in named}


def run_replay(options: ReplayOptions) -> None:
    from tqdm import tqdm

    from eagle_fsd.config import default_tree
    from eagle_fsd.decoding.target import Target
    from eagle_fsd.decoding.tree import RootDrafter
    from eagle_fsd.drafters.eagle import head_drafter
    from eagle_fsd.evaluation.bench import check_lengths
    from eagle_fsd.evaluation.questions import asked, check_same_questions, cut
    from eagle_fsd.evaluation.replay import read_arms, report
    from eagle_fsd.evaluation.texts import TOKENS_BEYOND_END, judge_levels, plain_texts
    from eagle_fsd.messages import read_template_settings
    from eagle_fsd.models import load
    from eagle_fsd.models.chat import settle_template
    from eagle_fsd.models.loaded import Model, check_chat
    from eagle_fsd.runs.folder import Run

    # 1. What is replayed, and the folders of the texts and of this run.
    tree = default_tree(options.device)
    arms = read_arms(options.arms, tree)
    questions = asked(options)
    chat = {"conv_template": options.conv_template, "system": options.system or ""}
    template_settings = read_template_settings(options.template_settings)
    check_chat(options.target, settings=template_settings, **chat)
    config = load.load_target_config(options.target)
    heads = {name: load.load_head(name, config, target=options.target) for name in options.heads}
    # distinguished by their weights: a head that was trained on since is another one
    files = {name: f"{Path(name).name}-{digest(load.head_digests(name))}" for name in heads}
    digests = load.target_digests(options.target)
    store = Run(options.texts, options.of_texts | digests)
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
        settle_template(tokenizer, template_settings, date=run.date)
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


if __name__ == "__main__":
    run_command(run_replay, [ReplayOptions])
