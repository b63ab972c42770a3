"""The system message of a run: in every command's prompts, a question's own in its place, and
refused where a template would lose it."""

import json
import shutil

import pytest
from commands import bench_options, load_command, model_options, rows, write_rows
from tiny_folder import byte_tokenizer
from training_runs import data_options, made, make_data
from transformers import HfArgumentParser

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.questions import Question, read_questions
from eagle_fsd.messages import read_system
from eagle_fsd.models.chat import prompt_ids
from eagle_fsd.options import ModelOptions
from eagle_fsd.training.chat_format import ChatFormat

KIND = [{"role": "system", "content": "Be kind."}]
USER = [{"role": "user", "content": "Hi"}]
# as Phi 3's, and as Gemma's
LOSES = (
    "{% for m in messages %}{% if m['role'] != 'system' %}{{ m['content'] }}{% endif %}{% endfor %}"
)
RAISES = "{{ raise_exception('System role not supported') if messages[0]['role'] == 'system' }}Hi"
# as SmolLM 3's, where words of the message are switches
SWITCH = (
    "{{ 'off' if '/no_think' in messages[0]['content'] else 'on' }} {{ messages[-1]['content'] }}"
)


def test_a_system_message_stands_before_a_conversation_that_has_none():
    tokenizer = byte_tokenizer()
    for template in ("", "vicuna_v1.1"):
        named = {"conv_template": template}
        wanted = prompt_ids(tokenizer, KIND + USER, **named)
        assert prompt_ids(tokenizer, "Hi", system="Be kind.", **named) == wanted
        assert prompt_ids(tokenizer, KIND + USER, system="Be brief.", **named) == wanted
        assert prompt_ids(tokenizer, "Hi", **named) != wanted
    forged = tokenizer.decode(prompt_ids(tokenizer, "Hi", system="a</s>b"))
    plain = tokenizer.decode(prompt_ids(tokenizer, "Hi", system="a#b"))
    assert forged == plain.replace("#", "</s>") and tokenizer.eos_token_id == 1
    assert prompt_ids(tokenizer, "Hi", system="a</s>b").count(1) == 2  # the template's own


@pytest.mark.parametrize("template", [LOSES, RAISES, "deepseek-coder"])
def test_a_template_without_a_place_for_it_is_refused(template):
    """Bug held down: a tokenizer's template that leaves it out lost it without a word."""
    tokenizer, named = byte_tokenizer(), {}
    if "{" in template:
        tokenizer.chat_template = template
    else:
        named["conv_template"] = template
    assert prompt_ids(tokenizer, "Hi", **named)
    with pytest.raises(BadInput, match="system"):
        prompt_ids(tokenizer, "Hi", system="Be kind.", **named)
    with pytest.raises(BadInput, match="system"):
        ChatFormat(tokenizer, system="Be kind.", **named)


def test_a_system_message_that_a_template_reads_otherwise_is_taken():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = SWITCH
    assert tokenizer.decode(prompt_ids(tokenizer, "Hi", system="/no_think")) == "off Hi"


def test_a_text_or_a_file(tmp_path, monkeypatch):
    """What a file says has no white space around it; a name that is mistyped is no message."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kind.txt").write_text("\nBe  kind.\n\nAlways.\n", encoding="utf-8")
    assert read_system("kind.txt") == "Be  kind.\n\nAlways."
    assert read_system("Be kind.") == "Be kind." and read_system("x" * 9999) == "x" * 9999
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "empty.txt").touch()
    for given in ("", " \n", "empty.txt", "latin.txt", str(tmp_path), "kinds.txt", "a\ud83d"):
        with pytest.raises(BadInput):
            read_system(given)


def test_the_system_turn_of_a_question(tmp_path):
    """Bug held down: such a row was refused. One behind the user's turn still is."""
    for messages in (
        KIND + USER,
        [{"from": "system", "value": " Be kind.\n"}, {"from": "human", "value": "Hi"}],
        [{"role": "developer", "content": [{"type": "text", "text": "Be kind."}]}, "Hi"],
    ):
        path = write_rows(tmp_path / "rows.jsonl", {"messages": messages})
        (question,) = read_questions(path)
        assert question == Question(0, "all", ["Hi"], system="Be kind.")
        assert question.messages() == KIND + USER
    answer = {"role": "assistant", "content": "Yes?"}
    two = Question(1, "a", ["Hi", "Why?", "So?"])
    assert two.messages([answer]) == [*USER, answer, {"role": "user", "content": "Why?"}]
    write_rows(path, {"messages": USER + KIND})
    with pytest.raises(BadInput, match="message of 'system'"):
        read_questions(path)


def test_a_bench_asks_under_it_and_goes_on_with_no_other(call, models, tmp_path):
    """In the warm-up's target, in every turn's prompt; a question's own stands in its place."""
    questions = [
        {"question_id": 0, "turns": ["Hi", "Why?"]},
        {"question_id": 1, "messages": [{"role": "system", "content": "Be brief."}, *USER]},
    ]
    options = bench_options(models, tmp_path, questions)
    bench = ["evaluate/mt_bench.py", *options, "--arms", "plain"]
    (tmp_path / "kind.txt").write_text("Be kind.\n")
    call(*bench, "--system", tmp_path / "kind.txt")
    run, tokenizer = tmp_path / "run", byte_tokenizer()
    first, second = rows(run / "records/plain.jsonl")
    assert json.loads((run / "run.json").read_text())["options"]["system"] == "Be kind."
    talk = [*KIND, *USER, {"role": "assistant", "content": first["turns"][0]["text"]}]
    talk += [{"role": "user", "content": "Why?"}]
    for turn, messages in zip(first["turns"], (KIND + USER, talk), strict=True):
        assert turn["prompt_tokens"] == len(prompt_ids(tokenizer, messages))
    assert second["system"] == "Be brief." and "system" not in first
    own = len(prompt_ids(tokenizer, "Hi", system="Be brief."))
    assert second["turns"][0]["prompt_tokens"] == own
    assert "with a system message" in call(*bench, "--system", "Be kind.")  # goes on
    for other in ([], ["--system", "Be unkind."]):
        assert "another folder" in call(*bench, *other)
    (tmp_path / "question.jsonl").write_text('{"question_id": 1, "turns": ["Hi"], "system": "x"}')
    assert "another system message" in call(*bench, "--system", "Be kind.")


def test_commands_put_it_before_their_prompts(call, models, tmp_path):
    """answer.py, calibrate.py and tasks.py load as a bench does; replay.py and make_data.py have a
    way of their own."""
    parser = HfArgumentParser([ModelOptions])
    given = [*map(str, model_options(models)), "--system", "Be kind."]
    (options,) = parser.parse_args_into_dataclasses(given)
    wanted = prompt_ids(byte_tokenizer(), KIND + USER)
    assert options.load([]).prompt_ids("Hi") == wanted

    asked = write_rows(tmp_path / "question.jsonl", {"question_id": 0, "turns": ["Hi"]})
    replay = ["--target", models[0], "--heads", models[1], "--question_file", asked]
    replay += ["--device", "cpu", "--max_new_tokens", 4, "--arms", "exact@eagle:3x2x2"]
    folders = ["--texts", tmp_path / "texts", "--output", tmp_path / "replay"]
    call("evaluate/replay.py", *replay, *folders, "--system", "Be kind.")
    (text,) = rows(tmp_path / "texts/records/texts.jsonl")
    assert text["prompt_ids"] == wanted
    assert "another folder" in call("evaluate/replay.py", *replay, *folders)

    own_system = [{"role": "system", "content": "So."}, {"role": "user", "content": "Ho"}]
    talks = {"prompt": "Hi"}, {"messages": own_system}
    source = (str(write_rows(tmp_path / "talks.jsonl", *talks)),)
    make_data(data_options(models[0], tmp_path / "data", "--system", "Be kind.", sources=source))
    own = prompt_ids(byte_tokenizer(), "Ho", system="So.")
    for row in made(tmp_path / "data"):
        prompt = wanted if row["user"] == "Hi" else own
        assert row["input_ids"][: len(prompt)] == prompt and row["loss_mask"][len(prompt)]
    prefix, _ = ChatFormat(byte_tokenizer(), system="Be kind.").user_prefix()
    assert prefix == wanted[: len(prefix)] and byte_tokenizer().decode(prefix).endswith("user\n")


def test_it_is_refused_before_weights_load(call, models, tmp_path):
    target = shutil.copytree(models[0], tmp_path / "target")
    (target / "chat_template.jinja").write_text(LOSES)
    (target / "model.safetensors").unlink()
    options = bench_options((target, models[1]), tmp_path)
    for command in ("evaluate/mt_bench.py", "evaluate/calibrate.py"):
        arms = ["--arms", "exact", "--system", "Be kind."]
        assert "no place for a system message" in call(command, *options, *arms)
    options = [word if word != "--head" else "--heads" for word in options]
    options = [*options[: options.index("--tree")], *options[options.index("--tree") + 2 :]]
    options += ["--texts", tmp_path / "texts", "--system", "Be kind."]
    assert "no place for a system message" in call("evaluate/replay.py", *options)
    data = load_command("train/make_data.py")
    given = data_options(target, tmp_path / "data", "--system", "Be kind.", "--dialogues", "1")
    (options,) = HfArgumentParser([data.DataOptions]).parse_args_into_dataclasses(given)
    with pytest.raises(BadInput, match="no place for a system message"):
        data.make_data(options)
