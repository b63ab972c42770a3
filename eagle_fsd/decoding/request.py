"""What is asked of the loop: how drafts are accepted, where the answer ends, by which numbers it is
drawn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Integral

from eagle_fsd.config import BadInput, check_numbers, check_seed
from eagle_fsd.decoding.policy import Policy
from eagle_fsd.decoding.target import Target


@dataclass(frozen=True)
class StopConfig:
    """When an answer ends: a stop token is kept in it, as in `generate`, and so is the token that
    completes a stop string (texts leave the string out: Model.text). Strings need `decode`, from
    token ids to text, special tokens included."""

    max_new_tokens: int = 128
    token_ids: tuple[int, ...] = ()
    strings: tuple[str, ...] = ()
    decode: Callable[[Sequence[int]], str] | None = None

    def __post_init__(self):
        check_numbers(self, max_new_tokens=Integral)
        if self.max_new_tokens < 1:
            raise BadInput(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if not all(isinstance(string, str) and string for string in self.strings):
            raise BadInput(f"stop strings are texts that are not empty, got {self.strings!r}")
        assert self.decode is not None or not self.strings, "stop strings need `decode`"

    def trim(self, answer: list[int], new: list[int]) -> tuple[list[int], str | None]:
        """The new tokens that belong to the answer, and why it ends: "stop", "length" or None."""
        for count, token in enumerate(new, start=1):
            stopped = token in self.token_ids
            if not stopped and self.strings:
                text = self.decode([*answer, *new[:count]])
                stopped = any(string in text for string in self.strings)
            if stopped:
                return new[:count], "stop"
            if len(answer) + count == self.max_new_tokens:
                return new[:count], "length"
        return new, None


@dataclass(frozen=True)
class DecodeConfig:
    policy: Policy
    stop: StopConfig = field(default_factory=StopConfig)
    seed: int = 0

    def __post_init__(self):
        check_numbers(self, seed=Integral)
        check_seed(self.seed)


def check_request(target: Target, prompt: Sequence[int], stop: StopConfig) -> None:
    """Refuse a request that cannot be carried out, before any work."""
    if len(prompt) == 0:
        raise BadInput("the prompt is empty: give at least one token")
    check_tokens(target, prompt)
    if len(prompt) + stop.max_new_tokens > target.max_positions:
        raise BadInput(
            f"prompt of {len(prompt)} tokens + max_new_tokens {stop.max_new_tokens} is beyond the "
            f"target's {target.max_positions} positions: shorten the prompt or lower the budget"
        )


def check_tokens(target: Target, prompt: Sequence[int]) -> None:
    strange = [token for token in prompt if not 0 <= token < target.vocab_size]
    if strange:
        raise BadInput(
            f"prompt token {strange[0]} is outside the target's vocabulary of {target.vocab_size}: "
            "was it made with another tokenizer, or was a token added to this one, such as [PAD], "
            "and the model not resized?"
        )
