"""vLLM's engine with the plug-in on a few turns: is each request's text what it should be? On a CPU
its Triton kernels are interpreted (interpreted/sitecustomize.py): six seconds a step of 4 requests.

    python run_engine.py TARGET HEAD OWN.json OUTPUT.json [turns] [tokens]

TARGET: a folder; HEAD: one that `convert_head --to vllm` wrote; OWN.json: of own_texts.py, with the
prompts. The first run is one batch of all arms on all turns; then each arm has a batch alone.
OUTPUT.json keeps what is done, so that a run that ends early goes on. Prints how many texts are
this library's own, and ends with an error unless all are, in both kinds of batch.
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ |= {"VLLM_USE_V2_MODEL_RUNNER": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
SPECULATION = {"method": "eagle", "num_speculative_tokens": 4}
SPECULATION |= {"draft_sample_method": "probabilistic"}
OFF = ("exact", "ratio:0", "relaxed:0", "path:0", "fsd:0")  # vLLM's own acceptance


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


def main(target: str, head: str, own: str, output: str, turns: str = "4", length: str = "32"):
    from vllm import LLM

    stored, count, tokens = json.loads(Path(own).read_text()), int(turns), int(length)
    prompts, wanted = stored["prompts"][:count], stored["answers"]
    lossy = [arm for arm in wanted if arm != "exact"]
    mixed = [(arm, turn) for turn in range(count) for arm in (None, *lossy)]
    mixed += [(arm, i % count) for i, arm in enumerate(OFF)]
    runs = {"all in one batch": mixed}
    runs |= {str(arm): [(arm, turn) for turn in range(count)] for arm in (None, *lossy)}
    done = json.loads(Path(output).read_text()) if Path(output).exists() else {}
    begin = time.perf_counter()
    llm = LLM(
        target,
        dtype="float32",
        max_model_len=512,
        max_num_seqs=len(mixed),
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config=SPECULATION | {"model": head},
        logits_processors=["eagle_fsd_vllm.processor:FuzzyAcceptance"],
    )
    print(f"loaded in {time.perf_counter() - begin:.0f} s", flush=True)
    wrong = 0
    for name, asked in runs.items():
        if name not in done:
            arms = [arm for arm, _ in asked]
            done[name] = answer(llm, [prompts[turn] for _, turn in asked], arms, tokens)
            Path(output).write_text(json.dumps(done))
        right = {str(arm): [] for arm, _ in asked}
        for (arm, turn), got in zip(asked, done[name]["tokens"], strict=True):
            text = wanted["exact" if arm in (None, *OFF) else arm][turn]
            right[str(arm)].append(got == text[:tokens])
        wrong += sum(not own for each in right.values() for own in each)
        values = (f"{key} {done[name][key]:.3f}" for key in done[name] if key != "tokens")
        texts = ", ".join(f"{arm} {sum(each)} of {len(each)}" for arm, each in right.items())
        print(f"{name}:", *values, f"\n  own texts: {texts}", flush=True)
    sys.exit(f"texts that are not this library's: {wrong}" if wrong else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
