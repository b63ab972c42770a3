"""extras/fill_tables.py: a table takes a source's numbers, in the form of its own cells."""

import json

import pytest
from commands import ROOT, load_command

FILL = load_command("extras/fill_tables.py")
PAGE = """\
**`fsd:0.3` gains 1.08.**

| arm | drafts | gain | regret/token | log p - plain |
|---|---|---|---|---|
| plain |  | - | 0 | +0.00 |
| `fsd:0.3` | 5 | **1.08** [1.03, 1.14] | 0.040 | -0.04 [-0.07, -0.00] (0.05) |

| line | gain | regret/token |
|---|---|---|
| fsd | 1.10 | 0.040 |
"""
ARMS = [
    {"arm": "plain", "regret_per_token": 0.0, "mean_logp_minus_plain": 0.0},
    {
        "arm": "fsd:0.3",
        "tokens_per_round_vs_exact": {"value": 1.234, "low": 1.111, "high": 1.357},
        "regret_per_token": {"value": 0.0456, "low": 0.04, "high": 0.05},
        "mean_logp_minus_plain": {"value": 0.02, "low": -0.01, "high": 0.05, "detectable": 0.034},
    },
]
AT_GAINS = [
    {"line": "fsd", "tokens_per_round_vs_exact": gain, "regret_per_token": 0.1 * gain}
    for gain in (1.1, 1.2)
]


@pytest.fixture
def fill(tmp_path, capsys):
    """The page filled from sources, each of which is one file or more of rows."""
    (tmp_path / "page.md").write_text(PAGE)

    def call(*sources: list[list[dict]]) -> list[str]:
        names = []
        for number, files in enumerate(sources):
            paths = [tmp_path / f"{number}{part}.json" for part in range(len(files))]
            for path, rows in zip(paths, files, strict=True):
                path.write_text(json.dumps({"title": "made here", "rows": rows}))
            names.append("+".join(map(str, paths)))
        FILL.fill_page(tmp_path / "page.md", names)
        return capsys.readouterr().out.splitlines()

    return call


def test_cells_keep_their_form_and_take_the_source_s_numbers(fill):
    assert fill([ARMS + AT_GAINS]) == [
        "**`fsd:0.3` gains 1.08.**",  # a sentence
        "",
        "| arm | drafts (old) | gain | regret/token | log p - plain |",
        "|---|---|---|---|---|",
        "| plain |  | - | 0 | +0.00 |",
        "| `fsd:0.3` | 5 | **1.23** [1.11, 1.36] | 0.046 | +0.02 [-0.01, +0.05] (0.03) |",
        "",
        "| line | gain | regret/token |",
        "|---|---|---|",
        "| fsd | 1.10 | 0.110 |",
    ]


def test_a_table_is_of_one_source_that_has_all_of_it(fill):
    """Never a row of one run beside a row of another, unless both are named as one source."""
    kept = fill([ARMS[:1]], [ARMS[1:]])
    assert kept.count("*(Not made anew.)*") == 2
    assert [line for line in kept if "anew" not in line and line] == PAGE.replace(
        "\n\n", "\n"
    ).splitlines()
    assert any("1.23" in line for line in fill([ARMS[:1], ARMS[1:]]))


def test_of_two_numbers_for_a_cell_none_is_taken(fill):
    """Two heads in one replay, or two runs at other temperatures."""
    other = ARMS[1] | {"regret_per_token": 0.05}
    assert fill([[*ARMS, other]]).count("*(Not made anew.)*") == 2
    assert fill([[*ARMS, ARMS[1] | {"regret_per_token": 0.0456}]]).count("*(Not made anew.)*") == 1


@pytest.mark.parametrize(
    "old", [".44", "12 of 80", "+12 %", "7 / 8", "-1.8 and -5.6", "0.88 (p < 0.001)", "0"]
)
def test_a_cell_that_is_more_than_a_number_is_not_written_over(old):
    assert FILL.filled(old, 0.5) is None


def test_a_page_of_results_is_filled_with_its_own_tables():
    """The replay that lies beside its page has the page's levels."""
    folder = ROOT / "results/drafters"
    page = (folder / "README.md").read_text()
    rows = FILL.rows_of(str(folder / "replay_80x128.json"))
    (levels,) = [table for table in FILL.TABLE.findall(page) if table.startswith("| level")]
    assert FILL.fill(levels, rows) == levels
