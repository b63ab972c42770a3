"""Arms of a comparison: ways to answer the same prompt, timed and counted alike.

`generate` is transformers' own loop on the stock model, `generate_compiled` the same with a static
cache and torch.compile; `plain` is our loop with a one-node tree; the others draft trees and accept
by a rule. Every arm gets the same prompt tokens, stop tokens, budget and seed. The clock covers
prefill and decoding, not tokenisation.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from transformers import CompileConfig

from eagle_fsd.api import Model
from eagle_fsd.config import AcceptConfig, SamplingConfig, TreeConfig, parse_tree
from eagle_fsd.decoding.clock import PhaseClock, synchronized_time
from eagle_fsd.decoding.drafter import Drafter, RootDrafter
from eagle_fsd.decoding.loop import DecodeConfig, Generation, StopConfig, check_request, decode
from eagle_fsd.rules.fuzzy import JUDGED_BY_DIVERGENCE

GENERATE = "generate"
BASELINES = (GENERATE, "plain")
COMPILED = "generate_compiled"  # minutes of first use and needs a compiler, so no baseline of all


@dataclass(frozen=True)
class Arm:
    """A way to answer.

    Attributes:
        name: in tables and file names.
        accept: the rule; None for arms that draft nothing.
        tree: shape of its draft trees; None: as the model's drafter has it.
        tree_label: what `tree` came from: "" (None), its own name, or "auto": to be chosen by
            measurement before the first answer.
        make_drafter: the drafter of an arm that does not use the model's.
        sampling: of its own; None: the comparison's.
        loop: whose decoding loop: "ours", "generate" or "generate_compiled"; of an arm that bears
            one of those names it is that.
    """

    name: str
    accept: AcceptConfig | None = None
    tree: TreeConfig | None = None
    tree_label: str = ""
    make_drafter: Callable[[Model], Drafter] | None = None
    sampling: SamplingConfig | None = None
    loop: str = ""

    def __post_init__(self):
        usual = self.name if self.name in (GENERATE, COMPILED) else "ours"
        object.__setattr__(self, "loop", self.loop or usual)

    @classmethod
    def with_rule(cls, accept: AcceptConfig) -> "Arm":
        """Named by what differs from the defaults: exact, fsd_js_T0.2, fsd_tv_target_T0.1,
        random_r0.05, ..."""
        if accept.rule == "exact":
            return cls("exact", accept)
        judges = accept.rule in JUDGED_BY_DIVERGENCE
        parts = [accept.rule, accept.divergence] if judges else [accept.rule]
        parts += [accept.logits] if judges and accept.logits != AcceptConfig.logits else []
        parts += [accept.child] if accept.child != AcceptConfig.child else []
        letter = "T" if judges else "r"
        value = f"{accept.threshold:g}"
        value = value if float(value) == accept.threshold else repr(accept.threshold)
        return cls("_".join([*parts, letter + value]), accept)

    def with_tree(self, label: str) -> "Arm":
        """The same rule on trees of its own, named after them.

        Args:
            label: "" (the arm as it is), "auto", or a shape such as 15x4x6.

        Raises:
            ValueError: no such shape.
        """
        if not label:
            return self
        tree = None if label == "auto" else parse_tree(label)
        return replace(self, name=f"{self.name}_{label}", tree=tree, tree_label=label)

    @property
    def runs_our_loop(self) -> bool:
        return self.loop == "ours"

    def build_drafter(self, model: Model) -> Drafter:
        """Its drafter; build it once, since a reduced draft vocabulary may be copied for it."""
        assert self.tree or self.tree_label != "auto", f"{self.name}: its tree is not chosen yet"
        if self.accept is None:
            return RootDrafter()
        if self.make_drafter is not None:
            return self.make_drafter(model)
        return model.drafter if self.tree is None else model.drafter.with_tree(self.tree)

    def decode_config(self, sampling: SamplingConfig, stop: StopConfig, seed: int) -> DecodeConfig:
        return DecodeConfig(self.accept or AcceptConfig("exact"), sampling, stop, seed)

    def answer(
        self,
        model: Model,
        prompt: list[int],
        sampling: SamplingConfig,
        stop: StopConfig,
        seed: int,
        *,
        drafter: Drafter | None = None,
        clock: PhaseClock | None = None,
    ) -> tuple[Generation, float]:
        """Answer a prompt; returns the generation and its seconds.

        Args:
            drafter: from build_drafter; None builds one now, outside the time.
            clock: notes the seconds of every phase of our loop; transformers' has none.
        """
        if drafter is None:
            drafter = self.build_drafter(model)
        target = model.target
        began = synchronized_time(target.device)
        if self.runs_our_loop:
            config = self.decode_config(sampling, stop, seed)
            result = decode(target, drafter, prompt, config, clock=clock)
        else:
            compiled = self.loop == COMPILED
            result = _transformers_generate(model, prompt, sampling, stop, seed, compiled=compiled)
        return result, synchronized_time(target.device) - began


@torch.inference_mode()
def _transformers_generate(
    model: Model,
    prompt: list[int],
    sampling: SamplingConfig,
    stop: StopConfig,
    seed: int,
    *,
    compiled: bool,
) -> Generation:
    """transformers' generate; Target has emptied the model's own generation defaults."""
    assert model.target.has_stock, "load with keep_stock=True: `generate` is the stock model's"
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
    if compiled:
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
        "finish": result.finish,
        "seconds": seconds,
        "rescored_argmax_share": argmax_share,
        "rescored_mean_logp": mean_logp,
        "rounds": [
            {
                "tokens": r.tokens,
                "fuzzy": [int(flag) for flag in r.fuzzy],
                "divergence": [json_number(value) for value in r.divergence],
                "tv": [json_number(value) for value in r.tv],
                "regret": [json_number(value) for value in r.regret],
            }
            for r in result.rounds
        ],
    }


def json_number(value: float) -> float | str | None:
    """JSON has neither NaN (not judged: null) nor infinity ("inf")."""
    if math.isnan(value):
        return None
    return round(value, 6) if math.isfinite(value) else "inf"
