"""An arm answers a prompt: timed and counted alike, whoever's loop it is.

Every arm gets the same prompt tokens, stop tokens, budget and seed. The clock covers prefill and
decoding, not tokenisation.
"""

import math
from dataclasses import asdict

import torch
from transformers import CompileConfig

from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.drafter import Drafter
from eagle_fsd.decoding.loop import DecodeConfig, Generation, StopConfig, check_request, decode
from eagle_fsd.evaluation.arms import COMPILED, Arm
from eagle_fsd.models.loaded import Model
from eagle_fsd.speed.clock import synchronized_time


def answer_prompt(
    arm: Arm,
    model: Model,
    prompt: list[int],
    sampling: SamplingConfig,
    stop: StopConfig,
    seed: int,
    *,
    drafter: Drafter,
    record: str = "lean",
) -> tuple[Generation, float]:
    """Answer a prompt; returns the generation and its seconds.

    Args:
        drafter: from arm.build_drafter.
        record: see Policy.
    """
    began = synchronized_time(model.target.device)
    if arm.runs_our_loop:
        config = DecodeConfig(arm.policy(sampling, record), stop, seed)
        result = decode(model.target, drafter, prompt, config)
    else:
        result = _transformers_generate(arm, model, prompt, sampling, stop, seed)
    return result, synchronized_time(model.target.device) - began


@torch.inference_mode()
def _transformers_generate(
    arm: Arm, model: Model, prompt: list[int], sampling: SamplingConfig, stop: StopConfig, seed: int
) -> Generation:
    """transformers' generate; Target has emptied the model's own generation defaults."""
    assert model.target.has_stock, "load with keep_stock=True: `generate` is the stock model's"
    check_request(model.target, prompt, stop)
    ids = torch.tensor([prompt], device=model.target.device)
    torch.manual_seed(seed)
    settings: dict = {"do_sample": sampling.temperature > 0}
    if settings["do_sample"]:
        settings |= asdict(sampling)
    if arm.text == COMPILED:
        # transformers compiles on accelerators by itself, on a CPU only with this mark of its own
        # tests (5.x, generation/utils.py _valid_auto_compile_criteria)
        compile_config = CompileConfig()
        compile_config._compile_all_devices = True
        settings |= {"cache_implementation": "static", "compile_config": compile_config}
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
        "fuzzy_spans": fuzzy_spans(model, result),
        "finish": result.finish,
        "seconds": seconds,
        "rescored_argmax_share": argmax_share,
        "rescored_mean_logp": mean_logp,
        "rounds": [
            {
                "tokens": r.tokens,
                "fuzzy": [int(flag) for flag in r.fuzzy],
                "divergence": list(map(json_number, r.divergence)),
                "tv": list(map(json_number, r.tv)),
                "regret": list(map(json_number, r.regret)),
            }
            for r in result.rounds
        ],
    }


def fuzzy_spans(model: Model, result: Generation) -> list[list[int]]:
    """[begin, end) of every fuzzy token in the answer's text."""
    fuzzy = [place for place, flag in enumerate(result.fuzzy) if flag]
    return [[len(model.text(result.tokens[: n + i])) for i in (0, 1)] for n in fuzzy]


def json_number(value: float, digits: int = 6) -> float | str | None:
    """JSON has neither NaN (not judged: null) nor infinity ("inf")."""
    if math.isnan(value):
        return None
    return round(value, digits) if math.isfinite(value) else "inf"
