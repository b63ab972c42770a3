"""The processor and vLLM's real `rejection_sample`, on random chains, against this library's rules.

    TRITON_INTERPRET=1 PYTHONPATH=plugins/vllm/tests/interpreted:.:tests \
        python -m pytest -c plugins/vllm/pyproject.toml plugins/vllm/tests

On a CPU the kernels are interpreted; with a GPU they are compiled and the variable stays unset.

Axes: N places of a chain with the root's, K drafts, V vocabulary.
"""

import os

import pytest
import torch
from batches import (
    DEVICE,
    GREEDY_ARMS,
    LENGTHS,
    STOP,
    K,
    Step,
    V,
    asking,
    config,
    own,
    up_to_end,
)
from eagle_fsd_vllm.processor import FuzzyAcceptance
from fake_cuda import on_cuda

from eagle_fsd.arms import parse_arm
from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.acceptance import accept

CHAINS = int(os.environ.get("CHAINS", "60"))  # of each arm; interpreted, a thousand take 15 minutes


def test_a_mixed_batch_emits_what_our_rules_emit():
    """At temperature 0, of every arm CHAINS chains, each batch of other arms in other places."""
    left, longer = dict.fromkeys(GREEDY_ARMS, CHAINS), dict.fromkeys(GREEDY_ARMS, 0)
    for seed in range(10_000):
        step = Step.draw(seed)
        arms = [GREEDY_ARMS[(seed + i) % len(GREEDY_ARMS)] for i in range(len(step.slots))]
        _, emitted = step.verified([asking(arm) for arm in arms])
        for number, arm in enumerate(arms):
            want = own(step, number, arm)
            assert up_to_end(emitted[number]) == up_to_end(want), (seed, number, arm)
            if LENGTHS[number]:
                left[arm] -= 1
                longer[arm] += len(want) > len(own(step, number, None))
        if max(left.values()) <= 0:
            break
    assert max(left.values()) <= 0, left
    # each arm but the first accepts more than vLLM somewhere
    assert longer.pop(None) == 0 and min(longer.values()) > CHAINS // 20, longer


WARM_ARMS = ("ratio:1", "relaxed:0.1", "fsd:0.35", "ratio:3,no_repeat=2")


@pytest.mark.parametrize("top_k,top_p", [(0, 1.0), (7, 0.9)])
def test_above_temperature_0_rows_are_one_draft_or_vllms_own(top_k, top_p):
    """A draft is certain exactly where the rule takes it in the place of another exact token, drawn
    by this library; every other row stays bit by bit, so that vLLM draws there as ever."""
    for seed in range(CHAINS // 3):
        step = Step.draw(seed)
        arms = [WARM_ARMS[(seed + i) % len(WARM_ARMS)] for i in range(len(step.slots))]
        filters = {"top_k": top_k, "top_p": top_p}
        params = [asking(arm, 0.8, **filters) for arm in arms]
        processed_RV, emitted = step.verified(params)
        for number, (first, arm) in enumerate(zip(step.first_rows, arms, strict=True)):
            tree, target_NV = step.tree(number)
            policy = parse_arm(arm).policy(SamplingConfig(0.8, top_k, top_p))
            drawn = torch.rand(20, K + 1, 3, generator=torch.Generator().manual_seed(seed))
            outcomes = [
                accept(
                    tree,
                    target_NV,
                    uniform_S3,
                    policy=policy,
                    stop_token_ids=[STOP],
                    answer=step.answer(step.slots[number]),
                )
                for uniform_S3 in drawn
            ]
            certain = set()
            for v in range(LENGTHS[number]):
                row_V, draft = processed_RV[first + v], tree.token_N[v + 1]
                if row_V[draft] == 0 and row_V.isneginf().sum() == V - 1:
                    certain.add(v)
                else:
                    assert torch.equal(row_V, step.target_RV[first + v]), (seed, number, v)
            for outcome in outcomes:
                for v, fuzzy in zip(outcome.path, outcome.fuzzy, strict=True):
                    assert not fuzzy or v in certain, (seed, number, v)
                # where it ends, no other token might have been a certain draft
                last = outcome.path[-1]
                assert last not in certain or last == LENGTHS[number] or STOP in outcome.tokens
            sure = next(v for v in range(K + 1) if v not in certain)
            assert emitted[number][:sure] == tree.token_N[1 : sure + 1].tolist()


def test_value_0_exact_and_no_arm_touch_no_logits():
    step = Step.draw(1)
    arms = ["ratio:0", "path:0", "exact", None, "relaxed:0", "fsd:0", "fsd:0,ends=1"]
    processor = FuzzyAcceptance(config(), step.states())
    assert not any(processor.add_request(i, asking(arm)) for i, arm in enumerate(arms))
    processed_RV, _ = step.verified([asking(arm) for arm in arms])
    assert torch.equal(processed_RV, step.target_RV)


def test_the_host_is_waited_for_three_times_at_most():
    """None without a lossy request; else for the layout, for all numbers, and for answers where a
    guard reads them."""

    def waits(*arms: str | None) -> list[str]:
        params, step = [asking(arm) for arm in arms], Step.draw(3)
        *_, found = on_cuda(lambda: [step], lambda device, s: s.to(device).processed(params))
        return found

    assert waits(*[None] * 7) == []
    assert waits(*["fsd:0.3", "ratio:1", "path:2", None, "relaxed:0.1", "fsd:0.4", "exact"]) == [
        "tolist",
        "tolist",
    ]
    assert waits(*["fsd:0.3,no_repeat=3", "ratio:1"] * 3, None) == ["tolist", "to cpu", "tolist"]


def test_requests_come_go_and_change_their_rows():
    """One processor, step after step: requests leave and others take their slots, and rows move.
    Some tokens, drafts too, are removed as a mask does, and some drafts are vLLM's placeholders,
    -1, where the chain ends."""
    generator, arm_of, forced = torch.Generator().manual_seed(0), {}, 0
    processor = FuzzyAcceptance(config(), Step.draw(0).states())
    for seed in range(CHAINS):
        step = Step.draw(seed)
        gone_R = torch.rand(len(step.token_R), generator=generator) < 0.1
        step.token_R[gone_R.to(DEVICE) & (step.place_R > 0)] = -1
        masked_RV = torch.rand(step.target_RV.shape, generator=generator) < 0.1
        step.target_RV[masked_RV.to(DEVICE)] = -torch.inf
        for slot in step.slots:
            if slot not in arm_of or torch.rand(1, generator=generator) < 0.3:
                choice = torch.randint(len(GREEDY_ARMS), (1,), generator=generator)
                arm_of[slot] = GREEDY_ARMS[choice]
                processor.add_request(slot, asking(arm_of[slot]))
        processor.states = step.states()
        got_RV, want_RV = step.applied(processor), step.target_RV.clone()
        for number, slot in enumerate(step.slots):
            arm, first = arm_of[slot], step.first_rows[number]
            tokens = own(step, number, arm)
            for v, token in enumerate(tokens[: LENGTHS[number]]):
                if token != step.target_RV[first + v].argmax():
                    want_RV[first + v] = -torch.inf
                    want_RV[first + v, token] = 0.0
                    forced += 1
        assert torch.equal(got_RV, want_RV), seed
    assert forced > CHAINS
