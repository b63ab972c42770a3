"""Messages to prompt tokens, by the tokenizer's chat template or by one of FastChat's, and what
ends a turn by it.

Special tokens that a text spells out, as a question about `<|im_end|>` does, are told from those
that a template writes, so that no text ends a turn or begins one.
"""

import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import groupby
from string import ascii_letters
from typing import NamedTuple

from jinja2 import Environment, TemplateError
from jinja2.meta import find_undeclared_variables
from transformers import PreTrainedTokenizerBase

from eagle_fsd.config import BadInput, check_known, one_line
from eagle_fsd.heads.checkpoint import UNREADABLE
from eagle_fsd.messages import Message, read_messages
from eagle_fsd.thoughts import thought_length, thought_marks

# set into a special token that a text spells out; Unicode keeps it for uses like this
BREAK = "\ufdd0"
# A chat template is a program that a target brings along. It refuses messages or is broken:
# raise_exception, undefined names and syntax; and what Python says of its other expressions
TEMPLATE_ERRORS = (TemplateError, *UNREADABLE)
# A template asks strftime_now for the date, which transformers answers by the clock, and takes no
# function in its place. So a macro of that name stands before the template, with what each of a
# date's directives says. (The line breaks behind blocks are trimmed.)
FIXED_DATE = """{%%- set fixed_date = %r %%}
{%%- macro strftime_now(format) -%%}
{%%- set filled = namespace(text=format) -%%}
{%%- for directive, text in fixed_date -%%}
{%%- set filled.text = filled.text | replace(directive, text) -%%}
{%%- endfor -%%}
{{- filled.text -}}
{%%- endmacro %%}
"""


def prompt_ids(
    tokenizer: PreTrainedTokenizerBase,
    prompt: str | list[Message],
    *,
    conv_template: str = "",
    system: str = "",
) -> list[int]:
    """Token ids of a conversation up to where the assistant's next turn begins. A FastChat template
    is named for tokenizers without one. `system` is the system message of a conversation that
    begins with none."""
    messages = read_messages(prompt)
    if system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    messages = broken_up(tokenizer, messages)
    text = render(tokenizer, messages, conv_template=conv_template)
    return encode(tokenizer, text, begins=bool(conv_template))


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: list[Message],
    *,
    conv_template: str = "",
    answer_next: bool = True,
) -> str:
    """A conversation's text by the tokenizer's chat template, or by FastChat's of a name, after
    which an answer always comes next. BadInput: it does not take it, or loses a system message."""
    told = [message["content"] for message in messages if message["role"] == "system"]
    if conv_template:
        template = fastchat_template(conv_template)
        user, assistant = template.roles[:2]  # a third is the system's
        if told:
            template.set_system_message("\n\n".join(told))
        for message in messages:
            if message["role"] != "system":
                role = user if message["role"] == "user" else assistant
                template.append_message(role, message["content"])
        template.append_message(assistant, None)
        text = template.get_prompt()
        if not all(system.strip() in text for system in told):
            raise BadInput(
                f"conv_template {conv_template!r} has no place for a system message: leave it out, "
                "or write it into the user's turn"
            )
        return text
    settings = {"tokenize": False, "add_generation_prompt": answer_next}
    try:
        text = tokenizer.apply_chat_template(messages, **settings)
    except TEMPLATE_ERRORS as error:
        advice = "leave the system message out, " if told else ""
        raise BadInput(
            f"this target has no chat template that takes the conversation ({one_line(error)}): "
            f"{advice}name one of FastChat's with conv_template (vicuna_v1.1, llama-2, ...), or "
            "put a chat_template.jinja of your own into the target's folder"
        ) from error
    asked = [message["content"].strip() for message in messages if message["role"] == "user"]
    if not any(turn in text for turn in asked):
        # maybe a template that takes contents as lists of parts alone
        parts = [m | {"content": [{"type": "text", "text": m["content"]}]} for m in messages]
        with suppress(*TEMPLATE_ERRORS):
            other = tokenizer.apply_chat_template(parts, **settings)
            text = other if all(turn in other for turn in asked) else text
    if not all(system.strip() in text for system in told):
        # it may be written otherwise, or into a switch; a template that has no place for it renders
        # the others alone
        others, alone = [m for m in messages if m["role"] != "system"], ""
        with suppress(BadInput):
            alone = render(tokenizer, others, answer_next=answer_next)
        if text == alone:
            raise BadInput(
                "this target's chat template has no place for a system message: leave it out, or "
                "write it into the user's turn"
            )
    return text


def fastchat_template(name: str):
    """FastChat's template of that name, an empty conversation."""
    from fastchat.conversation import conv_templates, get_conv_template

    # those of models behind an API, such as chatgpt, make no prompt
    known = [key for key, template in conv_templates.items() if template.sep_style is not None]
    check_known("conv_template", name, known)
    return get_conv_template(name)


def settle_template(
    tokenizer: PreTrainedTokenizerBase,
    settings: Mapping[str, object] | None = None,
    *,
    date: datetime | None = None,
    conv_template: str = "",
) -> None:
    """Write into the tokenizer's chat template what it reads beside the messages: settings by their
    names, as transformers' chat_template_kwargs, and the date of its strftime_now (None: the
    clock's). BadInput: it reads no setting of that name."""
    settings = settings or {}
    # what every conversation brings along, and what any template may call
    syntax = Environment(extensions=["jinja2.ext.loopcontrols"])
    own = {"messages", "raise_exception", "strftime_now", *syntax.globals}
    own |= {*inspect.signature(tokenizer.apply_chat_template).parameters}
    where = f"conv_template {conv_template!r}" if conv_template else "the target's chat template"
    template, read = "", set() if conv_template else {*settings}
    with suppress(*TEMPLATE_ERRORS):  # rendering tells of a template that is broken or not there
        template = tokenizer.get_chat_template()
        parsed = syntax.parse(re.sub(r"{%-?\s*(end)?generation\s*-?%}", "", template))
        read = set() if conv_template else find_undeclared_variables(parsed)
    if unread := sorted(settings.keys() - (read - own)):
        known = sorted(read - own - {*tokenizer.special_tokens_map})
        raise BadInput(
            f"template_settings {', '.join(unread)}: no setting of {where}, which reads "
            f"{', '.join(known) or 'none'}: leave it out"
        )
    before = [f"{{%- set {name} = {value!r} %}}\n" for name, value in settings.items()]
    if date and "strftime_now" in template:
        names = [f"%{flag}{letter}" for flag in ("", "-") for letter in ascii_letters]
        before.append(FIXED_DATE % [*((name, date.strftime(name)) for name in names), ("%%", "%")])
    if template and before:
        tokenizer.chat_template = "".join(before) + template


# --- special tokens in texts ----------------------------------------------------------------------


def control_tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> list[str]:
    """The special tokens that a text spells out, in its order."""
    pattern = _control(tokenizer)
    return re.findall(pattern, text) if pattern else []


def broken_up(tokenizer: PreTrainedTokenizerBase, messages: list[Message]) -> list[Message]:
    """The messages with a BREAK in each of the special tokens that their texts spell out, so that
    `encode` tells these from the template's own."""
    pattern, marks = _control(tokenizer), thought_marks(tokenizer)
    if not pattern:
        return messages
    broken = []
    for message in messages:
        # 1. An earlier answer's thought stands apart where the marks around it are special tokens:
        # a template would no longer find these once they are broken up.
        text, answered = message["content"], message["role"] == "assistant"
        length = thought_length(text, marks) if answered else 0
        if re.search(pattern, text[:length]):
            either = "|".join(re.escape(mark) for pair in marks for mark in pair)
            thought = re.sub(either, "", text[:length])
            message = {"reasoning_content": thought} | message | {"content": text[length:]}
        # 2. What is left of them is text.
        for key in message.keys() & {"content", "reasoning_content"}:
            as_text = re.sub(
                pattern, lambda token: token[0][0] + BREAK + token[0][1:], message[key]
            )
            message = message | {key: as_text}
        broken.append(message)
    return broken


def encode(tokenizer: PreTrainedTokenizerBase, text: str, *, begins: bool = False) -> list[int]:
    """Token ids of a rendering of messages that are `broken_up`; it `begins` without a begin
    token."""
    if BREAK not in text:
        return tokenizer(text, add_special_tokens=begins).input_ids
    ids, before = [], ""
    # special tokens part texts for a tokenizer anyhow, with the white space that they take in
    parts = re.split(f"({_control(tokenizer, spaces=True)})(?!{BREAK})", text)
    for spelt_out, run in groupby(parts, key=lambda part: BREAK in part):
        part = "".join(run).replace(BREAK, "")
        if spelt_out and ids:
            ids += _behind_special(tokenizer, part, before)
        else:
            encoded = tokenizer(
                part, add_special_tokens=begins and not ids, split_special_tokens=spelt_out
            )
            ids += encoded.input_ids
        before = part
    return ids


def _behind_special(tokenizer: PreTrainedTokenizerBase, text: str, before: str) -> list[int]:
    """Token ids of a text that spells out special tokens and stands behind one, the last of
    `before`. Many tokenizers encode it as where a text begins. Those that put a space before a
    text's first word alone, as Llama's, put it before something else here, which is cut off."""
    alone = tokenizer("x", add_special_tokens=False).input_ids
    behind = tokenizer(before + "x", add_special_tokens=False).input_ids
    lead = "" if behind[-len(alone) :] == alone else BREAK
    # its bytes, or the unknown token, which no tokenizer joins with what follows
    skipped, ids = (
        tokenizer(part, add_special_tokens=False, split_special_tokens=True).input_ids
        for part in (lead, lead + text)
    )
    return ids[len(skipped) :]


def _control(tokenizer: PreTrainedTokenizerBase, *, spaces: bool = False) -> str:
    """A pattern of all special tokens, the longest first; "" where there is none. With `spaces` the
    white space beside them that some take in (rstrip, as Phi-3's) belongs to it."""
    added = [token for token in tokenizer.added_tokens_decoder.values() if token.special]
    tokens = {token.content for token in added} | {*tokenizer.all_special_tokens}
    tokens -= {""}  # which some tokenizers give a role
    before = {token.content for token in added if spaces and token.lstrip}
    after = {token.content for token in added if spaces and token.rstrip}
    return "|".join(
        r"\s*" * (token in before) + re.escape(token) + r"\s*" * (token in after)
        for token in sorted(tokens, key=len, reverse=True)
    )


# --- the end of a turn ----------------------------------------------------------------------------


class TurnEnds(NamedTuple):
    ids: tuple[int, ...]
    strings: tuple[str, ...]
    added: tuple[str, ...]  # the tokens that generation_config lacks, as text


def turn_ends(
    tokenizer: PreTrainedTokenizerBase,
    eos_token_ids: Sequence[int],
    *,
    conv_template: str = "",
    generate_ends: bool = False,
) -> TurnEnds:
    """What ends an answer: the end tokens of generation_config, the tokenizer's end token, the one
    with which its chat template ends an assistant's turn; and of a FastChat template its stop
    strings and tokens. With generate_ends those of generation_config and of FastChat's alone."""
    strings, asked, own = (), (), []
    if not generate_ends and tokenizer.eos_token_id is not None:
        own.append(tokenizer.eos_token_id)
    if conv_template:
        template = fastchat_template(conv_template)
        strings, asked = each_string(template.stop_str or ()), template.stop_token_ids or ()
    elif not generate_ends:
        mark = new_mark(str(tokenizer.chat_template))
        talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": mark}]
        with suppress(BadInput):  # no template, or one that takes no answer
            text = render(tokenizer, talk, answer_next=False)
            _, said, after = text.rpartition(mark)
            own += first_special(tokenizer, after) if said else ()
    ids = tuple(dict.fromkeys([*eos_token_ids, *asked, *own]))
    added = [token for token in dict.fromkeys(own) if token not in eos_token_ids]
    return TurnEnds(ids, strings, tuple(map(tokenizer.decode, added)))


def new_mark(*texts: str) -> str:
    """The content of a message by which a rendering is taken apart: one that none of the texts
    around it holds."""
    mark = "Sentinel7341"
    while any(mark in text for text in texts):
        mark += "1"
    return mark


def first_special(tokenizer: PreTrainedTokenizerBase, text: str) -> set[int]:
    """The token that a rendering begins with, white space aside, if it is an added or special
    one."""
    special = {*tokenizer.added_tokens_decoder, *tokenizer.all_special_ids}
    visible = (t for t in encode(tokenizer, text) if tokenizer.decode([t]).strip())
    return {next(visible, None)} & special


def tell_added(ends: TurnEnds, target: str) -> None:
    """Say once, on standard error, where answers of a target end and `generate` goes on."""
    if ends.added:
        print(
            f"eagle_fsd: answers of target {target!r} also end at {' and at '.join(ends.added)}, "
            "the end of a turn by its tokenizer or its chat template, which its generation_config "
            "lacks; with generate_ends they go on there, as in transformers' generate",
            file=sys.stderr,
        )


def each_string(strings: str | Sequence[str]) -> tuple[str, ...]:
    return (strings,) if isinstance(strings, str) else tuple(strings)
