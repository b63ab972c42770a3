"""A target's conversations: messages to prompt tokens, what ends a turn, and what of an answer is
thought. By the tokenizer's chat template, or by one of FastChat's."""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import NamedTuple

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from eagle_fsd.config import BadInput, check_known, check_text, one_line
from eagle_fsd.heads.checkpoint import UNREADABLE
from eagle_fsd.thoughts import KNOWN_MARKS, Marks, thought_length

# {"role": "user" | "assistant" | "system", "content": text}; an assistant's may have
# "reasoning_content", its thought
Message = dict[str, str]
ROLES = ("system", "user", "assistant")
TEXT_PARTS = ("text", "input_text", "output_text")  # types of a content's parts
# set into a control token that a text holds while the template renders; Unicode keeps it for such
BREAK = "\ufdd0"
PROMPT_END = 32  # tokens at a prompt's end that may hold a mark and white space
MARK = "Sentinel7341"  # the content of a message in a rendering that is taken apart


def read_messages(prompt: object) -> list[Message]:
    """A user's turn, or a conversation as clients of OpenAI's API keep it, as messages of text.

    Raises:
        BadInput: no user's turn, an empty one, or a message that is more than text, by its number.
    """
    given = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not isinstance(given, list | tuple):
        raise BadInput(f"a prompt is a text or a list of messages, got {given!r:.200}")
    messages = []
    for number, message in enumerate(given, start=1):
        place = f"message {number} of the prompt"
        role = message.get("role") if isinstance(message, dict) else None
        role = "system" if role == "developer" else role  # its name since OpenAI's o1
        if role not in ROLES:
            raise BadInput(
                f"{place} is no dict with a role (system, user or assistant) and a content: "
                f"{message!r:.200}"
            )
        content = message.get("content")
        parts = [content] if isinstance(content, str) else content
        parts = parts if isinstance(parts, list | tuple) else []
        texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
        kinds = [part.get("type", "text") for part in parts if isinstance(part, dict)]
        whole = texts and all(isinstance(text, str) for text in texts)
        if not whole or not all(kind in TEXT_PARTS for kind in kinds):
            raise BadInput(
                f"{place}, the {role}'s, has no text as its content: {content!r:.200}; "
                "give a text, or parts of type text"
            )
        if calls := [name for name in ("tool_calls", "function_call") if message.get(name)]:
            raise BadInput(f"{place} has {calls[0]}, which is not read: leave it out")
        read = {"role": role, "content": "".join(texts)}
        if role == "user" and not read["content"].strip():
            raise BadInput(f"the prompt is empty: give {place} some text")
        if isinstance(thought := message.get("reasoning_content"), str):
            read["reasoning_content"] = thought
        for text in read.values():
            check_text(text)
        messages.append(read)
    if not any(message["role"] == "user" for message in messages):
        raise BadInput("the prompt is empty: it has no message of the user's")
    if messages[-1]["role"] == "assistant":
        raise BadInput(
            "the prompt's last message is the assistant's own, which cannot be continued here: "
            "leave it out"
        )
    return messages


def prompt_ids(
    tokenizer: PreTrainedTokenizerBase, messages: list[Message], *, conv_template: str = ""
) -> list[int]:
    """Token ids of a conversation up to where the assistant's next turn begins. A FastChat template
    is named for tokenizers without one.

    Control tokens stand where the template writes them; those that a message spells out are encoded
    as any other text, so that no text ends a turn or begins one.

    Raises:
        BadInput: see read_messages; there is no template, or it refuses these messages.
    """
    messages = broken_up(tokenizer, read_messages(messages))
    if conv_template:
        template = _conversation(conv_template)
        user, assistant = template.roles[:2]  # a third is the system's
        if asked := [m["content"] for m in messages if m["role"] == "system"]:
            template.set_system_message("\n\n".join(asked))
        for message in messages:
            if message["role"] != "system":
                role = user if message["role"] == "user" else assistant
                template.append_message(role, message["content"])
        template.append_message(assistant, None)
        text = template.get_prompt()
        if not all(system.strip() in text for system in asked):
            raise BadInput(
                f"conv_template {conv_template!r} has no place for a system message: leave it out, "
                "or write it into the user's turn"
            )
        return encode(tokenizer, text, begins=True)
    return encode(tokenizer, render(tokenizer, messages))


def render(
    tokenizer: PreTrainedTokenizerBase, messages: list[Message], *, answer_next: bool = True
) -> str:
    """A conversation's text by the tokenizer's chat template; BadInput: it has none, or this one
    does not take the messages."""
    if tokenizer.chat_template is None:
        raise BadInput(
            "this target's tokenizer has no chat template: name one of FastChat's with "
            "conv_template (vicuna_v1.1, llama-2, ...); make_data.py has no such option: "
            "there, or for a template of your own, put a chat_template.jinja into the target's "
            "folder"
        )
    asked = [message["content"].strip() for message in messages if message["role"] == "user"]
    settings = {"tokenize": False, "add_generation_prompt": answer_next}
    with template_errors():
        text = tokenizer.apply_chat_template(messages, **settings)
    if any(turn in text for turn in asked):
        return text
    # maybe a template that takes contents as lists of parts alone
    parts = [m | {"content": [{"type": "text", "text": m["content"]}]} for m in messages]
    try:
        with template_errors():
            other = tokenizer.apply_chat_template(parts, **settings)
    except BadInput:
        return text
    return other if all(turn in other for turn in asked) else text


@contextmanager
def template_errors() -> Iterator[None]:
    """Around the use of a tokenizer's chat template, a program that a target brings along: BadInput
    with its words where it refuses the messages or is broken."""
    try:
        yield
    # raise_exception, undefined names and syntax; and what Python says of its other expressions
    except (TemplateError, *UNREADABLE) as error:
        raise BadInput(
            f"this target's chat template does not take the conversation ({one_line(error)}): name "
            "one of FastChat's with conv_template, or mend chat_template.jinja in the target's "
            "folder"
        ) from error


# --- control tokens that a text spells out --------------------------------------------------------


def control_tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> list[str]:
    """The special tokens that a text spells out, in its order."""
    return re.findall(_control(tokenizer), text) if _control(tokenizer) else []


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
    text, marks = message["content"], thought_marks(tokenizer)
    length = thought_length(text, marks) if message["role"] == "assistant" else 0
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


# --- what ends a turn, and what of it is thought --------------------------------------------------


class TurnEnds(NamedTuple):
    """What ends an answer.

    Attributes:
        ids, strings: of all sources.
        added: the tokens that generation_config lacks, as text.
    """

    ids: tuple[int, ...]
    strings: tuple[str, ...]
    added: tuple[str, ...]


def turn_ends(
    tokenizer: PreTrainedTokenizerBase,
    eos_token_ids: Sequence[int],
    *,
    conv_template: str = "",
    generate_ends: bool = False,
) -> TurnEnds:
    """What ends an answer of a target, for every loop of ours: the end tokens of its
    generation_config, the tokenizer's end token, the token with which its chat template ends an
    assistant's turn; and of a FastChat template its stop strings and tokens.

    Args:
        eos_token_ids: of generation_config.
        generate_ends: these alone, and those of a FastChat template that was asked for.
    """
    strings, asked = template_stops(conv_template)
    own = []
    if not generate_ends:
        own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        if not conv_template:
            own += sorted(template_end(tokenizer))
    ids = tuple(dict.fromkeys([*eos_token_ids, *asked, *own]))
    added = [token for token in dict.fromkeys(own) if token not in eos_token_ids]
    return TurnEnds(ids, strings, tuple(map(tokenizer.decode, added)))


def tell_added(ends: TurnEnds, target: str) -> None:
    """Say once, on standard error, where answers of a target end and `generate` goes on."""
    if ends.added:
        print(
            f"eagle_fsd: answers of target {target!r} also end at {' and at '.join(ends.added)}, "
            "the end of a turn by its tokenizer or its chat template, which its generation_config "
            "lacks; with generate_ends they go on there, as in transformers' generate",
            file=sys.stderr,
        )


def template_end(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """The token with which the chat template ends an assistant's turn, if it is an added or special
    one; none where the template takes no answer, or there is none."""
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": MARK}]
    try:
        text = render(tokenizer, talk, answer_next=False)
    except BadInput:
        return set()
    return first_special(tokenizer, text.rpartition(MARK)[2])


def first_special(tokenizer: PreTrainedTokenizerBase, text: str) -> set[int]:
    """The token that a rendering begins with, white space aside, if it is an added or special
    one."""
    special = {*tokenizer.added_tokens_decoder, *tokenizer.all_special_ids}
    visible = (t for t in encode(tokenizer, text) if tokenizer.decode([t]).strip())
    return {next(visible, None)} & special


def template_stops(conv_template: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Stop strings and stop token ids of a FastChat template; none for the tokenizer's own."""
    if not conv_template:
        return (), ()
    template = _conversation(conv_template)
    return each_string(template.stop_str or ()), tuple(template.stop_token_ids or ())


def each_string(strings: str | Sequence[str]) -> tuple[str, ...]:
    return (strings,) if isinstance(strings, str) else tuple(strings)


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
    whole = tokenizer.decode(token_ids)
    length = thought_length(whole, marks, prompt=tokenizer.decode(prompt[-PROMPT_END:]))
    if whole[:length] == text[:length]:
        return Thought(length, True)
    counts = range(1, len(token_ids) + 1)
    count = next(n for n in counts if len(tokenizer.decode(token_ids[:n])) >= length)
    before = tokenizer.decode(token_ids[:count], skip_special_tokens=True)
    return Thought(min(len(before), len(text)), False)


def answer_message(text: str, thought: Thought) -> Message:
    """An answer as the next prompt's history has it: whole, for the template to leave out what was
    thought; thought and answer apart where the text does not show the marks."""
    if thought.shown:
        return {"role": "assistant", "content": text}
    apart = {"content": text[thought.length :], "reasoning_content": text[: thought.length]}
    return {"role": "assistant"} | apart


def _conversation(name: str):
    """FastChat's template of that name, an empty conversation; BadInput if there is none."""
    from fastchat.conversation import conv_templates, get_conv_template

    # those of models behind an API, such as chatgpt, make no prompt
    known = [key for key, template in conv_templates.items() if template.sep_style is not None]
    check_known("conv_template", name, known)
    return get_conv_template(name)
