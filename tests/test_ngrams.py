"""Continuations of n-grams, drafted alone or beside a head's; decoding with both is plain's."""

import math

import pytest
import torch
from answers import EXACT, run
from reference_tree import paths
from tiny import prompt_tokens, target_and_head, tiny_target

from eagle_fsd.config import BadInput, TreeConfig
from eagle_fsd.decoding.drafter import RootDrafter
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.drafters.continuations import Continuations, sureness
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.drafters.hybrid import DEEPEST, HybridDrafter, HybridSettings
from eagle_fsd.models.loaded import Model
from eagle_fsd.rules.fsd import Fsd

TREE = TreeConfig(12, 3, 4)


@pytest.mark.parametrize(
    "text, context, known",
    [
        ([5, 6, 7, 5, 6], (5, 6), (7, 2, 1, False)),  # 5 6 went on with 7 once
        ([5, 6, 7, 8, 6], (8, 6), (7, 1, 1, False)),  # 8 6 is new, 6 is not
        ([5, 6, 5, 6, 5, 6], (5,), (6, 1, 3, False)),
        ([5, 6, 5, 6, 5, 7], (5,), (7, 1, 1, True)),  # and never before
        ([5, 6, 5, 7, 5, 7], (5,), (7, 1, 2, True)),
        ([5, 6], (7,), None),
        ([], (5,), None),
    ],
)
def test_what_followed(text, context, known):
    continuations = Continuations(2)
    continuations.extend(text)
    assert continuations.last == tuple(text[-2:])
    said = known and (known[0], sureness(*known[1:]))
    assert continuations.after(context) == said


def test_longer_and_more_frequent_is_surer():
    for changed in (False, True):
        for matched in (1, 2, 3):
            sure = [sureness(matched, times, changed) for times in (1, 2, 4, 9)]
            assert 0 < sure[0] < sure[1] < sure[2] == sure[3] < 1
            assert sure[1] < sureness(matched + 1, 2, changed)
            assert sureness(matched, 2, True) <= sure[1]


# --- look-up --------------------------------------------------------------------------------------

LOOKUPS = {  # text, settings, what is drafted
    # 5 6 7 went on with 8; the shorter 6 7 and 7 went on with 9 more recently
    "longest": ([5, 6, 7, 8, 1, 6, 7, 9, 2, 5, 6, 7], (4,), [8, 1, 6, 7]),
    "at most max_ngram": ([5, 6, 7, 8, 1, 6, 7, 9, 2, 5, 6, 7], (4, 2), [9, 2, 5, 6]),
    "most recent": ([4, 8, 4, 9, 4], (2,), [9, 4]),
    # read on into its own drafts; without that a loop would draft one token
    "at the end": ([3, 3], (4,), [3] * 4),
    "loop": ([1, 2, 3, 1, 2, 3], (7,), [1, 2, 3, 1, 2, 3, 1]),
    "nothing before": ([4], (), []),
    "nothing alike": ([4, 5, 6, 7], (), []),
    "the last of two alike": ([4, 8, 1, 4, 9, 2, 4, 8, 3, 4], (5, 3), [8, 3, 4, 8, 3]),
}


def lookup(num_draft_tokens: int = 10, max_ngram: int = 3) -> HybridDrafter:
    return HybridDrafter(None, max_ngram, num_draft_tokens)


@pytest.mark.parametrize("text, settings, drafts", LOOKUPS.values(), ids=LOOKUPS)
def test_what_look_up_drafts(text, settings, drafts):
    """A chain without draft distributions."""
    drafter = lookup(*settings)
    drafter.observe(torch.empty(len(text), 0), text)
    tree = drafter.propose()
    assert tree.token_N.tolist() == [text[-1], *drafts]
    assert tree.parent_N.tolist() == [0, *range(len(drafts))]
    assert tree.max_depth == tree.depth_N.max() and tree.size <= drafter.max_nodes
    assert tree.draft_logits_ER.shape[0] == 0 and (tree.draft_row_N == -1).all()


@pytest.mark.parametrize("settings", [{}, {"num_draft_tokens": 3, "max_ngram": 1}])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_look_up_is_plain_decoding(family, settings):
    """Token for token, by `fsd` too: D is NaN and never passes, at any threshold. A tiny greedy
    model falls into a loop; what it repeats is drafted."""
    target, drafter = tiny_target(family), lookup(**settings)
    prompt = prompt_tokens(9)
    prompt += 2 * run(target, RootDrafter(), prompt, budget=40).tokens
    for temperature in (0.0, 1.0):
        settings = {"temperature": temperature, "budget": 40}
        plain = run(target, RootDrafter(), prompt, **settings)
        for rule in (EXACT, Fsd(math.inf)):
            found = run(target, drafter, prompt, rule=rule, **settings)
            assert found.tokens == plain.tokens and found.fuzzy_share == 0
            assert temperature > 0 or found.tokens_per_round > 1


# --- hybrid trees ---------------------------------------------------------------------------------


def reference(tree: DraftTree, text: Continuations, most: int) -> list[tuple[int, ...]]:
    """The likeliest paths below the root, from a list of all that are worth a look."""
    distribution_ER = tree.draft_logits_ER.double().softmax(-1)
    token, parent = tree.token_N.tolist(), tree.parent_N.tolist()
    columns = tree.draft_token_R.tolist()
    chances: dict[tuple[int, ...], float] = {}

    def walk(path: tuple[int, ...], own: int | None, chance: float) -> None:
        if path:
            chances[path] = chance
        if chance < 1e-3 or len(path) == DEEPEST:
            return
        wrong = {}
        for node in range(1, len(token)):
            if own is not None and parent[node] == own:
                column = columns.index(token[node])
                said = distribution_ER[tree.draft_row_N[own], column].item()
                wrong[token[node]] = (1 - said, node)
        context = text.last
        for step in path:
            context = text.follow(context, step)
        if known := text.after(context):
            before, node = wrong.get(known[0], (1.0, None))
            wrong[known[0]] = (before * (1 - known[1]), node)
        for step, (share, node) in wrong.items():
            walk((*path, step), node, chance * (1 - share))

    walk((), 0, 1.0)
    return sorted(chances, key=lambda path: -chances[path])[:most]


def paths_of(tree: DraftTree) -> list[tuple[int, ...]]:
    assert (tree.parent_N[1:] < torch.arange(1, tree.size)).all()
    return paths(tree.token_N.tolist(), tree.parent_N.tolist())[1:]


@pytest.mark.parametrize("seed", range(4))
def test_the_likeliest_drafts_are_taken(seed):
    """As a reference that lists all of them; what hangs below a continuation has no draft row."""
    target, head = target_and_head("eagle, 37 tokens", seed=seed)
    hybrid = HybridDrafter(EagleDrafter(head, target, TREE))
    alone = EagleDrafter(head, target, TREE)
    prompt = 3 * prompt_tokens(5, seed=seed)
    _, features_LF = target_started(target, prompt)
    for drafter in (hybrid, alone):
        drafter.reset(40, 2)
        drafter.observe(features_LF[:-1], prompt[1:])
    tree, heads = hybrid.propose(), alone.propose()
    found = paths_of(tree)
    assert len(set(found)) == len(found) == TREE.num_draft_tokens
    text = Continuations(3)
    text.extend(prompt[1:])
    assert set(found) == set(reference(heads, text, TREE.num_draft_tokens))
    rows = dict(zip(paths_of(heads), heads.draft_row_N[1:].tolist(), strict=True))
    assert tree.draft_row_N[1:].tolist() == [rows.get(path, -1) for path in found]
    assert not set(found) <= set(rows)  # the text repeats itself
    assert tree.max_depth == tree.depth_N.max()


def target_started(target, prompt):
    target.start(len(prompt) + 20)
    return target.prefill(torch.tensor(prompt))


@pytest.mark.parametrize("name, family", [("eagle", "gemma3"), ("eagle3, 37 tokens", "llama")])
def test_output_is_plain_decoding(name, family):
    """Of exact, at any temperature; fsd above 0 takes other tokens, with the hybrid's trees too."""
    target, head = target_and_head(name, family=family)
    hybrid = HybridDrafter(EagleDrafter(head, target, TREE))
    prompt = prompt_tokens(9)
    for temperature in (0.0, 1.0):
        plain = run(target, RootDrafter(), prompt, temperature=temperature, budget=40)
        found = run(target, hybrid, prompt, temperature=temperature, budget=40)
        assert found.tokens == plain.tokens and found.fuzzy_share == 0
    assert run(target, hybrid, prompt, rule=Fsd(math.inf), budget=40).fuzzy_share > 0
    # tiny models fall into loops, which the head does not see coming
    greedy = [run(target, d, prompt, rule=EXACT, budget=60) for d in (hybrid, hybrid.eagle)]
    assert greedy[0].tokens == greedy[1].tokens
    assert greedy[0].tokens_per_round > greedy[1].tokens_per_round


def test_a_model_without_a_head_is_refused():
    target, _ = target_and_head("eagle")
    for tree in ("", "7x3x4"):
        with pytest.raises(BadInput, match="head"):
            HybridSettings(tree).build(Model(target, None, RootDrafter()))
