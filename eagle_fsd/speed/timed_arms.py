"""The arms of a speed run, made ready once: drafters, warm-up, timed and profiled answers."""

import gc
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

import torch

from eagle_fsd.config import SamplingConfig, tree_name
from eagle_fsd.decoding.drafter import Drafter
from eagle_fsd.decoding.loop import DecodeConfig, Generation, Round, StopConfig, decode_rounds
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.evaluation.answering import answer_prompt, turn_record
from eagle_fsd.evaluation.arms import COMPILED, Arm
from eagle_fsd.evaluation.questions import answer_seed
from eagle_fsd.models.loaded import Model
from eagle_fsd.models.random_weights import cache_row_bytes
from eagle_fsd.speed.clock import PhaseClock, synchronized_time
from eagle_fsd.speed.pattern import Pattern
from eagle_fsd.speed.peak_memory import PeakAllocated

MEMORY_ROUNDS = 8  # the peak is prefill's or a round's; only generate's cache goes on growing


@dataclass(frozen=True)
class Prompt:
    """A prompt's tokens, and the question that they are of."""

    question_id: int | str
    category: str
    ids: list[int]
    digests: list[str] = field(default_factory=list)


class TimedArms:
    """Answers prompts with any of the arms, each with the same settings.

    Args:
        model: loaded; with keep_stock if an arm is transformers' own.
        arms: name -> arm, its tree chosen.
        sampling, seed, max_new_tokens: of every answer; the seed is mixed with the prompt's id.
        accepted: drafts that each round accepts, in turn, whatever the rules say; empty: as they
            say.

    Attributes:
        arms: those that can run; `warm_up` takes out the others.
        skipped: name of an arm that cannot run here -> why.
    """

    def __init__(
        self,
        model: Model,
        arms: dict[str, Arm],
        sampling: SamplingConfig,
        *,
        seed: int,
        max_new_tokens: int,
        accepted: tuple[int, ...] = (),
    ):
        if accepted:
            arms = {
                name: replace(arm, rule=Pattern(arm.rule, accepted)) if arm.drafts else arm
                for name, arm in arms.items()
            }
        self.model, self.arms = model, arms
        self.skipped: dict[str, str] = {}
        self._sampling, self._seed = sampling, seed
        self._stop = model.stop(max_new_tokens)
        self._drafters = {name: arm.build_drafter(model) for name, arm in arms.items()}

    def timed(self, name: str, prompt: Prompt) -> dict:
        """One answer without a clock inside, as a turn of a record; its seconds cover prefill and
        decoding. What the target says of the text is found out afterwards."""
        result, seconds = self._answer(name, prompt)
        return turn_record(self.model, prompt.ids, result, seconds)

    def tree(self, name: str) -> str | None:
        """The shape of an arm's trees; None where its drafter has none."""
        drafter = self._drafters[name]
        return tree_name(drafter.tree_config) if isinstance(drafter, EagleDrafter) else None

    def warm_up(self, prompt: Prompt) -> dict[str, float]:
        """Every arm's first answer, through the same call; seconds by arm.

        Args:
            prompt: the longest, so that buffers and compiled shapes are as large as they will be.
        """
        seconds = {}
        for name in list(self.arms):
            try:
                seconds[name] = self._answer(name, prompt)[1]
            except RuntimeError as error:
                # of many kinds, from dynamo's, inductor's and the compiler's own errors
                if name != COMPILED or isinstance(error, torch.OutOfMemoryError):
                    raise
                why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                self.skipped[name] = why
                del self.arms[name]
                print(f"warning: {name} is left out, it cannot run here ({why})", file=sys.stderr)
        return seconds

    def profiled(self, name: str, prompt: Prompt) -> dict:
        """Where an answer's time and memory go; the prompt is answered several times, since what
        measures one slows the other.

        Returns:
            peak_memory_bytes of prefill and the first rounds, above what was there before. Of our
            loop also start_seconds (prefill and the first round, in which a drafter takes in the
            prompt), then of the other rounds: their number, round_tokens (before trimming),
            round_seconds without a clock, phase_seconds under one (it waits for the device at every
            phase), context (mean rows in the cache after a round), synchronizations_per_round on
            CUDA; and drafter_bytes.
        """
        target, drafter = self.model.target, self._drafters[name]
        target.close()
        for other in self._drafters.values():
            other.reset(1)  # what the last answers hold is no part of this one
        gc.collect()
        with PeakAllocated(target.device) as memory:
            self._answer_beginning(name, prompt)
        found = {"peak_memory_bytes": memory.peak_bytes}
        if not self.arms[name].runs_our_loop:
            return found
        clock = PhaseClock(target.device)
        self._time_rounds(name, prompt, clock)
        return found | {
            "phase_seconds": clock.seconds,
            **self._time_rounds(name, prompt),
            "drafter_bytes": _drafter_bytes(drafter, len(prompt.ids) + self._stop.max_new_tokens),
            "synchronizations_per_round": self._synchronizations(name, prompt),
        }

    def _time_rounds(self, name: str, prompt: Prompt, clock: PhaseClock | None = None) -> dict:
        """The times and counts of profiled; the clock, if any, forgets the first round."""
        target = self.model.target
        began = synchronized_time(target.device)
        steps = self._rounds(name, prompt, clock)
        for _ in islice(steps, 2):
            pass
        started = synchronized_time(target.device)
        if clock is not None:
            clock.restart()
        rounds = [(len(step.acceptance.tokens), target.cache_length) for step in steps]
        ended = synchronized_time(target.device)
        count = len(rounds)
        return {
            "start_seconds": started - began,
            "round_seconds": ended - started,
            "rounds": count,
            "round_tokens": sum(tokens for tokens, _ in rounds),
            "context": sum(rows for _, rows in rounds) / count if count else None,
        }

    def _answer_beginning(self, name: str, prompt: Prompt) -> None:
        """Prefill and the first rounds; caches are there for the whole answer. The profiler that
        counts memory on a CPU needs gigabytes of its own for more."""
        if self.arms[name].runs_our_loop:
            for _ in islice(self._rounds(name, prompt), 1 + MEMORY_ROUNDS):
                pass
        elif name == COMPILED:  # another budget would be compiled anew
            self._answer(name, prompt)
        else:
            few = min(MEMORY_ROUNDS, self._stop.max_new_tokens)
            self._answer(name, prompt, stop=replace(self._stop, max_new_tokens=few))

    def _answer(
        self, name: str, prompt: Prompt, *, stop: StopConfig | None = None
    ) -> tuple[Generation, float]:
        """A whole answer and its seconds, through the call that benchmarks use."""
        return answer_prompt(
            self.arms[name],
            self.model,
            prompt.ids,
            self._sampling,
            stop or self._stop,
            self._seed_of(prompt),
            drafter=self._drafters[name],
        )

    def _rounds(
        self, name: str, prompt: Prompt, clock: PhaseClock | None = None
    ) -> Iterator[Round]:
        """An answer of our loop, round by round as they are asked for."""
        policy = self.arms[name].policy(self._sampling)
        config = DecodeConfig(policy, self._stop, self._seed_of(prompt))
        lap = clock.lap if clock else None
        return decode_rounds(self.model.target, self._drafters[name], prompt.ids, config, lap=lap)

    def _seed_of(self, prompt: Prompt) -> int:
        """One seed a prompt, the same for every arm and repeat."""
        return answer_seed(self._seed, prompt.question_id, turn=0)

    def _synchronizations(self, name: str, prompt: Prompt) -> float | None:
        """How often a round makes the host wait for the accelerator; None on a CPU.

        torch warns at every operation that synchronises (set_sync_debug_mode).
        """
        if self.model.target.device.type != "cuda":
            return None
        steps = self._rounds(name, prompt)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                next(steps)  # prefill
                before = len(caught)
                rounds = sum(1 for _ in steps)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            waits = sum("synchroniz" in str(warning.message) for warning in caught[before:])
        return waits / rounds if rounds else None


def _drafter_bytes(drafter: Drafter, tokens: int) -> int | None:
    """Bytes that a head's drafter has to take for a sequence, beside its weights: its cache of the
    tokens, one tree and the expanded nodes, and the draft logits of these."""
    if not isinstance(drafter, EagleDrafter):
        return None
    dtype, expanded = drafter.target.dtype, drafter.tree_config.num_expanded
    rows = tokens + drafter.max_nodes + expanded
    logits = expanded * drafter.draft_vocab_size * dtype.itemsize
    return rows * cache_row_bytes(drafter.head.config, dtype) + logits
