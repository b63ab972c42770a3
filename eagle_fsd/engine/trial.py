"""Whether a model verifies draft trees correctly, by trial: its family, and an engine on it.

Of a family that is not tested a small tree is verified behind a prompt, and compared with what the
stock model gives for each of its branches, run alone: first by the stock model itself, so that a
fault of the family is not taken for one of an engine, then by the engines in turn.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

import torch
from torch import nn
from tqdm import tqdm
from transformers import PretrainedConfig, PreTrainedModel

from eagle_fsd.config import BadInput, one_line
from eagle_fsd.decoding.engine import Engine
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.families import TESTED_FAMILIES, check_supported, text_body

PROMPT, SHORT_WINDOW = 300, 200  # tokens
# 20 children of the root, then two chains of three below the first and the last of them: the tree
# is wide, so that a model which goes by row instead of position is found out.
PARENTS = [0] * 21 + [1, 21, 22, 20, 24, 25]
LEAVES = (10, 23, 26)
# Of nodes whose row is not their depth: by how much of the logits' size tree and branch may differ.
# In 16 bits a router of experts may choose another one for a single node, so that there half of the
# nodes must be close; in float32 all.
ALLOWED, ALLOWED_HALF = 1e-3, 0.05
# Names by which configs and layers know how far back a layer looks
WINDOW_NAMES = re.compile("window(?!_layers)|local_attention|attention_chunk|index_topk")
# What a family's own code raises where it cannot do what is asked of it
FAILURES = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True)
class Trial:
    """A prompt, a tree behind it, and the stock model's logits for its nodes [V], by node."""

    prompt_L: torch.Tensor
    tree: DraftTree
    alone: dict[int, torch.Tensor]

    @torch.inference_mode()
    def fault(self, target: Target) -> str:
        """What is wrong with the target's verification of the tree; empty if nothing."""
        with _short_windows(target):
            try:
                target.start(len(self.prompt_L) + self.tree.size)
                target.prefill(self.prompt_L)
                if not any(getattr(layer, "is_initialized", True) for layer in target.cache.layers):
                    return "they keep no keys and values of a text in transformers' cache"
                logits_NV = target.verify(self.tree)[0].float()
            except torch.OutOfMemoryError:
                raise
            except FAILURES as error:
                why = "their layers take no mask, positions or cache of a draft tree"
                return f"{why} ({one_line(error)})"
            finally:
                target.close()
        alone_MV = torch.stack([*self.alone.values()])
        size_M = (alone_MV - alone_MV.mean(dim=1, keepdim=True)).norm(dim=1)
        error_M = (logits_NV[[*self.alone]] - alone_MV).norm(dim=1) / size_M
        exact = target.dtype == torch.float32 and getattr(target.engine, "exact", True)
        error, allowed = (error_M.max(), ALLOWED) if exact else (error_M.median(), ALLOWED_HALF)
        if error < allowed:
            return ""
        return (
            "their layers do not go by the mask and the positions of a draft tree, whose logits are"
            f" others than those of the same tokens run alone (relative error {error:.2g})"
        )


def checked_target(
    new_model: Callable[[], PreTrainedModel], engines: list[Engine], **settings
) -> Target:
    """A target of the model, by the first of the engines (choose_engines) that verifies trees as
    the stock model; which one cannot is said. `new_model` is called again where an engine has
    rebuilt the model in vain; `settings` are a Target's. BadInput: the family is not supported, or
    the one engine that is wanted cannot run it."""
    # 1. The stock model.
    model = new_model()
    kind, generation_config = model.config.model_type, model.generation_config
    try:
        stock = Target(model)
    except FAILURES as error:
        why = f"they are not what a language model is here ({one_line(error)})"
        raise _unsupported(model.config, why) from error
    trial = check_tree_attention(stock)
    del stock
    model.generation_config = generation_config  # which a Target takes
    # 2. The engines in turn; those that leave the layers as they are need no trial.
    for engine, next_engine in zip_longest(engines, engines[1:]):
        tried = trial is not None and engine.rebuilds
        try:
            target = Target(model or new_model(), engine=engine, **settings)
            fault = trial.fault(target) if tried else ""
            if fault and target.masks.keywords["repeats"] > 1:
                # some layers work on their mask or repeat keys themselves: a mask for all heads
                target.masks = partial(target.masks, repeats=1)
                fault = trial.fault(target)
        except FAILURES as error:
            if not tried:
                raise
            fault = f"exchanging layers failed with {one_line(error)}"
        if not fault:
            return target
        told = f"engine {engine.name!r} cannot run targets of type {kind!r} ({fault})"
        if next_engine is None:
            raise BadInput(f"{told}: use auto")
        tqdm.write(f"{told}: trying {next_engine.name!r}", file=sys.stderr)
        model = target = None  # rebuilt; its memory is needed


@torch.inference_mode()
def check_tree_attention(target: Target) -> Trial | None:
    """The trial, which a target whose model is stock has stood; None of a tested family. BadInput:
    the family is not supported, cannot be tried, or fails."""
    check_supported(target.model.config)
    config = target.config
    if config.model_type in TESTED_FAMILIES:
        return None
    if "position_ids" not in inspect.signature(text_body(target.model).forward).parameters:
        raise _unsupported(
            config, "they take no position_ids, so the nodes of a draft tree cannot be placed"
        )
    length = max(1, min(PROMPT, target.max_positions - 6))
    prompt_L = (torch.arange(length, device=target.device) * 7 + 3) % min(target.vocab_size, 997)
    tokens = [(11 * node + 5) % min(target.vocab_size, 991) for node in range(len(PARENTS))]
    tree = DraftTree.from_parents(tokens, PARENTS, device=target.device)
    alone: dict[int, torch.Tensor] = {}
    with _short_windows(target):
        try:
            for leaf in LEAVES:
                branch_A = tree.ancestor_NN[leaf].nonzero()[:, 0]
                ids = torch.cat([prompt_L, tree.token_N[branch_A]])[None]
                logits_AV = target.model(input_ids=ids).logits[0, -len(branch_A) :].float()
                alone |= zip(branch_A.tolist(), logits_AV, strict=True)
        except torch.OutOfMemoryError:
            raise
        except FAILURES as error:
            raise _unsupported(config, f"running them failed with {one_line(error)}") from error
    below = {node: logits_V for node, logits_V in alone.items() if node > 1}
    trial = Trial(prompt_L, tree, below)
    if fault := trial.fault(target):
        raise _unsupported(config, fault)
    return trial


def _unsupported(config: PretrainedConfig, why: str) -> BadInput:
    return BadInput(
        f"targets of type {config.model_type!r} are not supported: {why}. Tested families: "
        f"{', '.join(TESTED_FAMILIES)}"
    )


@contextmanager
def _short_windows(target: Target) -> Iterator[None]:
    """Windows that the trial's prompt would not leave, though a longer text may, are short
    meanwhile: a trial beyond the window, at the price of a short prompt."""
    models = [model for model in vars(target).values() if isinstance(model, nn.Module)]
    modules = [module for model in models for module in model.modules()]
    pairs = [(module, getattr(module, "config", None) or module) for module in modules]
    holders = {id(holder): holder for pair in pairs for holder in pair}
    kept = []
    try:
        for holder in holders.values():
            for name, value in list(vars(holder).items()):
                far = type(value) is int and SHORT_WINDOW < value < target.max_positions
                if far and WINDOW_NAMES.search(name):
                    kept.append((holder, name, value))
                    setattr(holder, name, SHORT_WINDOW)
        yield
    finally:
        for holder, name, value in kept:
            setattr(holder, name, value)
