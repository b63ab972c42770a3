"""Messages to prompt tokens, by the tokenizer's chat template or by one of FastChat's."""

from collections.abc import Iterator
from contextlib import contextmanager

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from eagle_fsd.config import BadInput, check_known, one_line
from eagle_fsd.heads.checkpoint import UNREADABLE
from eagle_fsd.messages import Message, read_messages
from eagle_fsd.models.control_tokens import broken_up, encode


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
    which an answer always comes next; BadInput: there is none, or it does not take the messages."""
    if conv_template:
        template = fastchat_template(conv_template)
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
        return text
    if tokenizer.chat_template is None:
        raise BadInput(
            "this target's tokenizer has no chat template: name one of FastChat's with "
            "conv_template (vicuna_v1.1, llama-2, ...), or put one of your own as "
            "chat_template.jinja into the target's folder"
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


def fastchat_template(name: str):
    """FastChat's template of that name, an empty conversation; BadInput if there is none."""
    from fastchat.conversation import conv_templates, get_conv_template

    # those of models behind an API, such as chatgpt, make no prompt
    known = [key for key, template in conv_templates.items() if template.sep_style is not None]
    check_known("conv_template", name, known)
    return get_conv_template(name)
