"""The arms of a speed run, made ready once: drafters, warm-up, and what cannot run here."""

import sys
from dataclasses import dataclass

import torch

from eagle_fsd.api import Model
from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.drafter import Drafter
from eagle_fsd.decoding.loop import Generation, StopConfig
from eagle_fsd.evaluation.arms import COMPILED, Arm
from eagle_fsd.evaluation.questions import answer_seed
from eagle_fsd.speed.clock import PhaseClock


@dataclass(frozen=True)
class Prompt:
    """A prompt's tokens, and where it comes from.

    Attributes:
        context: its length, for prompts that are made for that; None for questions.
    """

    question_id: int | str
    category: str
    ids: list[int]
    context: int | None = None


class Contest:
    """Answers prompts with any of the arms, each with the same settings.

    Args:
        model: loaded; its target keeps the stock model for `generate`.
        arms: their trees are chosen.
        sampling, seed, max_new_tokens: of every answer; the seed is mixed with the prompt's id.

    Attributes:
        arms: those that can run; `warm_up` takes out the others.
        skipped: name of an arm that cannot run here -> why.
    """

    def __init__(
        self,
        model: Model,
        arms: list[Arm],
        sampling: SamplingConfig,
        *,
        seed: int,
        max_new_tokens: int,
    ):
        self.model = model
        self.arms = arms
        self.sampling = sampling
        self.skipped: dict[str, str] = {}
        self._seed = seed
        self._max_new_tokens = max_new_tokens
        self._drafters: dict[str, Drafter] = {arm.name: arm.build_drafter(model) for arm in arms}

    def drafter(self, arm: Arm) -> Drafter:
        return self._drafters[arm.name]

    def stop(self) -> StopConfig:
        return self.model.stop(self._max_new_tokens)

    def seed(self, prompt: Prompt) -> int:
        """One seed a prompt, the same for every arm and repeat."""
        return answer_seed(self._seed, prompt.question_id, turn=0)

    def answer(
        self, arm: Arm, prompt: Prompt, *, clock: PhaseClock | None = None
    ) -> tuple[Generation, float]:
        """One answer and its seconds."""
        return arm.answer(
            self.model,
            prompt.ids,
            self.sampling,
            self.stop(),
            self.seed(prompt),
            drafter=self.drafter(arm),
            clock=clock,
        )

    def warm_up(self, prompt: Prompt) -> dict[str, float]:
        """Every arm's first answer, through the same call; seconds by arm.

        Args:
            prompt: the longest, so that buffers and compiled shapes are as large as they will be.
        """
        seconds = {}
        for arm in list(self.arms):
            try:
                seconds[arm.name] = self.answer(arm, prompt)[1]
            except RuntimeError as error:
                # of many kinds, from dynamo's, inductor's and the compiler's own errors
                if arm.name != COMPILED or isinstance(error, torch.OutOfMemoryError):
                    raise
                self._skip(arm, error)
        return seconds

    def _skip(self, arm: Arm, error: RuntimeError) -> None:
        words = " ".join(str(error).split())
        why = f"{type(error).__name__}: {words[:200]}"
        self.skipped[arm.name] = why
        self.arms = [other for other in self.arms if other.name != arm.name]
        print(f"warning: arm {arm.name} is left out, it cannot run here ({why})", file=sys.stderr)

    def release(self) -> None:
        """Let go of the last answer's caches."""
        self.model.target.start(1)
        for drafter in self._drafters.values():
            drafter.reset(1)
