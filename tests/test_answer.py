"""The answer to one prompt: which of its tokens were fuzzy, and how they are shown."""

import re
import time

import pytest
import torch
from commands import load_command, model_options

import eagle_fsd
from eagle_fsd.arms import parse_arm
from eagle_fsd.config import SamplingConfig, TreeConfig
from eagle_fsd.decoding.loop import Round
from eagle_fsd.evaluation.answering import answer_prompt

answer = load_command("evaluate/answer.py")
ARM, PROMPT, TOKENS = "random:0.7", "Hello", 30


@torch.inference_mode()
def test_fuzzy_says_it_of_every_token(models):
    """One flag a token, over rounds and the trimming at the budget: what is not the argmax of the
    target's own forward over the whole answer."""
    target, head = map(str, models)
    tree = TreeConfig(7, 3, 3)
    model = eagle_fsd.load(target, head=head, tree=tree, dtype="float32", keep_stock=True)
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


def test_the_clock_stands_still_while_a_step_is_watched(models):
    """What taking down a trace costs is no time of the answer's."""
    target, head = map(str, models)
    model = eagle_fsd.load(target, head=head, tree=TreeConfig(7, 3, 3), dtype="float32")
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


def test_a_stream_holds_back_what_may_become_a_stop_string(models):
    """Its pieces are the text, which ends in front of the string; tokens are plain's."""
    model = eagle_fsd.load(str(models[0]), head=None, dtype="float32")
    settings = {"arm": "plain", "max_new_tokens": TOKENS}
    plain = eagle_fsd.generate(model, PROMPT, **settings)
    for at in range(0, len(plain.text) - 4, 3):
        string = plain.text[at : at + 4]
        before = plain.text[: plain.text.index(string)]
        steps = list(eagle_fsd.stream(model, PROMPT, stop_strings=string, **settings))
        answer = steps[-1][1]
        assert answer.finish == "stop" and answer.tokens == plain.tokens[: len(answer.tokens)]
        assert "".join(piece for piece, _ in steps) == answer.text == before, string


def test_a_terminal_shows_fuzzy_tokens_in_color(models, capsys, monkeypatch):
    """Forced here; the text is the same without the color, and a pipe gets none."""
    options = [*model_options(models), "--prompt", PROMPT, "--arm", ARM, "--max_new_tokens", TOKENS]
    options = list(map(str, options))
    answer.main(options)
    piped = capsys.readouterr()
    monkeypatch.setenv("FORCE_COLOR", "1")
    answer.main(options)
    colored = capsys.readouterr().out
    assert answer.FUZZY not in piped.out  # random tokens may have an escape of their own
    assert colored.replace(answer.FUZZY, "").replace(answer.END, "") == piped.out
    shown = re.findall(re.escape(answer.FUZZY) + "(.+?)" + re.escape(answer.END), colored, re.S)
    assert 0 < len(shown) <= int(re.search(r"(\d+) fuzzy", piped.err)[1])


@pytest.mark.parametrize("first, wanted", [(0, "a[bc]d[ef]"), (2, "[c]d[ef]"), (6, "")])
def test_marking_goes_on_where_the_text_was(first, wanted):
    """Spans before the new text, across its beginning, within it and up to its end."""
    marked = answer.marked("abcdef", [[1, 3], [4, 6]], first)
    assert marked.replace(answer.FUZZY, "[").replace(answer.END, "]") == wanted


def test_the_command_tells_what_it_cost(call, models):
    """Answers of exact arms are plain's."""
    options = [*model_options(models), "--max_new_tokens", 9, "--prompt"]
    texts = {}
    for arm in ("plain", "exact"):
        text, cost = call("evaluate/answer.py", *options, "Hello", "--arm", arm).rsplit("[", 1)
        assert cost.startswith("9 tokens in ") and ("per round" in cost) == (arm == "exact")
        texts[arm] = text.split("Loading")[0]  # a progress bar on standard error
    assert texts["plain"] == texts["exact"]
