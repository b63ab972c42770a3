"""A replay of heads on the questions of a file, into one folder that a killed run goes on with.

What is replayed is in replay.py, the texts in texts.py, rows and tables in replay_metrics.py.
"""

from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from eagle_fsd.decoding.drafter import RootDrafter
from eagle_fsd.decoding.target import Target
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.evaluation.offline.replay import ReplayPlan, replay_text
from eagle_fsd.evaluation.offline.replay_metrics import in_words, tables
from eagle_fsd.evaluation.offline.replay_options import EXTENDABLE, ReplayOptions
from eagle_fsd.evaluation.offline.texts import open_texts, plain_texts
from eagle_fsd.evaluation.questions import read_questions, spread
from eagle_fsd.heads.models import DraftHead
from eagle_fsd.models.assets import asset_dir
from eagle_fsd.models.load import load_head, load_target, load_target_config
from eagle_fsd.models.loaded import Model
from eagle_fsd.runs.folder import Run
from eagle_fsd.runs.jsonl import write_json
from eagle_fsd.runs.provenance import weights_digest, without_checkout


def run_replay(options: ReplayOptions) -> None:
    """Replay what is missing, and report."""
    plan = options.plan()
    questions = read_questions(options.question_file or asset_dir("mt_bench") / "question.jsonl")
    questions = spread(questions, options.questions)
    config = load_target_config(options.target)
    heads = {name: load_head(path, config) for name, path in head_names(options.heads).items()}
    # a head that was trained on since is another one
    files = {name: f"{name}-{weights_digest(head)}" for name, head in heads.items()}
    identity = {key: getattr(options, key) for key in ("target", "dtype", "conv_template")}
    open_texts(options.texts, identity)  # refused before weights load
    run = Run(options.output, {"command": "replay", **asdict(options)}, free=EXTENDABLE)
    missing = {
        name: [q for q in questions if (q.question_id, 0) not in run.records[files[name]]]
        for name in heads
    }
    todo = {q.question_id: q for found in missing.values() for q in found}
    if todo:
        target, tokenizer = load_target(options.target, dtype=options.dtype, device=options.device)
        run.begin_session()
        model = Model(target, tokenizer, RootDrafter(), options.conv_template)
        prompts = {key: (q.category, model.prompt_ids(q.turns[0])) for key, q in todo.items()}
        stop = model.stop(options.max_new_tokens)
        texts = plain_texts(target, prompts, stop, folder=options.texts, settings=identity)
        for name, head in heads.items():
            drafter = build_drafter(head, target, plan)
            for question in tqdm(missing[name], desc=name):
                record = replay_text(drafter, texts[question.question_id], plan)
                run.add(files[name], record)
    chosen = {
        name: [run.records[file][question.question_id, 0] for question in questions]
        for name, file in files.items()
    }
    report(run, chosen)


def head_names(heads: list[str]) -> dict[str, str]:
    """A short name for every head: its folder's, or its whole path where two share that."""
    short = [Path(head).name for head in heads]
    names = [
        name if short.count(name) == 1 else without_checkout(head).replace("/", "_")
        for head, name in zip(heads, short, strict=True)
    ]
    return dict(zip(names, heads, strict=True))


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
    title = (
        f"Replay of {Path(options['question_file']).name or 'MT-Bench'}, "
        f"{len(next(iter(records.values())))} first turns x {options['max_new_tokens']} tokens, "
        f"{options['target']} in {options['dtype']}, greedy; {run.origin(records)}"
    )
    rows = tables(records)
    text = f"{title}\n\n{in_words(rows)}\n"
    whole = {"title": title, "options": options, "sessions": run.sessions}
    write_json(run.folder / "replay.json", whole | rows)
    (run.folder / "replay.md").write_text(text)
    print(f"\n{text}\nwritten to {run.folder}: replay.md, replay.json, records/")
