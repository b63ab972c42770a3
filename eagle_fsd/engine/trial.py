"""Whether a loaded model decodes rightly here, by trial: its family, the versions of transformers
and torch, and an engine on it.

A short text is decoded as the loop does it: a prompt, single tokens, then a draft tree of which one
branch bears the text's next tokens, and is kept. The logits behind each token are compared with
those of one forward of the stock model over the whole text, without a cache. Every target is tried
when it is loaded, also one of a tested family: another release of transformers may change what was
right (5.24 renamed an argument, and a cache of 5.23's name was no longer filled).
"""

import copy
import gc
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

import torch
from torch import nn
from tqdm import tqdm
from transformers import PretrainedConfig, PreTrainedModel

from eagle_fsd.config import BadInput, one_line
from eagle_fsd.decoding.cache import TreeCache
from eagle_fsd.decoding.engine import Engine
from eagle_fsd.decoding.masks import nearer_masks
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.engine.attention import sharing_copy
from eagle_fsd.families import (
    TESTED_FAMILIES,
    check_supported,
    longest_text,
    text_body,
    text_config,
)
from eagle_fsd.recurrent.kinds import layer_types
from eagle_fsd.versions import told_versions

PROMPT, SINGLES = 12, 2  # tokens of the text in front of the tree
# 10 children of the root, then two chains of three below the first and the last of them: the tree
# is wide, so that a model which goes by row instead of position is found out.
PARENTS = [0] * 11 + [1, 11, 12, 10, 14, 15]
BRANCH = [0, 10, 14, 15, 16]  # bears the text
KEPT = 3  # of its nodes
SHORT_WINDOW = 8  # tokens: less than the prompt
# By how much of their size two computations of the same logits may differ: in float32 those of
# every token. 16 bits round by some 0.04 of it, and a router of experts may choose another one for
# a single token, so that half of the tokens must be close; of a family whose layers the tests know,
# only what is gross is held to be a fault (a mask that is ignored: 0.74 on the embedded target).
ALLOWED, ALLOWED_HALF, GROSS = 1e-3, 0.15, 0.25
# Names by which configs and layers know how far back a layer looks
WINDOW_NAMES = re.compile("window(?!_layers)|local_attention|attention_chunk|index_topk")
# What a family's own code raises where it cannot do what is asked of it
FAILURES = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
NOT_CACHED = "they keep no keys and values of a text in transformers' cache"
NOT_CHAINED = (
    "with what their cache keeps of a text, the logits of its next tokens are others than without"
)
NOT_BRANCHED = (
    "their layers do not go by the mask and the positions of a draft tree, whose logits are others "
    "than those of the same tokens run alone"
)


@dataclass(frozen=True)
class Trial:
    """A text with a tree behind it, and the stock model's logits behind each token of the text, the
    tree's BRANCH included, [L, V] in float32."""

    text_L: torch.Tensor
    tree: DraftTree
    whole_LV: torch.Tensor

    @classmethod
    @torch.inference_mode()
    def of(cls, model: PreTrainedModel) -> "Trial":
        """Of a stock model. BadInput: its family is not supported, or cannot be run."""
        check_supported(model.config)
        config, V = text_config(model.config), model.get_output_embeddings().weight.shape[0]
        window, types = getattr(config, "sliding_window", None), layer_types(config)
        nearer, own = nearer_masks(text_body(model)), hasattr(type(config), "sliding_window")
        if window and own and not types and "sliding_attention" not in nearer:
            raise _unsupported(
                config,
                f"their masks lack the sliding_window of their config ({window}), by which the "
                "cache of transformers' generate goes: which of two texts is theirs is not known",
            )
        if nearer.get("sliding_attention") and "sliding_attention" in types and not window:
            raise BadInput(
                "the target's config names layers of sliding_attention in layer_types, and no "
                f"window for them (sliding_window is {window}; use_sliding_window false clears "
                "it): set either of the two right"
            )
        if "position_ids" not in inspect.signature(text_body(model).forward).parameters:
            raise _unsupported(
                config, "they take no position_ids, so the nodes of a draft tree cannot be placed"
            )
        longest = longest_text(config)
        count = max(1, min(PROMPT + SINGLES, longest - len(BRANCH)))
        nodes = [(11 * node + 5) % min(V, 991) for node in range(len(PARENTS))]
        text = torch.randint(V, (count,), generator=torch.Generator().manual_seed(0)).tolist()
        device = model.get_input_embeddings().weight.device
        text_L = torch.tensor([*text, *(nodes[node] for node in BRANCH)], device=device)
        with _short_windows([model], longest):
            try:
                output = model(input_ids=text_L[None], use_cache=False)
            except torch.OutOfMemoryError:
                raise
            except FAILURES as error:
                raise _unsupported(config, f"running them failed with {one_line(error)}") from error
        # where logits are, which of a model on several devices is another
        device = model.get_output_embeddings().weight.device
        tree = DraftTree.from_parents(nodes, PARENTS, device=device)
        return cls(text_L, tree, output.logits[0].float())

    @torch.inference_mode()
    def fault(self, target: Target) -> str:
        """What is wrong with the target's decoding of the text; empty if nothing."""
        exact = target.dtype == torch.float32 and getattr(target.engine, "exact", True)
        exact = exact and _multiplies_in_float32(target.device)
        allowed = GROSS if target.config.model_type in TESTED_FAMILIES else ALLOWED_HALF
        modules = [part for part in vars(target).values() if isinstance(part, nn.Module)]
        cache = target.begin(len(self.text_L) + self.tree.size)
        try:
            with _short_windows(modules, target.max_positions):
                for told, places, logits_CV in self._decoded(target, cache):
                    whole_CV = self.whole_LV[places].to(logits_CV.device)
                    size_C = (whole_CV - whole_CV.mean(dim=1, keepdim=True)).norm(dim=1)
                    far_C = (logits_CV.float() - whole_CV).norm(dim=1)
                    error_C = far_C / size_C.clamp_min(1e-6)  # they may be all alike
                    error = error_C.max() if exact else error_C.median()
                    if not error < (ALLOWED if exact else allowed):  # NaN too
                        layers = cache.layers
                        kept = any(getattr(layer, "is_initialized", True) for layer in layers)
                        return f"{told if kept else NOT_CACHED} (relative error {error:.2g})"
        except (BadInput, torch.OutOfMemoryError):
            raise
        except FAILURES as error:
            why = "their layers take no mask, positions or cache of a draft tree"
            return f"{why} ({one_line(error)})"
        return ""

    def _decoded(
        self, target: Target, cache: TreeCache
    ) -> Iterator[tuple[str, list[int], torch.Tensor]]:
        """Decodes it as the loop does: what a fault would be, places in the text, and the logits
        behind these [C, V]."""
        text_L = self.text_L.to(target.device)
        root = len(text_L) - len(BRANCH)
        prompt, own_1 = max(1, root - SINGLES), torch.zeros_like(text_L[:1])
        prefilled_V, _ = target.prefill(cache, text_L[:prompt])
        singles = [prefilled_V[None]]
        for place in range(prompt, root):
            singles.append(self._single(target, cache, text_L[place]))
            target.commit(cache, own_1)
        yield NOT_CHAINED, [*range(prompt - 1, root)], torch.cat(singles)
        branch_CV = target.verify(cache, self.tree)[0][BRANCH]
        target.commit(cache, own_1.new_tensor(BRANCH[:KEPT]))
        branch_CV = torch.cat([branch_CV, self._single(target, cache, text_L[root + KEPT])])
        yield NOT_BRANCHED, [*range(root, len(text_L)), root + KEPT], branch_CV

    def _single(self, target: Target, cache: TreeCache, token: torch.Tensor) -> torch.Tensor:
        tree = DraftTree.from_parents([int(token)], [0], device=target.device)
        return target.verify(cache, tree)[0]


def check_target(target: Target) -> None:
    """Refuse, by a BadInput, a target of a stock model that does not decode rightly here. The model
    may be in use elsewhere, so that windows are shortened on a copy of its layers."""
    model = target.model
    if _long_windows([model], target.max_positions):
        model = sharing_copy(model)
        target = Target(model)
    if fault := Trial.of(model).fault(target):
        raise _unsupported(target.config, fault)


def checked_target(
    new_model: Callable[[], PreTrainedModel], engines: list[Engine], **settings
) -> Target:
    """A target of the model, by the first of the engines (choose_engines) that decodes as the stock
    model; which one cannot is said. `new_model` is called again where an engine has rebuilt the
    model in vain; `settings` are a Target's. BadInput: the family is not supported, or the one
    engine that is wanted cannot run it."""
    model = new_model()
    config, trial = text_config(model.config), Trial.of(model)
    for engine, next_engine in zip_longest(engines, engines[1:]):
        # 1. The engine on the model, tried.
        try:
            target = Target(model or new_model(), engine=engine, **settings)
            fault = trial.fault(target)
            if fault and target.masks.keywords["repeats"] > 1:
                # some layers work on their mask or repeat keys themselves: a mask for all heads
                target.masks = partial(target.masks, repeats=1)
                fault = trial.fault(target)
        except (BadInput, torch.OutOfMemoryError):
            raise
        except FAILURES as error:
            fault = f"exchanging layers failed with {one_line(error)}"
        if not fault:
            return target
        # 2. It failed: is it the stock model that does? (A copy's generation config is cleared.)
        model = target = None  # rebuilt; its memory is needed, and layers know one another
        gc.collect()
        model = new_model()
        try:
            check_target(Target(copy.copy(model)))
        except (BadInput, torch.OutOfMemoryError):
            raise
        except FAILURES as error:
            why = f"they are not what a language model is here ({one_line(error)})"
            raise _unsupported(config, why) from error
        # 3. It is the engine.
        told = f"engine {engine.name!r} cannot run targets of type {config.model_type!r} ({fault})"
        if next_engine is None:
            raise BadInput(f"{told}: use auto; {told_versions()}")
        tqdm.write(f"{told}: trying {next_engine.name!r}", file=sys.stderr)


def shares_forwards(target: Target, together: Callable[[Sequence[Callable]], Iterable]) -> bool:
    """Whether texts that `together` runs in one padded forward (evaluation/batches.py) get the
    logits that each has alone. They do not where layers carry states, ask the cache where tokens
    stand, or go by the sizes of a forward, as GPT-Neo's do."""
    if target.has_states or target.asks_positions:
        return False

    def run(length: int, nodes: int) -> torch.Tensor:
        cache = target.begin(PROMPT + 2 * len(PARENTS))
        target.prefill(cache, torch.arange(length, device=target.device))
        tree = DraftTree.from_parents(range(nodes), PARENTS[:nodes], device=target.device)
        return target.verify(cache, tree)[0].float()

    # the longest text with a single node beside a short one with all
    calls = [partial(run, PROMPT + SINGLES, 1), partial(run, SINGLES, len(PARENTS))]
    alone, shared = [call() for call in calls], dict(together(calls))
    far = [(shared[number] - own).norm() / own.norm() for number, own in enumerate(alone)]
    return all(error < ALLOWED_HALF for error in far)


def _multiplies_in_float32(device: torch.device) -> bool:
    """Not where torch was told to multiply float32 in fewer bits (TF32, bfloat16)."""
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).to(device)
    rounding = ((x @ x).double() - x.double() @ x.double()).norm() / (x @ x).norm()
    return bool(rounding < 1e-5)


def _unsupported(config: PretrainedConfig, why: str) -> BadInput:
    return BadInput(
        f"targets of type {config.model_type!r} are not supported: {why}. Tested families: "
        f"{', '.join(TESTED_FAMILIES)}; {told_versions()}"
    )


def _long_windows(models: Iterable[nn.Module], longest: int) -> list[tuple[object, str, int]]:
    """Windows that the trial's text would not leave, though a text of `longest` tokens may: what
    holds each, its name and its length."""
    modules = [module for model in models for module in model.modules()]
    pairs = [(module, getattr(module, "config", None) or module) for module in modules]
    holders = {id(holder): holder for pair in pairs for holder in pair}
    return [
        (holder, name, value)
        for holder in holders.values()
        for name, value in vars(holder).items()
        if type(value) is int and SHORT_WINDOW < value < longest and WINDOW_NAMES.search(name)
    ]


@contextmanager
def _short_windows(models: Iterable[nn.Module], longest: int) -> Iterator[None]:
    """Long windows are short meanwhile: a trial beyond the window, at the price of a short text."""
    windows = _long_windows(models, longest)
    try:
        for holder, name, _ in windows:
            setattr(holder, name, SHORT_WINDOW)
        yield
    finally:
        for holder, name, value in windows:
            setattr(holder, name, value)
