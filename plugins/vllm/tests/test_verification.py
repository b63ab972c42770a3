"""The processor and vLLM's real `rejection_sample`, on random chains, against this library's rules.

    TRITON_INTERPRET=1 PYTHONPATH=plugins/vllm/tests/interpreted:.:tests \
        python -m pytest -c plugins/vllm/pyproject.toml plugins/vllm/tests

On a CPU the kernels are interpreted; with a GPU they are compiled and the variable stays unset.

Axes: N places of a chain with the root's, K drafts, V vocabulary.
"""

import functools
import inspect
import os
import re
import types
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed: scripts/test_vllm.sh makes it")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no GPU, and TRITON_INTERPRET is not 1", allow_module_level=True)

import numpy as np
from eagle_fsd_vllm import check_version
from eagle_fsd_vllm.chains import Possible
from eagle_fsd_vllm.processor import FuzzyAcceptance, wrap_verification
from fake_cuda import on_cuda
from vllm import SamplingParams
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler
from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample

from eagle_fsd.arms import parse_arm
from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.acceptance import accept
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.plugin import load_plugin

RIVALS = Path(__file__).resolve().parents[3] / "extras/rivals.py"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
V, K, SLOTS, STOP = 97, 4, 11, 5
LENGTHS = (K, 0, 2, K, 1, 3, K)  # drafts of the requests of a batch: 0 is a request in prefill


@dataclass
class Step:
    """One step of a batch of random chains, as vLLM lays it out."""

    slots: list[int]
    target_RV: torch.Tensor
    draft_SKV: torch.Tensor
    token_R: torch.Tensor  # fed: the root, then the drafts
    place_R: torch.Tensor
    slot_R: torch.Tensor
    text_SP: torch.Tensor  # committed tokens, of which 3 are the prompt
    prompt: int = 3

    @classmethod
    def draw(cls, seed: int) -> "Step":
        generator = torch.Generator().manual_seed(seed)
        slots = torch.randperm(SLOTS, generator=generator)[: len(LENGTHS)].tolist()
        R = sum(LENGTHS) + len(LENGTHS)
        target_RV = 2 * torch.randn(R, V, generator=generator)
        draft_SKV = torch.zeros(SLOTS, K, V)
        token_R, place_R, slot_R = torch.zeros(3, R, dtype=torch.int64)
        # few different tokens, so that n-grams occur again
        text_SP = torch.randint(4, (SLOTS, 9), generator=generator)
        row = 0
        for slot, count in zip(slots, LENGTHS, strict=True):
            place_R[row : row + count + 1] = torch.arange(count + 1)
            slot_R[row : row + count + 1] = slot
            token_R[row] = text_SP[slot, -1]
            for k in range(count):
                bend = torch.rand(1, generator=generator) * 3
                noise = torch.randn(V, generator=generator)
                draft_SKV[slot, k] = target_RV[row + k] + bend * noise
                if torch.rand(1, generator=generator) < 0.3:
                    target_RV[row + k, STOP] = 9.0  # the target ends the answer here
                if torch.rand(1, generator=generator) < 0.3:
                    draft_SKV[slot, k, :4] += 9.0
                    target_RV[row + k, :4] += 3.0
                token_R[row + k + 1] = draft_SKV[slot, k].argmax()
            row += count + 1
        step = cls(slots, target_RV, draft_SKV, token_R, place_R, slot_R, text_SP)
        return step.to(DEVICE)

    def to(self, device: str) -> "Step":
        tensors = {k: v for k, v in vars(self).items() if isinstance(v, torch.Tensor)}
        moved = {key: value.to(device, non_blocking=True) for key, value in tensors.items()}
        return replace(self, **moved)

    @property
    def first_rows(self) -> list[int]:
        return [row for row, place in enumerate(self.place_R.tolist()) if place == 0]

    def answer(self, slot: int) -> list[int]:
        return self.text_SP[slot, self.prompt :].tolist()

    @property
    def pos_R(self) -> torch.Tensor:
        return self.text_SP.shape[1] - 1 + self.place_R

    def processed(self, params: list[SamplingParams]) -> torch.Tensor:
        """The processor's logits, of requests that have all just come."""
        processor = FuzzyAcceptance(config(), self.states())
        for slot, one in zip(self.slots, params, strict=True):
            processor.add_request(slot, one)
        return self.applied(processor)

    def applied(self, processor: FuzzyAcceptance) -> torch.Tensor:
        processor.draft_logits = self.draft_SKV
        ctx = LogitsContext(
            expanded_idx_mapping=self.slot_R,
            idx_mapping=self.slot_R[:0],  # the processor reads that of the host
            idx_mapping_np=np.array(self.slots),
            expanded_local_pos=self.place_R.int(),
            input_ids=self.token_R.int(),
            pos=self.pos_R,
            seq_lens_upper_bound_np=np.full(len(self.slots), 99),
        )
        return processor.apply(self.target_RV.clone(), ctx)

    def verified(self, params: list[SamplingParams]) -> tuple[torch.Tensor, list[list[int]]]:
        """The processor's logits, and what vLLM emits for each request."""
        processed_RV = self.processed(params)
        temperature_S = torch.zeros(SLOTS, device=DEVICE)
        for slot, one in zip(self.slots, params, strict=True):
            temperature_S[slot] = one.temperature
        ends = [*self.first_rows, len(self.token_R)]
        warm_R1 = temperature_S[self.slot_R][:, None]
        emitted, count = rejection_sample(
            torch.where(warm_R1 > 0, processed_RV / warm_R1.clamp_min(1e-6), processed_RV),
            None,  # Triton's interpreter fails in what vLLM does with these above temperature 0
            self.token_R.int(),
            torch.tensor(ends, dtype=torch.int32, device=DEVICE),
            self.pos_R,
            torch.tensor(self.slots, device=DEVICE).int(),
            self.slot_R.int(),
            self.place_R.int(),
            temperature_S,
            torch.arange(SLOTS, device=DEVICE),
            K,
        )
        pairs = zip(emitted.tolist(), count.tolist(), strict=True)
        return processed_RV, [tokens[:number] for tokens, number in pairs]

    def states(self) -> types.SimpleNamespace:
        return types.SimpleNamespace(
            device=self.target_RV.device,
            max_num_reqs=SLOTS,
            all_token_ids=types.SimpleNamespace(gpu=self.text_SP.int()),
            prompt_len=types.SimpleNamespace(np=np.full(SLOTS, self.prompt)),
        )

    def tree(self, number: int) -> tuple[DraftTree, torch.Tensor]:
        """A request's chain as this library's tree, and the target's rows, on the CPU."""
        slot, first = self.slots[number], self.first_rows[number]
        drafts = self.token_R[first + 1 : first + 1 + LENGTHS[number]].tolist()
        count = [*drafts, -1].index(-1)  # a placeholder ends the chain
        node_N = torch.arange(count + 1)
        tree = DraftTree(
            self.token_R[first : first + count + 1].cpu(),
            (node_N - 1).clamp_min(0),
            torch.where(node_N < count, node_N, -1),
            self.draft_SKV[slot].cpu(),
            max_depth=count,
        )
        return tree, self.target_RV[first : first + count + 1].cpu()


def config(**further) -> types.SimpleNamespace:
    spec = {"draft_sample_method": "probabilistic", "rejection_sample_method": "standard"}
    spec |= {"enable_adaptive_verification": False, **further}
    return types.SimpleNamespace(speculative_config=types.SimpleNamespace(**spec))


def asking(arm: str | None, temperature: float = 0.0, **further) -> SamplingParams:
    params = SamplingParams(temperature=temperature, stop_token_ids=[STOP], **further)
    params.extra_args = None if arm is None else {"arm": arm}
    return params


GREEDY_ARMS = (None, "ratio:1", "relaxed:0.1", "path:1.5", "fsd:0.35", "path:3,ends=1")
GREEDY_ARMS += ("ratio:3,no_repeat=2", "fsd:0.4,ends=1,no_repeat=2", "ratio:inf,ends=1")
CHAINS = int(os.environ.get("CHAINS", "60"))  # of each arm; interpreted, a thousand take 15 minutes


def own(step: Step, number: int, arm: str | None) -> list[int]:
    """What this library emits for a request's chain."""
    tree, target_NV = step.tree(number)
    policy = parse_arm(arm or "exact").policy(SamplingConfig())
    policy = replace(policy, guards=(*policy.guards, Possible()))
    answer = step.answer(step.slots[number])
    further = {"policy": policy, "stop_token_ids": [STOP], "answer": answer}
    return accept(tree, target_NV, torch.zeros(K + 1, 3), **further).tokens


def up_to_end(tokens: list[int]) -> list[int]:
    """An engine drops what it has emitted behind a stop token."""
    return tokens[: tokens.index(STOP) + 1] if STOP in tokens else tokens


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


REFUSALS = {
    "nonsense:1": "unknown rule 'nonsense'; known: exact, fsd",
    "fsd:-1": "threshold must be 0 or above, got -1.0",
    "fsd:0.3,child=sample": "child 'sample' needs temperature > 0",
    "fsd:0.3@eagle:15x4x6": "the drafter is the server's",
    "path:0.6@hybrid": "the drafter is the server's",
    "fsd-paper:0.3": "vLLM cannot run fsd-paper: it may end a round",
    "cactus:0.1": "vLLM cannot run cactus: nobody has tested it there",
    "asd:0.5": "vLLM cannot run asd: nobody has tested it there",
    "hold:0.03": "unknown rule 'hold'",
    "random:0.1": "vLLM cannot run random: it needs random numbers",
    "rejection": "vLLM cannot run rejection: it is for sampled drafts",
    "typical": "vLLM cannot run typical: nobody has tested it there",
    "plain": "vLLM cannot run plain: it has no drafts, and a server drafts for all",
    "generate": "vLLM cannot run generate: it has no drafts",
    "ratio:1,known=0.1": "of guards send ends and no_repeat only",
    "fsd:0.3," + "x" * 100_000: "of at most 200 characters; got 'fsd:0.3,xxx",
}


@pytest.mark.parametrize("arm", REFUSALS, ids=lambda arm: arm[:30])
def test_bad_arms_are_refused_at_admission(arm):
    """Also rules and guards that somebody has added to the library's own."""
    load_plugin(str(RIVALS))
    with pytest.raises(ValueError, match=re.escape(REFUSALS[arm])) as refused:
        FuzzyAcceptance.validate_params(asking(arm))
    assert len(str(refused.value)) < 400


def test_what_has_a_meaning_at_temperature_0_only_is_refused_above():
    for arm, why in {
        "path:0.6": "send temperature 0",
        "fsd:0.3,ends=1": "leave ends out",
    }.items():
        FuzzyAcceptance.validate_params(asking(arm))
        with pytest.raises(ValueError, match=why):
            FuzzyAcceptance.validate_params(asking(arm, 0.7))
    for arm in (0.3, True, [], {}, ["fsd:0.3"], b"fsd:0.3"):
        with pytest.raises(ValueError, match="arm must be a text"):
            FuzzyAcceptance.validate_params(asking(arm))


def test_a_changed_signature_refuses_fsd_alone(monkeypatch):
    """What is wrapped is called as ever, and wrapped once, where another plug-in has wrapped it
    too (it was left alone then, and fsd never passed); another signature is left alone."""

    vllms = inspect.unwrap(RejectionSampler.__call__)

    @functools.wraps(vllms)
    def theirs(*args, **options):
        return calls.append(processor.draft_logits)

    calls, processor = [], FuzzyAcceptance(config(), Step.draw(0).states())
    for call in (vllms, theirs):
        monkeypatch.setattr(RejectionSampler, "__call__", call)
        wrap_verification()
        once = RejectionSampler.__call__
        wrap_verification()
        assert RejectionSampler.__call__ is once and once.__wrapped__ is call
    sampler = types.SimpleNamespace(sampler=types.SimpleNamespace(logits_processors=[processor]))
    once(sampler, None, None, "drafts")
    assert calls == ["drafts"] and processor.draft_logits is None

    def other(self, logits, batch, draft_logits):
        raise AssertionError

    monkeypatch.setattr(RejectionSampler, "__call__", other)
    wrap_verification()
    assert RejectionSampler.__call__ is other
    FuzzyAcceptance.validate_params(asking("ratio:1"))
    with pytest.raises(ValueError, match="RejectionSampler takes self, logits, batch, draft_log"):
        FuzzyAcceptance.validate_params(asking("fsd:0.3"))


def test_servers_that_were_not_tested_are_refused(monkeypatch):
    for further in ({"rejection_sample_method": "fly"}, {"enable_adaptive_verification": True}):
        with pytest.raises(ValueError, match="standard verification only"):
            FuzzyAcceptance(config(**further), Step.draw(0).states())
    with pytest.raises(ValueError, match="drafts nothing"):
        FuzzyAcceptance(types.SimpleNamespace(speculative_config=None), Step.draw(0).states())
    monkeypatch.setattr("vllm.__version__", "0.34.1")
    with pytest.raises(RuntimeError, match="this is 0.34.1: install one of those, or set"):
        check_version()
    monkeypatch.setenv("EAGLE_FSD_ANY_VLLM", "1")
    check_version()
