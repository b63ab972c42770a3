"""What a target's, a head's, a run's and a data folder's damaged files end in, counted.

    python extras/tests/damage.py head target --output damage.tsv

Every file is cut at a third of its length, emptied, and, of JSON, each of its fields is given a
value of another type (of lists and of objects within objects the first few). Then the folder is
read as commands read it, tiny and on the CPU. An outcome is `refused`, a BadInput that names the
remedy; `told`, a warning; `as before`, since nothing reads that, or says the same; `traceback`,
any other error; or `silent`: another outcome, without a word.
"""

import argparse
import contextlib
import io
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FEW = 3  # entries of a list or an object that are changed
MANY = 100  # fields, from which on an object is a vocabulary, of which as few are changed
DEEP = 3  # levels of objects in which fields are


def fields(value: object, place: tuple = ()) -> Iterator[tuple]:
    """The places of fields in JSON."""
    if place:
        yield place
    entries = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        entries = enumerate(value)
    for number, (key, entry) in enumerate(entries):
        few = place or len(value) > MANY
        if len(place) < DEEP and (number < FEW or not few):
            yield from fields(entry, (*place, key))


def of_another_type(value: object) -> object:
    """A text for a number, and the like."""
    return 7 if isinstance(value, str | list | dict | None) else "seven"


def with_field(text: str, place: tuple) -> str:
    whole = json.loads(text)
    inner = whole
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = of_another_type(inner[place[-1]])
    return json.dumps(whole)


def damages(path: Path) -> Iterator[tuple[str, bytes]]:
    """What is done to a file, and what it then holds."""
    held = path.read_bytes()
    yield "cut at a third", held[: len(held) // 3]
    yield "emptied", b""
    if path.suffix == ".json":
        for place in fields(json.loads(held)):
            yield f"field {'.'.join(map(str, place))}", with_field(held.decode(), place).encode()
    elif path.suffix == ".jsonl":
        first, *others = held.decode().splitlines(keepends=True)
        for place in fields(json.loads(first)):
            lines = [with_field(first, place) + "\n", *others]
            yield f"field {'.'.join(map(str, place))}", "".join(lines).encode()


def try_damages(
    folder: Path, read: Callable[[Path], object]
) -> Iterator[tuple[str, str, str, str]]:
    """(file, damage, outcome, what was said) of every file of a folder, which is read as a copy."""

    def outcome(name: str, content: bytes | None) -> tuple[str, object, str]:
        with tempfile.TemporaryDirectory() as place:
            copy, said = Path(place, folder.name), io.StringIO()
            shutil.copytree(folder, copy)
            if content is not None:
                (copy / name).write_bytes(content)
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
                try:
                    found = repr(read(copy)).replace(place, "")
                    return "read", found, said.getvalue().replace(place, "")
                except SystemExit as end:
                    return "refused", None, f"{end.code}"
                except Exception as error:
                    refused = type(error).__name__ in ("BadInput", "FolderInUse")
                    return ("refused" if refused else "traceback"), None, repr(error)

    how, before, said_before = outcome("", None)
    assert how == "read", said_before
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.name == ".lock":
            continue
        name = str(path.relative_to(folder))
        for damage, content in damages(path):
            how, after, said = outcome(name, content)
            if how == "read":
                new = set(said.splitlines()) - set(said_before.splitlines())
                new = {line for line in new if "warning" in line or "eagle_fsd" in line}
                how, said = "as before", "; ".join(new)
                if new:
                    how = "told"
                elif after != before:
                    how = "silent"
            yield name, damage, how, said


# --- the folders, and how commands read them ------------------------------------------------------


def make_target(folder: Path, *, old: bool) -> Path:
    """A target in shards, with end tokens of its own; `old`: with a tokenizer in several files."""
    from tiny_folder import write_target
    from transformers import LlamaForCausalLM

    write_target(folder, layers=2)
    model = LlamaForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.generation_config.eos_token_id = [1, 65]
    model.generation_config.update(do_sample=True, temperature=0.7, repetition_penalty=1.1)
    model.save_pretrained(folder, max_shard_size="60KB")
    if old:
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        (folder / "tokenizer.json").unlink()
        vocab = tokenizer["model"]["vocab"]
        pairs = [("t", "h"), ("th", "e"), ("a", "n"), ("an", "d"), ("i", "n"), ("o", "n")]
        for token in list(vocab)[-len(pairs) :]:
            del vocab[token]
        vocab |= {one + two: 252 + i for i, (one, two) in enumerate(pairs)}
        (folder / "vocab.json").write_text(json.dumps(vocab))
        merges = "".join(f"{one} {two}\n" for one, two in pairs)
        (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}")
        config = json.loads((folder / "tokenizer_config.json").read_text())
        config.pop("added_tokens_decoder", None)
        config |= {"tokenizer_class": "GPT2Tokenizer", "unk_token": "<s>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        names = {"bos_token": "<s>", "eos_token": "</s>"}
        (folder / "special_tokens_map.json").write_text(json.dumps(names))
        (folder / "added_tokens.json").write_text(json.dumps({"<s>": 0, "</s>": 1}))
    return folder


def read_target(folder: Path) -> object:
    from eagle_fsd.models.loaded import load

    model = load(str(folder), head=None, dtype="float32", device="cpu")
    ids = model.prompt_ids("the land and an inn, thin </s>")
    weights = [weight.double().sum().item() for weight in model.target._body.parameters()]
    return ids, model.text(ids), model.ends.ids, model.ends.strings, weights


def read_a_head(models: Path, folder: Path) -> object:
    from eagle_fsd.models.load import load_head, load_target_config

    head = load_head(folder, load_target_config(str(models / "target")))
    return head.config, sum(t.double().sum().item() for t in head.state_dict().values())


def lines(folder: Path) -> list[str]:
    """All records of a folder."""
    from eagle_fsd.runs.folder import record_files

    return [line for path in record_files(folder) for line in path.read_text().splitlines()]


def bench(models: Path, folder: Path) -> object:
    """Answers questions, or goes on with them, and shows the run."""
    from commands import QUESTIONS, run_main, write_rows

    questions = [row | {"reference": [f"{row['question_id']}"]} for row in QUESTIONS[:2]]
    questions = [row | {"turns": row["turns"][:1]} for row in questions]
    path = write_rows(models / "question.jsonl", *questions)
    options = [
        "--target",
        models / "target",
        "--head",
        models / "whole",
        "--dtype",
        "float32",
        "--device",
        "cpu",
    ]
    options += ["--tree", "7x3x3", "--task", path, "--scorer", "contains", "--output", folder]
    run_main("evaluate/tasks.py", *options, "--max_new_tokens", 8, "--arms", "plain", "fsd:0.5")
    return lines(folder)


def show(folder: Path) -> object:
    """What a report says of a run, but for the plots, which take seconds."""
    from eagle_fsd.evaluation.report.write_report import pack_answers
    from eagle_fsd.evaluation.run_data import read_run

    run = read_run(folder)
    for doubt in run.doubts():
        print(f"warning: {doubt}", file=sys.stderr)
    tables = {title: table.rows for title, table in run.tables.items()}
    said = [run.verdict(row) for row in run.rows], run.subject, run.target
    return json.dumps([tables, pack_answers(run), said], allow_nan=False)


def judge(models: Path, folder: Path) -> object:
    """Judges a run, or goes on with that."""
    import os

    from commands import run_main
    from judge_server import serving

    with serving() as server:
        os.environ["OPENAI_API_KEY"] = "none"
        os.environ["OPENAI_BASE_URL"] = f"http://127.0.0.1:{server.server_port}/v1"
        run_main("evaluate/judge.py", "--run", folder, "--model", "gpt-4")
    table = json.loads((folder / "judge" / "gpt-4" / "single.json").read_text())
    return len(server.bodies), table


def data(models: Path, folder: Path) -> object:
    """Makes dialogues, or goes on with them, and reads them as training does."""
    from training_runs import data_options, make_data

    from eagle_fsd.training.data import read_dialogues

    make_data(data_options(models / "target", folder, "--dialogues", "4"))
    return read_dialogues(folder, vocab_size=258)


def training(models: Path, folder: Path) -> object:
    """Trains a head, or goes on with that, and reads it."""
    from training_runs import train, write_data

    path = write_data(models / "data.jsonl.gz")
    train(models / "target", path, folder, steps=6)
    return read_a_head(models, folder)


def damage(kinds: Sequence[str]) -> list[tuple[str, ...]]:
    """The rows of try_damages with their kind in front, of the folders of these kinds."""
    from tiny_folder import write_random_head

    rows = []
    with tempfile.TemporaryDirectory() as place:
        models = Path(place)
        make_target(models / "target", old=False)
        make_target(models / "old", old=True)
        write_random_head(models / "head", draft_vocab_size=7)
        write_random_head(models / "whole")
        for kind in kinds:
            folder, read = models / kind, KINDS[kind]
            if read is not read_target and read is not show:
                read = partial(read, models)
            if not folder.exists():
                folder = folder / "made"
                folder.parent.mkdir()
                if kind in ("run", "judged"):
                    bench(models, folder)
                read(folder)
            rows += [(kind, *row) for row in try_damages(folder, read)]
    return rows


# kind of folder -> how it is read, and made where it is no model's
KINDS = {"target": read_target, "old": read_target, "head": read_a_head, "run": show}
KINDS |= {"resumed": bench, "judged": judge, "data": data, "training": training}


def main(kinds: list[str], output: Path) -> None:
    """Write what every damage ended in, and print the counts."""
    rows = damage(kinds or [*KINDS])
    lines = ["\t".join(row).replace("\n", " ") + "\n" for row in rows]
    output.write_text("".join(lines))
    outcomes = ("refused", "told", "as before", "silent", "traceback")
    print(f"| folder | {' | '.join(outcomes)} |\n|{'---|' * (len(outcomes) + 1)}")
    for kind in dict.fromkeys(row[0] for row in rows):
        counted = Counter(row[3] for row in rows if row[0] == kind)
        print(f"| {kind} | {' | '.join(str(counted[name]) for name in outcomes)} |")


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kinds", nargs="*", help=f"Of {', '.join(KINDS)}; none: all.")
    parser.add_argument("--output", type=Path, default=Path("damage.tsv"), help="A table.")
    main(**vars(parser.parse_args()))
