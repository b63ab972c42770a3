"""Answers that are known to be worse, which extras/reader.py must tell from plain's: a plug-in with
a rule, and a command that writes a cut target.

    evaluate/mt_bench.py --questions 80 --max_new_tokens 128 --quality_only --dtype float32 \\
        --plugin extras/reader_controls.py --draft_model smollm2 \\
        --arms second:10@language_model:2x1x2

    python extras/reader_controls.py smollm2 24 cut
    evaluate/mt_bench.py --questions 80 --max_new_tokens 128 --quality_only --dtype float32 \\
        --target cut --arms plain

The second control's target is the first 24 layers of the other's, with its norm and readout.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from eagle_fsd.cli import ended_by
from eagle_fsd.config import BadInput
from eagle_fsd.decoding.verified import Rule, VerifiedTree
from eagle_fsd.rules import RULES


@dataclass(frozen=True)
class Second(Rule):
    """Plain decoding in which every token at a multiple of `every`, counted from 1, is the target's
    second choice, from which decoding goes on. The drafter must draft that choice: two children of
    the root, by the target itself."""

    columns: ClassVar[tuple[str, ...]] = ("rank",)
    bounds: ClassVar[tuple[float, float]] = (2, float("inf"))
    lossless_at: ClassVar[float] = float("inf")
    every: int = 10

    def step(self, tree: VerifiedTree, v: int) -> int | None:
        """The token behind v is number len(answer) + depth + 1 of the answer."""
        number = len(tree.answer) + tree.depths[v] + 1
        if number % self.every == 0:
            return next((c for c in tree.children[v] if tree.value("rank", c) == 1), None)
        # a path that ends before such a place leaves it to the next round, at whose root are drafts
        return None if (number + 1) % self.every == 0 else tree.hit(v)


RULES["second"] = Second


def write_cut(target: str, layers: int, folder: Path) -> None:
    """The target's first layers, with its norm, readout and tokenizer, as a target of its own."""
    from eagle_fsd.models.load import load_target

    loaded, tokenizer = load_target(target, dtype="float32")
    model = loaded.model
    if not 0 < layers < model.config.num_hidden_layers:
        held = model.config.num_hidden_layers
        raise BadInput(f"target {target} has {held} layers: give 1 to {held - 1}, not {layers}")
    model.base_model.layers = model.base_model.layers[:layers]
    model.config.num_hidden_layers = layers
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=write_cut.__doc__)
    parser.add_argument("target", help="as evaluate/mt_bench.py takes it")
    parser.add_argument("layers", type=int, help="how many are kept")
    parser.add_argument("folder", type=Path, help="where the cut target is written")
    ended_by(lambda: write_cut(**vars(parser.parse_args())))
