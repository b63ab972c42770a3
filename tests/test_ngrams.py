"""Continuations of n-grams, drafted alone or beside a head's. Exact decoding with both:
test_matrix.py."""

import math
from dataclasses import replace
from functools import cache, partial, reduce
from itertools import product

import pytest
import torch
from answers import run
from reference_tree import paths
from tiny import prompt_tokens, target_and_head, tiny_target

from eagle_fsd.config import TreeConfig
from eagle_fsd.decoding.tree import DraftTree, RootDrafter
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.drafters.hybrid import BRANCH, HybridDrafter
from eagle_fsd.drafters.ngram import DEEPEST, RECYCLED, NgramDrafter, NgramTable, sureness
from eagle_fsd.drafters.settings import MOST_RECYCLED, NgramSettings
from eagle_fsd.models.loaded import Model
from eagle_fsd.rules.fsd import Fsd

TREE = TreeConfig(12, 3, 4)


# --- the table ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, context, offers",
    [
        ([5, 6, 7, 5, 6], (5, 6), {7: [(2, 1, 0, False)]}),  # 5 6 went on with 7 once
        ([5, 6, 7, 8, 6], (8, 6), {7: [(1, 1, 0, False)]}),  # 8 6 is new, 6 is not
        ([5, 6, 5, 6, 5, 7], (5,), {6: [(1, 2, 1, False)], 7: [(1, 1, 0, True)]}),  # the frequent
        ([5, 6, 5, 7], (5,), {7: [(1, 1, 1, False)], 6: [(1, 1, 0, True)]}),  # the later of two
        # the longer first, and no token twice; 6 alone went on with 9, 7 and 8
        (
            [5, 6, 7, 6, 8, 6, 9, 5, 6],
            (5, 6),
            {7: [(2, 1, 0, False)], 9: [(1, 1, 1, True)], 8: [(1, 1, 0, True)]},
        ),
        ([5], (5,), {}),
    ],
)
def test_what_followed(text, context, offers):
    """An offer is right where those before it are wrong, with its own sureness."""
    table = NgramTable(2, text[0])
    table.extend(text[1:])
    assert table.last == tuple(text[-2:])
    want, left = {}, 1.0
    for token, ((matched, *counts),) in offers.items():
        want[token] = left * sureness(matched, *counts)
        left -= want[token]
    found = table.after(context, 9)
    assert found == pytest.approx(want)
    assert list(found) == sorted(want, key=lambda token: -want[token])
    assert list(table.after(context, 1)) == list(found)[:1]


def test_the_target_s_own_tokens_stand_behind_the_text_s():
    """Those of two tokens before what one token went on with; a later row replaces an earlier."""
    table = NgramTable(3, 5)
    table.extend([6, 7, 8, 6, 9])
    table.learn((1, 5, 6), (30, 31))
    table.learn((5, 6), (7, 40, 41))
    left = 1 - sureness(2, 1, 0, False)
    found = table.after((2, 5, 6), 9)
    assert found[7] == sureness(2, 1, 0, False)
    assert [found[40], found[41]] == pytest.approx([left * RECYCLED[2], left * RECYCLED[2] / 2])
    assert found[9] == pytest.approx((left - found[40] - found[41]) * sureness(1, 1, 0, True))
    assert set(found) == {7, 9, 40, 41} and sum(found.values()) < 1
    assert set(table.after((6,), 9)) == {9, 7, 40, 41}
    full = tuple(range(50, 50 + MOST_RECYCLED))
    table.learn((8, 6), full)
    assert set(table.after((8, 6), 99)) >= set(full)
    assert 0.9 < sum(table.after((8, 6), 99).values()) < 1


# --- alone ----------------------------------------------------------------------------------------

LOOKUPS = {  # text, settings, what is drafted
    # 5 6 7 went on with 8; the shorter 6 7 and 7 went on with 9 more recently
    "longest": ([5, 6, 7, 8, 1, 6, 7, 9, 2, 5, 6, 7], (4,), [8, 1, 6, 7]),
    # read on into its own drafts; without that a loop would draft one token
    "loop": ([1, 2, 3, 1, 2, 3], (7,), [1, 2, 3, 1, 2, 3, 1]),
    "nothing alike": ([4, 5, 6, 7], (), []),
}


llama = cache(partial(tiny_target, "llama"))


def ngram(num_draft_tokens: int = 10, max_ngram: int = 3, **rest) -> NgramDrafter:
    """A drafter for the target llama()."""
    settings = NgramSettings(num_draft_tokens, max_ngram, **rest)
    return settings.build(Model(llama(), None, RootDrafter()))


def told(drafter: NgramDrafter, text: list[int]) -> NgramDrafter:
    drafter = drafter.begin(99, text[0])
    drafter.observe(torch.empty(len(text) - 1, 0), text[1:])
    return drafter


@pytest.mark.parametrize("text, settings, drafts", LOOKUPS.values(), ids=LOOKUPS)
def test_one_continuation_is_look_up(text, settings, drafts):
    """A chain; every node has the one offer as its distribution."""
    drafter = told(ngram(*settings, branch=1, keep=0, recycle=0), text)
    tree = drafter.propose()
    assert tree.token_N.tolist() == [text[-1], *drafts]
    assert tree.parent_N.tolist() == [0, *range(len(drafts))]
    assert tree.max_depth == tree.depth_N.max() and tree.size <= drafter.max_nodes
    for node, token in enumerate(drafts):
        row_R = tree.draft_logits_ER[tree.draft_row_N[node]].softmax(-1)
        assert row_R[tree.draft_token_R == token] == 1


def reference(
    text: NgramTable, branch: int, *, keep: float = 0, heads: DraftTree | None = None
) -> list[tuple[int, ...]]:
    """All paths below the root that are worth a look, the likeliest first."""
    chances: dict[tuple[int, ...], float] = {}

    def walk(path: tuple[int, ...], own: int | None, chance: float) -> None:
        if path:
            chances[path] = chance
        if chance < 3e-4 or len(path) == DEEPEST:
            return
        wrong = {}
        for node in range(1, heads.size if heads and own is not None else 0):
            if heads.parent_N[node] == own:
                row_R = heads.draft_logits_ER[heads.draft_row_N[own]].double().softmax(-1)
                token = heads.token_N[node].item()
                wrong[token] = (1 - row_R[heads.draft_token_R == token].item(), node)
        for step, sure in text.after(reduce(text.follow, path, text.last), branch).items():
            before, node = wrong.get(step, (1.0, None))
            wrong[step] = (before * (1 - sure), node)
        for step, (share, node) in wrong.items():
            if chance * (1 - share) >= keep:
                walk((*path, step), node, chance * (1 - share))

    walk((), 0, 1.0)
    return sorted(chances, key=lambda path: (-chances[path], len(path)))


def paths_of(tree: DraftTree) -> list[tuple[int, ...]]:
    assert (tree.parent_N[1:] < torch.arange(1, tree.size)).all()
    return paths(tree.token_N.tolist(), tree.parent_N.tolist())[1:]


def test_the_likeliest_are_taken_down_to_the_price():
    """As a reference that lists all paths whose probability is not below `keep`."""
    text = [1, 2, 3, 1, 4, 3, 1, 2, 5, 1, 2, 6, 3, 1, 2]
    widths = set()
    for most, keep, branch in product((3, 7, 15, 23), (0, 0.1, 0.4), (1, 2, 4)):
        drafter = told(ngram(most, branch=branch, keep=keep), text)
        nodes = drafter.propose().size
        drafter.observe(torch.empty(0, 0), [], -torch.arange(12.0).repeat(nodes, 1))
        tree = drafter.propose()
        want = reference(drafter._text, branch, keep=keep)[:most]
        assert set(paths_of(tree)) == set(want)
        widths.add(tree.size)
        # a row sums to one over its offers, and gives every child something
        distribution_ER = tree.draft_logits_ER.double().softmax(-1)
        for node in range(1, tree.size):
            row = tree.draft_row_N[tree.parent_N[node]]
            assert row >= 0 and distribution_ER[row, tree.draft_token_R == tree.token_N[node]] > 0
    assert len(widths) > 4


def test_rejected_nodes_teach():
    """The target's own tokens after a draft that it did not take are offered there next time; the
    next answer begins anew."""
    target, prompt, drafter = llama(), prompt_tokens(9), ngram(15)
    first, second = (run(target, drafter, prompt, budget=60) for _ in range(2))
    assert first == second
    drafter = told(ngram(7, keep=0), [1, 2, 1])
    assert drafter.propose().token_N.tolist() == [1, *[2, 1] * 3, 2]
    logits_NV = torch.zeros(8, 12)
    logits_NV[0, 5] = logits_NV[1::2, 7] = 9.0
    drafter.observe(torch.empty(3, 0), [5, 1, 2], logits_NV)
    assert 7 in drafter.propose().token_N.tolist()


# --- hybrid trees ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_the_likeliest_drafts_are_taken(seed):
    """As a reference that lists all of them; what hangs below a continuation has no draft row."""
    target, head = target_and_head("eagle, 37 tokens", seed=seed)
    keep = 0.1 * (seed % 2)
    alone = EagleDrafter(head, target, replace(TREE, keep=keep))
    hybrid = HybridDrafter(alone.with_tree(alone.tree_config))
    prompt = 3 * prompt_tokens(5, seed=seed)
    _, features_LF = target.prefill(target.begin(len(prompt) + 20), torch.tensor(prompt))
    hybrid, alone = (drafter.begin(40, 2) for drafter in (hybrid, alone))
    for drafter in (hybrid, alone):
        drafter.observe(features_LF[:-1], prompt[1:])
    tree, heads = hybrid.propose(), alone.propose()
    found = paths_of(tree)
    assert len(set(found)) == len(found) and (keep or len(found) == TREE.num_draft_tokens)
    text = NgramTable(3, prompt[0])
    text.extend(prompt[1:])
    wanted = reference(text, BRANCH, keep=keep, heads=heads)
    assert set(found) == set(wanted[: TREE.num_draft_tokens])
    rows = dict(zip(paths_of(heads), heads.draft_row_N[1:].tolist(), strict=True))
    assert tree.draft_row_N[1:].tolist() == [rows.get(path, -1) for path in found]
    assert not set(found) <= set(rows)  # the text repeats itself
    assert tree.max_depth == tree.depth_N.max()


def test_what_repeats_is_accepted():
    """Tiny models fall into loops, which the head does not see coming; fsd takes other tokens on
    these trees too."""
    target, head = target_and_head("eagle3, 37 tokens")
    eagle, prompt = EagleDrafter(head, target, TREE), prompt_tokens(9)
    drafters = eagle, HybridDrafter(eagle), HybridDrafter(eagle, recycle=8)
    greedy = [run(target, d, prompt, budget=60).tokens_per_round for d in drafters]
    assert greedy[0] < greedy[1] != greedy[2]
    assert run(target, drafters[1], prompt, rule=Fsd(math.inf), budget=40).fuzzy_share > 0
