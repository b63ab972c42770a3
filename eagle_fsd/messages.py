"""Conversations as clients of OpenAI's API and data sets keep them, as messages of text."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from eagle_fsd.config import BadInput, check_text

# {"role": "user" | "assistant" | "system", "content": text}; an assistant's may have
# "reasoning_content", its thought
Message = dict[str, str]
ROLES = {role: role for role in ("system", "user", "assistant")}
ROLES["developer"] = "system"  # its name since OpenAI's o1
SYSTEM = ("system", "system_prompt", "system_message")  # where records keep one beside their turns
TEXT_PARTS = ("text", "input_text", "output_text")  # types of a content's parts


def text_of(content: object) -> str:
    """What a message says: a text, or its parts of type text, joined. ValueError says what it is
    that is no text."""
    parts = [content] if isinstance(content, str) else content
    if not isinstance(parts, list | tuple) or not parts:
        raise ValueError("a turn that is no text")
    texts = []
    for part in parts:
        part = part if isinstance(part, dict) else {"text": part}
        if part.get("type", "text") not in TEXT_PARTS:
            raise ValueError(f"a part of type {part['type']!r:.30}")
        text = part.get("text", "")
        if not isinstance(text, str):
            raise ValueError("a turn that is no text")
        texts.append(text)
    return "".join(texts)


def read_system(given: str) -> str:
    """The text of a system message, or of the file in which it is, without white space around
    it."""
    text = given
    if os.path.exists(given):
        try:
            text = Path(given).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(
                f"--system {given!r:.200} cannot be read as text ({error}): give a text, or a file "
                "of UTF-8"
            ) from error
    elif re.fullmatch(r"\S+\.[a-z]{2,4}", given):  # else its name would be the message
        raise BadInput(f"--system {given!r:.200} is no file here: give a text, or a file's path")
    if not text.strip():
        raise BadInput(f"--system {given!r:.200} is empty: give some text, or leave it out")
    check_text(text)
    return text.strip()


def read_template_settings(given: Sequence[str]) -> dict[str, object]:
    """NAME=VALUE pairs, each value as JSON (true, false, numbers) or else as text."""
    # a template would take the text False for true
    as_python = {"True": "true", "False": "false", "None": "null"}
    settings = {}
    for pair in given:
        name, is_pair, text = pair.partition("=")
        if not is_pair or not name.isidentifier() or name in settings:
            raise BadInput(
                f"--template_settings {pair!r:.200}: give each name once, as NAME=VALUE, such as "
                "enable_thinking=false"
            )
        try:
            settings[name] = json.loads(as_python.get(text, text), parse_constant=str)
        except ValueError:
            check_text(text)
            settings[name] = text
    return settings


def read_messages(prompt: object) -> list[Message]:
    """A user's turn, or a conversation that the assistant is to go on with."""
    given = {"role": "user", "content": prompt} if isinstance(prompt, str) else prompt
    if isinstance(given, list | tuple) and given and all(isinstance(one, str) for one in given):
        raise BadInput(
            f"{len(given)} texts are given where one prompt is answered: call once for each of "
            "them, as in [generate(model, prompt) for prompt in prompts]"
        )
    messages = []
    given = given if isinstance(given, list | tuple) else [given]
    for number, message in enumerate(given, start=1):
        try:
            fields = message if isinstance(message, dict) else {}
            if not isinstance(role := fields.get("role"), str) or role not in ROLES:
                raise ValueError("a message without a role (system, user or assistant)")
            if calls := [name for name in ("tool_calls", "function_call") if fields.get(name)]:
                raise ValueError(f"a message with {calls[0]}")
            read = {"role": ROLES[role], "content": text_of(fields.get("content"))}
        except ValueError as error:
            raise BadInput(
                f"message {number} of the prompt is {error}: give it a role and a text, or parts "
                f"of type text, got {message!r:.200}"
            ) from error
        if isinstance(thought := fields.get("reasoning_content"), str):
            read["reasoning_content"] = thought
        for text in read.values():
            check_text(text)
        messages.append(read)
    asked = [message["content"].strip() for message in messages if message["role"] == "user"]
    if not asked or not all(asked) or messages[-1]["role"] == "assistant":
        raise BadInput(
            "the prompt is empty, or its last message is the assistant's own, which is not "
            "continued here: give each of the user's messages some text, and end with one, got "
            f"{prompt!r:.200}"
        )
    return messages
