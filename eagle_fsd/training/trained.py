"""What a training leaves: the head, and the record of what it became."""

import math
from dataclasses import asdict
from pathlib import Path

import torch
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_NAME

from eagle_fsd.config import SMALL_TREE, BadInput, tree_name
from eagle_fsd.heads.draft_head import build_head
from eagle_fsd.heads.files import write_head
from eagle_fsd.heads.head_config import HeadConfig
from eagle_fsd.heads.mtp_files import write_mtp
from eagle_fsd.heads.mtp_head import MtpHead
from eagle_fsd.runs.jsonl import read_json, write_json
from eagle_fsd.training.data import Parts
from eagle_fsd.training.features import TargetStates
from eagle_fsd.training.head_run import expected_tokens_per_round
from eagle_fsd.training.recipe import Recipe

RECORD = "training.json"  # what the head became


def is_trained(folder: Path) -> bool:
    """Whether the head is there, and the record of what it does on what was held out."""
    if not all((folder / name).is_file() for name in (CONFIG_NAME, SAFE_WEIGHTS_NAME)):
        return False
    try:
        return bool(read_json(folder / RECORD, held_out_rounds=int))
    except BadInput:  # none, a torn one, or one without what was measured
        return False


def write_trained(
    folder: Path,
    shape: HeadConfig,
    tensors: dict[str, torch.Tensor],
    states: TargetStates,
    parts: Parts,
    progress: dict,
    *,
    recipe: Recipe,
    seconds: float,
) -> str:
    """Write the head and its record; then measure for these seconds what it does on what was held
    out, and add that. Returns what was done, in words."""
    mtp = shape.head_type == "mtp"
    build, write = (MtpHead, write_mtp) if mtp else (build_head, write_head)
    head = build(shape).eval()
    head.load_state_dict(tensors, assign=True)
    write(folder, head.bfloat16())
    speed = progress["tokens"] / max(progress["seconds"], 1e-9)
    record = {
        "answer_tokens_seen": progress["tokens"],
        "training_seconds": progress["seconds"],
        "tokens_per_second": speed,
        "tree": tree_name(SMALL_TREE),
        "held_out": len(parts.held_out),
        "equal_to_held_out": parts.copies,
        "recipe": asdict(recipe),
    }
    write_json(folder / RECORD, record)
    tokens_per_round, rounds = expected_tokens_per_round(
        head, states, parts.held_out, SMALL_TREE, seconds=seconds
    )
    measured = {"tokens_per_round": tokens_per_round, "held_out_rounds": rounds}
    write_json(folder / RECORD, record | measured)
    return (
        f"The head is in {folder}. It was trained on {progress['tokens']} answer tokens in "
        f"{progress['seconds']:.0f} seconds ({speed:.0f} tokens/s).\n"
        f"On {rounds} rounds of held-out answers, exact decoding with its trees of "
        f"{record['tree']} emits {tokens_per_round or math.nan:.2f} tokens per round."
    )
