"""An arm answers a prompt: timed and counted alike, whoever's loop it is; what is recorded of it.

Every arm gets the same prompt tokens, stop tokens, budget and seed. The clock covers prefill and
decoding, not tokenisation.
"""

import math
from dataclasses import asdict

import torch
from transformers import CompileConfig

from eagle_fsd.arms import COMPILED, Arm
from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding import loop
from eagle_fsd.decoding.columns import Rows, draft_prob, raw_prob
from eagle_fsd.decoding.drafter import Drafter
from eagle_fsd.decoding.loop import DecodeConfig, Generation, Round, StopConfig
from eagle_fsd.models.loaded import Model
from eagle_fsd.timing import synchronized_time

PER_TOKEN = ("divergence", "tv", "regret")  # numbers of a round


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
    """The generation, by a drafter from arm.build_drafter, and its seconds."""
    began = synchronized_time(model.target.device)
    if arm.runs_our_loop:
        config = DecodeConfig(arm.policy(sampling, record), stop, seed)
        result = loop.decode(model.target, drafter, prompt, config)
    else:
        result = _transformers_generate(arm, model, prompt, sampling, stop, seed)
    return result, synchronized_time(model.target.device) - began


@torch.inference_mode()
def _transformers_generate(
    arm: Arm, model: Model, prompt: list[int], sampling: SamplingConfig, stop: StopConfig, seed: int
) -> Generation:
    """transformers' generate; Target has emptied the model's own generation defaults."""
    assert model.target.has_stock, "load with keep_stock=True: `generate` is the stock model's"
    loop.check_request(model.target, prompt, stop)
    ids = torch.tensor([prompt], device=model.target.device)
    torch.manual_seed(seed)
    samples = sampling.temperature > 0
    settings: dict = {"do_sample": samples} | (asdict(sampling) if samples else {})
    settings["remove_invalid_values"] = samples  # a draw from NaN would crash; rescore tells them
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
        pad_token_id=next(iter(stop.token_ids), 0),
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
                **{of: list(map(json_number, getattr(r, of))) for of in PER_TOKEN},
                **({} if r.dial is None else {"dial": round(r.dial, 6)}),
            }
            for r in result.rounds
        ],
    }


def fuzzy_spans(model: Model, result: Generation) -> list[list[int]]:
    """[begin, end) of every fuzzy token in the answer's text, which may end before its tokens."""
    fuzzy = [place for place, flag in enumerate(result.fuzzy) if flag]
    lengths = [[len(model.text(result.tokens[: n + i])) for i in (0, 1)] for n in fuzzy]
    longest = len(model.text(result.tokens))
    return [[min(length, longest) for length in span] for span in lengths]


def json_number(value: float, digits: int = 6) -> float | str | None:
    """JSON has neither NaN (not judged: null) nor infinity ("inf")."""
    if math.isfinite(value):
        return round(value, digits)
    return None if math.isnan(value) else "inf"


def trace_record(
    model: Model,
    arm: Arm,
    drafter: Drafter,
    sampling: SamplingConfig,
    questions: list[str],
    record: dict,
) -> dict:
    """Where every token of an answer came from, with the tree of every round.

    A record of our loop is decoded again, off the clock, with its own seeds; whether the text comes
    out the same is said, which in bfloat16 asks for the same machine and threads.

    Returns:
        The JSON-able trace: question_id, choice, category, arm, and for each turn its
        prompt, whether the tokens are the record's, the token of prefill, and the rounds. A round
        has the tree's nodes (token, text, parent, -1 for the root, and the token's probability
        after its parent under target and draft, by raw rows; null for the root and where the
        drafter has none), the path, and the emitted tokens: source (draft, fuzzy or target),
        divergence, both probabilities, regret (nats), and the target's most likely token there,
        which at temperature 0 is what the exact test emits.
    """
    messages, turns = [], []
    for question, answered in zip(questions, record["turns"], strict=True):
        messages.append({"role": "user", "content": question})
        stop = model.stop(len(answered["token_ids"]))
        config = DecodeConfig(arm.policy(sampling, "full"), stop, answered["seed"])
        tokens, rounds = [], []
        for step in loop.decode_rounds(model.target, drafter, model.prompt_ids(messages), config):
            tokens += step.tokens
            if step.acceptance is not None:
                rounds.append(_round(model, step))
        same = tokens == answered["token_ids"]
        turn = {"prompt": question, "same_as_record": same, "first": _token(model, tokens[0])}
        turns.append(turn | {"rounds": rounds})
        messages.append({"role": "assistant", "content": answered["text"]})
    head = {key: record[key] for key in ("question_id", "choice", "category", "arm")}
    return head | {"turns": turns}


def _token(model: Model, token: int) -> dict:
    return {"token": token, "text": model.tokenizer.decode([token])}


def _round(model: Model, step: Round) -> dict:
    tree, logits_NV, accepted = step.tree, step.logits_NV, step.acceptance
    tokens, parents = tree.token_N.tolist(), tree.parent_N.tolist()
    best = logits_NV[accepted.path].argmax(-1).tolist()
    asked = torch.tensor(tokens + accepted.tokens + best, device=logits_NV.device)
    rows = Rows(tree, logits_NV, slice(None), asked, SamplingConfig())
    target, draft = raw_prob(rows).tolist(), draft_prob(rows).tolist()

    def probs(node: int, place: int) -> dict:
        """Of the token asked at that place, after the node."""
        pair = json_number(target[node][place], 5), json_number(draft[node][place], 5)
        return dict(zip(("target_prob", "draft_prob"), pair, strict=True))

    nodes = [{"parent": -1, "target_prob": None, "draft_prob": None}]
    nodes += [{"parent": parents[n]} | probs(parents[n], n) for n in range(1, tree.size)]
    emitted = []
    for place, (node, token) in enumerate(zip(accepted.path, accepted.tokens, strict=True)):
        ends = place == accepted.accepted_drafts
        found = {
            "source": "fuzzy" if accepted.fuzzy[place] else "target" if ends else "draft",
            "divergence": json_number(accepted.divergence[place]),
            "regret": json_number(accepted.regret[place]),
            "best": _token(model, best[place])["text"],
            "best_prob": probs(node, place - len(best))["target_prob"],
        }
        emitted.append(_token(model, token) | probs(node, tree.size + place) | found)
    nodes = [_token(model, token) | node for token, node in zip(tokens, nodes, strict=True)]
    return {"nodes": nodes, "path": accepted.path, "emitted": emitted}
