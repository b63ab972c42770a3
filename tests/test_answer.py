"""The answer to one prompt: which of its tokens were fuzzy, and how they are shown."""

import json
import re
import time

import pytest
import torch
from commands import model_options, run_main

import eagle_fsd
from eagle_fsd.arms import parse_arm
from eagle_fsd.config import SamplingConfig, TreeConfig
from eagle_fsd.decoding.acceptance import Acceptance
from eagle_fsd.decoding.answer import Round
from eagle_fsd.evaluation.answering import answer_prompt

ARM, PROMPT, TOKENS = "random:0.7", "Hello", 30


@pytest.fixture(scope="module")
def model(models):
    target, head = map(str, models)
    tree = TreeConfig(7, 3, 3)
    return eagle_fsd.load(target, head=head, tree=tree, dtype="float32", keep_stock=True)


@torch.inference_mode()
def test_fuzzy_says_it_of_every_token(model):
    """One flag a token, over rounds and the trimming at the budget: what is not the argmax of the
    target's own forward over the whole answer."""
    told = eagle_fsd.generate(model, PROMPT, arm=ARM, max_new_tokens=TOKENS)
    assert len(told.fuzzy) == len(told.tokens) == TOKENS and not told.fuzzy[0]
    prompt = model.prompt_ids(PROMPT)
    logits_NV = model.target.model(torch.tensor([prompt + told.tokens])).logits[0]
    argmax = logits_NV[len(prompt) - 1 : -1].argmax(-1).tolist()
    assert told.fuzzy == [a != b for a, b in zip(told.tokens, argmax, strict=True)]
    assert 5 < sum(told.fuzzy) < TOKENS
    plain = eagle_fsd.generate(model, PROMPT, arm="plain", max_new_tokens=TOKENS)
    assert plain.fuzzy == [False] * TOKENS
    assert eagle_fsd.Answer(tokens=[1, 2]).fuzzy == [False, False]  # transformers' generate


def test_the_clock_stands_still_while_a_step_is_watched(model):
    """What taking down a trace costs is no time of the answer's."""
    arm, prompt, slept = parse_arm("plain"), model.prompt_ids(PROMPT), []

    def watch(step: Round) -> None:
        began = time.perf_counter()
        time.sleep(0.3)
        slept.append(time.perf_counter() - began)

    drafter, stop = arm.build_drafter(model), model.stop(6)
    _, seconds = answer_prompt(
        arm, model, prompt, SamplingConfig(), stop, 0, drafter=drafter, watch=watch
    )
    assert len(slept) == 6 and 0 < seconds < sum(slept)


def test_a_stream_holds_back_what_may_become_a_stop_string(model):
    """Its pieces are the text, which ends in front of the string; tokens are plain's."""
    settings = {"arm": "plain", "max_new_tokens": TOKENS}
    plain = eagle_fsd.generate(model, PROMPT, **settings)
    for at in range(0, len(plain.text) - 4, 3):
        string = plain.text[at : at + 4]
        before = plain.text[: plain.text.index(string)]
        steps = list(eagle_fsd.stream(model, PROMPT, stop_strings=string, **settings))
        answer = steps[-1][1]
        assert answer.finish == "stop" and answer.tokens == plain.tokens[: len(answer.tokens)]
        assert "".join(piece for piece, _ in steps) == answer.text == before, string


def test_pieces_are_the_text_token_by_token_with_what_was_fuzzy_and_its_round(model):
    """Also where one character takes several tokens, and where a stop string cuts the text."""
    whole = eagle_fsd.generate(model, PROMPT, arm=ARM, max_new_tokens=TOKENS)
    cut = eagle_fsd.generate(
        model, PROMPT, arm=ARM, max_new_tokens=TOKENS, stop_strings=whole.text[15:18]
    )
    assert len(cut.text) < len(whole.text)
    for made in (whole, cut):
        texts, fuzzy, rounds = map(list, zip(*made.pieces(), strict=True))
        assert "".join(texts) == made.text and fuzzy == made.fuzzy
        emitted = [1, *(len(r.tokens) for r in made.rounds)]
        by_round = [number for number, count in enumerate(emitted) for _ in range(count)]
        assert rounds == by_round[: len(made.tokens)]


def test_marked_shows_fuzzy_tokens_and_the_borders_of_rounds():
    """A token without a text of its own, such as a stop token, shows neither."""
    rounds = [
        Acceptance([0] * len(fuzzy), [7] * len(fuzzy), fuzzy, [], [], [])
        for fuzzy in ([False, True], [False, True], [True, False])
    ]
    ends = [3, 7, 10, 15, 16, 16, 16]
    made = eagle_fsd.Answer([7] * 7, rounds, "stop", "The sky is blue!", ends)
    assert made.marked() == "The| sky[ is]| blue[!]"
    assert made.marked(("<", ">"), "") == "The sky< is> blue<!>"


def command_options(models, *more: object) -> list[str]:
    options = [*model_options(models), "--prompt", PROMPT, "--arm", ARM, "--max_new_tokens", TOKENS]
    return [*map(str, options), *map(str, more)]


def test_the_page_of_an_answer_holds_the_trees_of_its_rounds(model, models, capsys, tmp_path):
    """With every draft, those that were accepted, and which tokens are fuzzy; the page is the
    report's, and a prompt that closes its script stays text."""
    page, prompt = tmp_path / "page.html", "Hello</script><b>"
    made = eagle_fsd.generate(model, prompt, arm=ARM, max_new_tokens=TOKENS)
    options = command_options(models, "--html", page, "--prompt", prompt)
    run_main("evaluate/answer.py", *options)
    assert capsys.readouterr().out == made.text + "\n"
    text = page.read_text(encoding="utf-8")
    (data,) = json.loads(re.search('<script[^>]* id="answer-data">(.*?)</script>', text)[1])
    (question,) = data["questions"]
    ((turn,),) = question["answers"]
    assert data["greedy"] and not data["own"]
    assert question["prompts"] == [prompt] and prompt not in text
    # characters of several tokens and the stop token are shown as in the text
    assert "".join(text for text, _ in turn["parts"]) == made.text
    emitted = [token for r in turn["rounds"] for token in r["emitted"]]
    assert [token["token"] for token in emitted] == made.tokens[1:]
    assert [token["source"] == "fuzzy" for token in emitted] == made.fuzzy[1:]
