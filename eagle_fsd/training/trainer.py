"""The training loop: batches in, a trained head out, resumable at every save."""

import math
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
from eagle_fsd.runs.jsonl import append_line
from eagle_fsd.training.batches import Batches
from eagle_fsd.training.recipe import Recipe
from eagle_fsd.training.train_state import resume, save_state

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
            if not getattr(self, name) >= 0:
                raise BadInput(f"{name} must not be negative, got {getattr(self, name)}")
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
            due, stop = self._all_agree(
                now - saved > 60 * self.save_minutes, interrupted(), step + 1
            )
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
        if self.budget.minutes and self.accelerator.num_processes > 1:
            shared = [done]
            broadcast_object_list(shared)
            done = shared[0]
        return done

    def _all_agree(self, due: bool, stop: bool, step: int) -> tuple[bool, bool]:
        """Whether to save and to stop now: all processes do so in one step, as the first says."""
        if self.accelerator.num_processes == 1:
            return due, stop
        if step % LOG_EVERY:
            return False, False
        shared = [due, stop]
        broadcast_object_list(shared)
        return shared[0], shared[1]

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
