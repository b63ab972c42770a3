"""An arm answers a prompt: timed and counted alike, whoever's loop it is; what is recorded of it,
and where every token came from, with the tree of every round, for the report's page. The clock
covers prefill and decoding, not tokenisation."""

import math
from collections.abc import Callable
from dataclasses import asdict

import torch
from transformers import CompileConfig

from eagle_fsd.arm_names import COMPILED
from eagle_fsd.arms import Arm
from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding import loop
from eagle_fsd.decoding.answer import Generation, Round
from eagle_fsd.decoding.columns import PLACES, Rows, draft_prob, raw_prob
from eagle_fsd.decoding.divergence import DIVERGENCES
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, check_request
from eagle_fsd.decoding.tree import Drafter
from eagle_fsd.models.generate import rescore
from eagle_fsd.models.loaded import Model
from eagle_fsd.timing import synchronized_time


def answer_prompt(
    arm: Arm,
    model: Model,
    prompt: list[int],
    sampling: SamplingConfig,
    stop: StopConfig,
    seed: int,
    *,
    drafter: Drafter,
    watch: Callable[[Round], None] | None = None,
) -> tuple[Generation, float]:
    """The generation and its seconds. `watch` is shown every step of our loop as it arises; the
    clock stands still meanwhile."""
    device = model.target.device
    began = synchronized_time(device)
    if not arm.runs_our_loop:
        result = _transformers_generate(arm, model, prompt, sampling, stop, seed)
        return result, synchronized_time(device) - began
    result = Generation()
    config = DecodeConfig(arm.policy(sampling), stop, seed)
    for step in loop.decode_rounds(model.target, drafter, prompt, config):
        result.add(step)
        if watch:
            paused = synchronized_time(device)
            watch(step)
            began += synchronized_time(device) - paused
    return result, synchronized_time(device) - began


@torch.inference_mode()
def _transformers_generate(
    arm: Arm, model: Model, prompt: list[int], sampling: SamplingConfig, stop: StopConfig, seed: int
) -> Generation:
    """transformers' generate; Target has emptied the model's own generation defaults."""
    assert model.target.has_stock, "load with keep_stock=True: `generate` is the stock model's"
    check_request(model.target, prompt, stop)
    ids = torch.tensor([prompt], device=model.target.device)
    torch.manual_seed(seed)
    samples = sampling.temperature > 0
    settings: dict = {"do_sample": samples} | (asdict(sampling) if samples else {})
    settings["remove_invalid_values"] = samples  # a draw from NaN would crash; rescore finds it
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


def turn_record(
    model: Model,
    prompt: list[int],
    result: Generation,
    seconds: float,
    ends: list[int],
    *,
    thought: int,
) -> dict:
    """One answered turn as JSON, with how the target rates it; `ends` are its text_ends, and
    `thought` characters of its text are thought."""
    argmax_share, mean_logp = rescore(model.target, prompt, result.tokens)
    # [begin, end) of every fuzzy token in the text, which may end before the tokens do
    ends = [0, *ends]
    spans = zip(ends, ends[1:], result.fuzzy, strict=False)
    fuzzy_spans = [[min(place, ends[-1]) for place in span] for *span, fuzzy in spans if fuzzy]
    return {
        "prompt_tokens": len(prompt),
        "token_ids": result.tokens,
        "text": model.text(result.tokens),
        **({"thought": thought} if thought else {}),
        "fuzzy_spans": fuzzy_spans,
        "finish": result.finish,
        "seconds": seconds,
        "rescored_argmax_share": argmax_share,
        "rescored_mean_logp": mean_logp,
        "rounds": [
            {
                "tokens": r.tokens,
                "fuzzy": [int(flag) for flag in r.fuzzy],
                **{
                    of: list(map(json_number, getattr(r, of)))
                    for of in ("divergence", "tv", "regret")
                },
            }
            for r in result.rounds
        ],
    }


def json_number(value: float, digits: int = 6) -> float | str | None:
    """JSON has neither NaN (not judged: null) nor infinity ("inf")."""
    if math.isfinite(value):
        return round(value, digits)
    return None if math.isnan(value) else "inf"


def traced_token(model: Model, token: int) -> dict:
    """With "end" where it ends a turn: answers end before its text."""
    named = {"token": token, "text": model.tokenizer.decode([token])}
    return named | ({"end": True} if token in model.ends.ids else {})


class TurnTrace:
    """A turn's steps in `taken`: {first (the token of prefill), rounds (trace_round)}. They are
    taken down while the answer is decoded, since a round's logits are good until the next."""

    def __init__(self, model: Model, arm: Arm):
        self._model, self._arm, self.taken = model, arm, {}

    def take(self, step: Round) -> None:
        if step.acceptance is None:
            self.taken = {"first": traced_token(self._model, step.tokens[0]), "rounds": []}
        else:
            self.taken["rounds"].append(trace_round(self._model, self._arm, step))


def trace_round(model: Model, arm: Arm, step: Round) -> dict:
    """What a round drafted and emitted, JSON-able; tokens that were trimmed are not in it.

    nodes    of the tree: token, text, parent (-1 for the root), and the token's probability after
             its parent under target and draft, by raw rows; null for the root and where the
             drafter has none
    path     the accepted nodes whose tokens were emitted, the root first
    emitted  token, text, source (draft, fuzzy or target), the place's divergence by which it was
             judged, both probabilities, regret (nats), and the target's most likely token there,
             which at temperature 0 is what the exact test emits
    """
    tree, accepted, count = step.tree, step.acceptance, len(step.tokens)
    path = accepted.path[:count]
    best = step.logits_NV[path].argmax(-1).tolist()
    tokens, parents = tree.token_N.tolist(), tree.parent_N.tolist()
    # looked at are the drafts, behind their parents, then what was and what could have been emitted
    row_C, token_C = torch.tensor(
        [parents + path + path, tokens + step.tokens + best], device=step.logits_NV.device
    )
    drafter = tree.draft_logits_ER, tree.draft_row_N, tree.draft_token_R
    rows = Rows(step.logits_NV.float(), row_C, token_C, SamplingConfig(), *drafter)
    target, draft = raw_prob(rows).tolist(), draft_prob(rows).tolist()
    # the D that the rule reads, or that it might have read
    columns = [*arm.rule.columns, "js"]
    divergence = PLACES[next(name for name in columns if name in DIVERGENCES)](rows).tolist()

    def probs(place: int) -> dict:
        pair = json_number(target[place], 5), json_number(draft[place], 5)
        return dict(zip(("target_prob", "draft_prob"), pair, strict=True))

    nodes = [{"parent": -1, "target_prob": None, "draft_prob": None}]
    nodes += [{"parent": parents[n]} | probs(n) for n in range(1, tree.size)]
    emitted = []
    for place, (node, token) in enumerate(zip(path, step.tokens, strict=True)):
        ends = place == accepted.accepted_drafts
        judged = {
            "source": "fuzzy" if accepted.fuzzy[place] else "target" if ends else "draft",
            "divergence": json_number(divergence[node]) if node in parents[1:] else None,
            "regret": json_number(accepted.regret[place]),
            "best": traced_token(model, best[place])["text"],
            "best_prob": probs(tree.size + count + place)["target_prob"],
        }
        emitted.append(traced_token(model, token) | probs(tree.size + place) | judged)
    nodes = [traced_token(model, token) | node for token, node in zip(tokens, nodes, strict=True)]
    return {"nodes": nodes, "path": accepted.path[: count + 1], "emitted": emitted}
