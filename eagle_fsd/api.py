"""The Python call: generate or stream an answer, with what `load` (models/loaded.py) gives."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from eagle_fsd.arms import parse_arm
from eagle_fsd.config import DEFAULT_ARM, SamplingConfig
from eagle_fsd.decoding.answer import Generation, Round
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode_rounds
from eagle_fsd.messages import Message
from eagle_fsd.models.loaded import Model, load

__all__ = ["Answer", "Model", "generate", "load", "stream"]


@dataclass
class Answer(Generation):
    """A Generation and its text.

    Attributes:
        text: without special tokens, up to a stop string.
        ends: the number of characters in the text up to and with each of the tokens.
        thought: the number of characters at the front of the text that are a reasoning target's
            thought, its marks included; known once the answer has ended.
    """

    text: str = ""
    ends: list[int] = field(default_factory=list)
    thought: int = 0

    def pieces(self) -> list[tuple[str, bool, int]]:
        """(text, fuzzy, round) of each of the tokens, see `fuzzy` and `round_numbers`. The texts
        join to `text`; a stop token's is "", as is one's that only completes a character."""
        found, begin = [], 0
        for end, *known in zip(self.ends, self.fuzzy, self.round_numbers, strict=True):
            end = max(begin, min(end, len(self.text)))
            found.append((self.text[begin:end], *known))
            begin = end
        return found

    def marked(self, fuzzy: tuple[str, str] = ("[", "]"), border: str = "|") -> str:
        """The text with a mark before and after every fuzzy token, and a border between rounds.

        Example: "The| sky[ is]| blue" has two rounds after prefill, and one fuzzy token.
        """
        parts, last = [], 0
        for text, is_fuzzy, number in self.pieces():
            if text:
                parts.append(border if number != last else "")
                parts += [fuzzy[0], text, fuzzy[1]] if is_fuzzy else [text]
                last = number
        return "".join(parts)


def generate(model: Model, prompt: str | list[Message], **settings) -> Answer:
    """Answer a prompt; the settings are those of `stream`.

    Example:
        >>> model = eagle_fsd.load("smollm2")
        >>> answer = eagle_fsd.generate(model, "Why is the sky blue?", arm="fsd:0.3")
        >>> print(answer.marked(), answer.tokens_per_round, answer.fuzzy_share)
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
    watch: Callable[[Round], None] | None = None,
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
        watch: is shown prefill and every round as it arises, with its tree and its logits.
    """
    chosen, sampling = parse_arm(arm), SamplingConfig(temperature, top_k, top_p)
    chosen.check_answers()
    drafter = chosen.build_drafter(model)
    chosen.check(sampling, drafter)
    stop = model.stop(max_new_tokens, stop_strings)
    config = DecodeConfig(chosen.policy(sampling), stop, seed)
    strings = config.stop.strings
    begun = [string[:n] for string in strings for n in range(1, len(string))]
    answer, prompt = Answer(), model.prompt_ids(prompt)
    for step in decode_rounds(model.target, drafter, prompt, config):
        answer.add(step)
        if watch:
            watch(step)
        answer.ends += model.text_ends(answer.tokens, strings, first=len(answer.ends))
        text = model.text(answer.tokens, strings)
        if step.finish is None:
            text = model.settled(text, answer.tokens)
            if text.endswith(("\N{REPLACEMENT CHARACTER}", *begun)) or len(text) < len(answer.text):
                continue  # half a character, or maybe of a stop string: a later round decides
        else:
            # which a stop string may cut
            answer.thought = min(len(text), model.find_thought(prompt, answer.tokens).length)
        new, answer.text = text[len(answer.text) :], text
        yield new, answer
