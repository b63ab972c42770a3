"""vLLM's engine with the plug-in on a few turns: is each request's text what it should be? On a CPU
its Triton kernels are interpreted (interpreted/sitecustomize.py), which takes minutes a turn.

    python run_engine.py TARGET HEAD OWN.json OUTPUT.json

TARGET: a folder; HEAD: one that `convert_head --to vllm` wrote; OWN.json: of own_texts.py, with the
prompts. OUTPUT.json keeps what is done, so that a run that ends early goes on. Asserts that the
value 0 and exact give vLLM's own tokens, that a mixed batch gives each request what it gets alone,
and that all of them are this library's own texts; prints what each costs.
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ |= {"VLLM_USE_V2_MODEL_RUNNER": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
SPECULATION = {"method": "eagle", "num_speculative_tokens": 4}
SPECULATION |= {"draft_sample_method": "probabilistic"}
OFF = ("exact", "ratio:0", "relaxed:0", "path:0", "fsd:0")  # all in one batch, and none alone


def answer(llm, prompts: list[list[int]], arms: list[str | None], tokens: int) -> dict:
    """Token ids of each prompt under its arm, and the batch's counters."""
    from vllm import SamplingParams

    def counters() -> dict[str, float]:
        metrics = [m for m in llm.get_metrics() if "spec_decode" in m.name and hasattr(m, "value")]
        return {metric.name.split(":")[1]: metric.value for metric in metrics}

    def params(arm: str | None):
        extra = None if arm is None else {"arm": arm}
        return SamplingParams(temperature=0, max_tokens=tokens, extra_args=extra, logprobs=1)

    before, begin = counters(), time.perf_counter()
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
    outputs = llm.generate(inputs, [params(arm) for arm in arms], use_tqdm=False)
    seconds, after = time.perf_counter() - begin, counters()
    steps = {key: after[key] - before.get(key, 0) for key in after}
    regret = [  # of each token, from its log-probability and that of the target's own
        max(found.logprob for found in place.values()) - place[token].logprob
        for output in outputs
        for token, place in zip(
            output.outputs[0].token_ids, output.outputs[0].logprobs, strict=True
        )
    ]
    drafts = steps.get("spec_decode_num_drafts") or float("nan")
    return {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "tokens_per_step": 1 + steps.get("spec_decode_num_accepted_tokens", 0) / drafts,
        "fuzzy_share": sum(r > 0 for r in regret) / len(regret),
        "regret": sum(regret) / len(regret),
        "seconds": seconds,
    }


def main(target: str, head: str, own: str, output: str) -> None:
    from vllm import LLM

    stored = json.loads(Path(own).read_text())
    prompts, wanted = stored["prompts"], stored["answers"]
    tokens = max(map(len, wanted["exact"]))
    alone = [arm for arm in wanted if arm != "exact"]
    mixed = [alone[i % len(alone)] for i in range(len(prompts))]
    off = [OFF[i % len(OFF)] for i in range(len(prompts))]
    runs = {"none": [None] * len(prompts), "values 0": off, "mixed": mixed}
    runs |= {arm: [arm] * len(prompts) for arm in alone}
    runs["mixed, turned"] = mixed[1:] + mixed[:1]
    done = json.loads(Path(output).read_text()) if Path(output).exists() else {}
    begin = time.perf_counter()
    llm = LLM(
        target,
        dtype="float32",
        max_model_len=512,
        max_num_seqs=8,
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config=SPECULATION | {"model": head},
        logits_processors=["eagle_fsd_vllm.processor:FuzzyAcceptance"],
    )
    print(f"loaded in {time.perf_counter() - begin:.0f} s", flush=True)
    for name, arms in runs.items():
        if name not in done:
            done[name] = answer(llm, prompts, arms, tokens)
            Path(output).write_text(json.dumps(done))
        found = done[name]
        right = [
            got == wanted["exact" if arm in (None, *OFF) else arm][i]
            for i, (arm, got) in enumerate(zip(arms, found["tokens"], strict=True))
        ]
        values = (f"{key} {found[key]:.3f}" for key in found if key != "tokens")
        print(f"{name:28}", *values, f"own texts {sum(right)} of {len(right)}", flush=True)
    assert done["values 0"]["tokens"] == done["none"]["tokens"]
    for name in ("mixed", "mixed, turned"):
        for i, arm in enumerate(runs[name]):
            assert done[name]["tokens"][i] == done[arm]["tokens"][i], (name, i, arm)
    print("as vLLM's own, and in a batch as alone: all")


if __name__ == "__main__":
    main(*sys.argv[1:])
