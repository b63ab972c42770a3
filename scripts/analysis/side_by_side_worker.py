"""Answers prompts by arms of this library for a driver that times engines in separate processes.

    python scripts/analysis/side_by_side_worker.py TARGET_FOLDER DTYPE [ENGINE]

The driver waits for the line READY, then writes one JSON object a line, {"arm", "ids", "n"}: an
arm's text, the prompt's token ids and the budget. The target is one that the shipped head fits: the
embedded one's folder in the cache. The driver reads one a line, {"n", "s", "tau_n",
"tau_r"}: tokens emitted, seconds of prefill and decoding, the rounds' tokens and how many rounds
there were. The last two are missing for transformers' `generate`, which has no rounds.
"""

import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

import eagle_fsd
from eagle_fsd.arms import GENERATE, parse_arm
from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.loop import DecodeConfig, decode
from eagle_fsd.models.assets import EMBEDDED_TARGET
from eagle_fsd.models.load import default_head
from eagle_fsd.models.loaded import Model


def by_generate(stock: PreTrainedModel, ids: list[int], budget: int) -> dict:
    prompt_1L = torch.tensor([ids])
    began = time.perf_counter()
    with torch.inference_mode():
        output_1L = stock.generate(
            prompt_1L,
            attention_mask=torch.ones_like(prompt_1L),
            max_new_tokens=budget,
            do_sample=False,
        )
    return {"n": output_1L.shape[1] - len(ids), "s": time.perf_counter() - began}


def by_arm(model: Model, text: str, ids: list[int], budget: int) -> dict:
    arm = parse_arm(text)
    config = DecodeConfig(arm.policy(SamplingConfig()), model.stop(budget))
    drafter = arm.build_drafter(model)
    began = time.perf_counter()
    got = decode(model.target, drafter, ids, config)
    seconds = time.perf_counter() - began
    emitted = sum(len(accepted.tokens) for accepted in got.rounds)
    return {"n": len(got.tokens), "s": seconds, "tau_n": emitted, "tau_r": len(got.rounds)}


def main(target: str, dtype: str, engine: str = "auto") -> None:
    model = eagle_fsd.load(target, head=default_head(EMBEDDED_TARGET), dtype=dtype, engine=engine)
    kind, stock = getattr(torch, dtype), None
    print("READY", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["arm"] == GENERATE:
            stock = stock or AutoModelForCausalLM.from_pretrained(
                target, dtype=kind, trust_remote_code=False
            )
            got = by_generate(stock.eval(), asked["ids"], asked["n"])
        else:
            got = by_arm(model, asked["arm"], asked["ids"], asked["n"])
        print(json.dumps(got), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
