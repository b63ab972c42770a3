"""Messages to prompt tokens: the tokenizer's own chat template, else one of FastChat's by name."""

from transformers import PreTrainedTokenizerBase

from eagle_fsd.config import BadInput

Message = dict[str, str]  # {"role": "user" | "assistant" | "system", "content": text}


def prompt_ids(
    tokenizer: PreTrainedTokenizerBase, messages: list[Message], *, conv_template: str = ""
) -> list[int]:
    """Token ids of a conversation up to where the assistant's next turn begins.

    Args:
        conv_template: name of a FastChat template (e.g. vicuna_v1.1) for targets whose tokenizer
            has none; empty uses the tokenizer's.

    Raises:
        BadInput: an empty message, no template at all, or an unknown template name.
    """
    turns = [message["content"] for message in messages if message["role"] == "user"]
    if not turns or not all(turn.strip() for turn in turns):
        raise BadInput("the prompt is empty: give some text")
    if conv_template:
        return tokenizer(fastchat_prompt(messages, conv_template)).input_ids
    if tokenizer.chat_template is None:
        raise BadInput(
            "this target's tokenizer has no chat template: name one of FastChat's with "
            "conv_template (vicuna_v1.1, llama-2, ...)"
        )
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)


def template_stops(conv_template: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Stop strings and stop token ids of a FastChat template; none for the tokenizer's own."""
    if not conv_template:
        return (), ()
    template = conversation(conv_template)
    strings = template.stop_str or ()
    strings = (strings,) if isinstance(strings, str) else tuple(strings)
    return strings, tuple(template.stop_token_ids or ())


def conversation(name: str):
    """FastChat's template of that name, an empty conversation; BadInput if there is none."""
    from fastchat.conversation import conv_templates, get_conv_template

    if name not in conv_templates:
        raise BadInput(f"unknown conv_template {name!r}; known: {', '.join(conv_templates)}")
    return get_conv_template(name)


def fastchat_prompt(messages: list[Message], name: str) -> str:
    """The conversation as text of a FastChat template, up to where the assistant goes on."""
    template = conversation(name)
    user, assistant = template.roles
    for message in messages:
        if message["role"] == "system":
            template.set_system_message(message["content"])
        else:
            role = user if message["role"] == "user" else assistant
            template.append_message(role, message["content"])
    template.append_message(assistant, None)
    return template.get_prompt()
