"""What is taken from a chat template, on templates of three kinds and conversations by hand."""

import pytest
from tiny_folder import write_target
from transformers import AutoTokenizer

from eagle_fsd.training.template import ChatFormat

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
GENERATION = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] }}</s>{% endgeneration %}{% else %}{{ m['content'] }}</s>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
TALK = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "Yes?"},
    {"role": "assistant", "content": "No."},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("target"))


def chat(folder, template: str = "") -> ChatFormat:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if template:
        tokenizer.chat_template = template
    return ChatFormat(tokenizer)


def shown(chat: ChatFormat, ids: list[int], mask: list[int]) -> str:
    """The text, tokens of the assistant in upper brackets: `a` -> `[a]`."""
    return "".join(
        f"[{text}]" if m else text
        for text, m in zip((chat.tokenizer.decode([i]) for i in ids), mask, strict=True)
    )


@pytest.mark.parametrize("template", ["", GENERATION])
def test_the_mask_of_two_turns(folder, template):
    """Written by hand: answers with their end tokens, and not the user's turn of the same text.

    By spans, and by the template's own generation mask.
    """
    format = chat(folder, template)
    assert shown(format, *format.given(TALK)) == (
        "<s>user\nHi</s><s>assistant\n[Y][e][s][?][</s>]"
        "<s>user\nYes?</s><s>assistant\n[N][o][.][</s>]"
    )


def test_the_mask_behind_a_trimming_template(folder):
    """The tokens are the template's, and the mask is of the trimmed answer."""
    format = chat(folder, TRIMMING)
    talk = [TALK[0], {"role": "assistant", "content": "  Yes? \n"}]
    ids, mask = format.given(talk)
    assert shown(format, ids, mask).endswith("<s>user\n\nHi</s><s>assistant\n\n[Y][e][s][?][</s>]")
    assert ids == format.tokenizer.apply_chat_template(talk, return_dict=False)


def test_characters_of_several_tokens(folder):
    """Byte tokens share their character's offset: the whole character counts."""
    format = chat(folder)
    ids, mask = format.given([TALK[0], {"role": "assistant", "content": "é€"}])
    assert sum(mask) == 2 + 3 + 1
    assert format.text([i for i, m in zip(ids, mask, strict=True) if m]) == "é€"


@pytest.mark.parametrize(
    ("template", "prefix"),
    [
        ("", "<s>user\n"),
        (TRIMMING, "<s>system\nBe kind.</s><s>user\n\n"),
        (GENERATION, "<s>user\n"),
    ],
)
def test_the_users_prefix_and_end(folder, template, prefix):
    """Where a user's turn begins, whatever stands before it; its end is the end token (1)."""
    format = chat(folder, template)
    ids, ends = format.user_prefix()
    assert format.tokenizer.decode(ids) == prefix
    assert ends == format.end_ids == {1}


def test_a_template_whose_user_turn_has_no_end_token(folder):
    """Its conversations can be used, its user turns cannot be sampled."""
    format = chat(folder, BRACKETS)
    with pytest.raises(ValueError, match="source self: no special token"):
        format.user_prefix()
    ids, mask = format.given(TALK[:2])
    assert shown(format, ids, mask) == "<s>[INST] Hi [/INST][ ][Y][e][s][?][ ][</s>]"


def test_going_on_keeps_the_tokens(folder):
    """The next prompt is the tokens so far and the next turn: what the template itself renders."""
    format = chat(folder)
    ids = format.prompt(TALK[:1])
    ids = ids + format._tokens("Yes?") + [1]
    longer = format.extend(ids, TALK[:2], "Yes?")
    assert longer == format.prompt(TALK[:3])
    assert longer[: len(ids)] == ids


@pytest.mark.parametrize(
    ("template", "answer"), [(TRIMMING, " Yes?"), (FORGETTING, "hm|Yes?"), (BRACKETS, "Yes?")]
)
def test_a_template_that_rewrites_the_past_ends_the_dialogue(folder, template, answer):
    """Trimmed, forgotten or padded: the next prompt would not begin with the tokens so far."""
    format = chat(folder, template)
    ids = [*format.prompt(TALK[:1]), *format._tokens(answer), 1]
    said = [TALK[0], {"role": "assistant", "content": answer}]
    assert format.extend(ids, said, "And?") is None


def test_given_answers_under_a_forgetting_template(folder):
    """The same for given answers: refused where the whole differs from its parts."""
    format = chat(folder, FORGETTING)
    talk = [TALK[0], {"role": "assistant", "content": "hm|Yes?"}, *TALK[2:]]
    assert format.given(talk) is None
    assert format.given(talk[:2]) is not None
