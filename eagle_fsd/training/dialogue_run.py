"""A run that makes training dialogues, from its options to what was made.

Its folder (runs/folder.py) holds records/dialogues.jsonl, a finished dialogue a line,
records/dropped.jsonl, number and reason of every candidate that was dropped, and summary.json.
"""

import math
from collections import Counter
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path

from eagle_fsd.config import BadInput
from eagle_fsd.models import load
from eagle_fsd.models.generate import complete
from eagle_fsd.runs.folder import Run
from eagle_fsd.runs.jsonl import write_json, write_lines
from eagle_fsd.runs.processes import Processes
from eagle_fsd.runs.provenance import digest
from eagle_fsd.training import prompts
from eagle_fsd.training.dialogues import TURN_TOKENS, ChatFormat, DialogueMaker
from eagle_fsd.training.features import TargetStates
from eagle_fsd.training.training_options import DataOptions


def make_dialogues(options: DataOptions) -> dict | None:
    """Make what is missing of a folder of dialogues, by one process or each of several.

    Returns the summary of what was made; None in all processes but the first.

    Raises:
        BadInput: an option that cannot be followed, or sources that yield nothing.
    """
    processes = Processes.launched(cpu=not options.device.startswith("cuda"))
    options.device = processes.device(options.device)
    options.dtype = options.dtype or load.default_dtype(options.device)
    load.check_device(options.device, options.dtype)
    config = load.load_target_config(options.target)
    positions = getattr(config, "max_position_embeddings", math.inf)
    if options.max_prompt_tokens + max(options.max_new_tokens, TURN_TOKENS) > positions:
        raise BadInput(
            f"--max_prompt_tokens {options.max_prompt_tokens} and --max_new_tokens "
            f"{options.max_new_tokens} exceed the target's {positions} positions: lower one"
        )
    weights = prompts.parse_weights(options.sources)
    sources = {name: prompts.read_source(name) for name in weights if name != prompts.SELF}
    excluded = {
        Path(path).name: [
            turn for found in prompts.read_source(path) for turn in prompts.user_turns(found or [])
        ]
        for path in options.exclude
    }
    chat = ChatFormat(load.load_tokenizer(options.target))
    if prompts.SELF in weights:
        chat.user_prefix()  # refuses a template without
    digests = load.target_digests(options.target)
    read = {"prompts": digest([sources, excluded])}  # files may change
    budgets = ("dialogues", "answer_tokens", "minutes")
    run = Run(
        options.output,
        asdict(options) | digests | read,
        free=("output", "features", *budgets, "batch_size", "device"),
        key=itemgetter("id"),
        processes=processes,
    )
    done = {number for rows in run.records.values() for number in rows}
    candidates = (
        (number, *candidate)
        for number, *candidate in prompts.draw_candidates(weights, sources, seed=options.seed)
        if number % processes.count == processes.index and number not in done
    )
    target, _ = load.load_target(
        options.target, dtype=options.dtype, device=options.device, engine="auto"
    )
    end_ids = chat.end_ids | set(target.eos_token_ids)
    states = TargetStates(target, options.features, digests) if options.features else None
    benchmarks = prompts.Benchmarks(excluded)
    maker = DialogueMaker(options, run, candidates, chat, benchmarks, end_ids, states)
    run.begin_session()
    for request in complete(
        target, maker.next_request, batch_size=options.batch_size, stop=maker.out_of_time
    ):
        maker.receive(request)
    run.finish()
    return summarize(run) if processes.is_main else None


def summarize(run: Run) -> dict:
    """Count what the run has made, of two dialogues that begin alike the first only."""
    dropped = Counter(row["reason"] for row in run.records["dropped"].values())
    rows: dict[str, dict] = {}
    for row in sorted(run.records["dialogues"].values(), key=lambda row: row["id"]):
        rows.setdefault(row["user"], row)
    if not rows:
        told = ", ".join(f"{n} {reason}" for reason, n in dropped.items())
        raise BadInput(
            f"no dialogue was made ({told or 'none dropped'}): give other --sources, or more "
            "--minutes, --max_prompt_tokens or --answer_tokens"
        )
    if len(rows) < len(run.records["dialogues"]):  # two processes have begun one alike
        write_lines(run.folder / "records" / "dialogues.jsonl", rows.values())
    answer_tokens = sum(sum(row["loss_mask"]) for row in rows.values())
    seconds = max(row["seconds"] for row in rows.values())
    summary = {
        "dialogues": len(rows),
        "answer_tokens": answer_tokens,
        "tokens": sum(len(row["input_ids"]) for row in rows.values()),
        "seconds": seconds,
        "answer_tokens_per_s": answer_tokens / max(seconds, 0.1),
        "share_finished": sum(row["finished"] for row in rows.values()) / len(rows),
        "from": dict(Counter(row["source"] for row in rows.values())),
        "dropped": dict(sorted(dropped.items())),
    }
    write_json(run.folder / "summary.json", summary)
    return summary
