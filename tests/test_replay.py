"""Replay equals real decoding, round by round, for every kind of head and tree."""

import pytest
import torch
from tiny import prompt_tokens, tiny_head, tiny_target

from eagle_fsd.config import TreeConfig, parse_tree, tree_name
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode_rounds
from eagle_fsd.decoding.target import Target
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.evaluation.offline.replay import replay_text
from eagle_fsd.evaluation.offline.replay_metrics import level_rows, tree_row
from eagle_fsd.evaluation.offline.texts import PlainText, cut, open_texts, plain_texts
from eagle_fsd.heads.models import draft_readout
from eagle_fsd.rules.fsd import Exact

TREES = tuple(map(parse_tree, ("3x3x1", "7x3x4", "11x4x4", "23x5x3")))
BUDGET = 23
PROMPTS = {name: prompt_tokens(9, seed=seed) for seed, name in enumerate("abc")}


def fitted_head(head, target: Target, texts: list[PlainText], epochs: int):
    """Trained for a moment on the very texts, with noise: often right, and often not."""
    readout = draft_readout(head, target)
    outside = torch.full((target.vocab_size,), -1)
    token_R = head.draft_token_R
    kept_R = torch.arange(target.vocab_size) if token_R is None else token_R
    outside[kept_R] = torch.arange(kept_R.shape[0])
    ids = [torch.tensor(text.ids) for text in texts]
    features = [target.hidden_and_features(i[None], use_cache=False)[1] for i in ids]
    optimizer = torch.optim.Adam(head.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(epochs):
        for ids_L, feature_1LF in zip(ids, features, strict=True):
            noise = torch.randn(feature_1LF.shape, generator=generator) * feature_1LF.std()
            hidden = head(
                head.fuse(feature_1LF + 0.5 * noise)[:, :-2],
                target.embed(ids_L[1:-1])[None],
                torch.arange(ids_L.shape[0] - 2),
            )
            label = outside[ids_L[2:]]
            loss = torch.nn.functional.cross_entropy(readout(hidden[0]), label, ignore_index=-1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return head.eval().requires_grad_(False)


THREE = {"head_type": "eagle3", "feature_layers": (0, 1, 3)}
# family, head, epochs
CASES = {
    "mistral_sliding_reduced": ("mistral_sliding", {"draft_vocab_size": 67}, 5),
    "gemma3_eagle3": ("gemma3", THREE, 20),
    "qwen3_eagle3_reduced": ("qwen3", THREE | {"draft_vocab_size": 67}, 8),
}


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """A target, a fitted head as a drafter, and texts."""
    family, changes, epochs = CASES[request.param]
    target = tiny_target(family)
    if "feature_layers" in changes:
        target = Target(target.model, feature_layers=changes["feature_layers"])
    folder = tmp_path_factory.mktemp("texts")
    made = plain_texts(open_texts(folder, {}), target, PROMPTS, StopConfig(BUDGET))
    texts = list(made.values())
    head = tiny_head(target, seed=3, **changes)
    if "draft_vocab_size" in changes:
        said = torch.tensor([token for text in texts for token in text.answer]).unique()[:-3]
        others = torch.tensor([t for t in range(101) if t not in said])[: 67 - len(said)]
        head.set_draft_tokens(torch.cat([said, others]).sort().values)
    head = fitted_head(head, target, texts, epochs)
    return target, EagleDrafter(head, target, TREES[-1]), texts


def accepted_drafts(target, head, text: PlainText, tree: TreeConfig) -> list[int]:
    """Of every round, as they are decoded."""
    config = DecodeConfig(Policy(Exact()), StopConfig(BUDGET))
    steps = decode_rounds(target, EagleDrafter(head, target, tree), text.prompt, config)
    return [step.acceptance.accepted_drafts for step in steps if step.acceptance is not None]


def test_replay_equals_decoding_round_by_round(case, monkeypatch):
    """Accepted drafts of every round of every tree; heads hit often enough for it to mean much.
    Batches bound the memory and change nothing."""
    target, drafter, texts = case
    seen = []
    for text in texts:
        record = replay_text(drafter, text, TREES)
        for tree in TREES:
            accepted = accepted_drafts(target, drafter.head, text, tree)
            assert record["trees"][tree_name(tree)] == accepted
            seen += accepted
    assert {0, 1, 2} <= set(seen), "the head is too good or too bad for this test"
    whole = replay_text(drafter, texts[0], TREES)
    monkeypatch.setattr("eagle_fsd.drafters.growth.ROOTS_AT_ONCE", 5)
    monkeypatch.setattr("eagle_fsd.drafters.growth.READOUT_ROWS", 3)
    monkeypatch.setattr("eagle_fsd.evaluation.offline.replay.JUDGED_ROOTS", 4)
    parts = replay_text(drafter, texts[0], TREES)
    assert parts["trees"] == whole["trees"]
    for one, other in zip(parts["levels"], whole["levels"], strict=True):
        assert one == pytest.approx(other, rel=1e-4)


def test_levels_count_hits_and_js_over_the_whole_vocabulary(case):
    """Level 1 against the head run once: top-1, top-8 and JS, tokens outside the draft included."""
    _, drafter, texts = case
    text = texts[1]
    rows = replay_text(drafter, text, TREES)["levels"]
    ids_L = torch.tensor(text.ids)
    with torch.inference_mode():
        hidden, features = drafter.target.hidden_and_features(ids_L[None], use_cache=False)
        head_hidden_TD = drafter.head(
            drafter.head.fuse(features)[:, :-1],
            drafter.target.embed(ids_L[1:])[None],
            torch.arange(len(ids_L) - 1),
        )[0]
        draft_TR = drafter.readout(head_hidden_TD)
        kept_R = drafter.draft_token_R
        draft_TV = draft_TR
        if kept_R is not None:
            draft_TV = torch.full((draft_TR.shape[0], 101), -torch.inf)
            draft_TV[:, kept_R] = draft_TR
        target_TV = drafter.target.logits(hidden[0]).softmax(-1)[1:]  # after tokens 1, 2, ..
    place_B = torch.tensor(list(text.roots)) - 1
    draft_BV, target_BV = draft_TV[place_B].softmax(-1), target_TV[place_B]
    label_B = ids_L[place_B + 2]
    order_BV = draft_BV.argsort(1, descending=True)
    mean_BV = (draft_BV + target_BV) / 2
    js_B = 0.5 * sum(
        (torch.xlogy(p, p) - torch.xlogy(p, mean_BV)).sum(1) for p in (draft_BV, target_BV)
    )
    assert rows[0]["positions"] == len(text.answer) - 1
    assert rows[0]["top1"] == (order_BV[:, 0] == label_B).sum()
    assert rows[0]["top8"] == (order_BV[:, :8] == label_B[:, None]).any(1).sum()
    assert rows[0]["js"] == pytest.approx(js_B.sum().item(), rel=1e-4)
    assert [row["positions"] for row in rows] == [len(text.answer) - 1 - s for s in range(5)]


def test_a_text_that_ends_with_its_first_token_has_no_round(case):
    """Nothing is drafted, and nothing is divided by zero."""
    _, drafter, texts = case
    text = texts[0]
    one = cut(text.prompt, text.answer + text.beyond, StopConfig(1))
    record = replay_text(drafter, one, TREES)
    row = tree_row([record], "7x3x4")
    assert row["tokens_per_round"]["value"] is None and row["rounds"] == 0
    assert level_rows([record]) == []
    both = [record, replay_text(drafter, text, TREES)]
    assert tree_row(both, "7x3x4")["tokens_per_round"]["value"] > 1
