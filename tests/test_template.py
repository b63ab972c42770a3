"""What a chat template reads beside the messages: the date, which is the run's, and settings."""

import json
import shutil
from datetime import datetime

import pytest
from commands import bench_options, load_command, rows, write_rows
from tiny_folder import byte_tokenizer
from training_runs import data_options, made, make_data
from transformers import HfArgumentParser, PreTrainedTokenizerFast

import eagle_fsd
from eagle_fsd.config import BadInput
from eagle_fsd.messages import read_template_settings
from eagle_fsd.models.chat import prompt_ids, settle_template
from eagle_fsd.models.loaded import check_chat

DATE = datetime(2024, 2, 9, 7, 5, 3, 42)
# As Llama 3.2's, but that no two moments are the same: what is rendered at another time, as by a
# session of the next day, has another prompt, and mostly another length.
DATED = (
    "{%- if not date_string is defined %}\n    {%- if strftime_now is defined %}\n"
    "        {%- set date_string = strftime_now('%d %b %Y, %-H:%M:%S.%f') %}\n"
    "    {%- else %}{%- set date_string = '26 Jul 2024' %}{%- endif %}\n{%- endif %}\n"
    "{{ '<s>' + date_string + 'x' * (date_string[-6:] | int % 89) }}"
    "{% for m in messages %}<s>{{ m['content'] }}</s>{% endfor %}"
)
THINKS = (
    "{%- set style = style | default('plain') %}{% for m in messages %}<s>{{ m['content'] }}</s>"
    "{% endfor %}{% if enable_thinking is defined and enable_thinking is false %}off{% endif %}"
    "{{ style }}{{ budget }}{% generation %}{% endgeneration %}"
)


def tokenizer_of(template: str) -> PreTrainedTokenizerFast:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def rendered(template: str, settings: dict | None = None, **settled) -> str:
    tokenizer = tokenizer_of(template)
    settle_template(tokenizer, settings, **settled)
    return tokenizer.decode(prompt_ids(tokenizer, "Hi"))


@pytest.fixture
def target_of(models, tmp_path):
    """The tiny target with another chat template."""

    def made_of(template: str) -> tuple:
        folder = shutil.copytree(models[0], tmp_path / "target")
        (folder / "chat_template.jinja").write_text(template)
        return folder, models[1]

    return made_of


# --- the date -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "start", ["", "\n", "\n\n", "  ", " \n a ", "{# #}\n", "  {%- set a = 1 %}"]
)
def test_a_date_is_written_as_python_does_and_nothing_else_changes(start):
    """A template is as it was from its first character on."""
    for directives in ("%d %b %Y", "%A, %B %-d; %H:%M %p", "100%%", "no date", "%Y-%m-%dT%X"):
        template = start + "{{ strftime_now('" + directives + "') }}|{{ messages[0]['content'] }}"
        wanted = rendered(start + "DATE|{{ messages[0]['content'] }}")
        assert rendered(template, date=DATE) == wanted.replace("DATE", DATE.strftime(directives))
    undated = start + "{{ messages[0]['content'] }}"
    assert rendered(undated, date=DATE) == rendered(undated)


def test_a_run_goes_on_with_its_date(call, target_of, tmp_path):
    """Each turn, arm and session. Bug held down: exact, added on the next day, answered other
    prompts than plain had, and looked lossy."""
    options = bench_options(target_of(DATED), tmp_path)
    for arm in ("plain", "exact"):
        call("evaluate/mt_bench.py", *options, "--arms", arm)
    plain, exact = (rows(tmp_path / f"run/records/{arm}.jsonl") for arm in ("plain", "exact"))
    for one, other in zip(plain, exact, strict=True):
        for turn, again in zip(one["turns"], other["turns"], strict=True):
            assert turn["prompt_tokens"] == again["prompt_tokens"]
            assert turn["text"] == again["text"]
    held = json.loads((tmp_path / "run/run.json").read_text())
    assert (
        datetime.fromisoformat(held["options"]["date"]).timestamp() < held["sessions"][0]["started"]
    )


def test_replays_and_data_go_on_with_their_date(call, target_of, tmp_path):
    """They load in a way of their own. The date is that of the folder's first session, also where
    an older version wrote no other."""
    target, head = target_of(DATED)
    talks = [{"prompt": f"Question {number}?"} for number in range(3)]
    source = (str(write_rows(tmp_path / "talks.jsonl", *talks)),)
    for count in "123":
        options = ("--dialogues", count)
        make_data(data_options(target, tmp_path / "data", *options, sources=source))
        settings = json.loads((tmp_path / "data/run.json").read_text())
        if count == "1":
            date = datetime.fromtimestamp(settings["sessions"][0]["started"])
            del settings["options"]["date"]
            (tmp_path / "data/run.json").write_text(json.dumps(settings))
    assert settings["options"]["date"] == date.isoformat()
    texts = [byte_tokenizer().decode(row["input_ids"]) for row in made(tmp_path / "data")]
    assert len(texts) == 3
    for text in texts[1:]:
        assert text.startswith(rendered(DATED, date=date).partition("<s>Hi")[0] + "<s>Question")

    questions = [{"question_id": number, "turns": ["Hi"]} for number in range(2)]
    asked = write_rows(tmp_path / "question.jsonl", *questions)
    options = ["--target", target, "--heads", head, "--question_file", asked, "--device", "cpu"]
    options += ["--max_new_tokens", 4, "--arms", "exact@eagle:3x2x2"]
    options += ["--texts", tmp_path / "texts", "--output", tmp_path / "replay"]
    for count in (1, 2):
        call("evaluate/replay.py", *options, "--questions", count)
    first, second = rows(tmp_path / "texts/records/texts.jsonl")
    assert first["prompt_ids"] == second["prompt_ids"]


def test_a_run_of_a_date_that_is_none_is_named(call, models, tmp_path):
    bench = ["evaluate/mt_bench.py", *bench_options(models, tmp_path), "--arms", "plain"]
    call(*bench)
    path = tmp_path / "run/run.json"
    held = json.loads(path.read_text())
    for date in ("yesterday", 5, [2024], {"day": 1}):
        held["options"]["date"] = date
        path.write_text(json.dumps(held))
        assert "no date at which the run began" in call(*bench)


# --- settings -------------------------------------------------------------------------------------


def test_settings_are_json_or_text():
    given = ["a=true", "b=False", "c=1.5", "d=26 Jul", "e=", "f=x=y", 'g="1"', "h=NaN", "i=[1]"]
    read = read_template_settings(given)
    assert list(read.values()) == [True, False, 1.5, "26 Jul", "", "x=y", "1", "NaN", [1]]
    for wrong in (["a"], ["a=1", "a=2"], ["=1"], ["a b=1"], ["a=\ud83d"]):
        with pytest.raises(BadInput):
            read_template_settings(wrong)


def test_a_template_reads_its_settings_by_name():
    assert rendered(THINKS) == "<s>Hi</s>plain"
    told = {"enable_thinking": False, "style": 'it\'s {{ "100" }} %}\n\u65e5', "budget": 5}
    assert rendered(THINKS, told) == f"<s>Hi</s>off{told['style']}5"
    assert rendered(DATED, {"date_string": "1"}, date=DATE) == "<s>1x<s>Hi</s>"
    nested = "{{ o.a[0] is none }}{{ o.b }}{% macro m() %}{{ o.b }}{% endmacro %}{{ m() }}Hi"
    assert rendered(nested, {"o": {"a": [None], "b": True}}) == "TrueTrueTrueHi"


@pytest.mark.parametrize(
    ("settings", "named", "told"),
    [
        ({"enable_thinkin": False}, {}, "enable_thinkin: .*reads budget, enable_thinking, style"),
        ({"messages": []}, {}, "messages: no setting"),
        ({"tokenize": True, "budget": 1}, {}, "tokenize: no setting"),
        (
            {"budget": 1},
            {"conv_template": "vicuna_v1.1"},
            "budget: .*vicuna_v1.1', which reads none",
        ),
    ],
)
def test_settings_that_nothing_reads_are_refused(settings, named, told, target_of):
    """Before weights load."""
    with pytest.raises(BadInput, match=told):
        settle_template(tokenizer_of(THINKS), settings, **named)
    target, _ = target_of(THINKS)
    (target / "model.safetensors").unlink()
    with pytest.raises(BadInput, match=told):
        check_chat(str(target), "", settings, **{"conv_template": "", **named})
    with pytest.raises(BadInput, match=told):
        eagle_fsd.load(str(target), head=None, template_settings=settings, **named)


def test_settings_belong_to_a_run(call, target_of, tmp_path):
    """A bench goes on with the same alone, in any order; replay.py and make_data.py load in a way
    of their own; in Python they are a dictionary."""
    target, head = target_of(THINKS)
    tokenizer, question = tokenizer_of(THINKS), {"question_id": 0, "turns": ["Hi"]}
    settle_template(tokenizer, {"enable_thinking": False, "style": "s"})
    wanted = prompt_ids(tokenizer, "Hi")
    settings = ["enable_thinking=false", "style=s"]
    model = eagle_fsd.load(
        str(target), head=None, template_settings=read_template_settings(settings)
    )
    assert model.prompt_ids("Hi") == wanted

    bench = bench_options((target, head), tmp_path, [question])
    bench = ["evaluate/mt_bench.py", *bench, "--arms", "plain", "--template_settings"]
    call(*bench, *settings)
    (record,) = rows(tmp_path / "run/records/plain.jsonl")
    assert record["turns"][0]["prompt_tokens"] == len(wanted)
    held = json.loads((tmp_path / "run/run.json").read_text())["options"]["template_settings"]
    assert held == ["enable_thinking=false", 'style="s"']
    assert "another folder" not in call(*bench, "style=s", "enable_thinking=False")
    assert "another folder" in call(*bench, "enable_thinking=true", "style=s")
    assert "another folder" in call(*bench[:-1])

    asked = tmp_path / "question.jsonl"
    replay = ["--target", target, "--heads", head, "--question_file", asked, "--device", "cpu"]
    replay += ["--max_new_tokens", 4, "--arms", "exact@eagle:3x2x2", "--texts", tmp_path / "texts"]
    replay += ["--output", tmp_path / "replay"]
    call("evaluate/replay.py", *replay, "--template_settings", *settings)
    (text,) = rows(tmp_path / "texts/records/texts.jsonl")
    assert text["prompt_ids"] == wanted
    assert "another folder" in call("evaluate/replay.py", *replay)

    source = (str(write_rows(tmp_path / "talks.jsonl", {"prompt": "Hi"})),)
    data = data_options(target, tmp_path / "data", "--template_settings", *settings, sources=source)
    make_data(data)
    (row,) = made(tmp_path / "data")
    assert row["input_ids"][: len(wanted)] == wanted and row["loss_mask"][len(wanted)]
    command = load_command("train/make_data.py")
    wrong = data_options(
        target, tmp_path / "other", "--template_settings", "no=1", "--minutes", "1"
    )
    (options,) = HfArgumentParser([command.DataOptions]).parse_args_into_dataclasses(wrong)
    with pytest.raises(BadInput, match="template_settings no"):
        command.make_data(options)
