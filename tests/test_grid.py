"""Grids of settings: which cells there are, and what they are called."""

import pytest

from eagle_fsd.config import TreeConfig
from eagle_fsd.evaluation.grid import AXES, build_grid, cell_columns, parse_axes


def names(*axes: str) -> list[str]:
    return [arm.name for arm in build_grid(axes)]


def test_a_grid_is_the_product_of_its_axes():
    """Every cell once, after its baselines; a condition replaces the general values."""
    axes = ["rule=fsd,fsd-paper", "divergence=js,tv", "threshold@js=0.1,0.2", "threshold@tv=0.5"]
    assert names(*axes) == [
        "generate",
        "plain",
        "exact",
        "fsd_js_T0.1",
        "fsd_js_T0.2",
        "fsd_tv_T0.5",
        "fsd-paper_js_T0.1",
        "fsd-paper_js_T0.2",
        "fsd-paper_tv_T0.5",
    ]


def test_conditions_on_numbers_and_on_what_is_no_axis():
    """A number is compared as a number; the base counts as well as an axis."""
    axes = ["temperature=0.7,1.0", "threshold=0.2", "threshold@1=0.4"]
    assert {n for n in names(*axes) if n.startswith("fsd")} == {
        "fsd_js_T0.2_t0.7",
        "fsd_js_T0.4_t1",
    }
    arms = build_grid(["threshold@tv=0.5"], base={"divergence": "tv", "child": "target"})
    assert arms[-1].name == "fsd_tv_target_T0.5"


def test_rule_random_is_one_cell_whatever_the_divergence():
    """What a rule does not use makes no cell; the condition on the rule wins over the other."""
    axes = ["divergence=js,tv", "rule=fsd,random", "threshold=0.3", "threshold@random=0.05,0.1"]
    assert names(*axes)[3:] == [
        "fsd_js_T0.3",
        "fsd_tv_T0.3",
        "random_r0.05",
        "random_r0.1",
    ]


def test_combinations_without_meaning_are_left_out():
    """`processed` and `sample` need a temperature; baselines are at every one."""
    axes = ["temperature=0,0.7", "child=draft,sample", "tree=7x3x4,15x4x6", "threshold=0.3"]
    found = names(*axes)
    assert len(found) == len(set(found))
    assert set(found) == {
        "generate",
        "plain",
        "exact_7x3x4",
        "fsd_js_T0.3_7x3x4",
        "exact_15x4x6",
        "fsd_js_T0.3_15x4x6",
        "generate_t0.7",
        "plain_t0.7",
        "exact_7x3x4_t0.7",
        "fsd_js_T0.3_7x3x4_t0.7",
        "exact_15x4x6_t0.7",
        "fsd_js_T0.3_15x4x6_t0.7",
        "fsd_js_sample_T0.3_7x3x4_t0.7",
        "fsd_js_sample_T0.3_15x4x6_t0.7",
    }
    warm = [arm for arm in build_grid(axes) if arm.name.endswith("_t0.7")]
    assert all(arm.sampling.temperature == 0.7 for arm in warm)
    assert [arm.loop for arm in warm if not arm.accept] == ["generate", "ours"]


def test_a_row_has_its_whole_configuration():
    """All axes are columns; a tree of its own, or the run's."""
    arms = build_grid(["threshold=0.3", "tree=7x3x4", "top_p=0.9", "temperature=0.5"])
    columns = cell_columns(arms[-1], tree=TreeConfig(15, 4, 6))
    assert set(AXES) <= set(columns)
    assert columns["tree"] == "7x3x4" and columns["top_p"] == 0.9 and columns["threshold"] == 0.3
    own = cell_columns(build_grid(["threshold=0.3"])[-1], tree=TreeConfig(15, 4, 6))
    assert own["tree"] == "15x4x6"


@pytest.mark.parametrize(
    "axes, told",
    [
        (["colour=red"], "'colour=red' is no axis"),
        (["threshold="], "is no axis"),
        (["threshold=a"], "axis threshold: could not convert"),
        (["threshold=0.1", "threshold=0.2"], "given twice"),
        (["threshold@js=0.1", "divergence=js,tv"], "axis threshold has no value for"),
        (["tree=7x7"], "DRAFTSxLEVELSxTOPK"),
        (["tree=7x9x1"], "cannot fill tree_depth"),
        (["divergence=jss"], "unknown divergence 'jss'"),
        (["logits=processed"], "the grid has no cell"),
        (["threshold=0.1", "threshold@tv=0.2"], "threshold@tv never holds"),
        (["temperature=0,1", "threshold=0.1", "threshold@0.7=0.2"], "threshold@0.7 never holds"),
    ],
)
def test_bad_axes_are_told(axes, told):
    with pytest.raises(ValueError, match=told):
        build_grid(axes)


def test_an_axis_is_a_table_entry():
    """Its values have the type that the setting has."""
    parsed = parse_axes(["top_k=5,7", "temperature@fsd=1"])
    assert parsed == {"top_k": {"": [5, 7]}, "temperature": {"fsd": [1.0]}}
