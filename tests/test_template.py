"""What is taken from a chat template, on templates of three kinds and conversations by hand."""

import pytest
from transformers import AutoTokenizer

from eagle_fsd.training.dialogues import ChatFormat

# as Llama 3's: content is trimmed, and a system message stands before the first turn
TRIMMING = (
    "<s>system\nBe kind.</s>{% for m in messages %}<s>{{ m['role'] }}\n\n{{ m['content'] | trim }}"
    "</s>{% endfor %}{% if add_generation_prompt %}<s>assistant\n\n{% endif %}"
)
# as Qwen 3's: what was thought is left out once the conversation goes on
FORGETTING = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{% if m['role'] == 'assistant' and not loop.last %}"
    "{{ m['content'].split('|')[-1] }}{% else %}{{ m['content'] }}{% endif %}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
# as Llama 2's: no special token behind the user's turn
BRACKETS = (
    "{% for m in messages %}{% if m['role'] == 'user' %}<s>[INST] {{ m['content'] }} [/INST]"
    "{% else %} {{ m['content'] }} </s>{% endif %}{% endfor %}"
)
TALK = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "Yes?"},
]


def chat(target, template: str = "") -> ChatFormat:
    tokenizer = AutoTokenizer.from_pretrained(target)
    if template:
        tokenizer.chat_template = template
    return ChatFormat(tokenizer)


@pytest.mark.parametrize(
    ("template", "prefix"),
    [("", "<s>user\n"), (TRIMMING, "<s>system\nBe kind.</s><s>user\n\n")],
)
def test_the_users_prefix_and_end(target, template, prefix):
    """Where a user's turn begins, whatever stands before it; its end is the end token (1). A
    template whose user turn has no end token cannot be sampled from."""
    format = chat(target, template)
    ids, ends = format.user_prefix()
    assert format.tokenizer.decode(ids) == prefix
    assert ends == format.end_ids == {1}
    with pytest.raises(ValueError, match="source self: no special token"):
        chat(target, BRACKETS).user_prefix()


def test_going_on_keeps_the_tokens(target):
    """The next prompt is the tokens so far and the next turn: what the template itself renders."""
    format = chat(target)
    ids = [*format.prompt(TALK[:1]), *format.tokenizer("Yes?").input_ids, 1]
    longer = format.prompt(TALK, ids)
    assert longer == format.prompt(TALK)
    assert longer[: len(ids)] == ids


@pytest.mark.parametrize(
    ("template", "said"), [(TRIMMING, " Yes?"), (FORGETTING, "hm|Yes?"), (BRACKETS, "Yes?")]
)
def test_a_template_that_rewrites_the_past_ends_the_dialogue(target, template, said):
    """Trimmed, forgotten or padded: the next prompt would not begin with the tokens so far."""
    format = chat(target, template)
    ids = [*format.prompt(TALK[:1]), *format.tokenizer(said).input_ids, 1]
    assert format.prompt([TALK[0], {"role": "assistant", "content": said}, TALK[2]], ids) is None
