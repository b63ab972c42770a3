"""What validation counts, against one position and one tree at a time.

Axes: B dialogues, T positions, L tokens of a dialogue, F features, D hidden size.
"""

import pytest
import torch
from reference_unroll import slow_unroll
from tiny import prompt_tokens, tiny_head, tiny_target
from tiny_eagle3 import draft_tokens, fused_target, tiny_head3

from eagle_fsd.config import TreeConfig
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.training.data import Batches, Dialogue
from eagle_fsd.training.features import TargetStates
from eagle_fsd.training.validate import (
    accuracy_by_depth,
    answer_spans,
    expected_tokens_per_round,
)

DEPTH = 3


def setting(kind: str):
    """A target and a head that is right often enough to count."""
    if kind == "eagle3":
        return fused_target(), tiny_head3(draft_vocab_size=37)
    target = tiny_target("llama")
    size = 37 if kind == "eagle part" else None
    head = tiny_head(target, scale=0.3, draft_vocab_size=size)
    if size:
        head.set_draft_tokens(draft_tokens(size))
    return target, head


def answered(target, length: int, more: int, *, seed: int) -> Dialogue:
    """A prompt, and what the target says to it greedily."""
    ids = prompt_tokens(length, seed=seed)
    with torch.no_grad():
        for _ in range(more):
            ids.append(target.model(torch.tensor([ids])).logits[0, -1].argmax().item())
    return Dialogue(ids, [False] * length + [True] * more)


@pytest.mark.parametrize("kind", ["eagle", "eagle part", "eagle3"])
@pytest.mark.parametrize("at_once", [1, 5])
@torch.no_grad()
def test_accuracy_counts_one_position_at_a_time(kind, at_once):
    """Level s at position i: root i - s + 1, at or behind the token before an answer."""
    target, head = setting(kind)
    made = [answered(target, 3 + n, 5 + 2 * n, seed=n) for n in range(5)]
    # a dialogue of two turns
    made[2] = Dialogue(made[2].ids, [False] * 4 + [True] * 4 + [False] * 3 + [True] * 3)
    states = TargetStates(target, [*made, made[0]])
    batches = Batches(
        states.dialogues,
        states.rows,
        hidden_size=target.hidden_size,
        tokens_per_batch=50,
        held_out=5,
        seed=0,
    )
    got = accuracy_by_depth(head, batches.validation(at_once), target, depth=DEPTH)
    hits, count = torch.zeros(2, DEPTH), torch.zeros(DEPTH)
    tokens = range(target.vocab_size) if head.d2t is None else head.draft_token_R.tolist()
    rows = target.lm_head.weight if head.lm_head is None else head.lm_head.weight
    for dialogue in (batches.dialogues[i] for i in batches.held_out):
        ids_1L = torch.tensor([dialogue.ids])
        hidden_1LD, features_1LF = target.hidden_and_features(ids_1L, use_cache=False)
        wanted_L = target.logits(hidden_1LD[0]).argmax(-1)
        embedding_1LD = target.embed(ids_1L[0, 1:])[None]
        own = dialogue.mask
        for root in range(len(own) - 2):
            if not own[root + 2]:
                continue
            levels = min(DEPTH, len(own) - 2 - root)
            out_S1D = slow_unroll(head, features_1LF[:, :-1], embedding_1LD, root, levels)
            for s in range(levels):
                if not own[root + 2 + s]:
                    continue
                if rows is target.lm_head.weight and head.d2t is not None:
                    logits = head.normed(out_S1D[s]) @ rows[head.draft_token_R].T
                else:
                    logits = head.normed(out_S1D[s]) @ rows.T
                best = [tokens[r] for r in logits[0].topk(8).indices.tolist()]
                wanted = wanted_L[root + s + 1].item()
                hits[0, s] += best[0] == wanted
                hits[1, s] += wanted in best
                count[s] += 1
    assert got["positions"] == count.tolist() and count.min() > 3
    assert got["top1"] == pytest.approx((hits[0] / count).tolist(), abs=1e-6)
    assert got["top8"] == pytest.approx((hits[1] / count).tolist(), abs=1e-6)
    assert hits[1].sum() > 0


@pytest.mark.parametrize("kind", ["eagle", "eagle part", "eagle3"])
@pytest.mark.parametrize("tree", [TreeConfig(3, 3, 1), TreeConfig(15, 3, 6)], ids=str)
@torch.no_grad()
def test_tokens_per_round_are_what_decoding_emits(kind, tree):
    """Round by round with a drafter, over the target's own greedy answers, from every root that
    has a whole tree's depth of answer left."""
    target, head = setting(kind)
    dialogues = [answered(target, 4 + n, 20 + 3 * n, seed=n) for n in range(3)]
    features = TargetStates(target, dialogues).rows(range(3))
    features = [f[:, : f.shape[1] * 3 // 4] if kind == "eagle3" else f for f in features]
    got = expected_tokens_per_round(head, target, dialogues, features, tree)
    tokens = rounds = 0
    for dialogue, feature_LF in zip(dialogues, features, strict=True):
        ids_L = torch.tensor(dialogue.ids)
        root, end = dialogue.mask.index(True), len(dialogue.ids)
        while root < end - tree.tree_depth:
            drafter = EagleDrafter(head, target, tree)
            drafter.reset(64)
            drafter.observe(feature_LF[:root], ids_L[1 : root + 1])
            drafted = drafter.propose()
            node, taken = 0, 0
            while taken < tree.tree_depth:
                wanted = dialogue.ids[root + taken + 1]
                fitting = [
                    n
                    for n in range(1, drafted.size)
                    if drafted.parent_N[n] == node and drafted.token_N[n] == wanted
                ]
                if not fitting:
                    break
                node, taken = fitting[0], taken + 1
            tokens, rounds, root = tokens + taken + 1, rounds + 1, root + taken + 1
    assert got == pytest.approx(tokens / rounds)


def test_no_answer_long_enough_is_none():
    """A tree deeper than every answer: no figure, rather than a division by zero."""
    target, head = setting("eagle")
    dialogue = answered(target, 4, 2, seed=0)
    rows = TargetStates(target, [dialogue]).rows([0])
    tree = TreeConfig(3, 3, 1)
    assert expected_tokens_per_round(head, target, [dialogue], rows, tree) is None


@pytest.mark.parametrize(
    ("mask", "spans"),
    [("011001", [(1, 3), (5, 6)]), ("000", []), ("111", [(0, 3)]), ("10", [(0, 1)])],
)
def test_answer_spans(mask, spans):
    """Every run of the assistant's tokens, the last one included."""
    dialogue = Dialogue([0] * len(mask), [m == "1" for m in mask])
    assert answer_spans(dialogue) == spans
