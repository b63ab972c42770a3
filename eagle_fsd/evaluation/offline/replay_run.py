"""A replay of heads on the questions of a file, into one folder that a killed run goes on with.

What is replayed is in replay.py, the texts in texts.py, rows and tables in replay_metrics.py.
"""

import hashlib
import time
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from eagle_fsd.config import tree_name
from eagle_fsd.decoding.drafter import RootDrafter
from eagle_fsd.decoding.target import Target
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.evaluation.offline.decoded import compare, decode_text
from eagle_fsd.evaluation.offline.replay import ReplayPlan, replay_text
from eagle_fsd.evaluation.offline.replay_metrics import level_rows, tables, tree_row
from eagle_fsd.evaluation.offline.replay_options import ReplayOptions
from eagle_fsd.evaluation.offline.texts import PlainText, open_texts, plain_texts
from eagle_fsd.evaluation.questions import read_questions, spread
from eagle_fsd.heads.files import resolve_folder
from eagle_fsd.heads.models import DraftHead
from eagle_fsd.models.assets import mt_bench_dir
from eagle_fsd.models.load import (
    load_head,
    load_target,
    load_target_config,
)
from eagle_fsd.models.loaded import Model
from eagle_fsd.runs.checkout import without_checkout
from eagle_fsd.runs.jsonl import append_line, open_rows, write_json
from eagle_fsd.runs.provenance import describe_run


def head_names(heads: list[str]) -> dict[str, str]:
    """A short name for every head: its folder's, or its whole path where two share that."""
    short = [Path(head).name for head in heads]
    names = [
        name if short.count(name) == 1 else without_checkout({"": head})[""].replace("/", "_")
        for head, name in zip(heads, short, strict=True)
    ]
    return dict(zip(names, heads, strict=True))


def fingerprint(head: str) -> str:
    """A digest of the weights: records of a head that was trained on since are not continued."""
    digest = hashlib.sha256()
    for path in sorted(resolve_folder(head).glob("*")):
        if path.suffix in (".safetensors", ".bin") or path.name == "config.json":
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def open_records(options: ReplayOptions, plan: ReplayPlan, kind: str) -> dict[str, dict]:
    """Rows by question of every head, from OUTPUT/KIND/HEAD.jsonl."""
    settings = _identity(options) | {
        "max_new_tokens": options.max_new_tokens,
        "plan": _json(plan),
        "question_file": options.question_file,
    }
    return {
        name: open_rows(_path(options, kind, name), settings | {"head": fingerprint(head)})
        for name, head in head_names(options.heads).items()
    }


def run_replay(options: ReplayOptions) -> None:
    plan = options.plan()
    questions = read_questions(options.question_file or mt_bench_dir() / "question.jsonl")
    count = len(questions) if options.questions is None else options.questions
    questions = spread(questions, count)
    proved = questions[: options.decoded]
    target_config = load_target_config(options.target)
    heads = {
        name: load_head(path, target_config) for name, path in head_names(options.heads).items()
    }
    open_texts(options.texts, _identity(options))  # refused before weights load
    records = open_records(options, plan, "records")
    proofs = open_records(options, plan, "decoded") if proved else {name: {} for name in heads}
    pairs = [(rows, questions) for rows in records.values()]
    pairs += [(rows, proved) for rows in proofs.values()]
    missing = {q.question_id for rows, wanted in pairs for q in wanted if q.question_id not in rows}
    todo = [question for question in questions if question.question_id in missing]
    if todo:
        loaded, tokenizer = load_target(options.target, dtype=options.dtype, device=options.device)
        model = Model(loaded, tokenizer, RootDrafter(), options.conv_template)
        stop = model.stop(options.max_new_tokens)
        prompts = {q.question_id: (q.category, model.prompt_ids(q.turns[0])) for q in todo}
        made = plain_texts(loaded, prompts, stop, folder=options.texts, settings=_identity(options))
        texts = list(made.values())
        for name, head in heads.items():
            drafter = build_drafter(head, loaded, plan)
            replay_head(options, name, drafter, texts, plan, records[name])
            known = {question.question_id for question in proved} - proofs[name].keys()
            for text in tqdm([t for t in texts if t.question_id in known], desc=f"{name}, decoded"):
                proofs[name][text.question_id] = decode_text(drafter, text, plan.trees, stop)
                append_line(_path(options, "decoded", name), proofs[name][text.question_id])
    chosen = {name: _chosen(rows, questions) for name, rows in records.items()}
    report(options, plan, chosen, {name: _chosen(rows, proved) for name, rows in proofs.items()})


def _identity(options: ReplayOptions) -> dict[str, str]:
    """What a text depends on."""
    return {key: getattr(options, key) for key in ("target", "dtype", "conv_template")}


def _path(options: ReplayOptions, kind: str, name: str) -> Path:
    return Path(options.output) / kind / f"{name}.jsonl"


def _json(plan: ReplayPlan) -> dict:
    """As it reads back from a file."""
    return {
        "trees": [tree_name(tree) for tree in plan.trees],
        "arms": [arm.text for arm in plan.arms],
        "true_features": plan.true_features,
    }


def _chosen(rows: dict, questions: list) -> list[dict]:
    return [rows[question.question_id] for question in questions]


def build_drafter(head: DraftHead, target: Target, plan: ReplayPlan) -> EagleDrafter:
    """A drafter whose target gives this head's features; it checks that all trees fit."""
    layers = head.config.fused_layers(target.num_layers)
    own = Target(target.model, feature_layers=layers) if layers else target
    head.to(target.device, target.dtype)
    *_, drafter = (EagleDrafter(head, own, shape) for shape in plan.growths())
    return drafter


def replay_head(
    options: ReplayOptions,
    name: str,
    drafter: EagleDrafter,
    texts: list[PlainText],
    plan: ReplayPlan,
    rows: dict,
) -> None:
    """Add the missing questions of one head to its records."""
    described = describe_run(options.device)
    origin = {key: described[key] for key in ("commit", "device", "command")}
    for text in tqdm([t for t in texts if t.question_id not in rows], desc=name):
        began = time.perf_counter()
        record = replay_text(drafter, text, plan)
        record |= {"seconds": time.perf_counter() - began, **origin}
        append_line(_path(options, "records", name), record)
        rows[text.question_id] = record


def report(
    options: ReplayOptions,
    plan: ReplayPlan,
    records: dict[str, list[dict]],
    proofs: dict[str, list[dict]],
) -> None:
    """The tables, as text and JSON."""
    heads = [
        {
            "head": name,
            "seconds": sum(row["seconds"] for row in rows),
            "trees": [tree_row(rows, tree_name(tree)) for tree in plan.trees],
            "levels": level_rows(rows),
            "decoded": compare(proofs[name], rows[: len(proofs[name])]),
        }
        for name, rows in records.items()
    ]
    rows = [row for rows in records.values() for row in rows]
    origin = {key: list(dict.fromkeys(row[key] for row in rows)) for key in ("device", "commit")}
    title = (
        f"Replay of {Path(options.question_file).name or 'MT-Bench'}, "
        f"{len(next(iter(records.values())))} first turns x {options.max_new_tokens} tokens, "
        f"{without_checkout(asdict(options))['target']} in {options.dtype}, greedy; "
        f"device {' / '.join(origin['device'])}, commit {' / '.join(origin['commit'])}"
    )
    text = f"{title}\n\n{tables(heads)}\n"
    folder = Path(options.output)
    settings = without_checkout(asdict(options))
    settings["heads"] = [without_checkout({"": head})[""] for head in options.heads]
    write_json(
        folder / "replay.json",
        {"title": title, "options": settings, "origin": origin, "heads": heads},
    )
    (folder / "replay.md").write_text(text)
    print(f"\n{text}\nwritten to {folder}: replay.md, replay.json, records/")
