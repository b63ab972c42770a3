"""Special tokens that a text spells out, as a question about `<|im_end|>` does. They are told from
those that a chat template writes, so that no text ends a turn or begins one."""

import re
from itertools import groupby

from transformers import PreTrainedTokenizerBase

from eagle_fsd.messages import Message
from eagle_fsd.models.answer_thoughts import thought_marks
from eagle_fsd.thoughts import thought_length

# set into such a token while the template renders; Unicode keeps it for uses like this
BREAK = "\ufdd0"


def control_tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> list[str]:
    """The special tokens that a text spells out, in its order."""
    pattern = _control(tokenizer)
    return re.findall(pattern, text) if pattern else []


def broken_up(tokenizer: PreTrainedTokenizerBase, messages: list[Message]) -> list[Message]:
    """The messages with a BREAK in each of the special tokens that their texts spell out, so that
    `encode` tells these from the template's own."""
    pattern = _control(tokenizer)

    def broken(text: str) -> str:
        return re.sub(pattern, lambda found: found[0][0] + BREAK + found[0][1:], text)

    keys = ("content", "reasoning_content")
    return [
        message | {key: broken(message[key]) for key in keys if pattern and key in message}
        for message in (_apart(tokenizer, message) for message in messages)
    ]


def _apart(tokenizer: PreTrainedTokenizerBase, message: Message) -> Message:
    """An earlier answer with its thought apart where the marks around it are special tokens: a
    template would no longer find these once they are broken up."""
    if message["role"] != "assistant":
        return message
    text, marks = message["content"], thought_marks(tokenizer)
    length = thought_length(text, marks)
    if not control_tokens(tokenizer, text[:length]):
        return message
    thought = re.sub(
        "|".join(re.escape(mark) for pair in marks for mark in pair), "", text[:length]
    )
    return {"reasoning_content": thought} | message | {"content": text[length:]}


def encode(tokenizer: PreTrainedTokenizerBase, text: str, *, begins: bool = False) -> list[int]:
    """Token ids of a rendering of messages that are `broken_up`.

    Args:
        begins: it has no begin token yet.
    """
    if BREAK not in text:
        return tokenizer(text, add_special_tokens=begins).input_ids
    ids = []
    # special tokens part texts for a tokenizer anyhow, with the white space that they take in
    parts = re.split(f"({_control(tokenizer, spaces=True)})(?!{BREAK})", text)
    for spelt_out, run in groupby(parts, key=lambda part: BREAK in part):
        part = "".join(run).replace(BREAK, "")
        encoded = tokenizer(
            part, add_special_tokens=begins and not ids, split_special_tokens=spelt_out
        )
        ids += encoded.input_ids
    return ids


def _control(tokenizer: PreTrainedTokenizerBase, *, spaces: bool = False) -> str:
    """A pattern of all special tokens, the longest first; "" where there is none.

    Args:
        spaces: with the white space beside them that some take in (rstrip, as Phi-3's).
    """
    added = [token for token in tokenizer.added_tokens_decoder.values() if token.special]
    tokens = {token.content for token in added} | {*tokenizer.all_special_tokens}
    tokens -= {""}  # which some tokenizers give a role
    before = {token.content for token in added if spaces and token.lstrip}
    after = {token.content for token in added if spaces and token.rstrip}
    return "|".join(
        r"\s*" * (token in before) + re.escape(token) + r"\s*" * (token in after)
        for token in sorted(tokens, key=len, reverse=True)
    )
