"""Train an EAGLE-1/2 draft head on answers of a target.

    python train/train_head.py --target smollm2 --data answers.jsonl.gz --output runs/head

The target's features are computed once into a cache; the head learns to predict the next feature
(smooth-L1) and the target's next-token distribution (soft cross-entropy). The result is a folder
that eagle_fsd and upstream's EAGLE load. A killed run continues where it last saved: run the same
command again. Several processes: `torchrun --nproc_per_node N train/train_head.py ...`.
"""

import math
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, broadcast_object_list, set_seed
from tqdm import tqdm
from transformers import HfArgumentParser

from eagle_fsd.checkpoint import HeadConfig, write_head
from eagle_fsd.drafters.eagle import EagleHead
from eagle_fsd.jsonl import append_line, write_json
from eagle_fsd.loading import load_target, load_target_config
from eagle_fsd.options import option
from eagle_fsd.provenance import describe_run
from eagle_fsd.training.batches import Batches, noisy_features
from eagle_fsd.training.data import Dialogue, HeadBatch, read_dialogues
from eagle_fsd.training.features import FeatureCache
from eagle_fsd.training.losses import feature_smooth_l1, soft_cross_entropy
from eagle_fsd.training.state import check_same_run, resume, save_state
from eagle_fsd.training.unroll import unroll
from eagle_fsd.training.validate import accuracy_by_depth

LOG_EVERY = 20  # steps


@dataclass
class TrainOptions:
    data: str = field(metadata={"help": "JSONL(.gz) with prompt_ids and answer_ids a line"})
    output: str = field(metadata={"help": "folder of the head, its state and its log"})
    target: str = option("smollm2", "smollm2, a folder, a .gguf file or a hub id")
    features: str = option("", "folder of the feature cache; default: OUTPUT/features")
    epochs: float = option(4.0, "passes over the training answers")
    tokens_per_step: int = option(2048, "padded tokens of one process's batch")
    max_length: int = option(2048, "longest dialogue in tokens; the rest is cut")
    learning_rate: float = option(1e-3, "peak; cosine to a twentieth of it")
    warmup: float = option(0.03, "share of the steps that warm up")
    clip: float = option(0.5, "largest gradient norm")
    weight_feature: float = option(1.0, "weight of the feature smooth-L1")
    weight_ce: float = option(0.1, "weight of the soft cross-entropy")
    noise: float = option(0.1, "features get uniform noise in +-NOISE * 512 / length, as upstream")
    unroll_steps: int = option(1, "1 is EAGLE-1/2; more trains on the head's own features")
    loss_vocab: int = option(0, "cross-entropy over this many most frequent tokens; 0: all")
    held_out: int = option(64, "dialogues kept for validation")
    validate_depth: int = option(5, "levels of the validation")
    save_minutes: float = option(5.0, "minutes between resumable saves")
    seed: int = option(0, "of initialisation, order and noise")

    def __post_init__(self):
        positive = ("epochs", "tokens_per_step", "learning_rate", "unroll_steps", "held_out")
        for name in (*positive, "validate_depth"):
            if getattr(self, name) <= 0:
                raise ValueError(f"--{name} must be positive, got {getattr(self, name)}")
        for name in ("loss_vocab", "noise", "weight_feature", "weight_ce"):
            if getattr(self, name) < 0:
                raise ValueError(f"--{name} must not be negative, got {getattr(self, name)}")


def head_config_for(target_config) -> HeadConfig:
    """One layer shaped like the target's own."""
    return HeadConfig(
        hidden_size=target_config.hidden_size,
        intermediate_size=target_config.intermediate_size,
        num_attention_heads=target_config.num_attention_heads,
        num_key_value_heads=target_config.num_key_value_heads,
        vocab_size=target_config.vocab_size,
        rms_norm_eps=target_config.rms_norm_eps,
        # models with a base per layer type (Gemma 3) get the head's default
        rope_theta=target_config.rope_parameters.get("rope_theta", HeadConfig.rope_theta),
        max_position_embeddings=target_config.max_position_embeddings,
    )


def rate_factor(step: int, steps: int, warmup: float) -> float:
    """Linear warm-up, then cosine from 1 to 1/20."""
    warm = max(1, round(steps * warmup))
    if step < warm:
        return (step + 1) / warm
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def losses(
    head: torch.nn.Module,
    batch: HeadBatch,
    feature_BTD: torch.Tensor,
    embedding_BTD: torch.Tensor,
    lm_head_VD: torch.Tensor,
    *,
    steps: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Feature smooth-L1 and soft cross-entropy, each averaged over the unrolled steps."""
    hidden_SBTD = unroll(head, feature_BTD, embedding_BTD, steps=steps)
    mask_BT = batch.mask_BT.clone()
    mask_BT[:, : steps - 1] = False  # positions that not all steps reach
    if not mask_BT.any():
        return hidden_SBTD.sum() * 0, hidden_SBTD.sum() * 0
    hidden_SMD = hidden_SBTD[:, mask_BT]
    target_MD = batch.target_feature_BTD[mask_BT]
    feature = feature_smooth_l1(hidden_SMD, target_MD).mean()
    return feature, soft_cross_entropy(hidden_SMD, target_MD, lm_head_VD).mean()


@dataclass
class Material:
    """What training reads: batches with features, and the target's frozen ends."""

    batches: Batches
    embed_tokens: torch.nn.Module
    lm_head_VD: torch.Tensor
    loss_head_VD: torch.Tensor  # the rows of lm_head_VD that the cross-entropy looks at


def prepare(options: TrainOptions, dialogues: list[Dialogue], accelerator: Accelerator) -> Material:
    """Load the target, compute features that are missing, keep what training needs."""
    target, _ = load_target(options.target, device=str(accelerator.device))
    folder = options.features or Path(options.output) / "features"
    # one process fills the cache; the others open it when it is complete
    with accelerator.main_process_first():
        cache = FeatureCache(
            folder, dialogues, hidden_size=target.hidden_size, target_name=options.target
        )
        cache.fill(target.model)
    batches = Batches(
        cache,
        tokens_per_step=options.tokens_per_step,
        held_out=options.held_out,
        seed=options.seed,
    )
    lm_head_VD = target.lm_head.weight.detach()
    loss_head_VD = lm_head_VD
    if options.loss_vocab:
        counts = Counter(token for i in batches.training for token in dialogues[i].ids)
        frequent = [token for token, _ in counts.most_common(options.loss_vocab)]
        loss_head_VD = lm_head_VD[sorted(frequent)].contiguous()
    return Material(batches, target.embed_tokens, lm_head_VD, loss_head_VD)


def train(options: TrainOptions) -> None:
    target_config = load_target_config(options.target)
    dialogues = read_dialogues(options.data, max_length=options.max_length)
    if options.held_out >= len(dialogues):
        raise ValueError(f"--held_out {options.held_out} leaves none of {len(dialogues)} dialogues")
    strange = max(max(d.ids) for d in dialogues), min(min(d.ids) for d in dialogues)
    if not 0 <= strange[1] <= strange[0] < target_config.vocab_size:
        raise ValueError(
            f"{options.data} has token ids {strange[1]}..{strange[0]}, the target's vocabulary is "
            f"0..{target_config.vocab_size - 1}: was the data made with another tokenizer?"
        )
    output = Path(options.output)
    check_same_run(output, asdict(options))
    patience = InitProcessGroupKwargs(timeout=timedelta(hours=24))  # others wait for the features
    accelerator = Accelerator(mixed_precision="bf16", kwargs_handlers=[patience])
    set_seed(options.seed)
    material = prepare(options, dialogues, accelerator)
    head = EagleHead(head_config_for(target_config))
    optimizer = torch.optim.AdamW(
        head.parameters(), lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=0.01
    )
    head, optimizer = accelerator.prepare(head, optimizer)
    progress = optimise(options, material, accelerator, head, optimizer)
    if accelerator.is_main_process:
        finish(options, material, accelerator, accelerator.unwrap_model(head).eval(), progress)


def optimise(
    options: TrainOptions,
    material: Material,
    accelerator: Accelerator,
    head: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
) -> dict:
    """The training loop, from the last saved state to the end; returns step, seconds, tokens."""
    output, process = Path(options.output), accelerator.process_index
    processes = accelerator.num_processes
    steps = math.ceil(options.epochs * material.batches.per_epoch / processes)
    progress = resume(accelerator, output)
    saved = time.monotonic()
    began = saved - progress["seconds"]
    bar = tqdm(total=steps, initial=progress["step"], desc="training", disable=process != 0)
    for step in range(progress["step"], steps):
        batch = material.batches.at(step, process=process, processes=processes)
        feature_BTD = noisy_features(
            batch, options.noise, seed=options.seed, step=step, process=process
        ).to(accelerator.device)
        counted = int(batch.mask_BT.sum()) * processes  # read on the host, before it moves
        batch = batch.to(accelerator.device)
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * rate_factor(step, steps, options.warmup)
        with accelerator.autocast():
            feature_loss, entropy = losses(
                head,
                batch,
                feature_BTD,
                material.embed_tokens(batch.next_token_BT),
                material.loss_head_VD,
                steps=options.unroll_steps,
            )
            loss = options.weight_feature * feature_loss + options.weight_ce * entropy
        accelerator.backward(loss)
        norm = accelerator.clip_grad_norm_(head.parameters(), options.clip)
        optimizer.step()
        optimizer.zero_grad()
        bar.update()
        now, last = time.monotonic(), step + 1 == steps
        progress = {
            "step": step + 1,
            "seconds": now - began,
            "tokens": progress["tokens"] + counted,
        }
        if process == 0 and ((step + 1) % LOG_EVERY == 0 or last):
            row = {
                "loss": loss.item(),
                "feature": feature_loss.item(),
                "entropy": entropy.item(),
                "gradient_norm": float(norm),
            }
            append_line(output / "log.jsonl", progress | row)
            bar.set_postfix(feature=f"{row['feature']:.3f}", entropy=f"{row['entropy']:.3f}")
        due = [now - saved > options.save_minutes * 60 or last]
        if processes > 1 and (step + 1) % LOG_EVERY and not last:
            due = [False]
        elif processes > 1:
            broadcast_object_list(due)  # all save in the same step, when the first says so
        if due[0]:
            save_state(accelerator, output, progress)
            saved = time.monotonic()
    bar.close()
    return progress


def finish(
    options: TrainOptions,
    material: Material,
    accelerator: Accelerator,
    head: EagleHead,
    progress: dict,
) -> None:
    """Write the head, validate it, say what it is."""
    output = Path(options.output)
    write_head(output, head.config, head.state_dict())
    held = material.batches.held_out
    batches = (
        material.batches.load(held[i : i + 4]).to(accelerator.device)
        for i in range(0, len(held), 4)
    )
    with accelerator.autocast():
        accuracy = accuracy_by_depth(
            head,
            batches,
            material.embed_tokens,
            material.lm_head_VD,
            depth=options.validate_depth,
        )
    result = {
        "answer_tokens_seen": progress["tokens"],
        "training_seconds": progress["seconds"],
        "held_out": accuracy,
        "options": asdict(options),
        "run": describe_run(accelerator.device.type),
    }
    write_json(output / "training.json", result)
    print(f"head: {output}")
    print(f"answer tokens seen: {progress['tokens']}, seconds: {progress['seconds']:.0f}")
    levels = zip(accuracy["top1"], accuracy["top8"], strict=True)
    for level, (top1, top8) in enumerate(levels, start=1):
        print(f"level {level}: top-1 {top1:.3f}  top-8 {top8:.3f}")


def main(arguments: list[str] | None = None) -> None:
    parser = HfArgumentParser(TrainOptions)
    try:
        train(*parser.parse_args_into_dataclasses(arguments))
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
