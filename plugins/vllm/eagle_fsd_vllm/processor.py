"""The logits processor of Model Runner V2: makes vLLM's verifier take the drafts that rules take.

While vLLM verifies, it hands a processor one row of target logits for each place of each request's
chain of drafts, and the tokens that were fed. Where a request's rule takes a draft, that draft is
left as the only token of its row, and the verifier accepts it; all other rows stay bit by bit.

`fsd` needs the drafter's logits too. vLLM keeps them where drafts are sampled
("draft_sample_method": "probabilistic"), and no interface hands them to a processor, so
RejectionSampler.__call__ is wrapped once (admission.check_wrapped checks what is wrapped).

Waits for the host: none in a step without a lossy request; else one for the layout of the batch,
one for all numbers of all rules, and one more for answers where a guard no_repeat reads them.
"""

import functools
from dataclasses import dataclass

import torch
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.sampling_params import SamplingParams
from vllm.v1.worker.gpu.sample.logits_processor import (
    LogitsContext,
    LogitsProcessor,
    LogitsProcRequestState,
)

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.rules.guards import NoRepeat
from eagle_fsd_vllm import check_version
from eagle_fsd_vllm.admission import check_wrapped, policy_of, reads_draft_rows
from eagle_fsd_vllm.chains import Chain, taken_drafts

check_version()
logger = init_logger(f"vllm.{__name__}")  # vLLM shows its own loggers only


@dataclass(frozen=True)
class Request:
    policy: Policy
    stop_token_ids: frozenset[int]


class FuzzyAcceptance(LogitsProcessor):
    """See the top of this file.

    Attributes:
        draft_logits: the drafter's logits of this step, [slots, drafts, V]; None outside of a
            verification, and where vLLM keeps none.
    """

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState):
        check_speculation(vllm_config)
        self.states = req_states
        self.lossy: dict[int, Request] = {}  # by the request's slot
        self.draft_logits: torch.Tensor | None = None
        self.drafts_sampled = vllm_config.speculative_config.draft_sample_method == "probabilistic"
        wrap_verification()

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """BadInput, a ValueError, becomes the request's error 400."""
        policy_of(sampling_params)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        self.lossy.pop(req_idx, None)  # the slot's last request
        policy = policy_of(sampling_params)
        if policy is None:
            return False
        if reads_draft_rows(policy) and not self.drafts_sampled:
            logger.warning_once(
                "fsd never passes on this server: start it with "
                '"draft_sample_method": "probabilistic" in --speculative-config'
            )
        own, every = sampling_params.stop_token_ids, sampling_params.all_stop_token_ids
        stops = own if sampling_params.ignore_eos else every
        self.lossy[req_idx] = Request(policy, frozenset(stops or ()))
        return True

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        slots = ctx.idx_mapping_np.tolist()
        if logits.shape[0] == len(slots) or self.lossy.keys().isdisjoint(slots):
            return logits  # nothing was drafted, or nobody asks
        chains = self._chains(ctx)
        flat = None if self.draft_logits is None else self.draft_logits.flatten(0, 1)
        taken = taken_drafts(chains, logits, flat)
        forced = [
            (chain.target_row + number, chain.tokens[number])
            for chain, numbers in zip(chains, taken, strict=True)
            for number in numbers
        ]
        if forced:
            row_F, token_F = torch.tensor(forced).T.to(logits.device, non_blocking=True)
            logits[row_F] = -torch.inf
            logits[row_F, token_F] = 0.0
        return logits

    def _chains(self, ctx: LogitsContext) -> list[Chain]:
        """The drafts of every lossy request. Row i's draft is the token that was fed in row i + 1
        of the same request; -1 stands where there is none."""
        layout = (ctx.expanded_idx_mapping, ctx.expanded_local_pos, ctx.input_ids, ctx.pos)
        rows = torch.stack([column.long() for column in layout]).T.tolist()
        chains: list[tuple[int, int, int, list[int]]] = []  # slot, row and position of the root
        for row, (slot, place, token, position) in enumerate(rows):
            if slot in self.lossy and place == 0:
                chains.append((slot, row, position, []))
            elif slot in self.lossy and token >= 0 and len(chains[-1][-1]) == place - 1:
                chains[-1][-1].append(token)
        chains = [chain for chain in chains if chain[-1]]
        answers = self._answers({slot: position for slot, _, position, _ in chains})
        width = 0 if self.draft_logits is None else self.draft_logits.shape[1]
        return [
            Chain(
                self.lossy[slot].policy,
                tokens,
                target_row=row,
                draft_row=slot * width if width else -1,
                stop_token_ids=self.lossy[slot].stop_token_ids,
                answer=answers.get(slot, ()),
            )
            for slot, row, _, tokens in chains
        ]

    def _answers(self, root_position: dict[int, int]) -> dict[int, list[int]]:
        """The answers so far, the root the last, of the requests whose guards read them."""
        guards = {slot: self.lossy[slot].policy.guards for slot in root_position}
        asked = [slot for slot in guards if any(isinstance(one, NoRepeat) for one in guards[slot])]
        if not asked:
            return {}
        begins = self.states.prompt_len.np[asked].tolist()
        ends = [root_position[slot] + 1 for slot in asked]
        first, index = min(begins), torch.tensor(asked).to(self.states.device, non_blocking=True)
        texts = self.states.all_token_ids.gpu[index, first : max(ends)].cpu()
        spans = zip(asked, texts, begins, ends, strict=True)
        return {
            slot: text[begin - first : end - first].tolist() for slot, text, begin, end in spans
        }


def check_speculation(vllm_config: VllmConfig) -> None:
    """Refuse, when the server starts, ways to verify that were not tested."""
    spec = vllm_config.speculative_config
    if spec is None:
        raise BadInput(
            "eagle_fsd_vllm accepts drafts, and this server drafts nothing: give it a "
            "--speculative-config, or leave its logits processor out"
        )
    if spec.rejection_sample_method != "standard" or spec.enable_adaptive_verification:
        raise BadInput(
            "eagle_fsd_vllm was tested with vLLM's standard verification only: leave "
            "rejection_sample_method and enable_adaptive_verification out"
        )


def wrap_verification() -> None:
    """Keep the draft logits, which RejectionSampler.__call__ gets, where our processors see them
    during that call. What has another signature than that tested is left alone."""
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

    call = RejectionSampler.__call__
    try:
        check_wrapped()
    except BadInput as error:
        logger.warning_once(str(error))
        return
    if getattr(call, "keeps_draft_logits", False):
        return

    @functools.wraps(call)
    def verify(self, logits, input_batch, draft_logits=None, invalid_drafts=None):
        ours = [p for p in self.sampler.logits_processors if isinstance(p, FuzzyAcceptance)]
        for processor in ours:
            processor.draft_logits = draft_logits
        try:
            return call(self, logits, input_batch, draft_logits, invalid_drafts)
        finally:
            for processor in ours:
                processor.draft_logits = None

    verify.keeps_draft_logits = True
    RejectionSampler.__call__ = verify
