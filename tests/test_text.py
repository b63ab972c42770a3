"""Text in and out: chat templates to prompt tokens, JSON lines that survive a kill, questions."""

import itertools
import json

import pytest
from commands import write_rows
from fastchat.conversation import conv_templates
from tiny import tiny_target
from tiny_folder import write_target
from transformers import AutoTokenizer

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.tree import RootDrafter
from eagle_fsd.evaluation.questions import Question, read_questions, spread
from eagle_fsd.models.chat import prompt_ids
from eagle_fsd.models.loaded import Model
from eagle_fsd.runs.jsonl import append_lines, read_lines, write_lines
from eagle_fsd.training.dialogues import ChatFormat

CONVERSATION = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "Why\nso?"},
]


@pytest.fixture
def tokenizer(tmp_path):
    return AutoTokenizer.from_pretrained(write_target(tmp_path / "target"))


def test_a_template_of_the_tokenizer_s_or_of_fastchat_s(tokenizer):
    """Ids up to where the assistant's next turn begins. FastChat's is a copy each time."""
    assert tokenizer.decode(prompt_ids(tokenizer, CONVERSATION)) == (
        "<s>user\nHi</s><s>assistant\nYes?</s><s>user\nWhy\nso?</s><s>assistant\n"
    )
    tokenizer.chat_template = None
    named = {"conv_template": "vicuna_v1.1"}
    system = [{"role": "system", "content": "Be brief."}, *CONVERSATION[:1]]
    first = prompt_ids(tokenizer, system, **named)
    assert tokenizer.decode(first) == "Be brief. USER: Hi ASSISTANT:"
    text = tokenizer.decode(prompt_ids(tokenizer, CONVERSATION, **named))
    assert text.startswith("A chat between a curious user") and "Be brief" not in text
    assert text.endswith("USER: Hi ASSISTANT: Yes?</s>USER: Why\nso? ASSISTANT:")
    with pytest.raises(BadInput, match="conv_template"):
        prompt_ids(tokenizer, CONVERSATION)


def test_every_fastchat_template_makes_a_prompt_or_is_unknown(tokenizer):
    """Bug held down: those of models behind an API ended in "Invalid style: None", one with a third
    role in "too many values to unpack"."""
    for name in conv_templates:
        try:
            ids = prompt_ids(tokenizer, CONVERSATION, conv_template=name)
        except BadInput as error:
            assert str(error).startswith(f"unknown conv_template {name!r}")
        else:
            assert "Why\nso?" in tokenizer.decode(ids), name


@pytest.mark.parametrize(
    ("strings", "template", "said", "kept", "text"),
    [
        ("END", "", ["EN", "END", "E"], ["EN", "END"], "EN"),  # bug: three strings, E, N and D
        (["b\nUser"], "", ["ab", "b\nU", "ser", "x"], ["ab", "b\nU", "ser"], "ab"),
        (["<s>"], "", ["a", "<s>", "b"], ["a", "<s>"], "a"),  # bug: a special token never stopped
        ([], "falcon", ["a", "b\nU", "ser", "é"], ["a", "b\nU", "ser"], "ab"),
        ([], "", ["END<s>"], ["END<s>"], "END"),
    ],
)
def test_stop_strings_are_left_out_of_the_text(tokenizer, strings, template, said, kept, text):
    """Of the tokens they are not. Bug held down: they stayed in the next turn's prompt."""
    tokenizer.add_tokens(["b\nU"])
    model = Model(tiny_target("llama"), tokenizer, RootDrafter(), template)
    ids = [token for part in said for token in tokenizer(part).input_ids]
    answer, finish = model.stop(99, strings).trim([], ids)
    assert tokenizer.decode(answer) == "".join(kept) and (finish == "stop") == (kept != said)
    assert model.text(answer, strings) == text
    with pytest.raises(BadInput, match="''"):
        model.stop(9, ["a", ""])


def test_a_chat_template_that_raises_is_told_in_its_words(tokenizer):
    """Bug held down: what it says of roles that it does not take ended in a traceback, of answering
    and of making data, where it may take a prompt and no answer behind it."""
    for raises in ("raise_exception('One turn.')", "messages[1].content + 1"):
        tokenizer.chat_template = f"{{{{ {raises} if messages | length > 1 else '<s>' }}}}"
        for take in (lambda: prompt_ids(tokenizer, CONVERSATION), lambda: ChatFormat(tokenizer)):
            with pytest.raises(BadInput, match=r"One turn\.|TypeError"):
                take()


ROWS = [{"id": 1, "text": 'é\u2028日本\n"x"'}, {"id": 2, "deep": [[1.5, None], {"a": True}]}]


def test_a_torn_last_line_is_repaired(tmp_path, capsys):
    """Cut anywhere, within a character too, or broken before its end: dropped with a warning, and
    appending goes on. Any text is one line, and comes back as it was written."""
    path = tmp_path / "rows.jsonl"
    torn = (json.dumps({"é": "日本"}, ensure_ascii=False) + "\n").encode()
    for line in [*(torn[:-cut] for cut in range(1, 12)), b'{"id": 3, "te\n']:
        write_lines(path, ROWS)
        whole = path.read_bytes()
        assert whole.count(b"\n") == 2
        path.write_bytes(whole + line)
        assert read_lines(path, repair=True) == ROWS
        assert "rows.jsonl: its last line is torn" in capsys.readouterr().err
        assert path.read_bytes() == whole
        append_lines(path, [{"id": 3}])
        assert read_lines(path) == read_lines(path, repair=True) == [*ROWS, {"id": 3}]
    assert [*tmp_path.iterdir()] == [path]


def test_what_is_not_repaired_stays(tmp_path):
    """A broken line in the middle is refused by number, for a person to look at. Without repair a
    torn line is left out: another process may be writing. Blank lines are no rows."""
    path, torn = tmp_path / "rows.jsonl", '{"id": 1}\n\n{"id": 2}'
    for line, repair in itertools.product(('{"id": 2', "5"), (False, True)):
        broken = f'{{"id": 1}}\n\n{line}\n{{"id": 3}}\n'
        path.write_text(broken)
        with pytest.raises(BadInput, match=r"rows\.jsonl, line 3 "):
            read_lines(path, repair=repair)
        assert path.read_text() == broken
    path.write_text(torn)
    warnings: list[str] = []
    assert read_lines(path, warn=warnings.append) == [{"id": 1}]
    assert path.read_text() == torn and "torn" in warnings[0]


# rows alone in a file: FastChat's, other keys named, category and reference may be absent; and
# of other forms
XY = "6?\n\nA. x\nB. y"
FORMS = [
    (
        {"question_id": 81, "category": "writing", "turns": ["a", "b"], "reference": ["x"], "z": 1},
        Question(81, "writing", ["a", "b"], ["x"]),
    ),
    ("Why?", Question(0, "all", ["Why?"])),
    ({"prompt": "Why?", "category": None}, Question(0, "all", ["Why?"])),
    ({"question": "6?", "answer": "2 * 3\n#### 6", "id": "a"}, Question("a", "all", ["6?"], ["6"])),
    ({"question_id": 1, "text": "Why?", "reference": 42}, Question(1, "all", ["Why?"], ["42"])),
    ({"instruction": "Add", "input": "1, 2", "output": "3"}, Question(0, "all", ["Add\n\n1, 2"])),
    ({"prompt": ["a", "b"], "prompt_id": 81}, Question(81, "all", ["a", "b"])),
    ({"question_id": "x", "turns": [{"content": "a"}]}, Question("x", "all", ["a"])),
    # sets of right answers, as MMLU, ARC, BoolQ and MedQA; an index may be a text or pandas's float
    (
        {"question": "6?", "choices": ["5", "6"], "answer": 1, "subject": "math"},
        Question(0, "all", ["6?\n\nA. 5\nB. 6"], ["B"]),
    ),
    ({"question": "6?", "choices": ["x", "y"], "answer": "1"}, Question(0, "all", [XY], ["B"])),
    ({"question": "6?", "choices": ["x", "y"], "answer": 0.0}, Question(0, "all", [XY], ["A"])),
    ({"question": "6?", "options": ["x", "y"], "answer": "y"}, Question(0, "all", [XY], ["y"])),
    (
        {"question": "6?", "choices": [0, 1, 6], "answer": 1},
        Question(0, "all", ["6?\n\nA. 0\nB. 1\nC. 6"], ["1"]),
    ),
    (
        {
            "question": "6?",
            "choices": {"text": ["x", "y"], "label": ["1", "2"]},
            "answerKey": "1",
        },
        Question(0, "all", ["6?\n\n1. x\n2. y"], ["1"]),
    ),
    (
        {"question": "6?", "options": {"A": "x", "B": "y"}, "answer": "B"},
        Question(0, "all", [XY], ["B"]),
    ),
    (
        {"question": "is it", "passage": "It is.", "answer": True},
        Question(0, "all", ["It is.\n\nis it"], ["yes", "true"]),
    ),
    (
        {"instruction": "Add", "input": "1, 2", "context": "So.", "system_prompt": "Be kind.\n"},
        Question(0, "all", ["So.\n\nAdd\n\n1, 2"], system="Be kind."),
    ),
    # null, and NaN of pandas: regression, the right answer was "None"
    ({"question_id": 1, "turns": ["a"], "reference": None}, Question(1, "all", ["a"])),
    ({"question_id": 1, "turns": ["a"], "reference": float("nan")}, Question(1, "all", ["a"])),
]


def test_forms_of_questions(tmp_path):
    """Regression: each was "no row of fastchat"."""
    for row, expected in FORMS:
        path = write_rows(tmp_path / "rows.jsonl", json.dumps(row))
        assert read_questions(path) == [expected]


def test_fields_of_questions_that_are_not_read_are_named_once(tmp_path, capsys):
    """With the number of rows that hold something there. Bug held down: they were dropped without
    a word, and so were context, choices and the like."""
    said = {"messages": [{"role": "system", "content": "a"}, "b"], "system": "c", "input": "d"}
    known = {"turns": ["a"], "id": 5, "uid": 6, "question_id": 7, "category": "x", "reference": []}
    rows = [said, {"prompt": "x", "input": "y", "title": "z"}, known | {"title": "", "note": None}]
    read_questions(path := write_rows(tmp_path / "rows.jsonl", *rows))
    told = f"fields of {path} that are not read: input (of 2), system (of 1), title (of 1)"
    assert capsys.readouterr().err == f"eagle_fsd: {told}\n"
    read_questions(write_rows(path, known))
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"choices": ["x", "y"], "answer": 2}, "answer is 2, and it has 2 choices"),
        ({"choices": ["x", "y"], "answer": -1}, "answer is -1, and it has 2"),
        ({"choices": ["x", "y"], "answer": 0.5}, "answer is 0.5, and it has 2"),
        ({"choices": [["x"], "y"]}, "choices are"),
        ({"options": "a) x b) y"}, "choices are"),
        ({"options": {"temperature": 0}}, "choices are"),
        ({"choices": {"text": ["x"], "label": []}}, "line 1"),
        ({"choices": ["x"] * 27}, "at most 26"),
        ({"context": {"title": ["x"]}}, "context is"),
        ({"answer": {"text": ["x"]}}, "answer is"),
        ({"answers": 1, "answer": [["x"]]}, "answer is"),
        ({"system": 5}, "no text"),
    ],
)
def test_fields_of_a_question_that_cannot_be_asked_are_refused(fields, told, tmp_path):
    with pytest.raises(BadInput, match=told):
        read_questions(write_rows(tmp_path / "rows.jsonl", {"question": "6?"} | fields))


def test_spread_takes_the_first_of_each_category_then_the_second():
    """In the file's order, deterministic, and each larger choice holds the smaller ones."""
    questions = [Question(i, category, ["x"]) for i, category in enumerate("aaabbcaab")]
    chosen = {n: [q.question_id for q in spread(questions, n)] for n in range(1, 10)}
    assert chosen[3] == [0, 3, 5]  # one of a, b, c
    assert chosen[5] == [0, 1, 3, 4, 5]  # c has no second
    assert chosen[9] == list(range(9))
    assert all(set(chosen[n - 1]) < set(chosen[n]) for n in range(2, 10))


# --- what a dialogue takes from a template --------------------------------------------------------


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
TALK = [*CONVERSATION[:2], {"role": "user", "content": "Yes?"}]


def chat(target, template: str = "") -> ChatFormat:
    tokenizer = AutoTokenizer.from_pretrained(target)
    if template:
        tokenizer.chat_template = template
    return ChatFormat(tokenizer)


def test_the_users_prefix_and_end(target):
    """Where a user's turn begins, whatever stands before it; it ends by the end token (1), and by
    what the template writes behind it. One without an end token cannot be sampled from."""
    open_turns = BRACKETS.replace("[INST] ", "user\n").replace(" [/INST]", "<s>")
    for template, prefix, wanted in (
        ("", "<s>user\n", {1}),
        (TRIMMING, "<s>system\nBe kind.</s><s>user\n\n", {1}),
        (open_turns, "<s>user\n", {0, 1}),
    ):
        format = chat(target, template)
        ids, ends = format.user_prefix()
        assert format.tokenizer.decode(ids) == prefix
        assert ends == wanted and {*format.ends().ids} == {1}
    with pytest.raises(BadInput, match="source self"):
        chat(target, BRACKETS).user_prefix()


@pytest.mark.parametrize(
    ("template", "said"),
    [("", "Yes?"), (TRIMMING, " Yes?"), (FORGETTING, "hm|Yes?"), (BRACKETS, "Yes?")],
)
def test_the_next_prompt_is_what_the_template_renders(target, template, said):
    """The tokens so far and the next turn; or where the template rewrites the past (trims, forgets
    or pads it) what it makes of that, which does not begin with the tokens so far."""
    format = chat(target, template)
    ids = [*format.prompt(TALK[:1]), *format.tokenizer(said).input_ids, 1]
    talk = [TALK[0], {"role": "assistant", "content": said}, TALK[2]]
    longer = format.prompt(talk, ids)
    assert longer == format.prompt(talk)
    assert (longer[: len(ids)] == ids) == (not template)
