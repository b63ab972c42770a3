"""A second language model as drafter: its trees, the published FSD on a pair, and its names."""

from functools import cache, partial

import pytest
import torch
from answers import run
from reference_accept import slow_divergence
from reference_tree import assert_grown
from tiny import FAMILIES, prompt_tokens, random_model, tiny_target
from transformers import PreTrainedModel

from eagle_fsd.config import BadInput, TreeConfig
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import RootDrafter
from eagle_fsd.drafters.language_model import LanguageModelDrafter
from eagle_fsd.engine.select import ENGINES
from eagle_fsd.rules.fsd import FsdPaper

CHAIN = TreeConfig(5, 5, 1)


@torch.inference_mode()
@pytest.mark.parametrize(("family", "engine"), [("llama", "packed"), ("gemma3", "stock")])
def test_trees_are_what_the_model_says_path_by_path(family, engine):
    """Of the target's first two layers, and of a model of its own with fewer tokens, over rounds
    that commit 1 to 5 tokens, in two sequences; windows are shorter than the texts."""
    model, config = random_model(FAMILIES[family](), seed=4), FAMILIES[family]()
    config.vocab_size = 89
    other = random_model(config, seed=5)
    target = Target(model, engine=ENGINES[engine]())
    shorter = FAMILIES[family]()
    shorter.num_hidden_layers = 2
    if getattr(shorter, "layer_types", None):
        shorter.layer_types = shorter.layer_types[:2]
    cut = random_model(shorter, seed=4)
    cut.load_state_dict(model.state_dict(), strict=False)
    pairs = [(target.first_layers(2), cut)]
    pairs += [(Target(other, engine=ENGINES[engine]()), other)]
    generator = torch.Generator().manual_seed(5)
    for tree_config, (pair, stock) in zip((CHAIN, TreeConfig(12, 3, 4)), pairs, strict=True):
        drafter = LanguageModelDrafter(pair, target, tree_config)
        for length in (2, 11):
            text = prompt_tokens(length, seed=length, vocab_size=89)
            drafter = drafter.begin(60, text[0])
            drafter.observe(torch.empty(length - 1, 40), text[1:])
            for count in (0, 4, 5, 1):
                new = torch.randint(0, 89, (count,), generator=generator).tolist()
                if new:
                    drafter.observe(torch.empty(count, 40), new)
                    text += new
                tree = drafter.propose()
                logits_of = cache(lambda path, t=tuple(text), m=stock: after(m, [*t, *path]))
                assert_grown(tree, logits_of, tree_config, 1e-4)
                assert tree.token_N[0] == text[-1] and drafter.cache.length == len(text)
        reduced = stock is other
        assert (tree.draft_token_R is not None) == reduced
        assert not reduced or tree.draft_token_R.tolist() == list(range(89))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_that_the_draft_model_lacks_are_no_error(temperature):
    """Bug held down: where the target's table has more rows, a prompt or an answer with one of
    those tokens ended in an IndexError."""
    config = FAMILIES["llama"]()
    target, prompt = tiny_target("llama"), prompt_tokens(9, seed=1)
    config.vocab_size = 40
    assert max(prompt) >= 40
    drafter = LanguageModelDrafter(Target(random_model(config, seed=5)), target, CHAIN)
    asked = {"temperature": temperature, "seed": 3, "budget": 24}
    answer = run(target, drafter, prompt, **asked)
    assert answer.tokens == run(target, RootDrafter(), prompt, **asked).tokens
    assert max(answer.tokens[:-1]) >= 40  # which the drafter reads


def after(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    return model(torch.tensor([ids])).logits[0, -1]


def noisy_pair(family: str, noise: float) -> tuple[Target, Target]:
    """A target, and a draft of its weights with noise: near at some places, far at others."""
    models = [random_model(FAMILIES[family](), seed=6) for _ in range(2)]
    other = random_model(FAMILIES[family](), seed=7)
    for mine, far in zip(models[1].parameters(), other.parameters(), strict=True):
        mine.add_(noise * (far - mine))
    return Target(models[0]), Target(models[1])


@torch.inference_mode()
@pytest.mark.parametrize(("family", "noise"), [("llama", 0.3), ("gemma3", 0.5)])
def test_accepted_counts_follow_the_published_rule(family, noise):
    """Of a pair by github.com/maxholsman/fsd: five greedy drafts, each accepted while D <= T by
    js_div, the next token the target's; by stock forwards, and D in float64 to 1e-5."""
    target, draft = noisy_pair(family, noise)
    drafter, rule = (
        LanguageModelDrafter(draft, target, CHAIN),
        FsdPaper(0.3, "draft", "js_reference"),
    )
    prompt, accepted = prompt_tokens(9, seed=2), []
    got = run(target, drafter, prompt, rule=rule, budget=40)
    text = [*prompt, got.tokens[0]]
    for round_ in got.rounds:
        drafts = draft.model.generate(
            torch.tensor([text]), do_sample=False, max_new_tokens=5, pad_token_id=0
        )[0, len(text) :].tolist()
        count, judged = 0, []
        for place in range(5):
            rows = [after(m.model, text + drafts[:place]).tolist() for m in (target, draft)]
            judged.append(slow_divergence("js_reference", *rows))
            if judged[-1] > 0.3:
                break
            count += 1
        emitted = drafts[:count] + [int(after(target.model, text + drafts[:count]).argmax())]
        assert (round_.accepted_drafts, round_.tokens) == (count, emitted)
        assert round_.divergence[: len(judged)] == pytest.approx(judged, abs=1e-5)
        text += emitted
        accepted.append(count)
    assert len(set(accepted)) > 2


def test_a_draft_model_with_fewer_positions_ends_a_request_before_its_end():
    target, draft = tiny_target("llama"), tiny_target("llama", seed=1)
    draft.max_positions = 32
    drafter = LanguageModelDrafter(draft, target, CHAIN)
    answer = partial(run, target, drafter, prompt_tokens(9))
    assert len(answer(budget=23).tokens) == 23
    with pytest.raises(BadInput, match="33 tokens are beyond the draft model's 32 positions"):
        answer(budget=24)
