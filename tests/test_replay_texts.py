"""The store of plain texts: any budget, resumed after a kill, equal to the plain loop."""

import pytest
from tiny import prompt_tokens, tiny_target

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.drafter import RootDrafter
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode
from eagle_fsd.evaluation.offline.texts import BEYOND, PlainText, open_texts, plain_texts
from eagle_fsd.rules.fsd import Exact

PROMPTS = {name: prompt_tokens(9, seed=seed) for seed, name in enumerate("abc")}


def stored(folder, target, prompts: dict, stop: StopConfig, **settings) -> list[PlainText]:
    return list(plain_texts(open_texts(folder, settings), target, prompts, stop).values())


def plain(target, prompt: list[int], stop: StopConfig) -> list[int]:
    return decode(target, RootDrafter(), prompt, DecodeConfig(Policy(Exact()), stop)).tokens


def test_texts_are_the_plain_answers_for_any_budget_and_stop(tmp_path):
    """One store serves smaller budgets and stop tokens; trimmed as decoding trims."""
    llama = tiny_target("llama")
    prompts = {"a": PROMPTS["a"]}
    (text,) = stored(tmp_path, llama, prompts, StopConfig(29))
    rows = (tmp_path / "records/texts.jsonl").read_text()
    stops = [StopConfig(n) for n in (1, 2, 17, 29)]
    stops += [StopConfig(29, (text.answer[n],)) for n in (0, 5, 11)]
    for stop in stops:
        (short,) = stored(tmp_path, llama, prompts, stop)
        assert short.answer == plain(llama, text.prompt, stop)
        whole = text.answer + text.beyond
        assert short.answer + short.beyond == whole[: len(short.answer) + BEYOND]
    assert (tmp_path / "records/texts.jsonl").read_text() == rows
    stored(tmp_path, llama, prompts, StopConfig(31))  # too short: decoded anew
    row = open_texts(tmp_path, {}).records["texts"]["a"]
    assert len(row["greedy_ids"]) == 31 + BEYOND


def test_texts_resume_after_a_torn_line_and_refuse_what_is_not_theirs(tmp_path):
    llama = tiny_target("llama")
    first = stored(tmp_path, llama, PROMPTS, StopConfig(23))
    path = tmp_path / "records/texts.jsonl"
    path.write_text(path.read_text()[:-20])
    assert stored(tmp_path, llama, PROMPTS, StopConfig(23)) == first
    assert path.read_text().count("\n") == 3
    with pytest.raises(BadInput, match="other settings.*dtype.*name another folder"):
        stored(tmp_path, llama, PROMPTS, StopConfig(3), dtype="bfloat16")
    with pytest.raises(BadInput, match="another prompt for question 'a'"):
        stored(tmp_path, llama, {"a": [5, 6]}, StopConfig(3))


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_batched_texts_are_the_plain_answers(family, tmp_path):
    """Prompts of unlike lengths in one left-padded batch; every text is the plain loop's."""
    target = tiny_target(family)
    prompts = {n: prompt_tokens(n, seed=n) for n in (3, 19, 7)}
    for text in stored(tmp_path, target, prompts, StopConfig(29)):
        assert text.answer + text.beyond == plain(target, text.prompt, StopConfig(29 + BEYOND))
