"""Train a draft head, EAGLE-1/2 or EAGLE-3, on answers of a target.

    python train/train_head.py --target smollm2 --data answers.jsonl --output runs/head

Data comes from make_data.py. The target's states are computed where they are trained on, and kept
for the next epoch (--features online: not kept). The result is a folder that eagle_fsd and
upstream's EAGLE load. A run that was killed or interrupted goes on where it last saved: run the
same command again. Several processes: `accelerate launch --config_file scripts/accelerate/ddp.yaml
train/train_head.py ...`; a configuration for FSDP lies beside it.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Literal

from eagle_fsd.cli import run_command
from eagle_fsd.config import BadInput, check_least, check_seed
from eagle_fsd.options import Changeable, TargetOptions, changeable, option
from eagle_fsd.training.recipe import parse_recipe

if TYPE_CHECKING:
    from accelerate import Accelerator

    from eagle_fsd.decoding.target import Target
    from eagle_fsd.runs.folder import Run
    from eagle_fsd.training.data import Parts

LARGE_SHARE = 1 / 4  # of the dialogues; to hold out more than it is warned of


@dataclass
class TrainOptions(TargetOptions):
    data: list[str] = field(
        kw_only=True, metadata={"help": Changeable("Folders of make_data.py, or its files.")}
    )
    output: str = field(
        kw_only=True, metadata={"help": "The folder of the head, its state and its log."}
    )
    features: str = option(
        "",
        "The folder that keeps the target's states, make_data.py's or another; online computes "
        "them each time. Empty: a folder within --output.",
    )
    max_length: int = option(
        2048, "The most tokens of a dialogue, at most the target's positions; the rest is cut."
    )
    answer_tokens: int = option(
        0, "Train on a random part of about this many answer tokens. 0: all."
    )
    held_out: int = option(
        16,
        "The number of different dialogues that are kept from training, with all that equal them, "
        "to measure the head's tokens per round.",
    )

    head_type: str = option(
        "eagle",
        "The kind of head: eagle (EAGLE-1 and EAGLE-2) or eagle3. --start mtp has its own.",
    )
    loss_vocab: int = option(
        0,
        "The number of most frequent tokens that losses are over; an EAGLE-3 head drafts these "
        "alone. 0: all.",
    )
    start: str = option(
        "",
        "A head of that type that is trained further; mtp is the MTP layer in the target's own "
        "checkpoint. Empty: a new one.",
    )

    recipe: str = option(
        "",
        "The recipe: eagle, unrolled, eagle3 or mtp, with changes such as unrolled,noise=0. A "
        "wrong field is answered by the list of all. Empty: eagle3 or mtp for such heads, else "
        "unrolled.",
    )
    epochs: float = option(
        0.0, "The number of passes over the data. 0: no limit, but 3 if no other limit is given."
    )
    steps: int = option(0, "The most steps. 0: no limit.")
    minutes: float = option(
        0.0,
        "The minutes for training, the target's states included, and for the held-out rounds after "
        "it, which get a tenth of them and at most two minutes; loading comes on top. The learning "
        "rate then follows the clock. 0: no limit.",
    )
    tokens_per_batch: int = option(
        0, "The tokens of one forward, padding included. 0: 2048 on a CPU, 16384 on CUDA."
    )
    batches_per_step: int = option(
        0, "The batches of a step, over all processes. 0: one for each process."
    )
    precision: Literal["auto", "bf16", "no"] = option(
        "auto",
        "bf16 is mixed precision, no is float32; auto takes bf16 where the hardware multiplies it.",
    )
    save_minutes: float = option(
        5.0, "The minutes between saves from which a killed run goes on.", may_change=True
    )
    seed: int = option(0, "The seed of initialisation, order and noise.")

    def __post_init__(self):
        import torch

        from eagle_fsd.heads.mtp_files import is_mtp
        from eagle_fsd.models.load import training_dtype

        if is_mtp(self.start):
            if self.head_type == "eagle3":
                raise BadInput("--start mtp is no EAGLE-3 head: leave --head_type out")
            self.head_type = "mtp"
        own = self.head_type in ("eagle3", "mtp")
        self.recipe = self.recipe or (self.head_type if own else "unrolled")
        on_cuda = torch.cuda.is_available()
        self.tokens_per_batch = self.tokens_per_batch or (16384 if on_cuda else 2048)
        if self.precision == "auto":  # a processor that has to emulate it takes 20 times as long
            fast = training_dtype("cuda" if on_cuda else "cpu") == "bfloat16"
            self.precision = "bf16" if fast else "no"
        check_least(self, "--", held_out=1, max_length=1, tokens_per_batch=1, save_minutes=1e-9)
        check_least(self, "--", answer_tokens=0, loss_vocab=0, batches_per_step=0, seed=0)
        check_least(self, "--", epochs=0, steps=0, minutes=0)
        check_seed(self.seed)
        if 0 < self.loss_vocab < 8:  # the trees of the replay branch by 6
            raise BadInput(f"--loss_vocab must be at least 8, got {self.loss_vocab}")
        recipe = parse_recipe(self.recipe)
        if self.head_type == "eagle3" and recipe.feature:
            raise BadInput("an EAGLE-3 head's output is no feature of the target: give feature=0")
        if not (self.epochs or self.steps or self.minutes):
            self.epochs = 3.0

    @property
    def held_out_seconds(self) -> float:
        """What of the minutes is for the held-out rounds; infinite without minutes."""
        return min(0.1 * 60 * self.minutes, 120.0) if self.minutes else math.inf

    @property
    def training_seconds(self) -> float:
        """The rest of the minutes; 0 without."""
        return 60 * self.minutes - self.held_out_seconds if self.minutes else 0.0


def train(options: TrainOptions) -> None:
    """Train a head and write it, from wherever a run of these options was left."""
    from accelerate import Accelerator
    from accelerate.utils import GradientAccumulationPlugin

    from eagle_fsd.families.text_model import longest_text
    from eagle_fsd.models import load
    from eagle_fsd.models.digests import target_digests
    from eagle_fsd.runs.provenance import digest
    from eagle_fsd.training.data import read_dialogues, split
    from eagle_fsd.training.features import TargetStates
    from eagle_fsd.training.head_run import begun_head, prepare
    from eagle_fsd.training.trained import RECORD, is_trained, write_trained
    from eagle_fsd.training.trainer import Budget, Trainer

    target_config = load.load_target_config(options.target)
    start = {name: getattr(options, name) for name in ("start", "head_type", "loss_vocab", "seed")}
    head = begun_head(options.target, target_config, **start)
    longest = min(options.max_length, longest_text(target_config))
    limits = {"vocab_size": head.config.vocab_size, "max_length": longest}
    dialogues = [d for path in options.data for d in read_dialogues(path, **limits)]
    parts = split(dialogues, held_out=options.held_out, answer_tokens=options.answer_tokens)
    # the trainer accumulates a step's batches; a launcher's number would divide its gradients again
    accelerator = Accelerator(
        mixed_precision=options.precision,
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
    )
    digests = target_digests(options.target)
    read = {"dialogues": digest([[d.ids, d.mask] for d in dialogues])}  # files may change
    run = opened_run(options, digests | read, accelerator)
    if is_trained(run.folder):
        accelerator.print(f"{run.folder} is already trained: see its {RECORD}")
        return
    report_held_out(parts, options, accelerator)
    layers = head.config.fused_layers(target_config.num_hidden_layers)
    target = load_linear_target(options, layers, device_of(accelerator))
    kept = "" if options.features == "online" else options.features or run.folder / "features"
    states = TargetStates(target, kept, digests)
    states.check([dialogue.ids for dialogue in parts.training + parts.held_out])
    recipe = parse_recipe(options.recipe)
    sizes = {name: getattr(options, name) for name in ("loss_vocab", "tokens_per_batch", "seed")}
    trainer = Trainer(
        accelerator,
        *prepare(head, parts.training, states, recipe, accelerator, **sizes),
        target.embed_tokens,
        recipe,
        Budget(options.epochs, options.steps, options.training_seconds),
        options.batches_per_step,
        options.save_minutes,
        run,
    )
    progress = trainer.train()
    tensors = accelerator.get_state_dict(trainer.objective)  # whole, also where it was sharded
    if accelerator.is_main_process:
        head_of = {key.removeprefix("head."): tensor for key, tensor in tensors.items()}
        print(
            write_trained(
                run.folder,
                head.config,
                head_of,
                states,
                parts,
                progress,
                recipe=recipe,
                seconds=options.held_out_seconds,
            )
        )


def opened_run(options: TrainOptions, digests: dict, accelerator: "Accelerator") -> "Run":
    """The folder, of a new run of these options or of one that goes on."""
    from eagle_fsd.models.digests import head_digests
    from eagle_fsd.runs.folder import Run
    from eagle_fsd.runs.processes import Processes

    processes = Processes(accelerator.process_index, accelerator.num_processes)
    options.batches_per_step = options.batches_per_step or processes.count
    if options.batches_per_step % processes.count:
        raise BadInput(
            f"--batches_per_step {options.batches_per_step} cannot be shared by {processes.count} "
            "processes: give a multiple"
        )
    read = head_digests(options.start) | {"device": device_of(accelerator)}
    # kept states are rounded to bfloat16, wherever they lie
    read["features"] = "online" if options.features == "online" else "kept"
    return Run(
        options.output,
        asdict(options) | digests | read,
        free=changeable(options) | {"device"},
        key=itemgetter("step"),
        processes=processes,
    )


def device_of(accelerator: "Accelerator") -> str:
    # accelerate says cpu:0 where several processes run, and a processor is asked for as cpu
    return str(accelerator.device).replace("cpu:0", "cpu")


def report_held_out(parts: "Parts", options: TrainOptions, accelerator: "Accelerator") -> None:
    """What is held out, where that is not what one would think."""
    if parts.copies:
        accelerator.print(
            f"{parts.copies} rows equal held-out ones, or are of the same dialogues: left out"
        )
    held, every = len(parts.held_out), parts.size
    if held > LARGE_SHARE * every:
        accelerator.print(
            f"warning: --held_out {options.held_out} keeps {held} of {every} dialogues from "
            "training: lower it, or give more --data"
        )


def load_linear_target(options: TrainOptions, layers: Sequence[int], device: str) -> "Target":
    """The target, whose lm_head the losses must be able to follow."""
    from eagle_fsd.models import load

    device = options.device or device
    dtype = options.dtype or load.training_dtype(device)
    target, _ = load.load_target(
        options.target,
        dtype=dtype,
        device=device,
        feature_layers=layers,
        engine="auto",
        keep_stock=False,
    )
    if not target.readout_is_linear:
        raise BadInput(
            "this target's lm_head has a bias or its logits are capped (Gemma 2), which the losses "
            "do not follow: it cannot be trained for"
        )
    return target


if __name__ == "__main__":
    run_command(train, [TrainOptions])
