"""Options that commands share, for HfArgumentParser."""

import math
from dataclasses import dataclass, field

import torch

from eagle_fsd.api import Model, load, usual_tree
from eagle_fsd.config import AcceptConfig, BadInput, SamplingConfig, TreeConfig
from eagle_fsd.engine.select import choose_engine
from eagle_fsd.models.load import DTYPES, usual_dtype


def option(default, help: str):
    """A dataclass field with its help text."""
    return field(default=default, metadata={"help": help})


@dataclass
class ModelOptions:
    target: str = option("smollm2", "smollm2 (embedded), a folder, a .gguf file or a hub id")
    head: str = option("", "folder or hub id of a draft head; empty: the shipped one")
    device: str = option("", "torch device, or auto for several; empty: cuda if there is one")
    dtype: str = option("", "bfloat16, float16 or float32; empty: bfloat16 where it is fast")
    num_draft_tokens: int | None = option(None, "drafts a round; default 15 on CPU, 59 on CUDA")
    tree_depth: int | None = option(None, "drafted levels, upstream's depth + 1; default 4 or 6")
    branch_top_k: int | None = option(None, "children per expanded node; default 6 or 10")
    conv_template: str = option("", "FastChat template, for targets without a chat template")
    engine: str = option("auto", "auto, packed (CPU), graphs (CUDA), folded or stock")

    def __post_init__(self):
        self.device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = self.dtype or usual_dtype(self.device)
        usual = usual_tree(self.device)
        choose_engine(self.engine, device=self.device, dtype=DTYPES.get(self.dtype, torch.float32))
        for name in ("num_draft_tokens", "tree_depth", "branch_top_k"):
            if getattr(self, name) is None:
                setattr(self, name, getattr(usual, name))

    def tree(self) -> TreeConfig:
        """The tree's shape, checked."""
        return TreeConfig(self.num_draft_tokens, self.tree_depth, self.branch_top_k)

    def load(self, *, drafts: bool = True, keep_stock: bool = False) -> Model:
        """Check everything that can be checked without weights, then load.

        Args:
            drafts: False needs no head and decodes plainly.
            keep_stock: keep a stock model beside, for transformers' own generate.
        """
        return load(
            self.target,
            head=self.head if drafts else None,
            tree=self.tree(),
            dtype=self.dtype,
            device=self.device,
            conv_template=self.conv_template,
            engine=self.engine,
            keep_stock=keep_stock,
        )


@dataclass
class DecodeOptions:
    divergence: str = option("js", "kl_target_draft, kl_draft_target, js, tv or js_reference")
    logits: str = option("raw", "divergence of raw rows, or processed by the sampling filters")
    child: str = option("draft", "which child when D passes: draft, target, deepest or sample")
    temperature: float = option(0.0, "0 is greedy")
    top_k: int = option(0, "0: off")
    top_p: float = option(1.0, "1: off")
    seed: int = option(0, "of all sampling")

    def sampling(self) -> SamplingConfig:
        return SamplingConfig(self.temperature, self.top_k, self.top_p)

    def accept(self, rule: str, threshold: float) -> AcceptConfig:
        """A rule with these options, checked against the sampling."""
        if math.isinf(threshold):
            raise BadInput(
                "a threshold of inf cannot be recorded: give a large number, such as 1e9, which "
                "accepts everything too"
            )
        config = AcceptConfig(rule, self.divergence, threshold, self.logits, self.child)
        config.check_with(self.sampling())
        return config
