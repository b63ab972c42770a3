"""Conversations as clients of OpenAI's API and data sets keep them, as messages of text."""

from eagle_fsd.config import BadInput, check_text

# {"role": "user" | "assistant" | "system", "content": text}; an assistant's may have
# "reasoning_content", its thought
Message = dict[str, str]
ROLES = {role: role for role in ("system", "user", "assistant")}
ROLES["developer"] = "system"  # its name since OpenAI's o1
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


def read_messages(prompt: object) -> list[Message]:
    """A user's turn, or a conversation that the assistant is to go on with.

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
        if not isinstance(role, str) or role not in ROLES:
            raise BadInput(
                f"{place} is no dict with a role (system, user or assistant) and a content: "
                f"{message!r:.200}"
            )
        try:
            read = {"role": ROLES[role], "content": text_of(message.get("content"))}
        except ValueError as error:
            raise BadInput(
                f"{place}, the {role}'s, has no text as its content but {error}: give a text, or "
                "parts of type text"
            ) from error
        if calls := [name for name in ("tool_calls", "function_call") if message.get(name)]:
            raise BadInput(f"{place} has {calls[0]}, which is not read: leave it out")
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
