"""Train an EAGLE-1/2 draft head on answers of a target.

    python train/train_head.py --target smollm2 --data answers.jsonl.gz --output runs/head

The target's features are computed once into a cache; the head learns to predict the next feature
(smooth-L1) and the target's next-token distribution (soft cross-entropy). The result is a folder
that eagle_fsd and upstream's EAGLE load. A killed run continues where it last saved: run the same
command again. Several processes: `accelerate launch train/train_head.py ...`.
"""

import json
import math
import random
import shutil
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from tqdm import tqdm
from transformers import HfArgumentParser

from eagle_fsd.checkpoint import HeadConfig, write_head
from eagle_fsd.drafters.eagle import EagleHead
from eagle_fsd.loading import load_target, load_target_config
from eagle_fsd.options import option
from eagle_fsd.provenance import describe_run
from eagle_fsd.training.data import Dialogue, HeadBatch, make_batch, read_dialogues
from eagle_fsd.training.features import FeatureCache
from eagle_fsd.training.losses import feature_smooth_l1, soft_cross_entropy
from eagle_fsd.training.unroll import unroll
from eagle_fsd.training.validate import accuracy_by_depth


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
        for name in ("epochs", "tokens_per_step", "learning_rate", "unroll_steps", "held_out"):
            if getattr(self, name) <= 0:
                raise ValueError(f"--{name} must be positive, got {getattr(self, name)}")


def head_config_for(target_config) -> HeadConfig:
    """One layer shaped like the target's own."""
    return HeadConfig(
        hidden_size=target_config.hidden_size,
        intermediate_size=target_config.intermediate_size,
        num_attention_heads=target_config.num_attention_heads,
        num_key_value_heads=target_config.num_key_value_heads,
        vocab_size=target_config.vocab_size,
        rms_norm_eps=target_config.rms_norm_eps,
        rope_theta=target_config.rope_parameters["rope_theta"],
        max_position_embeddings=target_config.max_position_embeddings,
    )


class Batches:
    """Batches of similar length; their order depends on the seed and the epoch alone."""

    def __init__(self, dialogues: list[Dialogue], cache: FeatureCache, options: TrainOptions):
        self.dialogues, self.cache, self.options = dialogues, cache, options
        held = random.Random(0).sample(range(len(dialogues)), options.held_out)
        self.held_out = sorted(held)
        self.training = sorted(set(range(len(dialogues))) - set(held))
        self.per_epoch = len(self._epoch(0))

    def _epoch(self, epoch: int) -> list[list[int]]:
        rng = random.Random(f"{self.options.seed}/{epoch}")
        length = {i: len(self.dialogues[i].ids) * rng.uniform(0.9, 1.1) for i in self.training}
        batches: list[list[int]] = [[]]
        longest = 0
        for i in sorted(self.training, key=length.__getitem__):
            longest = max(longest, len(self.dialogues[i].ids))
            if batches[-1] and longest * (len(batches[-1]) + 1) > self.options.tokens_per_step:
                batches.append([])
                longest = len(self.dialogues[i].ids)
            batches[-1].append(i)
        rng.shuffle(batches)
        return batches

    def batch(self, indices: list[int]) -> HeadBatch:
        return make_batch([self.dialogues[i] for i in indices], [self.cache[i] for i in indices])

    def at(self, step: int, *, process: int, processes: int) -> HeadBatch:
        """What `process` trains on in a step; processes take neighbouring batches."""
        epoch, position = divmod(step * processes + process, self.per_epoch)
        if not hasattr(self, "_order") or self._order[0] != epoch:
            self._order = (epoch, self._epoch(epoch))
        order = self._order[1]
        return self.batch(order[position % len(order)])


def rate_factor(step: int, steps: int, warmup: float) -> float:
    """Linear warm-up, then cosine from 1 to 1/20."""
    warm = max(1, round(steps * warmup))
    if step < warm:
        return (step + 1) / warm
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def add_noise(batch: HeadBatch, scale: float, generator: torch.Generator) -> torch.Tensor:
    """Features with uniform noise in +-scale * 512 / length (upstream's, longer texts get less)."""
    if scale == 0:
        return batch.feature_BTD
    T = batch.feature_BTD.shape[1]
    uniform = torch.rand(batch.feature_BTD.shape, generator=generator) * 2 - 1
    return batch.feature_BTD + (uniform * (scale * 512 / T)).to(batch.feature_BTD)


def noise_seed(seed: int, step: int, process: int) -> int:
    """One seed per step and process, so that a resumed run draws what an unbroken one does."""
    return (seed * 1_000_003 + step) * 1_009 + process


def losses(head, batch: HeadBatch, feature_BTD, embedding_BTD, lm_head_VD, options):
    """Both losses, averaged over the unrolled steps."""
    steps = options.unroll_steps
    hidden_SBTD = unroll(head, feature_BTD, embedding_BTD, steps=steps)
    mask_BT = batch.mask_BT.clone()
    mask_BT[:, : steps - 1] = False  # positions that not all steps reach
    hidden_SMD = hidden_SBTD[:, mask_BT]
    target_MD = batch.target_feature_BTD[mask_BT]
    feature = feature_smooth_l1(hidden_SMD, target_MD).mean()
    entropy = soft_cross_entropy(hidden_SMD, target_MD, lm_head_VD).mean()
    return feature, entropy


def train(options: TrainOptions) -> None:
    target_config = load_target_config(options.target)
    dialogues = read_dialogues(options.data, max_length=options.max_length)
    if options.held_out >= len(dialogues):
        raise ValueError(f"--held_out {options.held_out} leaves none of {len(dialogues)} dialogues")
    accelerator = Accelerator(mixed_precision="bf16")
    set_seed(options.seed)
    output = Path(options.output)
    check_same_run(output, options)

    target, _ = load_target(options.target, device=str(accelerator.device))
    cache = FeatureCache(
        options.features or output / "features",
        dialogues,
        hidden_size=target.hidden_size,
        target_name=options.target,
    )
    with accelerator.main_process_first():
        cache.fill(target.model)
    batches = Batches(dialogues, cache, options)
    steps = math.ceil(options.epochs * batches.per_epoch / accelerator.num_processes)

    embed_tokens, lm_head_VD = target.embed_tokens, target.lm_head.weight.detach()
    loss_head_VD = lm_head_VD
    if options.loss_vocab:
        counts = Counter(t for i in batches.training for t in dialogues[i].ids)
        frequent = [token for token, _ in counts.most_common(options.loss_vocab)]
        loss_head_VD = lm_head_VD[sorted(frequent)].contiguous()
    target.model.model.layers = None  # features are on disk; the layers are not needed any more

    head = EagleHead(head_config_for(target_config))
    optimizer = torch.optim.AdamW(
        head.parameters(), lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=0.01
    )
    head, optimizer = accelerator.prepare(head, optimizer)
    progress = resume(accelerator, output)
    step, seconds, trained = progress["step"], progress["seconds"], progress["tokens"]
    log = (output / "log.jsonl").open("a") if accelerator.is_main_process else None

    bar = tqdm(total=steps, initial=step, desc="training", disable=not accelerator.is_main_process)
    began = saved = time.monotonic()
    while step < steps:
        place = {"process": accelerator.process_index, "processes": accelerator.num_processes}
        batch = batches.at(step, **place)
        noise = torch.Generator().manual_seed(
            noise_seed(options.seed, step, accelerator.process_index)
        )
        feature_BTD = add_noise(batch, options.noise, noise).to(accelerator.device)
        batch = batch.to(accelerator.device)
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * rate_factor(step, steps, options.warmup)
        with accelerator.autocast():
            embedding_BTD = embed_tokens(batch.next_token_BT)
            feature_loss, entropy = losses(
                head, batch, feature_BTD, embedding_BTD, loss_head_VD, options
            )
            loss = options.weight_feature * feature_loss + options.weight_ce * entropy
        accelerator.backward(loss)
        norm = accelerator.clip_grad_norm_(head.parameters(), options.clip)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        trained += int(batch.mask_BT.sum()) * accelerator.num_processes
        bar.update()
        now = time.monotonic()
        if log is not None and (step % 20 == 0 or step == steps):
            row = {
                "step": step,
                "loss": loss.item(),
                "feature": feature_loss.item(),
                "entropy": entropy.item(),
                "gradient_norm": float(norm),
                "answer_tokens": trained,
                "seconds": seconds + now - began,
            }
            log.write(json.dumps(row) + "\n")
            log.flush()
            bar.set_postfix(feature=f"{row['feature']:.3f}", entropy=f"{row['entropy']:.3f}")
        if now - saved > options.save_minutes * 60 or step == steps:
            state = {"step": step, "seconds": seconds + now - began, "tokens": trained}
            save_state(accelerator, output, state)
            saved = time.monotonic()
    bar.close()
    seconds += time.monotonic() - began

    if accelerator.is_main_process:
        trained_head = accelerator.unwrap_model(head).eval()
        write_head(output, trained_head.config, trained_head.state_dict())
        held = batches.held_out
        held_out = (
            batches.batch(held[i : i + 4]).to(accelerator.device) for i in range(0, len(held), 4)
        )
        with accelerator.autocast():
            accuracy = accuracy_by_depth(
                trained_head, held_out, embed_tokens, lm_head_VD, depth=options.validate_depth
            )
        result = {
            "answer_tokens_seen": trained,
            "training_seconds": seconds,
            "held_out": accuracy,
            "run": describe_run(asdict(options)),
        }
        (output / "training.json").write_text(json.dumps(result, indent=2) + "\n")
        print(f"head: {output}\nanswer tokens seen: {trained}, training seconds: {seconds:.0f}")
        for level, (top1, top8) in enumerate(
            zip(accuracy["top1"], accuracy["top8"], strict=True), start=1
        ):
            print(f"level {level}: top-1 {top1:.3f}  top-8 {top8:.3f}")


def check_same_run(output: Path, options: TrainOptions) -> None:
    """Options are kept beside the state, and a run with others is not continued."""
    path = output / "options.json"
    mine = asdict(options)
    if path.is_file():
        theirs = json.loads(path.read_text())
        changed = {k: (theirs.get(k), mine[k]) for k in mine if theirs.get(k) != mine[k]}
        changed.pop("save_minutes", None)
        if changed:
            raise ValueError(
                f"{output} holds a run with other options (there, here): {changed}; "
                "name another --output or delete it"
            )
    output.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(mine, indent=2) + "\n")


def save_state(accelerator: Accelerator, output: Path, progress: dict) -> None:
    """Save in a folder of its own, then swap: a kill leaves the old state or the new one."""
    new, old = output / "state.new", output / "state"
    accelerator.save_state(str(new))
    if accelerator.is_main_process:
        (new / "progress.json").write_text(json.dumps(progress))
        if old.exists():
            old.rename(output / "state.old")
        new.rename(old)
        shutil.rmtree(output / "state.old", ignore_errors=True)
    accelerator.wait_for_everyone()


def resume(accelerator: Accelerator, output: Path) -> dict:
    """The last complete state, or a fresh start."""
    for name in ("state", "state.old"):  # killed between the two renames, only the old is there
        path = output / name / "progress.json"
        if path.is_file():
            accelerator.load_state(str(path.parent))
            return json.loads(path.read_text())
    return {"step": 0, "seconds": 0.0, "tokens": 0}


def main(arguments: list[str] | None = None) -> None:
    parser = HfArgumentParser(TrainOptions)
    try:
        train(*parser.parse_args_into_dataclasses(arguments))
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
