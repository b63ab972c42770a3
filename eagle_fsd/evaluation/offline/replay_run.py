"""A replay of heads on the questions of a file, into one folder that a killed run goes on with."""

from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from eagle_fsd.config import BadInput, parse_tree, tree_name
from eagle_fsd.decoding.drafter import RootDrafter
from eagle_fsd.decoding.target import Target
from eagle_fsd.drafters.eagle import EagleDrafter, EagleSettings
from eagle_fsd.evaluation.arms import parse_arms
from eagle_fsd.evaluation.offline.replay import WALKS, ReplayPlan, replay_text
from eagle_fsd.evaluation.offline.replay_metrics import in_words, tables
from eagle_fsd.evaluation.offline.replay_options import ReplayOptions
from eagle_fsd.evaluation.offline.texts import BEYOND, open_texts, plain_texts
from eagle_fsd.evaluation.questions import check_same_questions, read_questions, spread
from eagle_fsd.evaluation.report.read_runs import RunData
from eagle_fsd.heads.models import DraftHead
from eagle_fsd.models import load
from eagle_fsd.models.loaded import Model
from eagle_fsd.rules.fsd import Fsd
from eagle_fsd.runs.folder import Run
from eagle_fsd.runs.jsonl import write_json
from eagle_fsd.runs.provenance import digest, without_checkout

# what a run may be continued with, although it differs
FREE = frozenset(("heads", "device", "questions", "texts", "output"))


def run_replay(options: ReplayOptions) -> None:
    """Replay what is missing, and report."""
    plan = read_plan(options)
    questions = spread(read_questions(options.question_file), options.questions)
    config = load.load_target_config(options.target)
    named = head_names(options.heads)
    heads = {name: load.load_head(path, config) for name, path in named.items()}
    # a head that was trained on since is another one
    files = {name: f"{name}-{digest(load.head_digests(path))}" for name, path in named.items()}
    digests = load.target_digests(options.target)
    identity = {key: getattr(options, key) for key in ("target", "dtype", "conv_template")}
    store = open_texts(options.texts, identity | digests)
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
        model = Model(target, tokenizer, RootDrafter(), options.conv_template)
        prompts = {key: model.prompt_ids(question.turns[0]) for key, question in todo.items()}
        drafters = {name: build_drafter(head, target, plan) for name, head in heads.items()}
        texts = plain_texts(store, target, prompts, model.stop(options.max_new_tokens))
        del store  # another replay may have it
        run.begin_session()
        for name, drafter in drafters.items():
            for question in tqdm(missing[name], desc=name):
                key = {"question_id": question.question_id, "category": question.category}
                key["turns"] = [{"prompt": question.turns[0]}]
                text = texts[question.question_id]
                run.add(files[name], key | replay_text(drafter, text, plan))
    chosen = {
        name: [run.records[file][question.question_id, 0] for question in questions]
        for name, file in files.items()
    }
    report(run, chosen)


def read_plan(options: ReplayOptions) -> ReplayPlan:
    """Trees and rules, checked."""
    trees = tuple(dict.fromkeys(map(parse_tree, options.trees)))
    if not trees:
        raise BadInput("--trees names no tree: give at least one, such as 15x4x6")
    deepest = max(trees, key=lambda tree: tree.tree_depth)
    if deepest.tree_depth > BEYOND:
        raise BadInput(f"tree {tree_name(deepest)} is deeper than the {BEYOND} of replay")
    arms = parse_arms(options.arms) if options.arms else []
    for arm in arms:
        plain = type(arm.rule) in WALKS and not arm.guards and arm.drafter == EagleSettings()
        # where fsd takes its first fuzzy token does not depend on the child
        child = "draft" if type(arm.rule) is Fsd else getattr(arm.rule, "child", "")
        if not plain or arm.rule.logits != "raw" or child != "draft":
            raise BadInput(
                f"arm {arm.text!r}: replay follows fsd, and fsd-paper with child draft, by raw "
                "logits, without guards and drafters of their own"
            )
    return ReplayPlan(trees, {arm.text: arm.rule for arm in arms})


def head_names(heads: list[str]) -> dict[str, str]:
    """A short name for every head: its folder's, or its whole path where two share that."""
    short = [Path(head).name for head in heads]
    return {
        name if short.count(name) == 1 else without_checkout(head).replace("/", "_"): head
        for head, name in zip(heads, short, strict=True)
    }


def build_drafter(head: DraftHead, target: Target, plan: ReplayPlan) -> EagleDrafter:
    """A drafter whose target gives this head's features; it checks that all trees fit."""
    layers = head.config.fused_layers(target.num_layers)
    own = Target(target.model, feature_layers=layers) if layers else target
    head.to(target.device, target.dtype)
    *_, drafter = (EagleDrafter(head, own, shape) for shape in plan.growths())
    return drafter


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
    (run.folder / "replay.md").write_text(text)
    print(f"\n{text}\nwritten to {run.folder}: replay.md, replay.json, records/")
