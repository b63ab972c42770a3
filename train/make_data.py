"""Make training dialogues: prompts from the target itself or from data, answers by the target.

    python train/make_data.py --output data --sources self=0.6 prompts.jsonl=0.4 \\
        --answer_tokens 1000000

The folder holds records/dialogues.jsonl, one dialogue a line, as token ids and a mask of the
assistant's tokens, records/dropped.jsonl, number and reason of every candidate that was dropped,
how it was made, and summary.json. A killed run continues: run the same command again; a larger
budget goes on where a smaller one ended. Several processes:
`torchrun --nproc_per_node N train/make_data.py ...`.
"""

import json
import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from eagle_fsd.cli import run_command
from eagle_fsd.config import BadInput, SamplingConfig, check_least
from eagle_fsd.options import PLAN, ChatOptions, option
from eagle_fsd.training.prompts import SELF, parse_weights

if TYPE_CHECKING:
    from eagle_fsd.runs.folder import Run


@dataclass
class DataOptions(ChatOptions):
    trains = True

    output: str = field(kw_only=True, compare=False)
    """The folder to write to, which is train_head.py's --data."""
    sources: list[str] = option([SELF])
    """Where prompts come from, each as SOURCE=WEIGHT: self, which samples user turns from the
    target, or a file of conversations or prompts (docs/heads.md)."""
    temperatures: list[float] = option([0.0, 0.0, 0.7, 1.0])
    """The sampling temperatures, of which each dialogue draws one; 0 is greedy."""
    dialogues: int = option(0, may_change=True)
    """Stop after this many dialogues. 0: no limit."""
    answer_tokens: int = option(0, may_change=True)
    """Begin no dialogue that would exceed this many answer tokens in all. 0: no limit."""
    minutes: float = option(0.0, may_change=True)
    """End after these minutes, those of earlier sessions included; answers under way are cut there.
    0: no limit."""
    features: str = option("", may_change=True)
    """A folder that keeps the target's states, for train_head.py's --features. Empty: they are not
    kept."""
    max_new_tokens: int = 400
    """The most tokens that an answer may have; a longer one is cut and ends there."""
    exclude: list[str] = option([])
    """Further question files whose prompts are dropped, beside the benchmarks'."""
    batch_size: int = option(0, may_change=True)
    """The number of dialogues at a time; lower it if memory ends. 0: 512 on CUDA, 128 on a CPU, and
    32 on a CPU with less than 15 minutes."""
    seed: int = 0
    """The seed of prompts, mixture and sampling."""
    plan: bool = PLAN

    def __post_init__(self):
        super().__post_init__()
        # on one thread of a CPU 128 rows take 4.3 ms a token, 32 take 4.9; but the more are under
        # way when a short time ends, the more of it went into answers that are cut
        on_cpu = 32 if 0 < self.minutes < 15 else 128
        self.batch_size = self.batch_size or (512 if self.device.startswith("cuda") else on_cpu)
        check_least(self, "--", batch_size=1, max_new_tokens=1)
        check_least(self, "--", dialogues=0, answer_tokens=0, minutes=0)
        for temperature in self.temperatures:
            SamplingConfig(temperature)  # its own check
        endless = not (self.dialogues or self.answer_tokens or self.minutes)
        if SELF in parse_weights(self.sources) and endless:
            raise BadInput("source self has no end: give --dialogues, --answer_tokens or --minutes")


def make_data(options: DataOptions) -> None:
    """Make what is missing of a folder of dialogues, by one process or each of several."""
    from eagle_fsd.evaluation.questions import read_questions
    from eagle_fsd.messages import read_template_settings
    from eagle_fsd.models import load
    from eagle_fsd.models.chat import settle_template, tell_added
    from eagle_fsd.runs.folder import Run
    from eagle_fsd.runs.processes import Processes
    from eagle_fsd.runs.provenance import digest
    from eagle_fsd.training import dialogues, prompts
    from eagle_fsd.training.chat_format import ChatFormat
    from eagle_fsd.training.features import TargetStates

    # 1. What needs no weights is checked, and the sources are read.
    processes = Processes.launched(options.device)
    options.device = processes.device(options.device)
    load.check_device(options.device, options.dtype)
    config = load.load_target_config(options.target)
    positions = getattr(config, "max_position_embeddings", math.inf)
    room = positions - max(options.max_new_tokens, dialogues.TURN_TOKENS)  # for a prompt
    if room < 1:
        raise BadInput(
            f"--max_new_tokens {options.max_new_tokens} leaves a prompt none of the target's "
            f"{positions} positions: lower it"
        )
    weights = parse_weights(options.sources)
    read = {name: prompts.read_source(name) for name in weights if name != SELF}
    sources = {name: conversations for name, (conversations, _) in read.items()}
    unread = sum((counts for _, counts in read.values()), Counter())
    excluded = {
        Path(path).name: [turn for question in read_questions(path) for turn in question.turns]
        for path in options.exclude
    }
    tokenizer = load.load_tokenizer(options.target)
    template_settings = read_template_settings(options.template_settings)
    settle_template(tokenizer, template_settings, conv_template=options.conv_template)
    chat = ChatFormat(tokenizer, options.conv_template, options.system or "")
    if SELF in weights:
        chat.user_prefix()  # refuses a template without
    # 2. The folder, and what of the candidates is left.
    digests = load.target_digests(options.target)
    run = Run.of(
        options,
        further=digests | {"prompts": digest([sources, excluded])},
        key=place,
        processes=processes,
    )
    settle_template(tokenizer, date=run.date)
    done = {number for rows in run.records.values() for number, _ in rows}
    candidates = (
        (number, *candidate)
        for number, *candidate in prompts.draw_candidates(weights, sources, seed=options.seed)
        if number % processes.count == processes.index and number not in done
    )
    # 3. The target, and what it says.
    target, _ = load.load_target(
        options.target,
        dtype=options.dtype,
        device=options.device,
        engine="auto",
        keep_stock=False,
    )
    ends = chat.ends(target.eos_token_ids)
    tell_added(ends, options.target)
    limits = ("temperatures", "max_new_tokens", "seed", "dialogues", "answer_tokens", "minutes")
    maker = dialogues.DialogueMaker(
        run,
        candidates,
        chat,
        prompts.Benchmarks(excluded),
        end_ids=frozenset(ends.ids),
        most_prompt_tokens=min(dialogues.PROMPT_TOKENS, room),
        states=TargetStates(target, options.features, digests) if options.features else None,
        **{name: getattr(options, name) for name in limits},
    )
    if options.plan:
        print(maker.plan(target, batch_size=options.batch_size))
        return
    run.begin_session()
    maker.make(target, batch_size=options.batch_size)
    run.finish()
    if processes.is_main:
        summary = summarize(run, unread)
        print(f"data: {options.output}\n{json.dumps(summary, indent=2, ensure_ascii=False)}")


def place(row: dict) -> tuple[int, int]:
    """Number of a dialogue, and of its row; folders of older versions have one row of each."""
    return row["id"], row.get("part", 0)


def summarize(run: "Run", unread: Counter[str]) -> dict:
    """Count what the run has made, of two dialogues that begin alike the first only; `unread`: in
    how many records of the sources a field is not read."""
    from eagle_fsd.runs.folder import record_files
    from eagle_fsd.runs.jsonl import read_lines, write_json, write_lines

    dropped = Counter(row["reason"] for row in run.records["dropped"].values())
    made = sorted(run.records["dialogues"].values(), key=place)
    first: dict[str, int] = {}
    rows = [row for row in made if first.setdefault(row["user"], row["id"]) == row["id"]]
    if not rows:
        reasons = ", ".join(f"{n} {reason}" for reason, n in dropped.items())
        raise BadInput(
            f"no dialogue was made ({reasons or 'none dropped'}): give other --sources, or more "
            "--minutes or --answer_tokens"
        )
    kept = set(first.values())
    if len(rows) < len(made):  # two processes have begun one alike
        for path in record_files(run.folder, "dialogues"):
            write_lines(path, [row for row in read_lines(path) if row["id"] in kept])
    answer_tokens = sum(sum(row["loss_mask"]) for row in rows)
    seconds = max(row["seconds"] for row in rows)
    firsts = [row for row in rows if not row.get("part")]
    summary = {
        "dialogues": len(kept),
        "rows": len(rows),
        "answer_tokens": answer_tokens,
        "tokens": sum(len(row["input_ids"]) for row in rows),
        "seconds": seconds,
        "answer_tokens_per_s": answer_tokens / max(seconds, 0.1),
        "share_finished": sum(row["finished"] for row in rows) / len(rows),
        "from": dict(Counter(row["source"] for row in firsts)),
        "control_tokens": sum(row.get("control_tokens", 0) for row in firsts),
        "dropped": dict(sorted(dropped.items())),
        "unread": dict(sorted(unread.items())),
    }
    write_json(run.folder / "summary.json", summary)
    return summary


if __name__ == "__main__":
    run_command(make_data, [DataOptions])
