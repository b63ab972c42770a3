"""The store of plain texts: any budget, resumed after a kill, equal to the plain loop."""

import pytest
from tiny import prompt_tokens, stored, tiny_target

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.drafter import RootDrafter
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode
from eagle_fsd.evaluation.offline.texts import BEYOND, TextStore
from eagle_fsd.rules.fsd import Exact

PROMPTS = {name: ("any", prompt_tokens(9, seed=seed)) for seed, name in enumerate("abc")}


def test_texts_are_the_plain_answers_for_any_budget_and_stop(tmp_path):
    """One store serves smaller budgets and stop tokens; trimmed as decoding trims."""
    target = tiny_target("llama")
    store = TextStore(tmp_path, {"target": "tiny"})
    prompt = PROMPTS["a"][1]
    (text,) = stored(store, target, {"a": ("any", prompt)}, StopConfig(29))
    rows = (tmp_path / "texts.jsonl").read_text()
    stops = [StopConfig(n) for n in (1, 2, 17, 29)]
    stops += [StopConfig(29, (text.answer[n],)) for n in (0, 5, 11)]
    for stop in stops:
        again = TextStore(tmp_path, {"target": "tiny"})
        (short,) = stored(again, target, {"a": ("any", prompt)}, stop)
        plain = decode(target, RootDrafter(), prompt, DecodeConfig(Policy(Exact()), stop))
        assert short.answer == plain.tokens
        assert (
            short.answer + short.beyond == (text.answer + text.beyond)[: len(short.answer) + BEYOND]
        )
    assert (tmp_path / "texts.jsonl").read_text() == rows
    stored(store, target, {"a": ("any", prompt)}, StopConfig(31))  # too short: decoded anew
    assert len(TextStore(tmp_path, {"target": "tiny"}).rows["a"]["greedy_ids"]) == 31 + BEYOND


def test_texts_resume_after_a_torn_line_and_refuse_what_is_not_theirs(tmp_path):
    target = tiny_target("llama")
    store = TextStore(tmp_path, {})
    stored(store, target, PROMPTS, StopConfig(23))
    path = tmp_path / "texts.jsonl"
    whole = path.read_text()
    path.write_text(whole[:-20])
    stored(TextStore(tmp_path, {}), target, PROMPTS, StopConfig(23))
    assert path.read_text() == whole
    with pytest.raises(BadInput, match="other settings.*dtype.*name another folder"):
        TextStore(tmp_path, {"dtype": "bfloat16"})
    with pytest.raises(BadInput, match="another prompt for question 'a'"):
        TextStore(tmp_path, {}).find("a", "any", [5, 6], StopConfig(3))
    with pytest.raises(BadInput, match="beyond the target's 251 positions: lower the budget"):
        stored(TextStore(tmp_path, {}), target, {"x": ("any", [2] * 9)}, StopConfig(240))


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_batched_texts_are_the_plain_answers(family, tmp_path):
    """Prompts of unlike lengths in one left-padded batch; every text is the plain loop's."""
    target = tiny_target(family)
    prompts = {n: ("any", prompt_tokens(n, seed=n)) for n in (3, 19, 7)}
    for text in stored(TextStore(tmp_path, {}), target, prompts, StopConfig(29)):
        config = DecodeConfig(Policy(Exact()), StopConfig(29 + BEYOND))
        plain = decode(target, RootDrafter(), text.prompt, config)
        assert text.answer + text.beyond == plain.tokens
