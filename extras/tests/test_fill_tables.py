"""extras/fill_tables.py: a table takes a source's numbers, in the form of its own cells."""

import json

import pytest
from commands import ROOT, load_command

FILL = load_command("extras/fill_tables.py")
PAGE = """\
# What does it gain?

**`fsd:0.3` gains 1.08.**

| arm | drafts | gain | regret/token | log p - plain |
|---|---|---|---|---|
| plain | | - | 0.000 | +0.00 |
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
def source(tmp_path):
    def write(**tables):
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        file.write_text(json.dumps({"title": "made here"} | tables))
        return str(file)

    (tmp_path / "page.md").write_text(PAGE)
    return write


def test_cells_keep_their_form_and_take_the_source_s_numbers(source, tmp_path, capsys):
    FILL.fill_page(tmp_path / "page.md", [source(arms=ARMS, at_equal_gain=AT_GAINS)])
    page, told = capsys.readouterr()
    row = "| `fsd:0.3` | 5 | **1.23** [1.11, 1.36] | 0.046 | +0.02 [-0.01, +0.05] (0.03) |"
    assert row in page.splitlines()
    assert "| plain |  | - | 0.000 | +0.00 |" in page.splitlines()
    assert "| fsd | 1.10 | 0.110 |" in page.splitlines()
    assert "**`fsd:0.3` gains 1.08.**" in page  # a sentence
    assert told == f"kept in {tmp_path / 'page.md'}: the column drafts\n"


def test_a_table_is_of_one_source_that_has_all_of_it(source, tmp_path, capsys):
    """Never a row of one run beside a row of another, unless both are named as one source."""
    apart = [source(arms=ARMS[:1]), source(arms=ARMS[1:])]
    FILL.fill_page(tmp_path / "page.md", apart)
    page, told = capsys.readouterr()
    assert page == PAGE and "the table | arm | drafts" in told and "the table | line |" in told
    FILL.fill_page(tmp_path / "page.md", ["+".join(apart)])
    assert "1.23" in capsys.readouterr().out


def test_a_page_of_results_is_filled_with_its_own_tables():
    """The replay that lies beside its page has the page's numbers."""
    folder = ROOT / "results/drafters"
    page = (folder / "README.md").read_text()
    rows = FILL.rows_of(str(folder / "replay_80x128.json"))
    (levels,) = [table for table in FILL.TABLE.findall(page) if table.startswith("| level")]
    assert FILL.fill(levels, rows) == (levels, [])
