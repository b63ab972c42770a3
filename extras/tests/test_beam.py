"""extras/beam.py: beam search on draft trees is transformers' own, token for token."""

import sys

import pytest
import torch
from answers import TREES
from beam import BeamAnswer, BeamConfig, main, search
from commands import model_options
from tiny import prompt_tokens, tiny_head, tiny_target
from tiny_folder import write_random_head, write_target

from eagle_fsd.decoding.loop import StopConfig
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import Drafter, RootDrafter
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.drafters.language_model import LanguageModelDrafter

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


@pytest.mark.parametrize(("family", "numbers"), [("llama", (1, 4)), ("gemma3", (2,))])
def test_the_answer_is_that_of_generate(family, numbers):
    """With its score, for every number of beams, length penalty and way to stop, whatever is
    drafted; beams that end at stop tokens occur, and drafts save forwards."""
    target = tiny_target(family, seed=3)
    rounds, stopped = dict.fromkeys(by_name := drafters(target), 0), 0
    whole = by_beams(target, RootDrafter(), prompt_tokens(9, seed=9), 4).tokens
    ends = (whole[4], whole[13])
    for beams in numbers:
        for penalty, early, length in SETTINGS:
            prompt = prompt_tokens(length, seed=length)
            theirs = target.model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, length),
                do_sample=False,
                num_beams=beams,
                max_new_tokens=BUDGET,
                **({"length_penalty": penalty, "early_stopping": early} if beams > 1 else {}),
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
                if beams > 1:
                    assert got.score == pytest.approx(theirs.sequences_scores[0].item(), rel=1e-4)
                assert name != "plain" or got.rounds == got.levels - 1
                rounds[name] += got.rounds
    assert 0 < stopped
    assert rounds["language_model"] < 0.9 * rounds["plain"] and rounds["eagle"] <= rounds["plain"]


def test_the_command_answers_by_beams(tmp_path, monkeypatch, capsys):
    """The same text with drafts and without, and its cost."""
    models = write_target(tmp_path / "target", layers=2), write_random_head(tmp_path / "head")
    options = [*model_options(models), "--prompt", "Hello", "--max_new_tokens", 12, "--beams", 3]
    told = []
    for arm in ("plain", "exact"):
        monkeypatch.setattr(sys, "argv", ["beam.py", *map(str, options), "--arm", arm])
        main()
        told.append(capsys.readouterr().out)
    plain, exact = (text.split("\n[")[0] for text in told)
    assert plain == exact and "11 rounds]" in told[0]
