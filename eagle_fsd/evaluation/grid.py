"""A grid of settings: every combination that has a meaning is a cell, and every cell an arm.

    rule=fsd,fsd-paper  child=draft,target  threshold@js=0.3,0.4  threshold@tv=0.5,0.6

is 2 x 2 x (js: 2, tv: 2) cells if divergence=js,tv is given too. AXIS@VALUE holds where another
axis has that value. Combinations without a meaning (child `sample` at temperature 0) are left out;
those that differ only in what they do not use (the divergence of rule `random`) are one cell.
Beside the cells stand their baselines: plain and generate at each temperature, exact with each
tree too.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace

from eagle_fsd.config import AcceptConfig, SamplingConfig, TreeConfig, tree_name
from eagle_fsd.evaluation.arms import BASELINES, Arm

# How a value of an axis is read; its name is a field of AcceptConfig or SamplingConfig, or `tree`.
AXES = {
    "rule": str,
    "divergence": str,
    "threshold": float,
    "logits": str,
    "child": str,
    "tree": str,
    "temperature": float,
    "top_p": float,
    "top_k": int,
}


def parse_axes(texts: Sequence[str]) -> dict[str, dict[str, list]]:
    """From "axis=v,v" and "axis@where=v,v" to axis -> where ("" without) -> values.

    Raises:
        ValueError: no such form, an unknown axis, an axis given twice, or a value of another type.
    """
    axes: dict[str, dict[str, list]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        axis, _, where = name.partition("@")
        if axis not in AXES or not values:
            raise ValueError(
                f"{text!r} is no axis: write AXIS=VALUE,VALUE or AXIS@WHERE=VALUE,VALUE with AXIS "
                f"one of {', '.join(AXES)}"
            )
        if where in axes.setdefault(axis, {}):
            raise ValueError(f"axis {name} is given twice")
        try:
            axes[axis][where] = [AXES[axis](value) for value in values.split(",")]
        except ValueError as error:
            raise ValueError(f"axis {name}: {error}") from error
    return axes


def build_grid(
    texts: Sequence[str], *, base: dict | None = None, baselines: Sequence[str] = BASELINES
) -> list[Arm]:
    """The arms of all cells, each after the baselines that it is compared with.

    Args:
        texts: the axes.
        base: values of what is no axis; without one a setting has its default.
        baselines: of BASELINES; exact always is among the arms.

    Raises:
        ValueError: see parse_axes; a value that a setting refuses; no cell is left.
    """
    arms: dict[str, Arm] = {}
    for values in _combinations(parse_axes(texts), base or {}):
        accept = AcceptConfig(**_part(values, AcceptConfig))
        sampling = SamplingConfig(**_part(values, SamplingConfig))
        if not _has_meaning(accept, sampling):
            continue
        drafting = [AcceptConfig("exact", threshold=0.0), _canonical(accept)]
        drafting = [Arm.with_rule(rule).with_tree(values.get("tree", "")) for rule in drafting]
        for arm in [*(Arm(name) for name in baselines), *drafting]:
            arm = replace(arm, name=arm.name + _sampling_name(sampling), sampling=sampling)
            arms.setdefault(arm.name, arm)
    if not any(arm.accept and arm.accept.rule != "exact" for arm in arms.values()):
        raise ValueError(
            "the grid has no cell: no combination of its axes has a meaning (logits 'processed' "
            "and child 'sample' need a temperature above 0)"
        )
    return list(arms.values())


def _combinations(axes: dict[str, dict[str, list]], base: dict) -> Iterator[dict]:
    """Every choice of one value an axis; where a condition holds its values replace the others.

    Of several conditions that hold, the one on the axis that stands first in AXES is taken.
    """
    always = {axis: axes[axis][""] for axis in AXES if set(axes.get(axis, ())) == {""}}
    waiting = [axis for axis in axes if axis not in always]
    held = set()
    for chosen in itertools.product(*always.values()):
        values = base | dict(zip(always, chosen, strict=True))
        conditional = {}
        for axis in waiting:
            where = next((w for name in AXES for w in axes[axis] if _is(values, name, w)), "")
            if where not in axes[axis]:
                known = ", ".join(f"{axis}@{name}" for name in axes[axis])
                raise ValueError(f"axis {axis} has no value for {values}, only {known}")
            held.add((axis, where))
            conditional[axis] = axes[axis][where]
        for rest in itertools.product(*conditional.values()):
            yield values | dict(zip(conditional, rest, strict=True))
    never = [f"{a}@{w}" for a in waiting for w in axes[a] if w and (a, w) not in held]
    if never:
        raise ValueError(f"{', '.join(never)} never holds: no other axis has such a value")


def _is(values: dict, axis: str, where: str) -> bool:
    """Whether an axis has the value of a condition."""
    if not where or axis not in values:
        return False
    try:
        return AXES[axis](where) == values[axis]
    except ValueError:  # a name, where the axis has numbers
        return False


def _part(values: dict, settings: type) -> dict:
    return {f.name: values[f.name] for f in fields(settings) if f.name in values}


def _has_meaning(accept: AcceptConfig, sampling: SamplingConfig) -> bool:
    try:
        accept.check_with(sampling)
    except ValueError:
        return False
    return True


def _canonical(accept: AcceptConfig) -> AcceptConfig:
    """Without the settings that its rule does not use."""
    if accept.rule != "random":
        return accept
    return AcceptConfig("random", threshold=accept.threshold, child=accept.child)


def _sampling_name(sampling: SamplingConfig) -> str:
    parts = [f"t{sampling.temperature:g}"] if sampling.temperature else []
    parts += [f"p{sampling.top_p:g}"] if sampling.top_p < 1 else []
    parts += [f"k{sampling.top_k}"] if sampling.top_k else []
    return "".join(f"_{part}" for part in parts)


def cell_columns(arm: Arm, *, tree: TreeConfig) -> dict:
    """The whole configuration of an arm, as columns of a table.

    Args:
        tree: of arms that have none of their own.
    """
    sampling = asdict(arm.sampling or SamplingConfig())
    if arm.accept is None:
        return sampling
    return asdict(arm.accept) | {"tree": tree_name(arm.tree or tree)} | sampling
