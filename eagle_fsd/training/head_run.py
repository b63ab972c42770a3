"""A run that trains a head, from its options to the record of what it became."""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby, islice
from operator import itemgetter

import torch
from accelerate import Accelerator
from tqdm import tqdm
from transformers import PretrainedConfig

from eagle_fsd.config import SMALL_TREE, BadInput, TreeConfig, tree_name
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.drafters.walk import walk
from eagle_fsd.heads.draft_head import (
    DraftHead,
    answer_counts,
    build_head,
    coverage,
    frequent_tokens,
)
from eagle_fsd.heads.files import write_head
from eagle_fsd.heads.head_config import head_shape
from eagle_fsd.models import load
from eagle_fsd.runs.folder import Run
from eagle_fsd.runs.jsonl import write_json
from eagle_fsd.runs.processes import Processes
from eagle_fsd.runs.provenance import digest
from eagle_fsd.training.data import Batches, Dialogue, read_dialogues, split, supervised
from eagle_fsd.training.features import TargetStates
from eagle_fsd.training.losses import Objective
from eagle_fsd.training.recipe import Recipe, parse_recipe
from eagle_fsd.training.trainer import Trainer
from eagle_fsd.training.training_options import TrainOptions

RECORD = "training.json"  # what the head became; written last
REPLAYED = 1000  # most rounds on held-out answers; the mean's standard error is about .03 of it


def train_head(options: TrainOptions) -> dict | None:
    """Train a head and write it, from wherever a run of these options was left.

    Returns its record; None in all processes but the first, and if the head is there already.

    Raises:
        BadInput: an option that cannot be followed, or a training that diverges.
    """
    target_config = load.load_target_config(options.target)
    head = begun_head(options, target_config)
    limits = {"vocab_size": head.config.vocab_size, "max_length": options.max_length}
    dialogues = [d for path in options.data for d in read_dialogues(path, **limits)]
    if options.held_out >= len(dialogues):
        raise BadInput(f"--held_out {options.held_out} leaves none of {len(dialogues)} dialogues")
    accelerator = Accelerator(mixed_precision=options.precision)
    # accelerate says cpu:0 where several processes run, and a processor is asked for as cpu
    device = str(accelerator.device).replace("cpu:0", "cpu")
    processes = Processes(accelerator.process_index, accelerator.num_processes)
    options.batches_per_step = options.batches_per_step or processes.count
    if options.batches_per_step % processes.count:
        raise BadInput(
            f"--batches_per_step {options.batches_per_step} cannot be shared by {processes.count} "
            "processes: give a multiple"
        )
    digests = load.target_digests(options.target)
    read = {"dialogues": digest([[d.ids, d.mask] for d in dialogues])}  # files may change
    read |= load.head_digests(options.start) | {"device": device}
    # kept states are rounded to bfloat16, wherever they lie
    read["features"] = "online" if options.features == "online" else "kept"
    run = Run(
        options.output,
        asdict(options) | digests | read,
        free=("output", "data", "save_minutes", "device"),
        key=itemgetter("step"),
        processes=processes,
    )
    if (run.folder / RECORD).is_file():
        accelerator.print(f"{run.folder} is already trained: {RECORD} tells how")
        return None
    target_device = options.target_device or device
    target, _ = load.load_target(
        options.target,
        dtype=options.target_dtype or load.default_dtype(target_device),
        device=target_device,
        feature_layers=head.config.fused_layers(target_config.num_hidden_layers),
    )
    if not target.readout_is_linear:
        raise BadInput(
            "this target's lm_head has a bias or its logits are capped (Gemma 2), which the losses "
            "do not follow: it cannot be trained for"
        )
    kept = "" if options.features == "online" else options.features or run.folder / "features"
    states = TargetStates(target, kept, digests)
    training, held_out = split(
        dialogues, held_out=options.held_out, answer_tokens=options.answer_tokens
    )
    trainer = prepare(options, head, training, states, accelerator, run)
    progress = trainer.train()
    tensors = accelerator.get_state_dict(trainer.objective)  # whole, also where it was sharded
    if not accelerator.is_main_process:
        return None
    head = build_head(head.config).eval()
    head.load_state_dict({key.removeprefix("head."): t for key, t in tensors.items()})
    write_head(run.folder, head.bfloat16())
    head.to(target.device, target.dtype)
    record = {
        "answer_tokens_seen": progress["tokens"],
        "training_seconds": progress["seconds"],
        "tokens_per_second": progress["tokens"] / max(progress["seconds"], 1e-9),
        "tree": tree_name(SMALL_TREE),
        "tokens_per_round": expected_tokens_per_round(head, states, held_out, SMALL_TREE),
        "recipe": asdict(trainer.recipe),
    }
    write_json(run.folder / RECORD, record)
    return record


def begun_head(options: TrainOptions, target_config: PretrainedConfig) -> DraftHead:
    """The head to train, float32: random weights, or all of another head, its draft vocabulary too;
    BadInput if that is of another type, or --loss_vocab asks for another vocabulary."""
    if not options.start:
        drafted = options.loss_vocab if options.head_type == "eagle3" else 0
        torch.manual_seed(options.seed)
        return build_head(
            head_shape(target_config, head_type=options.head_type, draft_vocab=drafted)
        )
    head = load.load_head(options.start, target_config).float().train()
    if head.config.head_type != options.head_type:
        raise BadInput(f"--start {options.start}: give --head_type {head.config.head_type}")
    if options.loss_vocab and (head.lm_head is not None or head.d2t is not None):
        raise BadInput(f"--start {options.start} keeps what it drafts: leave --loss_vocab out")
    return head


@torch.no_grad()
def expected_tokens_per_round(
    head: DraftHead, states: TargetStates, dialogues: list[Dialogue], tree: TreeConfig
) -> float | None:
    """Tokens a round that exact decoding of these answers would have had, by replay of REPLAYED
    rounds.

    Of answers drawn at a temperature it is what drawing them again would have given. None if no
    answer is long enough. The head is on the target's device, in its dtype.
    """
    target = states.target
    drafter = EagleDrafter(head, target, tree)

    def rounds() -> Iterator[int]:
        for dialogue in dialogues:
            ((feature_LF, _),) = states.of([dialogue.ids])
            feature_LF, ids, end = feature_LF.to(target.device, target.dtype), dialogue.ids, 0
            for own, run in groupby(dialogue.mask):
                first, end = end, end + len(list(run))
                # from each root on, as many tokens as the tree is deep must be the answer's
                last = end - tree.tree_depth
                if own and last > first:
                    yield from walk(drafter, ids, range(first, last), feature_LF)

    tokens = list(tqdm(islice(rounds(), REPLAYED), desc="held-out answers", unit="round"))
    return sum(tokens) / len(tokens) if tokens else None


def prepare(
    options: TrainOptions,
    head: DraftHead,
    training: list[Dialogue],
    states: TargetStates,
    accelerator: Accelerator,
    run: Run,
) -> Trainer:
    """The head in its losses, over the tokens that they are to be over, and its batches."""
    target, recipe = states.target, parse_recipe(options.recipe)
    every_V, token_R = torch.arange(target.vocab_size), head.draft_token_R
    if options.loss_vocab:
        counts = answer_counts(training)
        token_R = frequent_tokens(counts, options.loss_vocab, every_V)
        share = coverage(counts, token_R)
        accelerator.print(f"{options.loss_vocab} tokens are {share:.2%} of the answers")
        if head.d2t is not None:
            head.set_draft_tokens(token_R)
    rows_RD = target.lm_head.weight.detach()
    if token_R is not None:
        rows_RD = rows_RD[token_R.to(rows_RD.device)]
    allowed_V = None if head.d2t is None else torch.isin(every_V, token_R)
    batches = Batches(
        training,
        [supervised(d, skip=recipe.unroll_steps - 1, allowed_V=allowed_V) for d in training],
        states.of,
        tokens_per_batch=options.tokens_per_batch,
        seed=options.seed,
        noise=recipe.noise,
    )
    objective = Objective(head, rows_RD.to(accelerator.device), recipe)
    objective, *optimizers = accelerator.prepare(objective, *optimizers_of(objective, recipe))
    embed_tokens = target.embed_tokens
    return Trainer(accelerator, objective, optimizers, batches, embed_tokens, recipe, options, run)


def optimizers_of(objective: Objective, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """The recipe's; Muon's matrices are those that map hidden states to hidden states."""
    matrices, rest = [], []
    for name, parameter in objective.named_parameters():
        hidden = parameter.ndim == 2 and "lm_head" not in name
        (matrices if recipe.optimizer == "muon" and hidden else rest).append(parameter)
    decay = recipe.weight_decay
    optimizers: list[torch.optim.Optimizer] = []
    if matrices:
        # scaled so that an entry moves as far as AdamW would move it
        optimizers.append(
            torch.optim.Muon(matrices, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
        )
    return [*optimizers, torch.optim.AdamW(rest, betas=(0.9, 0.95), weight_decay=decay)]
