"""A replay of heads on the questions of a file, into one folder that a killed run goes on with."""

from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from eagle_fsd.arms import Arm, parse_arms
from eagle_fsd.config import SMALL_TREE, BadInput, SamplingConfig, parse_tree, tree_name
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.drafter import RootDrafter
from eagle_fsd.decoding.target import Target
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.drafters.settings import DrafterSettings
from eagle_fsd.evaluation.offline.replay import (
    check_replayed,
    judge_levels,
    replay,
    text_states,
)
from eagle_fsd.evaluation.offline.replay_metrics import in_words, tables
from eagle_fsd.evaluation.offline.replay_options import ReplayOptions
from eagle_fsd.evaluation.offline.texts import BEYOND, plain_texts
from eagle_fsd.evaluation.questions import check_same_questions, read_questions, spread
from eagle_fsd.evaluation.report.read_runs import RunData
from eagle_fsd.heads.draft_head import DraftHead
from eagle_fsd.models import load
from eagle_fsd.models.loaded import Model
from eagle_fsd.runs.folder import Run
from eagle_fsd.runs.jsonl import write_file, write_json
from eagle_fsd.runs.provenance import digest, without_checkout

LEVELS = 6  # of the table by level
# what a run may be continued with, although it differs
FREE = frozenset(("heads", "device", "questions", "texts", "output"))


def run_replay(options: ReplayOptions) -> None:
    """Replay what is missing, and report."""
    arms = read_arms(options)
    questions = spread(read_questions(options.question_file), options.questions)
    config = load.load_target_config(options.target)
    heads = {name: load.load_head(name, config) for name in options.heads}
    # told apart by their weights: a head that was trained on since is another one
    files = {name: f"{Path(name).name}-{digest(load.head_digests(name))}" for name in heads}
    digests = load.target_digests(options.target)
    identity = {key: getattr(options, key) for key in ("target", "dtype", "conv_template")}
    store = Run(options.texts, identity | digests)
    run = Run(options.output, {"command": "replay"} | asdict(options) | digests, free=FREE)
    for records in run.records.values():
        check_same_questions(records.values(), questions)
    missing = {
        name: [q for q in questions if (q.question_id, 0) not in run.records[files[name]]]
        for name in heads
    }
    todo = {q.question_id: q for found in missing.values() for q in found}
    if todo:
        target, tokenizer = load.load_target(
            options.target, dtype=options.dtype, device=options.device
        )
        plain = Model(target, tokenizer, RootDrafter(), options.conv_template)
        models = {name: with_head(plain, head) for name, head in heads.items()}
        groups: dict[DrafterSettings, dict[str, Policy]] = {}
        for arm in arms:
            groups.setdefault(arm.drafter, {})[arm.text] = arm.policy(SamplingConfig())
        drafters = {  # what is refused here has written nothing
            name: [(settings.build(model), policies) for settings, policies in groups.items()]
            for name, model in models.items()
        }
        prompts = {key: plain.prompt_ids(question.turns[0]) for key, question in todo.items()}
        texts = plain_texts(store, target, prompts, plain.stop(options.max_new_tokens))
        del store  # another replay may have it
        run.begin_session()
        for name, model in models.items():
            for question in tqdm(missing[name], desc=name):
                text, found = texts[question.question_id], {}
                states = text_states(model.target, text)
                for drafter, policies in drafters[name]:
                    found |= replay(model.target, drafter, policies, text, states)
                record = {
                    "question_id": question.question_id,
                    "category": question.category,
                    "turns": [{"prompt": question.turns[0]}],
                    "arms": {arm.text: found[arm.text] for arm in arms},
                    "levels": judge_levels(model.drafter, text, states, levels=LEVELS),
                }
                run.add(files[name], record)
    chosen = {
        without_checkout(name): [run.records[file][q.question_id, 0] for q in questions]
        for name, file in files.items()
    }
    report(run, chosen)


def read_arms(options: ReplayOptions) -> list[Arm]:
    """The arms, checked."""
    arms = parse_arms(options.arms, tree=tree_name(SMALL_TREE))
    for arm in arms:
        check_replayed(arm)
        if arm.needs_draft_model:
            raise BadInput(f"arm {arm.text!r}: replay compares heads, and loads no draft model")
        arm.policy(SamplingConfig()).check(arm.drafter)
        shape = parse_tree(arm.tree) if arm.tree else SMALL_TREE
        if arm.needs_head and shape.tree_depth > BEYOND:
            raise BadInput(f"arm {arm.text!r} drafts deeper than the {BEYOND} levels of replay")
    return arms


def with_head(plain: Model, head: DraftHead) -> Model:
    """A model whose target gives this head's features; BadInput: they do not fit."""
    target = plain.target
    if layers := head.config.fused_layers(target.num_layers):
        target = Target(target.model, feature_layers=layers)
    drafter = EagleDrafter(head.to(target.device, target.dtype), target, SMALL_TREE)
    return Model(target, plain.tokenizer, drafter, plain.conv_template)


def report(run: Run, records: dict[str, list[dict]]) -> None:
    """Write and print the tables, as text and JSON."""
    options = run.settings
    made = RunData("", options, run.sessions, records)
    title = (
        f"Replay of {Path(options['question_file']).name or 'MT-Bench'}, "
        f"{len(next(iter(records.values())))} first turns x {options['max_new_tokens']} tokens, "
        f"{options['target']} in {options['dtype']}, greedy; device {made.origin('device')}, "
        f"commit {made.origin('commit')}"
    )
    rows = tables(records)
    notes = "".join(f"\nNote: {doubt}.\n" for doubt in made.doubts_of_code())
    text = f"{title}\n\n{in_words(rows)}\n{notes}"
    whole = {"title": title, "options": options, "sessions": run.sessions}
    write_json(run.folder / "replay.json", whole | rows)
    write_file(run.folder / "replay.md", text)
    print(f"\n{text}\nwritten to {run.folder}: replay.md, replay.json, records/")
