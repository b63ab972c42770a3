"""Train a draft head, EAGLE-1/2 or EAGLE-3, on answers of a target.

    python train/train_head.py --target smollm2 --data answers.jsonl --output runs/head

Data comes from make_data.py. The target's states are computed once into a cache (or read from the
one that make_data.py wrote, or computed anew each time: --features online). The result is a folder
that eagle_fsd and upstream's EAGLE load. A killed run continues where it last saved: run the same
command again. Several processes: `accelerate launch --config_file scripts/accelerate/ddp.yaml
train/train_head.py ...`; configurations for FSDP and DeepSpeed lie beside it.
"""

import copy
import math
import resource
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, set_seed

from eagle_fsd.api import SMALL_TREE
from eagle_fsd.config import BadInput, TreeConfig
from eagle_fsd.decoding.target import Target
from eagle_fsd.heads.files import WEIGHTS_NAME, write_head
from eagle_fsd.heads.head_config import HeadConfig
from eagle_fsd.heads.models import DraftHead, build_head
from eagle_fsd.heads.shape import head_shape
from eagle_fsd.heads.vocabulary import answer_counts, coverage, frequent_tokens
from eagle_fsd.models.load import default_dtype, load_head, load_target, load_target_config
from eagle_fsd.runs.command import run_command
from eagle_fsd.runs.jsonl import write_json
from eagle_fsd.runs.provenance import describe_run
from eagle_fsd.training.batches import Batches, split
from eagle_fsd.training.data import Dialogue, digest, read_dialogues
from eagle_fsd.training.features import (
    FeatureCache,
    Joined,
    Online,
    StateSource,
    identity,
    row_width,
)
from eagle_fsd.training.objective import Objective
from eagle_fsd.training.recipe import Recipe
from eagle_fsd.training.train_options import TrainOptions
from eagle_fsd.training.train_state import check_same_run, is_saved
from eagle_fsd.training.trainer import Budget, Trainer
from eagle_fsd.training.validate import accuracy_by_depth, expected_tokens_per_round
from eagle_fsd.training.warm_start import start_from_head, start_from_target


def read_data(options: TrainOptions, vocab_size: int) -> list[list[Dialogue]]:
    """The dialogues of every data file, checked against the target."""
    files = [read_dialogues(path, max_length=options.max_length) for path in options.data]
    count = sum(len(dialogues) for dialogues in files)
    if options.held_out >= count:
        raise BadInput(f"--held_out {options.held_out} leaves none of {count} dialogues")
    for path, dialogues in zip(options.data, files, strict=True):
        low, high = min(min(d.ids) for d in dialogues), max(max(d.ids) for d in dialogues)
        if not 0 <= low <= high < vocab_size:
            raise BadInput(
                f"{path} has token ids {low}..{high}, the target's vocabulary is "
                f"0..{vocab_size - 1}: was the data made with another tokenizer?"
            )
    return files


def open_states(
    options: TrainOptions, files: list[list[Dialogue]], target: Target, accelerator: Accelerator
) -> StateSource:
    """The target's states; one process fills the caches, the others wait until they are full."""
    if options.features == ["online"]:
        return Online(target, [d for dialogues in files for d in dialogues])
    default = [str(Path(options.output) / "features" / str(i)) for i in range(len(files))]
    sources = []
    with accelerator.main_process_first():
        owner = identity(target, options.target)
        for folder, dialogues in zip(options.features or default, files, strict=True):
            cache = FeatureCache(folder, dialogues, width=row_width(target), owner=owner)
            cache.fill(target)
            sources.append(cache)
    return Joined(sources)


def draft_vocabulary(
    options: TrainOptions, source: StateSource, vocab_size: int, accelerator: Accelerator
) -> torch.Tensor | None:
    """Tokens that the losses, and with --draft_vocab the drafts, are confined to; None: all."""
    size = options.draft_vocab or options.loss_vocab
    if not size:
        return None
    training, held_out = split(
        source.dialogues, held_out=options.held_out, answer_tokens=options.answer_tokens
    )
    written, wanted = (
        answer_counts(source.dialogues[i] for i in part) for part in (training, held_out)
    )
    token_R = frequent_tokens(written, size, torch.arange(vocab_size))
    share = coverage(wanted, token_R)
    accelerator.print(f"vocabulary: {size} tokens, {share:.2%} of the held-out answers")
    return token_R


def start(options: TrainOptions, head: DraftHead, target: Target) -> str:
    """Give the head its first weights; returns a line about it."""
    if options.start == "random":
        return "started at random"
    if options.start == "target":
        left = start_from_target(head, target)
    else:
        left = start_from_head(head, load_head(options.start, target.model.config))
    return f"started from {options.start}; at random: {', '.join(left) or 'nothing'}"


def open_accelerator(options: TrainOptions) -> Accelerator:
    try:
        accelerator = Accelerator(
            mixed_precision=options.precision,
            # other processes wait while the first fills the feature caches
            kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(hours=24))],
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


def flat(values: dict) -> dict:
    """Trackers take numbers and text only."""
    return {k: v if isinstance(v, int | float | str) else str(v) for k, v in values.items()}


def prepare(
    options: TrainOptions,
    recipe: Recipe,
    config: HeadConfig,
    target: Target,
    source: StateSource,
    accelerator: Accelerator,
) -> tuple[Objective, Batches]:
    """The head in its losses, and the batches to train it on."""
    if not target.readout_is_linear:
        raise BadInput(
            "this target's lm_head has a bias or its logits are capped (Gemma 2), which the losses "
            "do not follow: it cannot be trained for"
        )
    token_R = draft_vocabulary(options, source, config.vocab_size, accelerator)
    head, allowed_V = build_head(config), None
    if options.draft_vocab:
        head.set_draft_tokens(token_R)
        allowed_V = torch.zeros(config.vocab_size, dtype=torch.bool)
        allowed_V[token_R] = True
    if not is_saved(Path(options.output)):
        accelerator.print(start(options, head, target))
    batches = Batches(
        source,
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


def train(options: TrainOptions) -> None:
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
    files = read_data(options, target_config.vocab_size)
    accelerator = open_accelerator(options)
    output = Path(options.output)
    with accelerator.main_process_first():
        check_same_run(output, asdict(options) | {"dialogues": digest(d for f in files for d in f)})
    if (output / "training.json").is_file() and (output / WEIGHTS_NAME).is_file():
        accelerator.print(f"{output} is already trained: its figures are in training.json")
        return
    if options.track:
        accelerator.init_trackers("tracking", config=flat(asdict(options)))
    set_seed(options.seed)
    device = options.target_device or str(accelerator.device)
    target, _ = load_target(
        options.target,
        dtype=options.target_dtype or default_dtype(device),
        device=device,
        feature_layers=config.fused_layers(target_config.num_hidden_layers),
    )
    source = open_states(options, files, target, accelerator)
    objective, batches = prepare(options, recipe, config, target, source, accelerator)
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
    if accelerator.is_main_process:
        head = build_head(config).eval()
        head.load_state_dict({key.removeprefix("head."): t for key, t in tensors.items()})
        finish(options, recipe, batches, target, accelerator, head, progress)
    accelerator.end_training()


def finish(
    options: TrainOptions,
    recipe: Recipe,
    batches: Batches,
    target: Target,
    accelerator: Accelerator,
    head: DraftHead,
    progress: dict,
) -> None:
    """Write the head, validate it, say what it is."""
    output = Path(options.output)
    write_head(output, head.config, head.state_dict())
    result = {
        "answer_tokens_seen": progress["tokens"],
        "training_seconds": progress["seconds"],
        "tokens_per_second": progress["tokens"] / max(progress["seconds"], 1e-9),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "held_out": validate(options, batches, target, head),
    }
    record = describe_run(str(accelerator.device))
    settings = {"options": asdict(options), "recipe": asdict(recipe)}
    write_json(output / "training.json", result | settings | {"run": record})
    seconds, held_out = progress["seconds"], result["held_out"]
    print(f"head: {output}")
    print(
        f"answer tokens seen: {progress['tokens']}, seconds: {seconds:.0f}, "
        f"{result['tokens_per_second']:.0f} tokens/s"
    )
    levels = zip(held_out["top1"], held_out["top8"], strict=True)
    for level, (top1, top8) in enumerate(levels, start=1):
        print(f"level {level}: top-1 {top1:.3f}  top-8 {top8:.3f}")
    for name, tokens in held_out["tokens_per_round"].items():
        print(f"tokens a round on held-out answers as drawn, {name}: {tokens or math.nan:.2f}")


def validate(options: TrainOptions, batches: Batches, target: Target, head: DraftHead) -> dict:
    """Accuracy by level over all held-out dialogues, tokens per round over the first few."""
    head.to(target.device)  # the target may be elsewhere than the training
    loaded = (batch.to(target.device) for batch in batches.validation())
    half = options.precision == "bf16"
    with torch.autocast(target.device.type, torch.bfloat16, enabled=half):
        accuracy = accuracy_by_depth(head, loaded, target, depth=options.validate_depth)
    chosen = batches.held_out[: options.replayed]
    dialogues = [batches.source.dialogues[i] for i in chosen]
    features = [batches.features(i) for i in chosen]
    as_decoded = copy.deepcopy(head).to(target.device, target.dtype)
    depth = options.validate_depth
    trees = {f"chain of {depth}": TreeConfig(depth, depth, 1), "15 drafts": SMALL_TREE}
    accuracy["tokens_per_round"] = {
        name: expected_tokens_per_round(as_decoded, target, dialogues, features, tree)
        for name, tree in trees.items()
        if chosen
    }
    return accuracy


def main(argv: list[str] | None = None) -> None:
    run_command(train, [TrainOptions], argv)


if __name__ == "__main__":
    main()
