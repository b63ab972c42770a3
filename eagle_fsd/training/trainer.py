"""The training loop: batches in, a trained head out, resumable at every save.

In the run's folder, progress.json names the last complete save, which is state-STEP/, and
records/log.jsonl holds what the loop logged; of two rows of one step the later counts.
"""

import math
import os
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch import nn
from tqdm import tqdm

from eagle_fsd.cli import held_interrupt
from eagle_fsd.config import BadInput, one_line
from eagle_fsd.heads.checkpoint import UNREADABLE
from eagle_fsd.runs.folder import Run
from eagle_fsd.runs.jsonl import read_json, write_json
from eagle_fsd.training.data import Batches, HeadBatch
from eagle_fsd.training.read_ahead import ReadAhead
from eagle_fsd.training.recipe import Recipe

LOG_EVERY = 20  # steps; the first step is logged too
SAVE_MINUTES = 5.0  # between saves
# percent of a budget, so that it has an expected end
BAR = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"
PROGRESS = "progress.json"  # names the last complete save


@dataclass
class Trainer:
    """A step takes `batches_per_step` batches, shared out over the processes and accumulated within
    each; the mean is over all positions of the step, so the sharing changes nothing but speed.

    The budget that is used up first ends the training; of 0 it has none. With seconds the learning
    rate follows the clock. With steps and epochs a resumed run equals an unbroken one.
    """

    accelerator: Accelerator
    objective: nn.Module  # an Objective, wrapped by the accelerator
    optimizers: list[torch.optim.Optimizer]
    batches: Batches
    embed_tokens: nn.Module  # the target's, frozen
    recipe: Recipe
    run: Run
    batches_per_step: int
    epochs: float
    steps: int
    seconds: float

    @property
    def most(self) -> float:
        """Steps at which the budget ends, infinite where the clock ends it."""
        in_epochs = math.ceil(self.epochs * self.batches.per_epoch / self.batches_per_step)
        return min(self.steps or math.inf, in_epochs or math.inf)

    def reached(self) -> list[list[int]]:
        """Token ids of the dialogues that the budget reaches; the clock may reach them all."""
        count = int(min(self.most * self.batches_per_step, self.batches.per_epoch))
        return [ids for number in range(count) for ids in self.batches.texts(number)]

    def train(self) -> dict:
        """Train from the last save to the end of the budget; returns step, seconds, tokens. Ctrl-C
        ends it behind the step under way, saved."""
        self.run.begin_session()
        kept = self._resume()
        progress = kept or {"step": 0, "seconds": 0.0, "tokens": 0}
        most, count = self.most, self.accelerator.num_processes
        saved = time.monotonic()
        began = saved - progress["seconds"]
        hidden = not self.accelerator.is_main_process
        logged: dict[str, float] = {}

        def share(progress: dict) -> float:
            """What is used of the budget: it ends by steps or by the clock."""
            by_clock = progress["seconds"] / (self.seconds or math.inf)
            return max(progress["step"] / most, by_clock)

        # from what is done; none where that is all, as after a Ctrl-C while the head was measured
        begun = share(progress)
        percent = {"total": 100, "initial": 100 * begun, "postfix": {"step": progress["step"]}}
        hide = hidden or begun >= 1
        bar = tqdm(**percent, desc="training", bar_format=BAR, disable=hide)
        ahead = ReadAhead(self.batches, self.accelerator.device, stride=count)
        with held_interrupt() as interrupted, bar, ahead:
            while True:
                # 1. Save and end; all processes do so in one step.
                due = time.monotonic() - saved > 60 * SAVE_MINUTES
                used, due, stop = broadcast_object_list([share(progress), due, interrupted()])
                bar.update(100 * min(used, 1) - bar.n)
                if (due or stop or used >= 1) and progress != kept:
                    self._save(progress)
                    kept, saved = progress, time.monotonic()
                if stop:
                    raise KeyboardInterrupt
                if used >= 1:
                    return progress
                # 2. A step, at the learning rate of its middle.
                rate = self.recipe.rate(used + (1 / most or 1e-3) / 2)
                counted, row = self._step(progress["step"], rate, ahead.batch)
                progress = {
                    "step": progress["step"] + 1,
                    "seconds": time.monotonic() - began,
                    "tokens": progress["tokens"] + counted,
                }
                if progress["step"] in (1, most) or progress["step"] % LOG_EVERY == 0:
                    # of losses, and of the norm, every process has its share
                    row = self.accelerator.reduce(row, reduction="sum")
                    row = {name: value.item() for name, value in row.items()}
                    logged = row
                    if not hidden:
                        self.run.add("log", progress | row | {"learning_rate": rate})
                bar.set_postfix({"step": progress["step"]} | logged, refresh=False)

    def _step(
        self, step: int, rate: float, batch: Callable[[int], HeadBatch]
    ) -> tuple[int, dict[str, torch.Tensor]]:
        """One update; returns the positions it learnt from, and what it was for the log."""
        accelerator, each = self.accelerator, self.batches_per_step
        numbers = range(step * each, (step + 1) * each)
        counted = sum(self.batches.counted(number) for number in numbers)
        mine = numbers[accelerator.process_index :: accelerator.num_processes]
        row: dict[str, torch.Tensor] = {}
        for number in mine:
            feature_BTF, next_token_BT, *wanted = batch(number)
            embedding_BTD = self.embed_tokens(next_token_BT.to(self.embed_tokens.weight.device))
            embedding_BTD = embedding_BTD.to(accelerator.device)
            # gradients go over the processes once a step, with the last batch
            with nullcontext() if number == mine[-1] else accelerator.no_sync(self.objective):
                with accelerator.autocast():
                    loss, values = self.objective(
                        feature_BTF, embedding_BTD, *wanted, max(counted, 1)
                    )
                # processes' gradients are averaged; their losses are shares of one mean
                accelerator.backward(loss * accelerator.num_processes)
            values = {"loss": loss.detach(), **values}
            row = {name: row.get(name, 0.0) + value for name, value in values.items()}
        parameters = list(self.objective.parameters())
        norm = accelerator.clip_grad_norm_(parameters, self.recipe.clip_norm or math.inf)
        if self.recipe.clip_value:
            accelerator.clip_grad_value_(parameters, self.recipe.clip_value)
        if not math.isfinite(row["loss"]) or not math.isfinite(norm):
            raise BadInput(
                f"training diverged at step {step + 1}: loss {float(row['loss'])}, gradient norm "
                f"{float(norm)}; lower learning_rate {self.recipe.learning_rate} in --recipe or "
                "clip (clip_norm), and name another --output"
            )
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
        return counted, row | {"gradient_norm": norm / accelerator.num_processes}

    def _save(self, progress: dict) -> None:
        """A kill amid it leaves the old state named, or the new one."""
        folder = self.run.folder / f"state-{progress['step']}"
        self.accelerator.save_state(str(folder))
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            os.sync()  # a power cut must not leave a state named that is not on the disk
            write_json(self.run.folder / PROGRESS, progress)
            for other in set(self.run.folder.glob("state-*")) - {folder}:
                shutil.rmtree(other)
        self.accelerator.wait_for_everyone()

    def _resume(self) -> dict | None:
        """Load the last complete state; None if there is none."""
        path = self.run.folder / PROGRESS
        if not path.is_file():
            return None
        progress = read_json(path)
        folder = self.run.folder / f"state-{progress['step']}"
        try:
            self.accelerator.load_state(str(folder))
        except UNREADABLE as error:
            raise BadInput(
                f"{folder}, the last save, is gone or damaged ({one_line(error)}): delete {path} "
                "to begin anew, or name another --output"
            ) from error
        self.accelerator.print(f"goes on after step {progress['step']}")
        return progress
