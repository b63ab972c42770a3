"""Train a draft head, EAGLE-1/2 or EAGLE-3, on answers of a target.

    python train/train_head.py --target smollm2 --data answers.jsonl --output runs/head

Data comes from make_data.py. The target's states are computed where they are trained on, and kept
for the next epoch (--features online: not kept). The result is a folder that eagle_fsd and
upstream's EAGLE load. A run that was killed or interrupted goes on where it last saved: run the
same command again. Several processes: `accelerate launch --config_file scripts/accelerate/ddp.yaml
train/train_head.py ...`.
"""

from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING

from eagle_fsd.cli import run_command
from eagle_fsd.config import BadInput, check_known, check_least, check_seed
from eagle_fsd.options import TargetOptions
from eagle_fsd.training.recipe import RECIPE_OF, parse_recipe

if TYPE_CHECKING:
    from accelerate import Accelerator

MAX_LENGTH = 2048  # tokens of a dialogue; what is longer is cut


@dataclass
class TrainOptions(TargetOptions):
    trains = True

    data: list[str] = field(kw_only=True, compare=False)
    """Folders of make_data.py, or its files."""
    output: str = field(kw_only=True, compare=False)
    """The folder of the head, its state and its log."""
    features: str = ""
    """The folder that keeps the target's states, make_data.py's or another; online computes them
    each time. Empty: a folder within --output."""
    answer_tokens: int = 0
    """Train on a random part of about this many answer tokens. 0: all."""
    held_out: int = 16
    """The number of different dialogues that are kept from training, with all that equal them, to
    measure the head's tokens per round."""

    head_type: str = "eagle"
    """The kind of a new head: eagle (EAGLE-1 and EAGLE-2) or eagle3. --start has its own."""
    loss_vocab: int = 0
    """The number of most frequent tokens that losses are over; an EAGLE-3 head drafts these alone.
    0: all."""
    start: str = ""
    """A head that is trained further; mtp is the MTP layer in the target's own checkpoint. Empty: a
    new one."""

    recipe: str = ""
    """The recipe: eagle, unrolled, eagle3 or mtp, with changes such as unrolled,noise=0. A wrong
    field is answered by the list of all. Empty: eagle3 or mtp for such heads, else unrolled. The
    learning rate follows the head's width unless it is given: eagle3 has 1.5e-3 at 576 channels and
    1e-4 at 4096."""
    epochs: float = 0.0
    """The number of passes over the data. 0: no limit, but 3 if no other limit is given."""
    steps: int = 0
    """The most steps. 0: no limit."""
    minutes: float = 0.0
    """The minutes for training, the target's states included; loading, and two minutes at most for
    the held-out rounds after it, come on top. The learning rate then follows the clock. 0: no
    limit."""
    tokens_per_batch: int = 0
    """The tokens of one forward, padding included. 0: 2048 on a CPU, 16384 on CUDA."""
    batches_per_step: int = 0
    """The batches of a step, over all processes. 0: one for each process."""
    seed: int = 0
    """The seed of initialisation, order and noise."""

    def __post_init__(self):
        check_known("head_type", self.head_type, ("eagle", "eagle3"))
        if self.recipe:
            parse_recipe(self.recipe)
        given = self.device
        super().__post_init__()
        self.tokens_per_batch = self.tokens_per_batch or (2048 if self.device == "cpu" else 16384)
        self.device = given  # where several processes run, each has its own
        check_least(self, "--", held_out=1, tokens_per_batch=1, answer_tokens=0, loss_vocab=0)
        check_least(self, "--", batches_per_step=0, epochs=0, steps=0, minutes=0)
        check_seed(self.seed)
        if not (self.epochs or self.steps or self.minutes):
            self.epochs = 3.0


def train(options: TrainOptions) -> None:
    """Train a head and write it, from wherever a run of these options was left."""
    from transformers.utils import SAFE_WEIGHTS_NAME

    from eagle_fsd.families import longest_text
    from eagle_fsd.models import load
    from eagle_fsd.runs.folder import Run
    from eagle_fsd.runs.processes import Processes
    from eagle_fsd.runs.provenance import digest
    from eagle_fsd.training.data import read_dialogues, split
    from eagle_fsd.training.features import TargetStates
    from eagle_fsd.training.head_run import RECORD, begun_head, prepare, write_trained
    from eagle_fsd.training.trainer import Trainer

    # 1. The head, and the dialogues.
    target_config = load.load_target_config(options.target)
    wanted = ("start", "head_type", "loss_vocab", "recipe", "seed")
    start = {name: getattr(options, name) for name in wanted}
    head = begun_head(options.target, target_config, **start)
    options.head_type = head.config.head_type
    options.recipe = options.recipe or RECIPE_OF[options.head_type]
    longest = min(MAX_LENGTH, longest_text(target_config))
    limits = {"vocab_size": head.config.vocab_size, "max_length": longest}
    dialogues = [d for path in options.data for d in read_dialogues(path, **limits)]
    training, held_out = split(
        dialogues, held_out=options.held_out, answer_tokens=options.answer_tokens
    )
    # 2. The processes, and the folder, of a new run of these options or of one that goes on.
    accelerator = launched(options)
    digests = load.target_digests(options.target)
    read = load.head_digests(options.start)
    read["dialogues"] = digest([[d.ids, d.mask] for d in dialogues])  # files may change
    # kept states are rounded to bfloat16, wherever they lie
    read["features"] = "online" if options.features == "online" else "kept"
    run = Run.of(
        options,
        further=digests | read,
        key=itemgetter("step"),
        processes=Processes(accelerator.process_index, accelerator.num_processes),
    )
    if all((run.folder / name).is_file() for name in (RECORD, SAFE_WEIGHTS_NAME)):
        accelerator.print(f"{run.folder} is already trained: see its {RECORD}")
        return
    accelerator.print(
        f"{len(training)} of {len(dialogues)} dialogues are trained on, {len(held_out)} held out"
    )
    # 3. The target, the training, and what it leaves.
    target, _ = load.load_target(
        options.target,
        dtype=options.dtype,
        device=options.device,
        feature_layers=head.config.fused_layers(target_config.num_hidden_layers),
        engine="auto",
        keep_stock=False,
    )
    kept = "" if options.features == "online" else options.features or run.folder / "features"
    states = TargetStates(target, kept, digests)
    width = head.config.hidden_size
    recipe = parse_recipe(options.recipe, width)
    accelerator.print(
        f"the peak learning rate is {recipe.learning_rate:.3g}, by recipe {options.recipe} at "
        f"{width} channels"
    )
    sizes = {name: getattr(options, name) for name in ("loss_vocab", "tokens_per_batch", "seed")}
    trainer = Trainer(
        accelerator,
        *prepare(head, training, states, recipe, accelerator, **sizes),
        target.embed_tokens,
        recipe,
        run,
        batches_per_step=options.batches_per_step,
        epochs=options.epochs,
        steps=options.steps,
        seconds=60 * options.minutes,
    )
    states.check_room(trainer.reached())
    progress = trainer.train()
    if accelerator.is_main_process:
        print(write_trained(run.folder, head, states, held_out, progress, recipe))


def launched(options: TrainOptions) -> "Accelerator":
    """This process among those of the launcher, and the options that depend on them."""
    from accelerate import Accelerator
    from accelerate.utils import GradientAccumulationPlugin

    from eagle_fsd.runs.processes import check_launched

    check_launched(options.device)
    accelerator = Accelerator(
        cpu=options.device == "cpu",  # the head beside the target
        mixed_precision="no" if options.dtype == "float32" else "bf16",
        # the trainer accumulates a step's batches; a launcher's number would divide its gradients
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
    )
    count = accelerator.num_processes
    options.batches_per_step = options.batches_per_step or count
    if options.batches_per_step % count:
        raise BadInput(
            f"--batches_per_step {options.batches_per_step} cannot be shared by {count} processes: "
            "give a multiple"
        )
    # accelerate says cpu:0 where several processes run, and a processor is asked for as cpu
    options.device = options.device or str(accelerator.device).replace("cpu:0", "cpu")
    return accelerator


if __name__ == "__main__":
    run_command(train, [TrainOptions])
