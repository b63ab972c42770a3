"""vLLM's real Sampler and RejectionSampler with the processor among its own: penalties and masks
beside an arm, and batches that are verified in parts. Run as test_verification.py is.
"""

import types
from dataclasses import replace

import numpy as np
import pytest
import torch
from batches import (
    DEVICE,
    GREEDY_ARMS,
    LENGTHS,
    SLOTS,
    Step,
    V,
    asking,
    config,
    own,
    up_to_end,
)
from eagle_fsd_vllm.processor import FuzzyAcceptance
from vllm import SamplingParams
from vllm.v1.worker.cpu import buffer_utils as on_host
from vllm.v1.worker.gpu import buffer_utils
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcRequestState
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.spec_decode import rejection_sampler
from vllm.v1.worker.gpu.states import RequestState

K = max(LENGTHS)
SETTINGS = (
    {},
    {"min_tokens": 9},  # of 6 to 10 that an answer has in this step
    {"allowed_token_ids": list(range(60))},
    {"repetition_penalty": 1.6},
    {"frequency_penalty": 1.5, "presence_penalty": 0.5},
    {"ignore_eos": True, "seed": 3},
)
BAD_WORDS = [[1], [2, 3], [0]]
SPECULATION = {"num_speculative_tokens": K, "fly_entropy_threshold": 0.3, "fly_entropy_top_k": 3}


class Judged(FuzzyAcceptance):
    """Keeps the rows that it gets, part after part."""

    def apply(self, logits, ctx):
        self.parts.append(logits.clone())
        return super().apply(logits, ctx)


def sampler_of(step: Step, params: list[SamplingParams]) -> Sampler:
    """vLLM's, after its requests have come and sampled their answers so far."""
    states = RequestState(SLOTS, 32, 512, K, V, torch.device(DEVICE))
    settings = config(**SPECULATION)
    settings.reasoning_config = settings.watermark_config = None
    processor = Judged(settings, LogitsProcRequestState.from_request_state(states))
    processor.parts = []
    sampler = Sampler(
        settings,
        SLOTS,
        V,
        torch.device(DEVICE),
        states,
        num_speculative_tokens=K,
        custom_logits_processors=[processor],
    )
    for slot, one in zip(step.slots, params, strict=True):
        states.free_indices.append(slot)  # the next that is given away
        states.add_request(str(slot), step.prompt, step.text_SP[slot, : step.prompt].tolist(), 0, 9)
        sampler.add_request(slot, one)
    states.apply_staged_writes()
    sampler.apply_staged_writes()
    states.all_token_ids.gpu[:, : step.text_SP.shape[1]] = step.text_SP
    for slot in step.slots:  # as vLLM counts what it has sampled
        count_V = torch.tensor(step.answer(slot)).bincount(minlength=V)
        sampler.penalties_state.output_bin_counts[slot] = count_V
    return sampler


def verified(step: Step, params: list[SamplingParams]) -> tuple[torch.Tensor, list[list[int]]]:
    """The rows that our processor got, and what is emitted for each request."""
    sampler = sampler_of(step, params)
    ends = [*step.first_rows, len(step.token_R)]
    texts = step.text_SP.shape[1] + torch.tensor(LENGTHS, dtype=torch.int32)
    batch = types.SimpleNamespace(
        num_reqs=len(step.slots),
        idx_mapping=torch.tensor(step.slots, device=DEVICE),
        idx_mapping_np=np.array(step.slots),
        expanded_idx_mapping=step.slot_R,
        expanded_local_pos=step.place_R.int(),
        input_ids=step.token_R.int(),
        positions=step.pos_R,
        logits_indices=torch.arange(len(step.token_R), device=DEVICE),
        cu_num_logits=torch.tensor(ends, dtype=torch.int32, device=DEVICE),
        cu_num_logits_np=np.array(ends),
        seq_lens=texts.to(DEVICE),
        seq_lens_cpu_upper_bound=texts,
    )
    spec = config(**SPECULATION).speculative_config
    verifier = rejection_sampler.RejectionSampler(sampler, spec, torch.device(DEVICE))
    output = verifier(step.target_RV.clone(), batch, step.draft_SKV)
    pairs = zip(output.sampled_token_ids.tolist(), output.num_sampled.tolist(), strict=True)
    return torch.cat(sampler.logits_processors[-1].parts), [tokens[:n] for tokens, n in pairs]


@pytest.mark.parametrize("rows", [1000, 7])
def test_penalties_and_masks_beside_an_arm(monkeypatch, rows):
    """What is emitted is what our rule emits on the rows that vLLM's own processors leave, in
    parts of this many rows."""
    if DEVICE == "cpu":  # as vLLM's worker for CPUs does
        monkeypatch.setattr(buffer_utils, "UvaBuffer", on_host.UvaBuffer)
        monkeypatch.setattr("vllm.utils.torch_utils.PIN_MEMORY", False)  # 0.33's Python alone
    monkeypatch.setattr(rejection_sampler, "get_max_chunk_logits", lambda vocab_size: rows)
    changed = fuzzy = 0
    for seed in range(8):
        step = Step.draw(seed)
        arms = [GREEDY_ARMS[(seed + i) % len(GREEDY_ARMS)] for i in range(len(LENGTHS))]
        params = [asking(arm, **SETTINGS[(seed + i) % 6]) for i, arm in enumerate(arms)]
        params[seed % 7]._bad_words_token_ids = BAD_WORDS
        given_RV, emitted = verified(step, params)
        as_given = replace(step, target_RV=given_RV)
        for number in (i for i, length in enumerate(LENGTHS) if length):
            want = up_to_end(own(as_given, number, arms[number]))
            assert up_to_end(emitted[number]) == want, (seed, arms[number], params[number])
            changed += want != up_to_end(own(step, number, arms[number]))
            fuzzy += want != up_to_end(own(as_given, number, None))
    assert changed > 5 and fuzzy > 5, (changed, fuzzy)
