"""Recipes: upstream's numbers in the presets, the learning rate over the budget, texts."""

import math

import pytest

from eagle_fsd.training.losses import DISTRIBUTION_LOSSES
from eagle_fsd.training.recipe import LOSSES, RECIPES, SCHEDULES, Recipe, parse_recipe


def test_the_presets_are_upstreams():
    """SafeAILab/EAGLE: branch v1, eagle/train/main.py; eagle/traineagle3."""
    recipe = RECIPES["eagle"]
    assert recipe.losses == {"feature": 1.0, "ce": 0.1}
    assert (recipe.unroll_steps, recipe.noise) == (1, 0.1)
    assert (recipe.clip_value, recipe.clip_norm) == (0.5, 0.0)
    assert (recipe.schedule, recipe.weight_decay) == ("linear", 0.01)
    recipe = RECIPES["eagle3"]
    assert recipe.losses == {"ce": 1.0}
    assert (recipe.unroll_steps, recipe.step_decay, recipe.noise) == (7, 0.8, 0.0)
    assert (recipe.clip_norm, recipe.weight_decay) == (0.5, 0.0)
    assert set(LOSSES) == {"feature", *DISTRIBUTION_LOSSES}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rate_over_the_budget(schedule):
    """Rises in a line to the peak at the end of the warm-up, and never again; ends at the floor."""
    recipe = Recipe(learning_rate=2e-3, warmup=0.2, schedule=schedule, final_rate=0.1)
    assert [recipe.rate(x) for x in (0.0, 0.05, 0.2)] == pytest.approx([0.0, 0.5e-3, 2e-3])
    quarter = {"linear": 0.775, "cosine": 0.1 + 0.9 * (2 + math.sqrt(2)) / 4}[schedule]
    assert recipe.rate(0.4) == pytest.approx(2e-3 * quarter)
    assert recipe.rate(0.6) == pytest.approx(2e-3 * 0.55)
    assert recipe.rate(1.0) == recipe.rate(1.3) == pytest.approx(2e-4)  # the clock ran over
    rates = [recipe.rate(0.2 + 0.8 * i / 50) for i in range(51)]
    assert rates == sorted(rates, reverse=True)
    for warmup in (0.0, 1.0):  # the peak at once, or only at the end
        recipe = Recipe(learning_rate=3.0, warmup=warmup, final_rate=0.0)
        assert recipe.rate(0.0) == 3.0 * (1 - warmup)
        assert all(0 <= recipe.rate(i / 10) < math.inf for i in range(12))


def test_step_weights():
    """They fall by the decay and sum to 1, so that steps change no learning rate."""
    weights = RECIPES["eagle3"].step_weights()
    assert weights == pytest.approx([weights[0] * 0.8**step for step in range(7)])
    assert sum(weights) == pytest.approx(1.0)


def test_a_preset_with_changes():
    """The rest stays the preset's; a loss of weight 0 is left out."""
    assert parse_recipe("unrolled") == Recipe()
    recipe = parse_recipe("eagle,unroll_steps=2,feature=0,js=1.5,schedule=cosine,noise=0")
    assert recipe.losses == {"ce": 0.1, "js": 1.5} and recipe.unroll_steps == 2
    assert (recipe.schedule, recipe.noise, recipe.clip_value) == ("cosine", 0.0, 0.5)
    assert RECIPES["eagle"].losses == {"feature": 1.0, "ce": 0.1}
