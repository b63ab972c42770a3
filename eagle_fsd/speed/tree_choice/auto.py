"""`auto`: measure the machine and the head once, then choose the tree.

choice = auto_tree(model, AcceptConfig("fsd", threshold=0.2), SamplingConfig())
print(choice.text)
model = replace(model, drafter=model.drafter.with_tree(choice.tree))
"""

from dataclasses import asdict
from pathlib import Path

from eagle_fsd.api import Model, default_tree
from eagle_fsd.config import AcceptConfig, BadInput, SamplingConfig, TreeConfig
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.models.assets import cache_dir as assets_dir
from eagle_fsd.speed.tree_choice.calibration import TuningConfig
from eagle_fsd.speed.tree_choice.candidates import candidate_trees
from eagle_fsd.speed.tree_choice.choice import TreeChoice, choose
from eagle_fsd.speed.tree_choice.costs import AcceptCosts, Costs
from eagle_fsd.speed.tree_choice.keys import cost_key, rule_key, survey_key
from eagle_fsd.speed.tree_choice.measured import measure_accept, measure_costs
from eagle_fsd.speed.tree_choice.store import kept
from eagle_fsd.speed.tree_choice.survey import Survey, survey


def auto_tree(
    model: Model,
    accept: AcceptConfig,
    sampling: SamplingConfig,
    retune: bool = False,
    *,
    tuning: TuningConfig | None = None,
) -> TreeChoice:
    """`choose_tree` with the project's cache folder ($EAGLE_FSD_CACHE/tuning)."""
    folder = assets_dir() / "tuning"
    return choose_tree(model, accept, sampling, cache_dir=folder, retune=retune, tuning=tuning)


def choose_tree(
    model: Model,
    accept: AcceptConfig,
    sampling: SamplingConfig,
    *,
    cache_dir: Path | None,
    retune: bool = False,
    tuning: TuningConfig | None = None,
    trees: tuple[TreeConfig, ...] | None = None,
) -> TreeChoice:
    """The tree with the most expected tokens a second under a rule, on this machine.

    Args:
        model: its target's sequence is lost; its drafter is left alone.
        accept, sampling: the rule with its threshold, and the sampling, that will be used.
        cache_dir: where measurements are kept; None keeps nothing.
        retune: measure again.
        tuning: prompts, budget, repeats.
        trees: the candidates; default: grid.py.

    Raises:
        BadInput: the model has no draft head, or its target too few positions to tune in.
    """
    if not isinstance(model.drafter, EagleDrafter):
        raise BadInput("there is no tree to choose without a draft head: name one with --head")
    accept.check_with(sampling)
    tuning = tuning or TuningConfig()
    trees = trees or candidate_trees(model.drafter.draft_vocab_size)
    device = model.target.device.type
    default = default_tree(device)
    costs, accept_costs = _costs(model, accept, sampling, tuning, cache_dir, retune)
    found = kept(
        cache_dir,
        "acceptance",
        survey_key(model, accept, sampling, trees, tuning, default),
        lambda: survey(model, accept, sampling, trees, tuning, visiting=default),
        to_json=asdict,
        from_json=lambda value: _stored_survey(value, len(trees)),
        retune=retune,
    )
    return choose(
        trees,
        found.tokens_per_round,
        costs,
        accept_costs,
        default=default,
        walks_to_the_end=device != "cpu",
        origin=_origin(accept, sampling, tuning, found),
    )


def _costs(
    model: Model,
    accept: AcceptConfig,
    sampling: SamplingConfig,
    tuning: TuningConfig,
    folder: Path | None,
    retune: bool,
) -> tuple[Costs, AcceptCosts]:
    key = cost_key(model, tuning)
    costs = kept(
        folder,
        "costs",
        key,
        lambda: measure_costs(model, tuning),
        to_json=Costs.to_json,
        from_json=Costs.from_json,
        retune=retune,
    )
    accept_costs = kept(
        folder,
        "accept",
        {**key, **rule_key(accept, sampling)},
        lambda: measure_accept(model, accept, sampling, tuning),
        to_json=AcceptCosts.to_json,
        from_json=AcceptCosts.from_json,
        retune=retune,
    )
    return costs, accept_costs


def _stored_survey(value: dict, trees: int) -> Survey:
    found = Survey(tuple(value["tokens_per_round"]), value["rounds"])
    if len(found.tokens_per_round) != trees:
        raise ValueError(f"{len(found.tokens_per_round)} figures for {trees} trees")
    return found


def _origin(
    accept: AcceptConfig, sampling: SamplingConfig, tuning: TuningConfig, found: Survey
) -> str:
    rule = accept.rule
    if rule != "exact":
        rule += f" with {accept.divergence} at T {accept.threshold:g}, child {accept.child}"
    return (
        f"  expected from {found.rounds} rounds of {len(tuning.prompts)} calibration prompts under "
        f"{rule}, temperature {sampling.temperature:g}, at the roots that the default tree visits"
    )
