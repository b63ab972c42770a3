"""Long contexts: time and peak memory of a round, the plain loop against exact EAGLE-2.

    python evaluate/long_context.py                                     # 500, 4000, 7900 tokens
    python evaluate/long_context.py --contexts 1000 16000 --target T --head H --device cuda

The prompt is the text of MT-Bench's questions over and over. Plain and exact rounds take turns on
one sequence (medians, no clock inside); peak memory is that of each loop alone, prefill and a few
rounds, above the level before, compared with what the head must take: its weights, its cache, and
the draft logits of expanded nodes. In the output folder: long_context.json, long_context.md.
"""

import sys
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from pathlib import Path

from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from eagle_fsd.config import BadInput, TreeConfig
from eagle_fsd.decoding.drafter import RootDrafter
from eagle_fsd.decoding.target import Target
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.evaluation.questions import Question, read_questions
from eagle_fsd.evaluation.tables import Column, markdown_table
from eagle_fsd.models.assets import mt_bench_dir
from eagle_fsd.models.load import SHIPPED_HEAD, load_head, load_target_config
from eagle_fsd.models.model_options import ModelOptions, option
from eagle_fsd.models.random_weights import module_bytes
from eagle_fsd.runs.checkout import without_checkout
from eagle_fsd.runs.command import run_command
from eagle_fsd.runs.jsonl import write_json
from eagle_fsd.runs.provenance import describe_run
from eagle_fsd.speed.contexts import (
    bound_parts,
    loop_peak,
    memory_figures,
    time_pairs,
    tokens_needed,
)
from eagle_fsd.speed.device_memory import PeakAllocated, held_level
from eagle_fsd.speed.quiet import check_timing_alone

MEMORY: tuple[Column, ...] = (
    ("context", "context", "d"),
    ("plain peak", "plain_peak_bytes", ".2f"),
    ("exact peak", "exact_peak_bytes", ".2f"),
    ("drafter", "drafter_bytes", ".2f"),
    ("above plain", "above_plain_bytes", ".2f"),
    ("bound", "bound_bytes", ".2f"),
    ("head", "head", ".2f"),
    ("cache", "cache", ".2f"),
    ("logit rows", "logit_rows", ".2f"),
    ("kept", "kept", "s"),
)


@dataclass
class ContextOptions:
    contexts: list[int] = field(
        default_factory=lambda: [500, 4000, 7900], metadata={"help": "tokens of the prompts"}
    )
    rounds: int = option(12, "plain and exact rounds timed at each context")
    question_file: str = option("", "question.jsonl in FastChat's format; empty: MT-Bench")
    output: str = option("runs/long_context", "folder of the results")

    def __post_init__(self):
        if min(self.contexts, default=0) < 2:
            raise BadInput(f"--contexts takes lengths of 2 or above, got {self.contexts}")
        if self.rounds < 1:
            raise BadInput(f"--rounds must be at least 1, got {self.rounds}")


def check_positions(options: ContextOptions, tree: TreeConfig, max_positions: int | None) -> int:
    """The tokens that rounds may add to a context.

    Raises:
        BadInput: a context with them and a tree is beyond the target's positions.
    """
    new_tokens = tokens_needed(options.rounds, tree_depth=tree.tree_depth)
    longest = (max_positions or 2**31) - new_tokens - tree.num_draft_tokens - 1
    if max(options.contexts) > longest:
        raise BadInput(
            f"--contexts {max(options.contexts)} is too long: of the target's {max_positions} "
            f"positions {new_tokens} are for {options.rounds} rounds and "
            f"{tree.num_draft_tokens + 1} for a tree, which leaves {longest}"
        )
    return new_tokens


def text_tokens(
    tokenizer: PreTrainedTokenizerBase, questions: list[Question], length: int
) -> list[int]:
    """The questions' text one after the other, over again as often as needed."""
    texts = [turn for question in questions for turn in question.turns]
    ids = tokenizer("\n\n".join(texts), add_special_tokens=False)["input_ids"]
    return list(islice(cycle(ids), length))


def measure_context(
    target: Target,
    drafter: EagleDrafter,
    prompt: list[int],
    *,
    rounds: int,
    new_tokens: int,
    weights: int,
    held: int,
    level: int,
    bar: tqdm,
) -> dict:
    """Time and memory at one context.

    Args:
        weights: see bound_parts.
        held: see memory_figures.
        level: see loop_peak.
    """
    peaks = []
    for name in ("plain", "exact"):
        bar.set_postfix_str(f"{len(prompt)} tokens, memory of {name}")
        fresh = RootDrafter() if name == "plain" else drafter.with_tree(drafter.tree_config)
        peaks.append(loop_peak(target, fresh, prompt, new_tokens=new_tokens, level=level))
        del fresh  # and its cache
        bar.update()
    bar.set_postfix_str(f"{len(prompt)} tokens, rounds")
    fresh = drafter.with_tree(drafter.tree_config)
    times = time_pairs(target, fresh, prompt, rounds=rounds)
    bar.update()
    parts = bound_parts(drafter, weights=weights, capacity=len(prompt) + new_tokens)
    return {
        "context": len(prompt),
        **times.figures(),
        **memory_figures(*peaks, held, parts),
        "rounds": asdict(times),
    }


def table(rows: list[dict]) -> str:
    """Two Markdown tables: rounds, then memory in MB."""
    first = rows[0]
    columns: tuple[Column, ...] = (
        ("context", "context", "d"),
        ("plain round, ms", "plain_round_ms", ".1f"),
        ("exact round, ms", "exact_round_ms", ".1f"),
        ("exact / plain", "round_ratio", ".2f"),
        (f"plain vs {first['context']}", "plain_vs_first", ".2f"),
        (f"exact vs {first['context']}", "exact_vs_first", ".2f"),
        ("tokens/round", "tokens_per_round", ".2f"),
    )
    rounds = [
        row
        | {
            f"{name}_vs_first": row[f"{name}_round_ms"] / first[f"{name}_round_ms"]
            for name in ("plain", "exact")
        }
        for row in rows
    ]
    return "\n\n".join(
        [
            markdown_table(rounds, columns),
            "Peak memory, MB, each loop alone above the level before it; the drafter's own bytes "
            "are there\nbefore. Above plain = exact - plain + drafter; the bound is head + cache "
            "+ logit rows + 10 %.",
            markdown_table([_megabytes(row) for row in rows], MEMORY),
        ]
    )


def _megabytes(row: dict) -> dict:
    """The cells of MEMORY."""
    sizes = {key: value for key, value in row.items() if key.endswith("_bytes")}
    sizes |= sizes.pop("bound_parts_bytes")
    kept = "yes" if row["within_bound"] else "NO"
    cells = {key: size / 1e6 for key, size in sizes.items()}
    return {"context": row["context"], "kept": kept, **cells}


def run(options: ContextOptions, model_options: ModelOptions) -> None:
    tree = model_options.tree()
    config = load_target_config(model_options.target)
    positions = getattr(config, "max_position_embeddings", None)
    new_tokens = check_positions(options, tree, positions)
    for warning in check_timing_alone(model_options.device):
        print(f"warning: {warning}", file=sys.stderr)
    questions = read_questions(options.question_file or mt_bench_dir() / "question.jsonl")
    folder = Path(options.output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot write to --output {folder} ({error})") from error
    model = model_options.load()
    target, tokenizer = model.target, model.tokenizer
    del model  # and the drafter with it: one is built here, so that its bytes can be counted
    head = load_head(model_options.head or SHIPPED_HEAD, config)
    head.to(target.device, target.dtype)
    weights = module_bytes(head)
    with PeakAllocated(target.device) as memory:  # what is made of the head: packed weights, rows
        drafter = EagleDrafter(head, target, tree)
    del head
    held = module_bytes(drafter.head) + memory.held_bytes
    level = held_level(target.device)
    rows = []
    bar = tqdm(total=3 * len(options.contexts), unit="part", desc="long contexts")
    for length in sorted(options.contexts):
        prompt = text_tokens(tokenizer, questions, length)
        rows.append(
            measure_context(
                target,
                drafter,
                prompt,
                rounds=options.rounds,
                new_tokens=new_tokens,
                weights=weights,
                held=held,
                level=level,
                bar=bar,
            )
        )
    bar.close()
    report(options, model_options, target.engine.name, rows, folder)


def report(
    options: ContextOptions,
    model_options: ModelOptions,
    engine: str,
    rows: list[dict],
    folder: Path,
) -> None:
    described = describe_run(model_options.device)
    settings = without_checkout(asdict(options) | asdict(model_options))
    title = (
        f"{settings['target']} in {settings['dtype']}, {settings['num_draft_tokens']} drafts in "
        f"{settings['tree_depth']} levels, engine {engine}, medians of {options.rounds} rounds by "
        f"turns; {described['device']}, commit {described['commit']}"
    )
    text = f"{title}\n\n{table(rows)}\n"
    record = {"title": title, "options": settings, "engine": engine, "rows": rows, **described}
    write_json(folder / "long_context.json", record)
    (folder / "long_context.md").write_text(text)
    print(f"\n{text}\nwritten to {folder}: long_context.md, long_context.json")


def main(arguments: list[str] | None = None) -> None:
    run_command(run, [ContextOptions, ModelOptions], arguments)


if __name__ == "__main__":
    main()
