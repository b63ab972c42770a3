"""Batches of random chains as vLLM lays them out, and what this library emits for them. Importing
it skips the test file where there is no vLLM, or nothing to run its kernels.

Axes: N places of a chain with the root's, K drafts, V vocabulary, R rows of a batch, S slots of
requests, P positions of a text.
"""

import os
import types
from dataclasses import dataclass, replace

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed: scripts/test_vllm.sh makes it")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no GPU, and TRITON_INTERPRET is not 1", allow_module_level=True)

import numpy as np
from eagle_fsd_vllm.chains import Possible
from eagle_fsd_vllm.processor import FuzzyAcceptance
from vllm import SamplingParams
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext
from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample

from eagle_fsd.arms import parse_arm
from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.acceptance import accept
from eagle_fsd.decoding.tree import DraftTree

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
V, K, SLOTS, STOP = 97, 4, 11, 5
LENGTHS = (K, 0, 2, K, 1, 3, K)  # drafts of the requests of a batch: 0 is a request in prefill

GREEDY_ARMS = (None, "ratio:1", "relaxed:0.1", "path:1.5", "fsd:0.35", "path:3,ends=1")
GREEDY_ARMS += ("ratio:3,no_repeat=2", "fsd:0.4,ends=1,no_repeat=2", "ratio:inf,ends=1")


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
