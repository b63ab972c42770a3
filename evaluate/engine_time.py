"""The engine's time a round for a target whose weights nobody has: random weights, fixed pattern.

    python evaluate/engine_time.py --random_weights llama-3.1-8b --device cuda
    python evaluate/engine_time.py --random_weights qwen3-32b --head_type eagle3 --draft_vocab 32000
    python evaluate/engine_time.py --random_weights my/config.json --accepted 0 1 2 --device cpu

Engine time, no quality: --accepted says how many drafts each round accepts, in turn. The drafter,
the target and the acceptance rule do all their work and its time counts; then the path is replaced.
Compared with the plain loop on the same target, and both with the memory roofline: the bytes that a
forward must read over the bandwidth measured here. In the output folder: engine_time.json,
engine_time.md.
"""

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import PretrainedConfig

from eagle_fsd.api import default_tree
from eagle_fsd.config import AcceptConfig, BadInput, TreeConfig
from eagle_fsd.decoding.drafter import Drafter, RootDrafter
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig
from eagle_fsd.decoding.target import Target
from eagle_fsd.engine.select import choose_engine
from eagle_fsd.heads.head_config import HeadConfig
from eagle_fsd.heads.shape import head_shape
from eagle_fsd.models.load import DTYPES, check_device, check_fits, default_dtype
from eagle_fsd.models.model_options import DecodeOptions, option
from eagle_fsd.models.random_weights import (
    cache_row_bytes,
    check_memory,
    empty_model,
    head_bytes,
    module_bytes,
    random_drafter,
    random_target,
)
from eagle_fsd.models.shapes import SHAPES, load_shape
from eagle_fsd.runs.checkout import without_checkout
from eagle_fsd.runs.command import run_command
from eagle_fsd.runs.jsonl import write_json
from eagle_fsd.runs.provenance import describe_run
from eagle_fsd.speed.quiet import check_timing_alone
from eagle_fsd.speed.roofline import forward_bytes, measure_bandwidth
from eagle_fsd.speed.round_report import LABEL, figures, table
from eagle_fsd.speed.round_times import (
    PatternLoop,
    RoundTimes,
    time_rounds,
    tokens_needed,
    warm_up_rounds,
)


@dataclass
class EngineOptions:
    random_weights: str = field(
        metadata={"help": f"shape of the target: {', '.join(SHAPES)}, or a path of a config.json"}
    )
    accepted: list[int] = field(
        default_factory=lambda: [0, 1, 2, 3],
        metadata={"help": "accepted drafts of each round, in turn; clipped to the tree"},
    )
    prompt_tokens: int = option(512, "context before the first round")
    rounds: int = option(40, "rounds a pass; best a multiple of the pattern")
    repeats: int = option(3, "passes of each kind; medians are reported")
    num_draft_tokens: int | None = option(None, "drafts a round; default 15 on CPU, 59 on CUDA")
    tree_depth: int | None = option(None, "drafted levels; default 4 or 6")
    branch_top_k: int | None = option(None, "children per expanded node; default 6 or 10")
    head_type: str = option("eagle", "eagle (EAGLE-1/2) or eagle3")
    draft_vocab: int = option(0, "tokens that the head can draft; 0: all")
    rule: str = option("fsd", "acceptance rule whose time counts")
    threshold: float = option(1.0, "T; 1 passes everywhere, so the rule walks to a leaf")
    device: str = option("", "torch device; empty: cuda if there is one")
    dtype: str = option("", "bfloat16, float16 or float32; empty: bfloat16 where it is fast")
    engine: str = option("auto", "how the target is run: see eagle_fsd/engine/select.py")
    output: str = option("runs/engine_time", "folder of the results")

    def __post_init__(self):
        self.device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = self.dtype or default_dtype(self.device)
        usual = default_tree(self.device)
        for name in ("num_draft_tokens", "tree_depth", "branch_top_k"):
            if getattr(self, name) is None:
                setattr(self, name, getattr(usual, name))
        for name in ("prompt_tokens", "rounds", "repeats"):
            if getattr(self, name) < 1:
                raise BadInput(f"--{name} must be at least 1, got {getattr(self, name)}")
        if min(self.accepted, default=-1) < 0:
            raise BadInput(f"--accepted takes counts of 0 or above, got {self.accepted}")
        if self.draft_vocab < 0:
            raise BadInput(f"--draft_vocab must be 0 (all) or above, got {self.draft_vocab}")
        if self.dtype not in DTYPES:
            raise BadInput(f"unknown --dtype {self.dtype!r}; known: {', '.join(DTYPES)}")
        if self.device == "auto":
            raise BadInput("--device auto: give one device, as the roofline is that of one")
        check_device(self.device)
        choose_engine(self.engine, device=self.device, dtype=DTYPES[self.dtype])

    def tree(self) -> TreeConfig:
        return TreeConfig(self.num_draft_tokens, self.tree_depth, self.branch_top_k)

    def accept(self) -> AcceptConfig:
        return DecodeOptions().accept(self.rule, self.threshold)

    def new_tokens(self) -> int:
        return tokens_needed(self.accepted, self.rounds, tree_depth=self.tree_depth)


def check_size(options: EngineOptions, config: PretrainedConfig, head: HeadConfig) -> None:
    """Refuse before weights are made what is too long or too large.

    Raises:
        BadInput: beyond the target's positions, or beyond the device's memory.
    """
    rows = options.prompt_tokens + options.new_tokens()
    if rows > config.max_position_embeddings:
        raise BadInput(
            f"--prompt_tokens {options.prompt_tokens} and {options.new_tokens()} tokens of rounds "
            f"are beyond the target's {config.max_position_embeddings} positions: lower one"
        )
    dtype = DTYPES[options.dtype]
    per_row = cache_row_bytes(config, dtype) + cache_row_bytes(head, dtype)
    needed = {
        "target": module_bytes(empty_model(config, dtype, "meta")),
        "head": head_bytes(head, dtype),
        "caches": (rows + options.num_draft_tokens + 1) * per_row,
    }
    check_memory(needed, torch.device(options.device))


def measure(options: EngineOptions, config: PretrainedConfig, head: HeadConfig) -> dict:
    """Build, run all passes, and return the record."""
    dtype = DTYPES[options.dtype]
    bandwidth = measure_bandwidth(torch.device(options.device))
    target = random_target(
        config,
        dtype=dtype,
        device=options.device,
        engine=options.engine,
        feature_layers=head.fused_layers(config.num_hidden_layers),
    )
    loops = {
        "plain": (RootDrafter(), [0]),
        "tree": (random_drafter(head, target, options.tree()), options.accepted),
    }
    passes = run_passes(options, target, loops)
    found = figures(
        passes,
        bytes_read=lambda context: forward_bytes(config, dtype, context=context),
        bandwidth=bandwidth,
    )
    return {
        "label": LABEL,
        "options": without_checkout(asdict(options)),
        "engine": target.engine.name,
        "bandwidth_bytes_per_second": bandwidth,
        "accepted_drafts": passes["tree"][0][1].accepted,
        **found,
        **describe_run(options.device),
    }


def run_passes(
    options: EngineOptions, target: Target, loops: dict[str, tuple[Drafter, list[int]]]
) -> dict[str, list[tuple[RoundTimes, RoundTimes]]]:
    """Every loop (drafter, pattern) with the clock and without, the loops by turns."""
    passes = {name: [] for name in loops}
    bar = tqdm(total=options.repeats * len(loops) * 2, unit="pass", desc="engine time")
    for _ in range(options.repeats):
        for name, (drafter, pattern) in loops.items():
            times = []
            for clocked in (True, False):
                loop = start(options, target, drafter, pattern)
                warm_up = warm_up_rounds(pattern)
                times.append(time_rounds(loop, options.rounds, warm_up=warm_up, clocked=clocked))
                bar.update()
            passes[name].append(tuple(times))
    bar.close()
    return passes


def start(
    options: EngineOptions, target: Target, drafter: Drafter, pattern: list[int]
) -> PatternLoop:
    """A fresh sequence; every pass has the same prompt."""
    generator = torch.Generator().manual_seed(0)
    prompt_L = torch.randint(target.vocab_size, (options.prompt_tokens,), generator=generator)
    config = DecodeConfig(options.accept(), stop=StopConfig(options.new_tokens()))
    return PatternLoop(target, drafter, prompt_L.tolist(), config, pattern)


def run(options: EngineOptions) -> None:
    options.tree(), options.accept()
    config = load_shape(options.random_weights)
    head = head_shape(config, head_type=options.head_type, draft_vocab=options.draft_vocab)
    check_fits(head, config, name=f"random {options.head_type}")
    check_size(options, config, head)
    for warning in check_timing_alone(options.device):
        print(f"warning: {warning}", file=sys.stderr)
    folder = Path(options.output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot write to --output {folder} ({error})") from error
    record = measure(options, config, head)
    text = "\n\n".join([title(options, record), table_of(record)]) + "\n"
    write_json(folder / "engine_time.json", record)
    (folder / "engine_time.md").write_text(text)
    print(f"\n{text}\nwritten to {folder}: engine_time.md, engine_time.json")


def title(options: EngineOptions, record: dict) -> str:
    given = record["accepted_drafts"]
    return (
        f"{record['options']['random_weights']} in {options.dtype} ({LABEL}), "
        f"{options.head_type} head, draft vocabulary {options.draft_vocab or 'whole'}, "
        f"{options.num_draft_tokens} drafts in {options.tree_depth} levels, top-k "
        f"{options.branch_top_k}, {options.prompt_tokens} tokens of context, accepted drafts "
        f"{' '.join(map(str, options.accepted))} in turn (mean {sum(given) / len(given):.2f}), "
        f"engine {record['engine']}; {record['device']}, commit {record['commit']}"
    )


def table_of(record: dict) -> str:
    return table(record, bandwidth=record["bandwidth_bytes_per_second"])


def main(arguments: list[str] | None = None) -> None:
    run_command(run, [EngineOptions], arguments)


if __name__ == "__main__":
    main()
