"""Arms of a comparison: ways to answer the same prompt, timed and counted alike.

`generate` is transformers' own loop; `plain` is ours with a one-node tree; the others draft trees
and accept by a rule. Every arm gets the same prompt tokens, stop tokens, budget and seed. The clock
covers prefill and decoding, not tokenisation.
"""

import math
from dataclasses import dataclass

import torch

from eagle_fsd.api import Model
from eagle_fsd.config import AcceptConfig, SamplingConfig
from eagle_fsd.decode import DecodeConfig, Generation, StopConfig, check_request, decode
from eagle_fsd.drafters.root import RootDrafter
from eagle_fsd.timing import synchronized_time

BASELINES = ("generate", "plain")


@dataclass(frozen=True)
class Arm:
    """A way to answer. `accept` is None for the two baselines."""

    name: str
    accept: AcceptConfig | None = None

    @classmethod
    def with_rule(cls, accept: AcceptConfig) -> "Arm":
        """Named by what differs from the defaults: exact, fsd_js_T0.2, fsd_tv_target_T0.1, ..."""
        if accept.rule == "exact":
            return cls("exact", accept)
        parts = [accept.rule, accept.divergence]
        parts += [accept.logits] if accept.logits != AcceptConfig.logits else []
        parts += [accept.child] if accept.child != AcceptConfig.child else []
        return cls("_".join([*parts, f"T{accept.threshold:g}"]), accept)

    def answer(
        self, model: Model, prompt: list[int], sampling: SamplingConfig, stop: StopConfig, seed: int
    ) -> tuple[Generation, float]:
        """Answer a prompt; returns the generation and its seconds."""
        target = model.target
        began = synchronized_time(target.device)
        if self.name == "generate":
            result = _transformers_generate(model, prompt, sampling, stop, seed)
        else:
            drafter = RootDrafter() if self.accept is None else model.drafter
            config = DecodeConfig(self.accept or AcceptConfig("exact"), sampling, stop, seed)
            result = decode(target, drafter, prompt, config)
        return result, synchronized_time(target.device) - began


@torch.inference_mode()
def _transformers_generate(
    model: Model, prompt: list[int], sampling: SamplingConfig, stop: StopConfig, seed: int
) -> Generation:
    """transformers' generate; Target has emptied the model's own generation defaults."""
    check_request(model.target, prompt, stop)
    ids = torch.tensor([prompt], device=model.target.device)
    torch.manual_seed(seed)
    settings = {"do_sample": False, "temperature": None, "top_k": None, "top_p": None}
    if sampling.temperature > 0:
        settings = {
            "do_sample": True,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
        }
    output = model.target.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=stop.max_new_tokens,
        eos_token_id=list(stop.token_ids) or None,
        pad_token_id=stop.token_ids[0] if stop.token_ids else 0,
        stop_strings=list(stop.strings) or None,
        tokenizer=model.tokenizer,
        **settings,
    )
    tokens, finish = stop.trim([], output[0, len(prompt) :].tolist())
    return Generation(tokens, [], finish or "length")


def turn_record(model: Model, prompt: list[int], result: Generation, seconds: float) -> dict:
    """One answered turn as JSON: the answer, its time, its rounds, and how the target rates it."""
    argmax_share, mean_logp = model.target.rescore(prompt, result.tokens)
    return {
        "prompt_tokens": len(prompt),
        "token_ids": result.tokens,
        "text": model.text(result.tokens),
        "finish": result.finish,
        "seconds": seconds,
        "rescored_argmax_share": argmax_share,
        "rescored_mean_logp": mean_logp,
        "rounds": [
            {
                "tokens": r.tokens,
                "fuzzy": [int(flag) for flag in r.fuzzy],
                "divergence": [_number(value) for value in r.divergence],
                "tv": [_number(value) for value in r.tv],
                "regret": [_number(value) for value in r.regret],
            }
            for r in result.rounds
        ],
    }


def _number(value: float) -> float | str | None:
    """JSON has neither NaN (not judged: null) nor infinity ("inf")."""
    if math.isnan(value):
        return None
    return round(value, 6) if math.isfinite(value) else "inf"
