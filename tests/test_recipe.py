"""Recipes: upstream's numbers in the presets, the learning rate over the budget, bad values."""

import math

import pytest

from eagle_fsd.training.recipe import RECIPES, SCHEDULES, Recipe, choose_recipe


def test_the_eagle_preset_is_upstreams():
    """SafeAILab/EAGLE branch v1, eagle/train/main.py."""
    recipe = RECIPES["eagle"]
    assert recipe.losses == {"feature": 1.0, "ce": 0.1}
    assert (recipe.unroll_steps, recipe.noise) == (1, 0.1)
    assert (recipe.clip_value, recipe.clip_norm) == (0.5, 0.0)
    assert (recipe.schedule, recipe.weight_decay) == ("linear", 0.01)
    assert recipe.shift_mask


def test_the_eagle3_preset_is_upstreams():
    """eagle/traineagle3: no feature loss, seven steps by 0.8."""
    recipe = RECIPES["eagle3"]
    assert recipe.losses == {"ce": 1.0}
    assert (recipe.unroll_steps, recipe.step_decay, recipe.noise) == (7, 0.8, 0.0)
    assert (recipe.clip_norm, recipe.weight_decay) == (0.5, 0.0)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rate_over_the_budget(schedule):
    """Rises in a line to the peak at the end of the warm-up, and never again; ends at the floor."""
    recipe = Recipe(learning_rate=2e-3, warmup=0.2, schedule=schedule, final_rate=0.1)
    assert recipe.rate(0.0) == 0.0
    assert recipe.rate(0.05) == pytest.approx(0.5e-3)
    assert recipe.rate(0.2) == pytest.approx(2e-3)
    middle = {"constant": 1.0, "linear": 0.55, "cosine": 0.55}[schedule]  # half way behind 0.2
    assert recipe.rate(0.6) == pytest.approx(2e-3 * middle)
    quarter = {"constant": 1.0, "linear": 0.775, "cosine": 0.1 + 0.9 * (2 + math.sqrt(2)) / 4}
    assert recipe.rate(0.4) == pytest.approx(2e-3 * quarter[schedule])
    end = 2e-3 if schedule == "constant" else 2e-4
    assert recipe.rate(1.0) == pytest.approx(end)
    assert recipe.rate(1.3) == pytest.approx(end)  # the clock ran over
    rates = [recipe.rate(0.2 + 0.8 * i / 50) for i in range(51)]
    assert all(a >= b for a, b in zip(rates, rates[1:], strict=False))


@pytest.mark.parametrize(("warmup", "first"), [(0.0, 1.0), (1.0, 0.0)])
def test_no_warm_up_and_nothing_else(warmup, first):
    """Shares of 0 and 1: the peak at once, or only at the end."""
    recipe = Recipe(learning_rate=3.0, warmup=warmup, final_rate=0.0)
    assert recipe.rate(0.0) == pytest.approx(3.0 * first)
    assert recipe.rate(1.0) == pytest.approx(3.0 * (1 - first), abs=1e-9) or warmup == 1.0
    assert all(math.isfinite(recipe.rate(i / 10)) for i in range(12))


def test_step_weights():
    """They fall by the decay and sum to 1, so that steps change no learning rate."""
    assert Recipe(unroll_steps=1, step_decay=0.5).step_weights() == [1.0]
    assert Recipe(unroll_steps=4, step_decay=1.0).step_weights() == [0.25] * 4
    weights = RECIPES["eagle3"].step_weights()
    assert len(weights) == 7 and sum(weights) == pytest.approx(1.0)
    assert all(b / a == pytest.approx(0.8) for a, b in zip(weights, weights[1:], strict=False))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("unroll_steps", 0),
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("step_decay", 0.0),
        ("step_decay", 1.1),
        ("warmup", -0.1),
        ("warmup", 1.1),
        ("final_rate", 2.0),
        ("noise", -0.1),
        ("noise", math.nan),
        ("weight_decay", -1.0),
        ("clip_norm", -1.0),
        ("clip_value", -1.0),
        ("schedule", "step"),
    ],
)
def test_bad_values_are_told_by_name(field, value):
    """Before anything loads; through a preset too."""
    for make in (lambda: Recipe(**{field: value}), lambda: choose_recipe("eagle", {field: value})):
        with pytest.raises(ValueError, match=field):
            make()


def test_a_preset_with_changes():
    """The rest stays the preset's; an unknown name lists the known ones."""
    recipe = choose_recipe("eagle", {"unroll_steps": 2, "losses": {"js": 1.0}})
    assert (recipe.unroll_steps, recipe.losses, recipe.clip_value) == (2, {"js": 1.0}, 0.5)
    assert RECIPES["eagle"].unroll_steps == 1
    with pytest.raises(ValueError, match="eagle9.*unrolled"):
        choose_recipe("eagle9", {})
