"""Beam search on draft trees is transformers' own, token for token."""

import pytest
import torch
from answers import TREES
from commands import model_options
from tiny import prompt_tokens, tiny_head, tiny_target
from tiny_recurrent import KINDS, hybrid_target

import eagle_fsd
from eagle_fsd.beam import BeamAnswer, BeamConfig, search
from eagle_fsd.config import BadInput
from eagle_fsd.decoding.loop import StopConfig
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import Drafter, RootDrafter
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.drafters.language_model import LanguageModelDrafter
from eagle_fsd.models.generate import rescore

BUDGET = 20
# length penalty, early stopping, tokens of the prompt
SETTINGS = [(1.0, False, 9), (0.0, "never", 9), (2.0, "never", 1), (2.0, True, 9)]


def drafters(target: Target) -> dict[str, Drafter]:
    """What drafts most of the beams, one of them, or none."""
    pair = target.first_layers(target.num_layers - 1)
    return {
        "language_model": LanguageModelDrafter(pair, target, TREES[2]),
        "eagle": EagleDrafter(tiny_head(target), target, TREES[1]),
        "plain": RootDrafter(),
    }


def by_beams(target: Target, drafter: Drafter, prompt: list[int], *config, ends=()) -> BeamAnswer:
    return search(target, drafter, prompt, StopConfig(BUDGET, ends), BeamConfig(*config))


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3"])
def test_the_answer_is_that_of_generate(family):
    """With its score, for every number of beams, length penalty and way to stop, whatever is
    drafted; beams that end at stop tokens occur, and drafts save forwards."""
    target = tiny_target(family, seed=3)
    rounds, stopped = dict.fromkeys(by_name := drafters(target), 0), 0
    whole = by_beams(target, RootDrafter(), prompt_tokens(9, seed=9), 4).tokens
    ends = (whole[4], whole[13])
    for beams in (2, 4, 8):
        for penalty, early, length in SETTINGS:
            prompt = prompt_tokens(length, seed=length)
            theirs = target.model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, length),
                do_sample=False,
                num_beams=beams,
                max_new_tokens=BUDGET,
                length_penalty=penalty,
                early_stopping=early,
                eos_token_id=list(ends),
                pad_token_id=0,
                output_scores=True,
                return_dict_in_generate=True,
            )
            want = theirs.sequences[0, length:].tolist()
            stopped += want[-1] in ends
            for name, drafter in by_name.items():
                got = by_beams(target, drafter, prompt, beams, penalty, early, ends=ends)
                assert got.tokens == want, (name, beams, penalty, early)
                assert got.score == pytest.approx(theirs.sequences_scores[0].item(), rel=1e-4)
                assert name != "plain" or got.forwards_per_token == 1
                rounds[name] += got.rounds
    assert 0 < stopped
    assert rounds["language_model"] < 0.9 * rounds["plain"] and rounds["eagle"] <= rounds["plain"]


def test_one_beam_is_greedy_decoding():
    target, prompt = tiny_target("llama", seed=3), prompt_tokens(9)
    whole = target.model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=BUDGET)
    whole, drafter = whole[0, 9:].tolist(), drafters(target)["language_model"]
    got = by_beams(target, drafter, prompt, 1)
    assert got.tokens == whole and got.forwards_per_token < 1
    for place in range(BUDGET):  # also where another way would have a better score
        got = by_beams(target, drafter, prompt, 1, 2.0, "never", ends=(whole[place],))
        assert got.tokens == whole[: whole.index(whole[place]) + 1]


def test_fewer_beams_for_a_round_take_fewer_forwards():
    """The lower the share that has to be drafted, the fewer; the log-probability is the text's."""
    target = tiny_target("gemma3", seed=3)
    drafter, forwards = drafters(target)["language_model"], []
    for share in (1.0, 0.6, 0.0):
        answers = []
        for seed in range(6):
            prompt = prompt_tokens(9, seed=seed)
            answers.append(got := by_beams(target, drafter, prompt, 4, 1.0, False, share))
            assert got.score == pytest.approx(rescore(target, prompt, got.tokens)[1], abs=1e-4)
            assert got.logp == pytest.approx(got.score * len(got.tokens), rel=1e-5)
        forwards.append(sum(a.rounds for a in answers) / sum(a.levels - 1 for a in answers))
    assert forwards[0] > forwards[1] > forwards[2]


def test_what_beam_search_has_no_meaning_for_is_refused(models):
    target, head = map(str, models)
    model = eagle_fsd.load(target, head=head, dtype="float32")
    for named, settings in {
        "fsd:0.3": {"arm": "fsd:0.3"},
        "exact,no_repeat=3": {"arm": "exact,no_repeat=3"},
        "exact@hybrid": {"arm": "exact@hybrid"},
        "exact@eagle:5x3x4,sample=1": {"arm": "exact@eagle:5x3x4,sample=1"},
        "generate": {"arm": "generate"},
        "beams must be at least 1, got 0": {"beams": 0},
        "take fewer": {"beams": 500},
        "early_stopping": {"early_stopping": "maybe"},
        "got 1": {"early_stopping": 1},
        "share": {"share": 1.5},
        "length_penalty must be from -16 to 16, got nan": {"length_penalty": float("nan")},
        "got 1000": {"length_penalty": 1000},
    }.items():
        with pytest.raises(BadInput, match=named):
            eagle_fsd.beam_search(model, "Hello", **settings)
    recurrent = hybrid_target(KINDS[0])
    with pytest.raises(BadInput, match="recurrent layers"):
        by_beams(recurrent, RootDrafter(), prompt_tokens(5))


def test_the_command_answers_by_beams(models, call):
    """The same text with drafts and without, and its cost."""
    options = [*model_options(models), "--prompt", "Hello", "--max_new_tokens", 12, "--beams", 3]
    plain, exact = (call("evaluate/answer.py", *options, *arm) for arm in ([], ["--arm", "exact"]))
    assert plain.split("\n[")[0] == exact.split("\n[")[0]
    assert "1.00 forwards per token" in plain and "log-probability" in exact
