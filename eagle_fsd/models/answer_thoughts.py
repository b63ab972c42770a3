"""The text of an answer's tokens, and what of it a reasoning target thought."""

from collections.abc import Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from eagle_fsd.messages import Message
from eagle_fsd.thoughts import KNOWN_MARKS, Marks, thought_length

PROMPT_END = 32  # tokens at a prompt's end that may hold a mark and white space


def decode(
    tokenizer: PreTrainedTokenizerBase,
    token_ids: Sequence[int],
    *,
    skip_special_tokens: bool = False,
) -> str:
    """The text of tokens as they are: a tokenizer that tidies up spaces (`a != b` to `a!= b`) does
    not, which would also change what was streamed already."""
    return tokenizer.decode(
        token_ids,
        skip_special_tokens=skip_special_tokens,
        clean_up_tokenization_spaces=False,
    )


def thought_marks(tokenizer: PreTrainedTokenizerBase) -> Marks:
    """The marks around a target's thoughts that its chat template or its added tokens name; none of
    most targets."""
    tokens = {token.content for token in tokenizer.added_tokens_decoder.values()}
    template = str(tokenizer.chat_template or "")
    return tuple(pair for pair in KNOWN_MARKS if pair[1] in template or pair[1] in tokens)


class Thought(NamedTuple):
    """What of an answer's text is thought.

    Attributes:
        length: characters at its front.
        shown: its marks are there; special tokens are not.
    """

    length: int
    shown: bool


def find_thought(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Sequence[int],
    token_ids: Sequence[int],
    text: str,
    marks: Marks = (),
) -> Thought:
    """The thought of an answer to a prompt.

    Args:
        text: the answer's, without special tokens.
        marks: those around it; none: those of thought_marks, else all that are known.
    """
    marks = marks or thought_marks(tokenizer) or KNOWN_MARKS
    whole = decode(tokenizer, token_ids)
    length = thought_length(whole, marks, prompt=decode(tokenizer, prompt[-PROMPT_END:]))
    if whole[:length] == text[:length]:
        return Thought(length, True)
    counts = range(1, len(token_ids) + 1)
    count = next(n for n in counts if len(decode(tokenizer, token_ids[:n])) >= length)
    before = decode(tokenizer, token_ids[:count], skip_special_tokens=True)
    return Thought(min(len(before), len(text)), False)


def answer_message(text: str, thought: Thought) -> Message:
    """An answer as the next prompt's history has it: whole, for the template to leave out what was
    thought; thought and answer apart where the text does not show the marks."""
    if thought.shown:
        return {"role": "assistant", "content": text}
    apart = {"content": text[thought.length :], "reasoning_content": text[: thought.length]}
    return {"role": "assistant"} | apart
