"""A run that trains a head, from its options to the record of what it became."""

import resource
from dataclasses import asdict
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from eagle_fsd.api import SMALL_TREE
from eagle_fsd.config import BadInput, TreeConfig
from eagle_fsd.decoding.target import Target
from eagle_fsd.heads.files import WEIGHTS_NAME, write_head
from eagle_fsd.heads.head_config import HeadConfig
from eagle_fsd.heads.models import DraftHead, build_head
from eagle_fsd.heads.shape import head_shape
from eagle_fsd.heads.vocabulary import answer_counts, coverage, frequent_tokens
from eagle_fsd.models.load import default_dtype, load_head, load_target, load_target_config
from eagle_fsd.runs.jsonl import write_json
from eagle_fsd.runs.provenance import describe_run
from eagle_fsd.training.data import Batches, Dialogue, digest, read_dialogues, split
from eagle_fsd.training.features import TargetStates
from eagle_fsd.training.losses import Objective
from eagle_fsd.training.recipe import Recipe
from eagle_fsd.training.same_options import check_same_options
from eagle_fsd.training.train_options import TrainOptions
from eagle_fsd.training.trainer import Budget, Trainer, is_saved
from eagle_fsd.training.validate import validate
from eagle_fsd.training.warm_start import first_weights

FREE = ("save_minutes", "replayed", "validate_depth", "track")  # they change nothing of the head


def train_head(options: TrainOptions) -> dict | None:
    """Train a head and write it, from wherever a run of these options was left.

    Returns:
        The record, which training.json holds too; None in all processes but the first, and if the
        head is there already.

    Raises:
        BadInput: an option that cannot be followed, or a training that diverges.
    """
    recipe = options.chosen_recipe()
    budget = Budget(options.epochs, options.steps, options.minutes)
    target_config = load_target_config(options.target)
    config = head_shape(target_config, head_type=options.head_type, draft_vocab=options.draft_vocab)
    if options.loss_vocab >= config.vocab_size:
        raise BadInput(
            f"--loss_vocab {options.loss_vocab} must be less than the target's "
            f"{config.vocab_size} tokens"
        )
    if options.start not in ("random", "target"):  # a wrong one is found before the target loads
        kind = load_head(options.start, target_config).config.head_type
        if kind != options.head_type:
            raise BadInput(f"--start {options.start} is a head of type {kind!r}")
    dialogues = read_data(options, target_config.vocab_size)
    accelerator = open_accelerator(options)
    output = Path(options.output)
    trained = (output / WEIGHTS_NAME).is_file()
    with accelerator.main_process_first():
        check_same_options(
            output / "options.json",
            asdict(options) | {"dialogues": digest(dialogues)},
            free=FREE,
            # a run that ended before it saved anything leaves nothing to go on from
            begun=trained or is_saved(output),
        )
    if trained and (output / "training.json").is_file():
        accelerator.print(f"{output} is already trained: its metrics are in training.json")
        return None
    if options.track:
        # trackers take numbers and text only
        values = {
            k: v if isinstance(v, int | float) else str(v) for k, v in asdict(options).items()
        }
        accelerator.init_trackers("tracking", config=values)
    set_seed(options.seed)
    device = options.target_device or str(accelerator.device)
    target, _ = load_target(
        options.target,
        dtype=options.target_dtype or default_dtype(device),
        device=device,
        feature_layers=config.fused_layers(target_config.num_hidden_layers),
    )
    objective, batches = prepare(options, recipe, config, target, dialogues, accelerator)
    optimizer = torch.optim.AdamW(
        objective.parameters(),
        lr=recipe.learning_rate,
        betas=(0.9, 0.95),
        weight_decay=recipe.weight_decay,
    )
    objective, optimizer = accelerator.prepare(objective, optimizer)
    trainer = Trainer(
        accelerator,
        objective,
        optimizer,
        batches,
        target.embed_tokens,
        recipe,
        budget,
        output,
        batches_per_step=options.batches_per_step,
        save_minutes=options.save_minutes,
    )
    progress = trainer.run()
    tensors = accelerator.get_state_dict(objective)  # whole, also where it was sharded
    record = None
    if accelerator.is_main_process:
        head = build_head(config).eval()
        head.load_state_dict({key.removeprefix("head."): t for key, t in tensors.items()})
        write_head(output, config, head.state_dict())
        record = judge(options, recipe, batches, target, head, progress)
        record["run"] = describe_run(str(accelerator.device))
        write_json(output / "training.json", record)
    accelerator.end_training()
    return record


def read_data(options: TrainOptions, vocab_size: int) -> list[Dialogue]:
    """The dialogues of all data files, checked against the target."""
    everything = []
    for path in options.data:
        dialogues = read_dialogues(path, max_length=options.max_length)
        low, high = min(min(d.ids) for d in dialogues), max(max(d.ids) for d in dialogues)
        if not 0 <= low <= high < vocab_size:
            raise BadInput(
                f"{path} has token ids {low}..{high}, the target's vocabulary is "
                f"0..{vocab_size - 1}: was the data made with another tokenizer?"
            )
        everything += dialogues
    if options.held_out >= len(everything):
        raise BadInput(f"--held_out {options.held_out} leaves none of {len(everything)} dialogues")
    return everything


def open_accelerator(options: TrainOptions) -> Accelerator:
    try:
        accelerator = Accelerator(
            mixed_precision=options.precision,
            log_with=options.track or None,
            project_dir=options.output,
        )
    except ValueError as error:
        about = f"--track {options.track} or " if options.track else ""
        raise BadInput(f"{about}--precision {options.precision}: {error}") from error
    if accelerator.state.deepspeed_plugin is not None:  # it cannot see our batches
        accelerator.state.deepspeed_plugin.deepspeed_config["train_micro_batch_size_per_gpu"] = 1
    processes = accelerator.num_processes
    options.batches_per_step = options.batches_per_step or processes
    if options.batches_per_step % processes:
        raise BadInput(
            f"--batches_per_step {options.batches_per_step} cannot be shared by {processes} "
            "processes: give a multiple"
        )
    return accelerator


def prepare(
    options: TrainOptions,
    recipe: Recipe,
    config: HeadConfig,
    target: Target,
    dialogues: list[Dialogue],
    accelerator: Accelerator,
) -> tuple[Objective, Batches]:
    """The head in its losses, and the batches to train it on."""
    if not target.readout_is_linear:
        raise BadInput(
            "this target's lm_head has a bias or its logits are capped (Gemma 2), which the losses "
            "do not follow: it cannot be trained for"
        )
    # tokens that the losses, and with --draft_vocab the drafts, are confined to; None: all
    token_R = draft_vocabulary(options, dialogues, config.vocab_size, accelerator)
    head, allowed_V = build_head(config), None
    if options.draft_vocab:
        head.set_draft_tokens(token_R)
        allowed_V = torch.zeros(config.vocab_size, dtype=torch.bool)
        allowed_V[token_R] = True
    if not is_saved(Path(options.output)):
        accelerator.print(first_weights(options.start, head, target))
    folder = Path(options.features or Path(options.output) / "features")
    with accelerator.main_process_first():
        kept = None if options.features == "online" else folder
        states = TargetStates(target, dialogues, kept)
    batches = Batches(
        dialogues,
        states.rows,
        hidden_size=target.hidden_size,
        tokens_per_batch=options.tokens_per_batch,
        held_out=options.held_out,
        seed=options.seed,
        answer_tokens=options.answer_tokens,
        noise=recipe.noise,
        shift=recipe.shift_mask,
        skip=recipe.unroll_steps - 1,
        token_allowed_V=allowed_V,
    )
    rows_VD = target.lm_head.weight.detach()
    rows_RD = rows_VD if token_R is None else rows_VD[token_R.to(rows_VD.device)].contiguous()
    rows_RD = rows_RD.to(accelerator.device)
    objective = Objective(head, rows_RD, recipe, checkpoint=options.gradient_checkpointing)
    return objective, batches


def draft_vocabulary(
    options: TrainOptions, dialogues: list[Dialogue], vocab_size: int, accelerator: Accelerator
) -> torch.Tensor | None:
    """The most frequent tokens of the training answers; None where there is no limit."""
    size = options.draft_vocab or options.loss_vocab
    if not size:
        return None
    parts = split(dialogues, held_out=options.held_out, answer_tokens=options.answer_tokens)
    written, wanted = (answer_counts(dialogues[i] for i in part) for part in parts)
    token_R = frequent_tokens(written, size, torch.arange(vocab_size))
    share = coverage(wanted, token_R)
    accelerator.print(f"vocabulary: {size} tokens, {share:.2%} of the held-out answers")
    return token_R


def judge(
    options: TrainOptions,
    recipe: Recipe,
    batches: Batches,
    target: Target,
    head: DraftHead,
    progress: dict,
) -> dict:
    """How long it took, what for, and how good the head is on the held-out dialogues."""
    depth = options.validate_depth
    held_out = validate(
        head,
        batches,
        target,
        depth=depth,
        replayed=options.replayed,
        trees={f"chain of {depth}": TreeConfig(depth, depth, 1), "15 drafts": SMALL_TREE},
        half=options.precision == "bf16",
    )
    return {
        "answer_tokens_seen": progress["tokens"],
        "training_seconds": progress["seconds"],
        "tokens_per_second": progress["tokens"] / max(progress["seconds"], 1e-9),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "held_out": held_out,
        "options": asdict(options),
        "recipe": asdict(recipe),
    }
