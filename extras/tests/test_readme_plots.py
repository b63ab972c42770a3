"""extras/readme_plots.py: it finds its arms in the tables of results/."""

from commands import load_command

PLOTS = load_command("extras/readme_plots.py")


def test_every_program_has_its_bar_with_its_speed():
    svg = PLOTS.speeds()
    assert all(name.replace("'", "&#x27;") in svg or name in svg for name in PLOTS.BARS.values())
    assert ">125<" in svg


def test_a_rule_s_values_are_a_line():
    svg = PLOTS.loss_against_gain()
    assert "path@hybrid: 0.4, 0.9" in svg and "random@hybrid: 0.3, 0.5" in svg


def test_the_training_s_trees_are_lines():
    svg = PLOTS.tokens_seen()
    assert ">59x6x10<" in svg and ">15x4x6<" in svg and "seen in this run" in svg


def test_a_cell_is_its_number_and_interval():
    assert PLOTS.with_interval("1.26 [1.18, 1.35]") == {"value": 1.26, "low": 1.18, "high": 1.35}
    assert PLOTS.with_interval("1.00") == {"value": 1.0, "low": None, "high": None}
