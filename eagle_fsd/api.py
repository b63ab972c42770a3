"""The Python call: generate or stream an answer, with what `load` (models/loaded.py) gives."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eagle_fsd.arms import parse_arm
from eagle_fsd.config import DEFAULT_ARM, SamplingConfig
from eagle_fsd.decoding.loop import DecodeConfig, Generation, StopConfig, decode_rounds
from eagle_fsd.models.loaded import Message, Model, load

__all__ = ["Answer", "Model", "generate", "load", "stream"]


@dataclass
class Answer(Generation):
    """A Generation and its text."""

    text: str = ""


def generate(model: Model, prompt: str | list[Message], **settings) -> Answer:
    """Answer a prompt; the settings are those of `stream`.

    Example:
        >>> model = eagle_fsd.load("smollm2")
        >>> answer = eagle_fsd.generate(model, "Why is the sky blue?", arm="fsd:0.3")
        >>> print(answer.text, answer.tokens_per_round, answer.fuzzy_share)
    """
    *_, (_, answer) = stream(model, prompt, **settings)
    return answer


def stream(
    model: Model,
    prompt: str | list[Message],
    *,
    arm: str = DEFAULT_ARM,
    temperature: float = SamplingConfig.temperature,
    top_k: int = SamplingConfig.top_k,
    top_p: float = SamplingConfig.top_p,
    max_new_tokens: int = StopConfig.max_new_tokens,
    stop_strings: str | Sequence[str] = (),
    seed: int = 0,
) -> Iterator[tuple[str, Answer]]:
    """Answer a prompt, yielding (new text, answer so far) after every round.

    Args:
        prompt: a user turn, or messages with role and content.
        arm: how drafts are accepted and made, such as "exact", "fsd:0.3", "path:0.5@eagle:7x3x4"
            or "plain"; see arms.py.
        temperature, top_k, top_p: see SamplingConfig.
        max_new_tokens, stop_strings: see StopConfig; the target's stop tokens always end an answer.
            The text ends in front of a stop string.
        seed: of all randomness.

    Raises:
        BadInput: a setting is out of range, or prompt + budget is beyond the target's positions.
    """
    chosen = parse_arm(arm)
    chosen.check_answers()
    policy = chosen.policy(SamplingConfig(temperature, top_k, top_p))
    config = DecodeConfig(policy, model.stop(max_new_tokens, stop_strings), seed)
    drafter = chosen.build_drafter(model)
    strings = config.stop.strings
    begun = [string[:n] for string in strings for n in range(1, len(string))]
    answer = Answer()
    for step in decode_rounds(model.target, drafter, model.prompt_ids(prompt), config):
        answer.add(step)
        text = model.text(answer.tokens, strings)
        if step.finish is None and text.endswith(("\N{REPLACEMENT CHARACTER}", *begun)):
            continue  # half a character, or maybe of a stop string; a later round tells
        new, answer.text = text[len(answer.text) :], text
        yield new, answer
