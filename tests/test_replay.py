"""Replay equals real decoding, round by round, for every kind of head, tree and rule."""

import pytest
import torch
from tiny import prompt_tokens, tiny_head, tiny_target

from eagle_fsd.config import TreeConfig, parse_tree, tree_name
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode_rounds
from eagle_fsd.decoding.rule import Rule
from eagle_fsd.decoding.target import Target
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.drafters.growth import HeadOnText, grow
from eagle_fsd.drafters.pool import visited_roots
from eagle_fsd.evaluation.offline.replay import WALKS, ReplayPlan, judge_levels, replay_text
from eagle_fsd.evaluation.offline.replay_metrics import level_rows, rule_rows, tree_row
from eagle_fsd.evaluation.offline.texts import PlainText, cut, open_texts, plain_texts
from eagle_fsd.heads.models import draft_readout
from eagle_fsd.rules.fsd import Exact, Fsd

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


PLAN = ReplayPlan(TREES, {"fsd:0.3": Fsd(0.3)})
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


def real_rounds(target, head, text: PlainText, tree: TreeConfig, rule: Rule):
    """Acceptances one by one, as they are decoded."""
    config = DecodeConfig(Policy(rule, record="full"), StopConfig(BUDGET))
    steps = decode_rounds(target, EagleDrafter(head, target, tree), text.prompt, config)
    return (step.acceptance for step in steps if step.acceptance is not None)


def test_replay_equals_decoding_round_by_round(case, monkeypatch):
    """Accepted drafts of every round of every tree; heads hit often enough for it to mean much.
    Batches bound the memory and change nothing."""
    target, drafter, texts = case
    seen = []
    for text in texts:
        record = replay_text(drafter, text, ReplayPlan(TREES))
        for tree in TREES:
            rounds = real_rounds(target, drafter.head, text, tree, Exact())
            accepted = [r.accepted_drafts for r in rounds]
            assert record["trees"][tree_name(tree)]["accepted"] == accepted
            seen += accepted
    assert {0, 1, 2} <= set(seen), "the head is too good or too bad for this test"
    whole = replay_text(drafter, texts[0], PLAN)
    monkeypatch.setattr("eagle_fsd.drafters.growth.ROOTS_AT_ONCE", 5)
    monkeypatch.setattr("eagle_fsd.drafters.growth.READOUT_ROWS", 3)
    monkeypatch.setattr("eagle_fsd.evaluation.offline.replay.JUDGED_ROOTS", 4)
    parts = replay_text(drafter, texts[0], PLAN)
    assert parts["trees"] == whole["trees"]
    for one, other in zip(parts["levels"], whole["levels"], strict=True):
        assert one == pytest.approx(other, rel=1e-4)


@pytest.mark.parametrize("rule", WALKS, ids=lambda rule: rule.__name__)
def test_walks_equal_decoding_to_the_first_fuzzy_token(case, rule):
    """Rules with T: the rounds up to the first fuzzy token, where in its round it falls, and D."""
    target, drafter, texts = case
    ended, shapes = [], ReplayPlan(TREES).growths()
    largest = max(shapes, key=lambda shape: shape.num_expanded)
    for text in texts:
        ids_L, root_B = torch.tensor(text.ids), torch.tensor(list(text.roots))
        hidden_1LD, features_1LF = target.hidden_and_features(ids_L[None], use_cache=False)
        on_text = HeadOnText(drafter, ids_L, features_1LF[0], largest)
        growth = {shape.branch_top_k: grow(on_text, root_B, shape) for shape in shapes}
        with torch.inference_mode():
            levels = {"levels": 5, "divergences": ("js",)}
            _, found = judge_levels(on_text, hidden_1LD[0], root_B, 0, **levels)
        divergence_BS = found["js"]
        for tree in TREES[1:3]:
            for threshold in divergence_BS.quantile(torch.tensor([0.1, 0.3, 0.6])).tolist():
                passes_BS = divergence_BS <= threshold
                accepted_B, fuzzy_B = WALKS[rule](growth[tree.branch_top_k], tree, passes_BS)
                places = visited_roots(accepted_B)
                rounds = real_rounds(target, drafter.head, text, tree, rule(threshold))
                for place, real in zip(places, rounds, strict=False):
                    fuzzy = real.fuzzy.index(True) if any(real.fuzzy) else None
                    want = real.accepted_drafts if fuzzy is None else fuzzy
                    assert accepted_B[place] == want
                    assert bool(fuzzy_B[place]) == (fuzzy is not None)
                    judged = torch.tensor(real.divergence[: want + 1])
                    mine = divergence_BS[place, : len(judged)]
                    known = ~judged.isnan()[: len(mine)]
                    torch.testing.assert_close(
                        mine[known], judged[: len(mine)][known].float(), atol=1e-4, rtol=1e-3
                    )
                    if fuzzy is not None:
                        ended.append(want)
                        break
    assert len(ended) > 5 and max(ended) > 0, "fuzzy tokens are too rare, or always first"


def test_levels_count_hits_and_js_over_the_whole_vocabulary(case):
    """Level 1 against the head run once: top-1, top-8 and JS, tokens outside the draft included."""
    _, drafter, texts = case
    text = texts[1]
    rows = replay_text(drafter, text, ReplayPlan(TREES))["levels"]
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
    assert rows[0]["positions"] == len(text.answer) - 1 == rows[0]["agree"]
    assert rows[0]["top1"] == (order_BV[:, 0] == label_B).sum()
    assert rows[0]["top8"] == (order_BV[:, :8] == label_B[:, None]).any(1).sum()
    assert rows[0]["js"] == pytest.approx(js_B.sum().item(), rel=1e-4)
    assert [row["positions"] for row in rows] == [len(text.answer) - 1 - s for s in range(5)]


def test_a_text_that_ends_with_its_first_token_has_no_round(case):
    """Nothing is drafted, and nothing is divided by zero."""
    _, drafter, texts = case
    text = texts[0]
    one = cut(text.prompt, text.answer + text.beyond, StopConfig(1))
    record = replay_text(drafter, one, PLAN)
    row = tree_row([record], "7x3x4")
    assert row["tokens_per_round"]["value"] is None and row["rounds"] == 0
    assert level_rows([record]) == rule_rows([record], "7x3x4") == []
    both = [record, replay_text(drafter, text, PLAN)]
    assert tree_row(both, "7x3x4")["tokens_per_round"]["value"] > 1
    (rule,) = rule_rows(both, "7x3x4")
    assert rule["arm"] == "fsd:0.3" and 0 <= rule["fuzzy_share"] <= rule["fuzzy_rounds"] <= 1
