"""Options that commands share, for HfArgumentParser."""

from dataclasses import dataclass, field

import torch

from eagle_fsd.api import LARGE_TREE, SMALL_TREE, Model, load
from eagle_fsd.config import TreeConfig


def option(default, help: str):
    """A dataclass field with its help text."""
    return field(default=default, metadata={"help": help})


@dataclass
class ModelOptions:
    target: str = option("smollm2", "smollm2 (embedded), a folder, a .gguf file or a hub id")
    head: str = option("", "folder or hub id of an EAGLE-1/2 head; empty: the shipped one")
    device: str = option("", "torch device, or auto for several; empty: cuda if there is one")
    dtype: str = option("", "bfloat16, float16 or float32; empty: bfloat16 where it is fast")
    num_draft_tokens: int = option(0, "drafts a round; 0: 15 on CPU, 59 on CUDA")
    tree_depth: int = option(0, "drafted levels; 0: 4 on CPU, 6 on CUDA (upstream's depth + 1)")
    branch_top_k: int = option(0, "children per expanded node; 0: 6 on CPU, 10 on CUDA")
    conv_template: str = option("", "FastChat template, for targets without a chat template")

    def __post_init__(self):
        self.device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        if not self.dtype:
            slow = self.device == "cpu" and not bfloat16_is_fast_on_cpu()
            self.dtype = "float32" if slow else "bfloat16"
        usual = SMALL_TREE if self.device == "cpu" else LARGE_TREE
        self.num_draft_tokens = self.num_draft_tokens or usual.num_draft_tokens
        self.tree_depth = self.tree_depth or usual.tree_depth
        self.branch_top_k = self.branch_top_k or usual.branch_top_k

    def tree(self) -> TreeConfig:
        """The tree's shape, checked."""
        return TreeConfig(self.num_draft_tokens, self.tree_depth, self.branch_top_k)

    def load(self) -> Model:
        """Check everything that can be checked without weights, then load."""
        return load(
            self.target,
            head=self.head,
            tree=self.tree(),
            dtype=self.dtype,
            device=self.device,
            conv_template=self.conv_template,
        )


def bfloat16_is_fast_on_cpu() -> bool:
    """Whether the processor multiplies bfloat16 in hardware; without that, float32 is faster."""
    have = torch.cpu.get_capabilities()
    return bool(have.get("avx512_bf16") or have.get("amx_bf16") or have.get("bf16"))
