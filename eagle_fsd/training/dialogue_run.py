"""A run that makes training dialogues, from its options to the record of what was made."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

from eagle_fsd.config import BadInput
from eagle_fsd.models.chat import Message
from eagle_fsd.models.generate import BatchGenerator
from eagle_fsd.models.load import (
    check_device,
    default_dtype,
    load_target,
    load_target_config,
    load_tokenizer,
)
from eagle_fsd.runs.jsonl import write_json
from eagle_fsd.runs.processes import Processes
from eagle_fsd.runs.provenance import describe_run
from eagle_fsd.training.contamination import Benchmarks, load_benchmarks
from eagle_fsd.training.data_options import DataOptions
from eagle_fsd.training.dialogues import TURN_TOKENS, DialogueMaker
from eagle_fsd.training.journal import Journal, merge, read_record
from eagle_fsd.training.prompts import SELF, Mixture, parse_weights, read_source
from eagle_fsd.training.same_options import check_same_options
from eagle_fsd.training.template import ChatFormat

# may differ between the commands that make one output
FREE = ("output", "dialogues", "answer_tokens", "minutes", "batch_size", "device")


@dataclass(frozen=True)
class Material:
    """What is read before any weight is."""

    chat: ChatFormat
    weights: dict[str, float]
    records: dict[str, list[list[Message] | None]]
    benchmarks: Benchmarks


@dataclass(frozen=True)
class Budget:
    """Limits of one process's share of a run; 0 is none. See DataOptions."""

    dialogues: int
    answer_tokens: float
    minutes: float
    max_new_tokens: int

    @classmethod
    def of(cls, options: DataOptions, processes: Processes) -> "Budget":
        """What one of several processes has to do."""
        index, count = processes.index, processes.count
        return cls(
            options.dialogues // count + (index < options.dialogues % count),
            options.answer_tokens / count,
            options.minutes,
            options.max_new_tokens,
        )

    def allows(self, journal: Journal, under_way: int) -> bool:
        """Whether one more dialogue may begin; those under way count with the average length."""
        if self.dialogues and journal.dialogues + under_way >= self.dialogues:
            return False
        expected = 0.6 * self.max_new_tokens  # a guess, before there is an average
        if journal.dialogues >= 20:
            expected = journal.answer_tokens / journal.dialogues
        so_far = journal.answer_tokens + under_way * expected
        return not self.answer_tokens or so_far < self.answer_tokens

    def out_of_time(self, seconds: float) -> bool:
        return bool(self.minutes) and seconds >= self.minutes * 60

    def expected_tokens(self, journal: Journal, seconds: float) -> int | None:
        """Answer tokens at the end, by what is known now: the nearest of the limits."""
        ends = [self.answer_tokens] if self.answer_tokens else []
        if self.dialogues and journal.dialogues:
            ends.append(journal.answer_tokens / journal.dialogues * self.dialogues)
        if self.minutes and seconds:
            ends.append(journal.answer_tokens / seconds * self.minutes * 60)
        return round(min(ends)) if ends else None


def make_dialogues(options: DataOptions) -> dict | None:
    """Make what is missing of a file of dialogues, by one process or each of several.

    Returns:
        The record, which data.json holds too; None in all processes but the first.

    Raises:
        BadInput: an option that cannot be followed, or sources that yield nothing.
    """
    processes = Processes.launched(cpu=not options.device.startswith("cuda"))
    options.device = processes.device(options.device)
    options.dtype = options.dtype or default_dtype(options.device)
    check_device(options.device)
    material = read_material(options)
    output = Path(options.output)
    if processes.is_main:
        if output.exists() and not output.with_suffix(".options.json").is_file():
            raise BadInput(f"--output {output} exists and is no output of this command")
        mine = asdict(options) | {"processes": processes.count}
        check_same_options(output.with_suffix(".options.json"), mine, free=FREE, begun=True)
    processes.wait()
    parts = [output.with_suffix(f".part{i}.jsonl") for i in range(processes.count)]
    if processes.count == 1:
        parts = [output]
    part = parts[processes.index]
    record = make_part(options, material, part, processes)
    if processes.count > 1:
        write_json(part.with_suffix(".json"), record)
        processes.wait()
    if not processes.is_main:
        return None
    if processes.count > 1:
        record = merge(output, parts)
    if not record["dialogues"]:
        told = ", ".join(f"{n} {reason}" for reason, n in record["dropped"].items())
        raise BadInput(
            f"no dialogue was made ({told or 'none dropped'}): give other --sources, or more "
            "--minutes, --max_prompt_tokens or --answer_tokens"
        )
    earlier = read_record(output)
    if all(record[key] == earlier.get(key) for key in ("dialogues", "dropped")):
        return earlier  # nothing was added: what made the data is told already
    record |= {"options": asdict(options), "run": describe_run(options.device)}
    write_json(output.with_suffix(".json"), record)
    return record


def read_material(options: DataOptions) -> Material:
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


def make_part(options: DataOptions, material: Material, path: Path, processes: Processes) -> dict:
    """Make one process's share of the dialogues; returns the counts."""
    began = time.monotonic()
    journal = Journal(path)
    budget = Budget.of(options, processes)
    sizes = {name: len(records) for name, records in material.records.items() if name != SELF}
    draws = (
        draw
        for draw in Mixture(material.weights, sizes, seed=options.seed).draws()
        if draw.number % processes.count == processes.index and draw.number not in journal.ids
    )
    target, _ = load_target(
        options.target, dtype=options.dtype, device=options.device, engine="auto"
    )
    bar = tqdm(
        desc="answer tokens",
        unit="tok",
        initial=journal.answer_tokens,
        miniters=0,  # what is under way is shown long before anything is finished
        mininterval=1.0,
        disable=not processes.is_main,
    )

    def elapsed() -> float:
        return journal.seconds + time.monotonic() - began

    def keep(row: dict) -> None:
        journal.keep(row, seconds=elapsed())
        bar.total = budget.expected_tokens(journal, elapsed())
        bar.update(sum(row["loss_mask"]))

    def out_of_time(tokens_under_way: int) -> bool:
        bar.set_postfix(under_way=tokens_under_way, refresh=False)
        bar.update(0)
        return budget.out_of_time(elapsed())

    maker = DialogueMaker(
        material.chat,
        draws,
        material.records,
        options,
        material.benchmarks,
        end_ids=material.chat.end_ids | set(target.eos_token_ids),
        seen=journal.users,
        may_begin=lambda under_way: budget.allows(journal, under_way),
        keep=keep,
        drop=journal.drop,
    )
    generator = BatchGenerator(target, batch_size=options.batch_size)
    for completion in generator.run(maker.next_request, stop=out_of_time):
        maker.receive(completion)
    bar.close()
    return journal.counts(elapsed())
