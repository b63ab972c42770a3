"""Make training dialogues: prompts from the target itself or from data, answers by the target.

    python train/make_data.py --output data.jsonl --sources self=0.6 prompts.jsonl=0.4 \\
        --answer_tokens 1000000

One dialogue a line, as token ids and a mask of the assistant's tokens; data.json beside it records
how it was made. A killed run continues: run the same command again; a larger budget goes on where a
smaller one ended. Several processes: `torchrun --nproc_per_node N train/make_data.py ...`; each
writes data.partK.jsonl, and the first puts them together.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
from accelerate import PartialState
from tqdm import tqdm

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.target import Target
from eagle_fsd.models.chat import Message
from eagle_fsd.models.load import (
    DTYPES,
    check_device,
    default_dtype,
    load_target,
    load_target_config,
    load_tokenizer,
)
from eagle_fsd.models.model_options import option
from eagle_fsd.runs.command import run_command
from eagle_fsd.runs.jsonl import write_json
from eagle_fsd.runs.provenance import describe_run
from eagle_fsd.training.budget import DataBudget
from eagle_fsd.training.contamination import Benchmarks, load_benchmarks
from eagle_fsd.training.dialogues import TURN_TOKENS, AnswerRecipe, DialogueMaker
from eagle_fsd.training.features import FeatureWriter, identity, row_width
from eagle_fsd.training.generate import BatchGenerator
from eagle_fsd.training.journal import Journal, check_same_options, merge, read_record
from eagle_fsd.training.prompts import SELF, Draw, Mixture, parse_weights, read_source
from eagle_fsd.training.template import ChatFormat

# may differ between the commands that make one output
FREE = ("output", "dialogues", "answer_tokens", "minutes", "batch_size", "device")


@dataclass
class DataOptions:
    output: str = field(metadata={"help": "the .jsonl file to write"})
    target: str = option("smollm2", "smollm2, a folder, a .gguf file or a hub id")
    sources: list[str] = field(
        default_factory=lambda: [SELF],
        metadata={
            "help": "SOURCE=WEIGHT ...: self (user turns sampled from the target), sharegpt, "
            "hub:owner/name[:split], or a .jsonl/.json(.gz) file of conversations or prompts"
        },
    )
    answers: str = option(
        "rewritten", "rewritten by the target, turn by turn; or given, the data's own"
    )
    temperatures: list[float] = field(
        default_factory=lambda: [0.0, 0.0, 0.7, 1.0],
        metadata={"help": "each dialogue draws one of these; 0 is greedy"},
    )
    dialogues: int = option(0, "stop after this many; 0: no limit")
    answer_tokens: int = option(0, "begin no dialogue that would exceed this many; 0: no limit")
    minutes: float = option(
        0.0, "end after this time, runs before included; answers under way are cut there; 0: none"
    )
    max_new_tokens: int = option(400, "budget of an answer; a longer one is cut and ends there")
    max_prompt_tokens: int = option(1024, "longest prompt, earlier turns included")
    exclude: list[str] = field(
        default_factory=list, metadata={"help": "more question files whose prompts are dropped"}
    )
    features: str = option(
        "",
        "folder for the target's features as EAGLE-1 and -2 heads read them, for train_head.py "
        "(EAGLE-3 heads read other layers: train_head.py computes those); one process only; "
        "empty: none",
    )
    batch_size: int = option(
        0, "dialogues at a time; default 128 on CPU, 512 on CUDA; lower it if memory ends"
    )
    seed: int = option(0, "of prompts, mixture and sampling")
    device: str = option("", "torch device; empty: cuda if there is one")
    dtype: str = option("", "bfloat16, float16 or float32; empty: bfloat16 where it is fast")

    def __post_init__(self):
        cuda = self.device.startswith("cuda") or (not self.device and torch.cuda.is_available())
        self.batch_size = self.batch_size or (512 if cuda else 128)
        for name in ("batch_size", "max_new_tokens", "max_prompt_tokens"):
            if getattr(self, name) <= 0:
                raise BadInput(f"--{name} must be positive, got {getattr(self, name)}")
        for name in ("dialogues", "answer_tokens", "minutes"):
            if getattr(self, name) < 0:
                raise BadInput(f"--{name} must not be negative, got {getattr(self, name)}")
        if self.answers not in ("rewritten", "given"):
            raise BadInput(f"--answers must be rewritten or given, got {self.answers!r}")
        if not self.temperatures or min(self.temperatures) < 0:
            raise BadInput(f"--temperatures must be 0 or more, got {self.temperatures}")
        if not self.output.endswith(".jsonl"):
            raise BadInput(f"--output must end in .jsonl, got {self.output!r}")
        if self.dtype and self.dtype not in DTYPES:
            raise BadInput(f"unknown --dtype {self.dtype!r}; known: {', '.join(DTYPES)}")
        weights = parse_weights(self.sources)
        if SELF in weights and not (self.dialogues or self.answer_tokens or self.minutes):
            raise BadInput("source self has no end: give --dialogues, --answer_tokens or --minutes")
        if self.features and self.answers == "given":
            raise BadInput("--features are kept while generating: not with --answers given")

    def recipe(self) -> AnswerRecipe:
        return AnswerRecipe(
            self.answers,
            tuple(self.temperatures),
            self.max_new_tokens,
            self.max_prompt_tokens,
            self.seed,
        )


@dataclass(frozen=True)
class Material:
    """What is read before any weight is."""

    chat: ChatFormat
    weights: dict[str, float]
    records: dict[str, list[list[Message] | None]]
    benchmarks: Benchmarks


def prepare(options: DataOptions) -> Material:
    """Read and check everything that needs no weights."""
    config = load_target_config(options.target)
    positions = getattr(config, "max_position_embeddings", None) or 2**31
    longest = options.max_prompt_tokens + max(options.max_new_tokens, TURN_TOKENS)
    if longest > positions:
        raise BadInput(
            f"--max_prompt_tokens {options.max_prompt_tokens} and --max_new_tokens "
            f"{options.max_new_tokens} exceed the target's {positions} positions: lower one"
        )
    weights = parse_weights(options.sources)
    records = {name: [] if name == SELF else read_source(name) for name in weights}
    excluded = {
        Path(path).name: [
            message["content"]
            for conversation in read_source(path)
            for message in conversation or []
            if message["role"] == "user"
        ]
        for path in options.exclude
    }
    chat = ChatFormat(load_tokenizer(options.target))
    if SELF in weights:
        chat.user_prefix()  # refuses a template without
    return Material(chat, weights, records, load_benchmarks(excluded))


def make_data(options: DataOptions) -> None:
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if options.features and several:
        raise BadInput(
            "--features keeps EAGLE-1 and -2 features and needs one process; leave it out, and "
            "train_head.py computes them (EAGLE-3's too)"
        )
    cuda = torch.cuda.is_available() and options.device != "cpu"
    state = PartialState(cpu=not cuda, timeout=timedelta(hours=24)) if several else None
    process, processes = (state.process_index, state.num_processes) if state else (0, 1)
    if not options.device:
        options.device = f"cuda:{state.local_process_index if state else 0}" if cuda else "cpu"
    options.dtype = options.dtype or default_dtype(options.device)
    check_device(options.device)
    material = prepare(options)
    output = Path(options.output)
    if process == 0:
        mine = asdict(options) | {"processes": processes}
        check_same_options(output, mine, free=FREE)
    if state:
        state.wait_for_everyone()
    part = output if processes == 1 else output.with_suffix(f".part{process}.jsonl")
    record = run(options, material, part, process=process, processes=processes)
    if state:
        write_json(part.with_suffix(".json"), record)
        state.wait_for_everyone()
        if process == 0:
            parts = [output.with_suffix(f".part{i}.jsonl") for i in range(processes)]
            record = merge(output, parts)
        state.wait_for_everyone()
        state.destroy_process_group()
    if process == 0:
        if not record["dialogues"]:
            raise BadInput(
                f"no dialogue was made ({told_reasons(record)}): give other --sources, or more "
                "--minutes, --max_prompt_tokens or --answer_tokens"
            )
        earlier = read_record(output)
        if all(record[k] == earlier.get(k) for k in ("dialogues", "dropped")):
            record = earlier  # nothing was added: what made the data is told already
        else:
            record |= {"options": asdict(options), "run": describe_run(options.device)}
            write_json(output.with_suffix(".json"), record)
        print_summary(output, record)


def run(
    options: DataOptions, material: Material, path: Path, *, process: int, processes: int
) -> dict:
    """Make one process's share of the dialogues; returns the counts."""
    began = time.monotonic()
    journal = Journal(path)
    sizes = {name: len(records) for name, records in material.records.items() if name != SELF}
    mixture = Mixture(material.weights, sizes, seed=options.seed)
    whole = DataBudget(
        options.dialogues, options.answer_tokens, options.minutes, options.max_new_tokens
    )
    budget = whole.share(process, processes)
    target, _ = load_target(
        options.target,
        dtype=options.dtype,
        device=options.device,
        engine="auto",
    )
    if options.features:
        journal.attach(open_features(options, target))
    bar = tqdm(
        desc="answer tokens", unit="tok", initial=journal.answer_tokens, disable=process != 0
    )

    def elapsed() -> float:
        return journal.seconds + time.monotonic() - began

    def keep(row: dict, features_LD: torch.Tensor | None) -> None:
        journal.keep(row, features_LD, seconds=elapsed())
        bar.total = budget.expected_tokens(journal, elapsed())
        bar.update(sum(row["loss_mask"]))

    maker = DialogueMaker(
        material.chat,
        share(mixture.draws(), journal.ids, process, processes),
        material.records,
        options.recipe(),
        material.benchmarks,
        end_ids=material.chat.end_ids | set(target.eos_token_ids),
        seen=journal.users,
        may_begin=lambda under_way: budget.allows(journal, under_way, elapsed()),
        keep=keep,
        drop=journal.drop,
    )
    generator = BatchGenerator(
        target, batch_size=options.batch_size, keep_features=bool(options.features)
    )

    def out_of_time(under_way: int) -> bool:
        bar.set_postfix(under_way=under_way)
        return bool(options.minutes) and elapsed() >= options.minutes * 60

    for completion in generator.run(maker.next_request, stop=out_of_time):
        # a user turn that the clock cut is asked again by a run with more time
        if completion.finished or completion.request.key[0] == "answer" or not out_of_time(0):
            maker.receive(completion)
    bar.close()
    journal.close()
    return journal.counts(elapsed())


def share(draws: Iterator[Draw], done: set[int], process: int, processes: int) -> Iterator[Draw]:
    """A process's draws that are not done yet."""
    return (d for d in draws if d.number % processes == process and d.number not in done)


def open_features(options: DataOptions, target: Target) -> FeatureWriter:
    owner = identity(target, options.target)
    return FeatureWriter(options.features, width=row_width(target), owner=owner)


def told_reasons(record: dict) -> str:
    return ", ".join(f"{n} {reason}" for reason, n in record["dropped"].items()) or "none dropped"


def print_summary(output: Path, record: dict) -> None:
    rate, dropped = record["tokens_per_s"], record["dropped"]
    repeated = sum(n for reason, n in dropped.items() if reason.startswith("in "))
    lines = {
        "dialogues": f"{record['dialogues']}",
        "answer tokens": f"{record['answer_tokens']}",
        "tokens with prompts": f"{record['tokens']}",
        "answer tokens/s": f"{rate:.0f}" if rate else "none",
        "share finished": f"{record['share_finished']:.2f}",
        "peak memory": f"{record['peak_memory_mb']} MB",
    }
    lines |= {f"from {name}": f"{n}" for name, n in record["by_source"].items()}
    lines["dropped as benchmark prompts"] = f"{repeated}"
    lines |= {f"dropped, {reason}": f"{n}" for reason, n in dropped.items()}
    print(f"data: {output}")
    for name, value in lines.items():
        print(f"  {name:32} {value}")


def main(arguments: list[str] | None = None) -> None:
    run_command(make_data, [DataOptions], arguments)


if __name__ == "__main__":
    main()
