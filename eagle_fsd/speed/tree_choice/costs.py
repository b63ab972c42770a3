"""What the parts of a round cost on this machine, in milliseconds.

propose   taking in what was committed and the first level, by branch_top_k, and each further
          level, as the difference of two depths (reranking is in both)
verify    by width; in between, linear
accept    by the drafts accepted (CPU: the walk stops with the path) or the tree's depth
commit    by the drafts accepted
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from eagle_fsd.config import TreeConfig

Curve = Mapping[int, float]
"""Milliseconds at measured points, at least one."""

CURVES = ("verify", "first_level", "next_level", "commit")


@dataclass(frozen=True)
class Costs:
    """Costs that do not depend on the acceptance rule.

    Attributes:
        verify: by width, the root included.
        first_level: of the drafter, by branch_top_k.
        next_level: one level more, by branch_top_k.
        commit: by accepted drafts.
        spread: distance of the quartiles of the repeats over their median; large where something
            else was running.
    """

    verify: Curve
    first_level: Curve
    next_level: Curve
    commit: Curve
    spread: float = 0.0

    def __post_init__(self):
        for name in CURVES:
            check_curve(getattr(self, name))

    def propose(self, tree: TreeConfig) -> float:
        """Milliseconds of growing a tree."""
        k = tree.branch_top_k
        return at(self.first_level, k) + (tree.tree_depth - 1) * at(self.next_level, k)

    def to_json(self) -> dict:
        curves = {name: curve_to_json(getattr(self, name)) for name in CURVES}
        return curves | {"spread": self.spread}

    @classmethod
    def from_json(cls, value: dict) -> "Costs":
        curves = {name: curve_from_json(value[name]) for name in CURVES}
        return cls(**curves, spread=float(value["spread"]))


@dataclass(frozen=True)
class AcceptCosts:
    """Costs of the rule: `plain` with a one-node tree, `by_drafts` by drafts accepted."""

    plain: float
    by_drafts: Curve

    def __post_init__(self):
        check_curve(self.by_drafts)
        check_curve({0: self.plain})

    def to_json(self) -> dict:
        return {"plain": self.plain, "by_drafts": curve_to_json(self.by_drafts)}

    @classmethod
    def from_json(cls, value: dict) -> "AcceptCosts":
        return cls(value["plain"], curve_from_json(value["by_drafts"]))


def at(curve: Curve, point: float) -> float:
    """A curve's value: linear between the measured points, constant beyond them."""
    points = sorted(curve)
    return float(np.interp(point, points, [curve[p] for p in points]))


def check_curve(curve: Curve) -> None:
    """Raises ValueError unless it holds at least one point, and times only."""
    if not curve or not all(0 <= value < float("inf") for value in curve.values()):
        raise ValueError(f"not a curve of milliseconds: {curve}")


def curve_to_json(curve: Curve) -> dict[str, float]:
    return {str(point): curve[point] for point in sorted(curve)}


def curve_from_json(value: dict[str, float]) -> dict[int, float]:
    return {int(point): milliseconds for point, milliseconds in value.items()}
