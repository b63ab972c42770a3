"""The training loop: batches in, a trained head out, resumable at every save.

state/ below the output holds the last complete save, log.jsonl beside it what the loop logged.
"""

import json
import math
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, broadcast_object_list
from torch import nn
from tqdm import tqdm

from eagle_fsd.config import BadInput
from eagle_fsd.runs.command import held_interrupt
from eagle_fsd.runs.jsonl import append_line, read_lines, write_lines
from eagle_fsd.training.data import Batches
from eagle_fsd.training.recipe import Recipe

LOG_EVERY = 20  # steps; the first step is logged too


@dataclass(frozen=True)
class Budget:
    """When training ends: at the first of the limits that is reached. 0 is no limit.

    With steps and epochs alone a resumed run equals an unbroken one; the learning rate of a budget
    in minutes follows the clock.
    """

    epochs: float = 0.0
    steps: int = 0
    minutes: float = 0.0

    def __post_init__(self):
        for name in ("epochs", "steps", "minutes"):
            if not 0 <= getattr(self, name) < math.inf:
                raise BadInput(f"--{name} must be 0 or more, got {getattr(self, name)}")
        if not (self.epochs or self.steps or self.minutes):
            raise BadInput("give a budget: epochs, steps or minutes")

    def most_steps(self, steps_per_epoch: float) -> int | None:
        """Steps after which it ends whatever the clock says; None: only the clock ends it."""
        limits = [self.steps] if self.steps else []
        limits += [math.ceil(self.epochs * steps_per_epoch)] if self.epochs else []
        return min(limits) if limits else None

    def done(self, step: int, seconds: float, most_steps: int | None) -> float:
        """Share that is used, 1 or more at the end."""
        by_steps = step / most_steps if most_steps else 0.0
        return max(by_steps, seconds / (60 * self.minutes) if self.minutes else 0.0)


@dataclass
class Trainer:
    """What the loop needs. `embed_tokens` is the target's, frozen.

    A step takes `batches_per_step` batches, shared out over the processes and accumulated within
    each; the mean is over all positions of the step, so the sharing changes nothing but speed.
    """

    accelerator: Accelerator
    objective: nn.Module  # an Objective, wrapped by the accelerator
    optimizer: torch.optim.Optimizer
    batches: Batches
    embed_tokens: nn.Module
    recipe: Recipe
    budget: Budget
    output: Path
    batches_per_step: int = 1
    save_minutes: float = 5.0

    def __post_init__(self):
        processes = self.accelerator.num_processes
        assert self.batches_per_step % processes == 0, (self.batches_per_step, processes)
        kind = self.accelerator.distributed_type
        sharded = kind in (DistributedType.FSDP, DistributedType.DEEPSPEED)
        if sharded and self.recipe.clip_value:
            raise BadInput(
                f"{kind.value} cannot clip gradients by value: give --clip_value 0 --clip_norm 0.5"
            )
        if kind == DistributedType.DEEPSPEED and self.batches_per_step != processes:
            raise BadInput(
                "DeepSpeed steps at every backward pass: leave --batches_per_step out, which gives "
                "every process one batch"
            )

    def run(self) -> dict:
        """Train from the last save to the end of the budget; returns step, seconds, tokens.

        Ctrl-C ends it behind the step under way, saved.

        Raises:
            BadInput: a gradient is not finite; the weights are those of the step before.
        """
        with held_interrupt() as interrupted:
            return self._run(interrupted)

    def _run(self, interrupted: Callable[[], bool]) -> dict:
        main = self.accelerator.is_main_process
        progress = resume(self.accelerator, self.output)
        if progress["step"]:
            self.accelerator.print(f"goes on behind step {progress['step']}")
        most = self.budget.most_steps(self.batches.per_epoch / self.batches_per_step)
        saved = time.monotonic()
        began = saved - progress["seconds"]
        bar = tqdm(total=most, initial=progress["step"], desc="training", disable=not main)
        while (done := self._agreed_share(progress, most)) < 1:
            step = progress["step"]
            for group in self.optimizer.param_groups:
                group["lr"] = self.recipe.rate(done + (1 / most if most else 1e-3) / 2)
            row, counted = self._step(step)
            now = time.monotonic()
            progress = {
                "step": step + 1,
                "seconds": now - began,
                "tokens": progress["tokens"] + counted,
            }
            if step == 0 or (step + 1) % LOG_EVERY == 0 or step + 1 == most:
                self._log(progress, row, bar)
            bar.update()
            due, stop = now - saved > 60 * self.save_minutes, interrupted()
            if self.accelerator.num_processes > 1:
                # all processes do so in one step; to ask in every step would cost time
                asked = (step + 1) % LOG_EVERY == 0
                due, stop = self._as_the_first(due, stop) if asked else (False, False)
            if due or stop:
                save_state(self.accelerator, self.output, progress)
                saved = time.monotonic()
            if stop:
                bar.close()
                raise KeyboardInterrupt
        save_state(self.accelerator, self.output, progress)
        bar.close()
        return progress

    def _step(self, step: int) -> tuple[dict[str, torch.Tensor], int]:
        """One update; returns what it was for the log, and the positions it learnt from."""
        accelerator, each = self.accelerator, self.batches_per_step
        numbers = range(step * each, (step + 1) * each)
        counted = sum(self.batches.counted(number) for number in numbers)
        mine = numbers[accelerator.process_index :: accelerator.num_processes]
        total = parts = 0.0
        for number in mine:
            # gradients go over the processes once a step, with the last batch
            last = number == mine[-1]
            with nullcontext() if last else accelerator.no_sync(self.objective):
                loss, values = self._forward(number, counted)
                # processes' gradients are averaged; their losses are shares of one mean
                accelerator.backward(loss * accelerator.num_processes)
            total, parts = total + loss.detach(), parts + values
        parameters = self.objective.parameters()
        norm = accelerator.clip_grad_norm_(parameters, self.recipe.clip_norm or math.inf)
        if self.recipe.clip_value:
            accelerator.clip_grad_value_(self.objective.parameters(), self.recipe.clip_value)
        if not math.isfinite(total) or (norm is not None and not math.isfinite(norm)):
            raise BadInput(
                f"training diverged at step {step + 1}: loss {float(total)}, gradient norm "
                f"{float(norm)}; lower --learning_rate {self.recipe.learning_rate} or clip "
                "(--clip_norm), and name another --output"
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {"loss": total, "losses": parts, "gradient_norm": norm}, counted

    def _forward(self, number: int, counted: int) -> tuple[torch.Tensor, torch.Tensor]:
        device = self.accelerator.device
        batch = self.batches.batch(number).to(device)
        place = self.embed_tokens.weight.device
        embedding_BTD = self.embed_tokens(batch.next_token_BT.to(place)).to(device)
        with self.accelerator.autocast():
            return self.objective(
                batch.feature_BTD,
                embedding_BTD,
                batch.target_feature_BTD,
                batch.mask_BT,
                torch.tensor(float(max(counted, 1)), device=device),
            )

    def _agreed_share(self, progress: dict, most: int | None) -> float:
        """The budget's used share; by the first process's clock where the clock counts."""
        done = self.budget.done(progress["step"], progress["seconds"], most)
        return self._as_the_first(done)[0] if self.budget.minutes else done

    def _as_the_first(self, *values: float) -> list:
        """The first process's values, in all processes."""
        shared = list(values)
        if self.accelerator.num_processes > 1:
            broadcast_object_list(shared)
        return shared

    def _log(self, progress: dict, row: dict[str, torch.Tensor], bar: tqdm) -> None:
        loss, losses = self.accelerator.reduce((row["loss"], row["losses"]), reduction="sum")
        names = self.accelerator.unwrap_model(self.objective).names
        values = {
            "loss": loss.item(),
            **dict(zip(names, losses.tolist(), strict=True)),
            "gradient_norm": float(row["gradient_norm"]),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
        }
        if self.accelerator.is_main_process:
            append_line(self.output / "log.jsonl", progress | values)
            bar.set_postfix({name: f"{values[name]:.3f}" for name in names})
        self.accelerator.log(values, step=progress["step"])


def save_state(accelerator: Accelerator, output: Path, progress: dict) -> None:
    """Save in a folder of its own, then swap: a kill leaves the old state or the new one."""
    new, old = output / "state.new", output / "state"
    accelerator.save_state(str(new))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (new / "progress.json").write_text(json.dumps(progress))
        if old.exists():  # else state.old, from a kill in here, is the last complete one
            shutil.rmtree(output / "state.old", ignore_errors=True)
            old.rename(output / "state.old")
        new.rename(old)
        shutil.rmtree(output / "state.old", ignore_errors=True)
    accelerator.wait_for_everyone()


def is_saved(output: Path) -> bool:
    """Whether there is a state to go on from."""
    return any((output / name / "progress.json").is_file() for name in ("state", "state.old"))


def resume(accelerator: Accelerator, output: Path) -> dict:
    """The last complete state, or a fresh start; what was logged after it is forgotten."""
    log = output / "log.jsonl"
    for name in ("state", "state.old"):  # killed between the two renames, only the old is there
        path = output / name / "progress.json"
        if path.is_file():
            accelerator.load_state(str(path.parent))
            progress = json.loads(path.read_text())
            if accelerator.is_main_process and log.is_file():
                rows = read_lines(log, repair=True)
                write_lines(log, [row for row in rows if row["step"] <= progress["step"]])
            return progress
    if accelerator.is_main_process:
        log.unlink(missing_ok=True)
    return {"step": 0, "seconds": 0.0, "tokens": 0}
