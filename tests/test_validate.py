"""Tokens per round of held-out answers, against one tree at a time.

Axes: L tokens of a dialogue, F features.
"""

import pytest
import torch
from tiny import prompt_tokens, tiny_head, tiny_target
from tiny_eagle3 import draft_tokens, fused_target, tiny_head3

from eagle_fsd.config import TreeConfig
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.training.data import Dialogue
from eagle_fsd.training.features import TargetStates
from eagle_fsd.training.validate import answer_spans, expected_tokens_per_round


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


def taken(drafted, answer: list[int]) -> int:
    """How far a tree follows an answer, node by node."""
    node = depth = 0
    while depth < len(answer):
        children = [n for n in range(1, drafted.size) if drafted.parent_N[n] == node]
        fitting = [n for n in children if drafted.token_N[n] == answer[depth]]
        if not fitting:
            break
        node, depth = fitting[0], depth + 1
    return depth


@pytest.mark.parametrize("kind", ["eagle", "eagle part", "eagle3"])
@pytest.mark.parametrize("tree", [TreeConfig(3, 3, 1), TreeConfig(15, 3, 6)], ids=str)
@torch.no_grad()
def test_tokens_per_round_are_what_decoding_emits(kind, tree):
    """Round by round with a drafter, over the target's own greedy answers, from every root that
    has a whole tree's depth of answer left; None where no answer has."""
    target, head = setting(kind)
    dialogues = [answered(target, 4 + n, 16 + 3 * n, seed=n) for n in range(2)]
    states = TargetStates(target)
    got = expected_tokens_per_round(head, states, dialogues, tree)
    tokens = rounds = 0
    for dialogue in dialogues:
        ((feature_LF, _),) = states.of([dialogue.ids])
        ids_L = torch.tensor(dialogue.ids)
        root, end = dialogue.mask.index(True), len(dialogue.ids)
        while root < end - tree.tree_depth:
            drafter = EagleDrafter(head, target, tree)
            drafter.reset(64)
            drafter.observe(feature_LF[:root], ids_L[1 : root + 1])
            wanted = dialogue.ids[root + 1 : root + 1 + tree.tree_depth]
            depth = taken(drafter.propose(), wanted)
            tokens, rounds, root = tokens + depth + 1, rounds + 1, root + depth + 1
    assert got == pytest.approx(tokens / rounds)
    short = [Dialogue(d.ids[:6], d.mask[:6]) for d in dialogues]
    assert expected_tokens_per_round(head, states, short, tree) is None


@pytest.mark.parametrize(
    ("mask", "spans"),
    [("011001", [(1, 3), (5, 6)]), ("000", []), ("111", [(0, 3)]), ("10", [(0, 1)])],
)
def test_answer_spans(mask, spans):
    """Every run of the assistant's tokens, the last one included."""
    dialogue = Dialogue([0] * len(mask), [m == "1" for m in mask])
    assert answer_spans(dialogue) == spans
