"""Options that commands share, for HfArgumentParser.

Nothing heavy is imported before they are parsed: `--help` and a typo are answered at once.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eagle_fsd.config import SamplingConfig, parse_tree, tree_name

if TYPE_CHECKING:
    from eagle_fsd.models.loaded import Model


def option(default, help: str):
    """A dataclass field with its help text."""
    return field(default=default, metadata={"help": help})


@dataclass
class ModelOptions:
    target: str = option("smollm2", "smollm2 (embedded), folder, .gguf, hub id or random:SHAPE")
    head: str = option("", "folder or hub id of a draft head; empty: the shipped one")
    device: str = option("", "torch device, or auto for several; empty: cuda if there is one")
    dtype: str = option("", "bfloat16, float16 or float32; empty: bfloat16 where it is fast")
    tree: str = option("", "DRAFTSxLEVELSxTOPK of the head's trees; default 15x4x6 or 59x6x10")
    conv_template: str = option("", "FastChat template, for targets without a chat template")
    engine: str = option("auto", "auto, packed (CPU), graphs (CUDA), folded or stock")

    def __post_init__(self):
        import torch

        from eagle_fsd.api import default_tree
        from eagle_fsd.engine.select import choose_engine
        from eagle_fsd.models.load import DTYPES, default_dtype

        self.device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = self.dtype or default_dtype(self.device)
        choose_engine(self.engine, device=self.device, dtype=DTYPES.get(self.dtype, torch.float32))
        self.tree = tree_name(parse_tree(self.tree) if self.tree else default_tree(self.device))

    def load(self, *, drafts: bool = True, keep_stock: bool = False) -> "Model":
        """api.load with these options; without `drafts` no head is needed."""
        from eagle_fsd.api import load

        return load(
            self.target,
            head=self.head if drafts else None,
            tree=parse_tree(self.tree),
            dtype=self.dtype,
            device=self.device,
            conv_template=self.conv_template,
            engine=self.engine,
            keep_stock=keep_stock,
        )


@dataclass
class SamplingOptions:
    temperature: float = option(0.0, "0 is greedy")
    top_k: int = option(0, "0: off; also bounds what a rule may take in the place of x")
    top_p: float = option(1.0, "1: off; likewise")
    seed: int = option(0, "of all sampling")

    def sampling(self) -> SamplingConfig:
        return SamplingConfig(self.temperature, self.top_k, self.top_p)
