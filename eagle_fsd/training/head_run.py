"""Around a training: the head that it begins with, what is prepared, and what the head became."""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

import torch
from accelerate import Accelerator
from tqdm import tqdm
from transformers import PretrainedConfig

from eagle_fsd.config import SMALL_TREE, BadInput, TreeConfig, tree_name
from eagle_fsd.drafters.eagle import head_drafter, share_tables
from eagle_fsd.drafters.walk import walk
from eagle_fsd.heads.draft_head import DraftHead, build_head
from eagle_fsd.heads.draft_vocabulary import answer_counts, coverage, frequent_tokens
from eagle_fsd.heads.files import write_head
from eagle_fsd.heads.head_config import head_shape
from eagle_fsd.heads.mtp_files import write_mtp
from eagle_fsd.models import load
from eagle_fsd.runs.jsonl import write_json
from eagle_fsd.training.data import Batches, Dialogue, supervised
from eagle_fsd.training.features import TargetStates
from eagle_fsd.training.losses import Objective
from eagle_fsd.training.muon import Muon
from eagle_fsd.training.recipe import Recipe, parse_recipe

RECORD = "training.json"  # what the head became
# what is replayed of the held-out answers at most; the standard error of the mean of a thousand
# rounds is about .03 of it
REPLAYED, REPLAY_SECONDS = 1000, 120.0


def begun_head(
    target: str,
    target_config: PretrainedConfig,
    *,
    start: str,
    head_type: str,
    loss_vocab: int,
    recipe: str,
    seed: int,
) -> DraftHead:
    """The head to train, float32: random weights, or all of another head, its type and its draft
    vocabulary too."""
    if start:
        head = load.load_head(start, target_config, target=target).float().train()
        if loss_vocab and (head.lm_head is not None or head.d2t is not None):
            raise BadInput(f"--start {start} keeps what it drafts: leave --loss_vocab out")
    else:
        drafted = loss_vocab if head_type == "eagle3" else 0
        torch.manual_seed(seed)
        head = build_head(head_shape(target_config, head_type=head_type, draft_vocab=drafted))
    kind = head.config.head_type
    featureless = kind == "eagle3" or (kind == "mtp" and head.config.own == "raw")
    if featureless and recipe and parse_recipe(recipe).feature:
        raise BadInput(
            "the output of an EAGLE-3 head, or of an MTP layer before its norm, is no feature of "
            "the target: give feature=0"
        )
    return head


def prepare(
    head: DraftHead,
    training: list[Dialogue],
    states: TargetStates,
    recipe: Recipe,
    accelerator: Accelerator,
    *,
    loss_vocab: int,
    tokens_per_batch: int,
    seed: int,
) -> tuple[torch.nn.Module, list[torch.optim.Optimizer], Batches]:
    """The head in its losses, its optimizers, both as accelerate wraps them, and its batches."""
    # 1. The losses follow what the head reads of the target's, and the target reads by rows alone.
    target, config = states.target, head.config
    share_tables(head, target)
    own = config.own_embedding or (config.head_type == "eagle" and config.own_lm_head)
    if own or not target.readout.is_linear:
        raise BadInput(
            "such a head can be run, and not trained: --start has its own embedding or lm_head "
            "where the losses take the target's, or the target's has a bias or caps its logits"
        )
    # 2. The tokens that they are over.
    every_V, token_R = torch.arange(target.vocab_size), head.draft_token_R
    if loss_vocab:
        counts = answer_counts(training)
        token_R = frequent_tokens(counts, loss_vocab, every_V)
        share = coverage(counts, token_R)
        accelerator.print(f"{loss_vocab} tokens are {share:.2%} of the answers")
        if head.d2t is not None:
            head.set_draft_tokens(token_R)
    rows_RD = target.readout.rows(token_R)
    allowed_V = None if head.d2t is None else torch.isin(every_V, token_R)
    # 3. Batches, losses and optimizers.
    batches = Batches(
        training,
        [supervised(d, skip=recipe.unroll_steps - 1, allowed_V=allowed_V) for d in training],
        states.of,
        states.kept,
        tokens_per_batch=tokens_per_batch,
        seed=seed,
        noise=recipe.noise,
    )
    objective = Objective(head, rows_RD.to(accelerator.device), recipe)
    objective, *optimizers = accelerator.prepare(objective, *optimizers_of(objective, recipe))
    return objective, optimizers, batches


def optimizers_of(objective: Objective, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """The recipe's; Muon's matrices are those that map hidden states to hidden states."""
    matrices, rest = [], []
    for name, parameter in objective.named_parameters():
        hidden = parameter.ndim == 2 and "lm_head" not in name
        (matrices if recipe.optimizer == "muon" and hidden else rest).append(parameter)
    decay = recipe.weight_decay
    optimizers: list[torch.optim.Optimizer] = []
    if matrices:
        optimizers.append(Muon(matrices, dtype=objective.dtype, weight_decay=decay))
    return [*optimizers, torch.optim.AdamW(rest, betas=(0.9, 0.95), weight_decay=decay)]


@torch.no_grad()
def expected_tokens_per_round(
    head: DraftHead, states: TargetStates, dialogues: list[Dialogue], tree: TreeConfig
) -> tuple[float | None, int]:
    """Tokens a round that exact decoding of these answers would have had, by replay of REPLAYED
    rounds, or of those that begin within REPLAY_SECONDS, one at least; and how many these were.

    Of answers drawn at a temperature it is what drawing them again would have given. None if no
    answer is long enough. The head is moved to the target's device and dtype.
    """
    target = states.target
    drafter = head_drafter(head, target, tree)

    def rounds() -> Iterator[int]:
        for dialogue in dialogues:
            ((feature_LF, _),) = states.of([dialogue.ids])
            feature_LF, ids, end = feature_LF.to(target.device, target.dtype), dialogue.ids, 0
            for own, run in groupby(dialogue.mask):
                first, end = end, end + len(list(run))
                # from each root on, as many tokens as the tree is deep must be the answer's
                last = end - tree.tree_depth
                first = max(first, 1)  # the first token has nothing before it to draft from
                if own and last > first:
                    yield from walk(drafter, ids, range(first, last), feature_LF)

    until, tokens = time.monotonic() + REPLAY_SECONDS, []
    told = f"held-out answers, {REPLAY_SECONDS / 60:.0f} minutes at most"
    for emitted in tqdm(rounds(), desc=told, unit="round"):
        tokens.append(emitted)
        if len(tokens) == REPLAYED or time.monotonic() >= until:
            break
    return (sum(tokens) / len(tokens) if tokens else None), len(tokens)


def write_trained(
    folder: Path,
    head: DraftHead,
    states: TargetStates,
    held_out: list[Dialogue],
    progress: dict,
    recipe: Recipe,
) -> str:
    """Write the head, then the record of what it does on what was held out; returns it in words."""
    head = head.eval().bfloat16()
    (write_mtp if head.config.head_type == "mtp" else write_head)(folder, head)
    tokens_per_round, rounds = expected_tokens_per_round(head, states, held_out, SMALL_TREE)
    speed = progress["tokens"] / max(progress["seconds"], 1e-9)
    record = {
        "answer_tokens_seen": progress["tokens"],
        "training_seconds": progress["seconds"],
        "tokens_per_second": speed,
        "tree": tree_name(SMALL_TREE),
        "held_out": len(held_out),
        "recipe": asdict(recipe),
        "tokens_per_round": tokens_per_round,
        "held_out_rounds": rounds,
    }
    write_json(folder / RECORD, record)
    return (
        f"The head is in {folder}. It was trained on {progress['tokens']} answer tokens in "
        f"{progress['seconds']:.0f} seconds ({speed:.0f} tokens/s).\n"
        f"On {rounds} rounds of held-out answers, exact decoding with its trees of "
        f"{record['tree']} emits {tokens_per_round or math.nan:.2f} tokens per round."
    )
