"""Rules, guards and drafters from a file that a command's --plugin names: they are arms as others
are, a run knows the file by its checksum, and what is wrong with the file is told with its line."""

import json
import re
import sys

import pytest
from commands import ROOT, bench_options

from eagle_fsd.arms import parse_arm
from eagle_fsd.config import BadInput
from eagle_fsd.plugin import OWN, TABLES, load_plugin

PAGE = (ROOT / "docs" / "extend.md").read_text()
BLOCKS = dict(re.findall(r"```python (\w+)\n(.*?)```", PAGE, flags=re.DOTALL))
ENTRIES = """
from eagle_fsd.drafters.settings import DRAFTERS
from eagle_fsd.rules.guards import GUARDS

GUARDS["opening"] = Opening
DRAFTERS["repeat"] = RepeatSettings
"""


@pytest.fixture(autouse=True)
def _as_another_process():
    """What a plugin has added goes with the test."""
    yield
    forget_plugins()


def forget_plugins() -> None:
    for kind, table in TABLES.items():
        table.clear()
        table.update(OWN[kind])
    for name in [name for name in sys.modules if name.startswith("eagle_fsd_plugin_")]:
        del sys.modules[name]


def test_rules_guards_and_drafters_of_a_file_are_arms(tmp_path):
    """And to load it twice, as two commands' options in one process do, is harmless, as is to load
    it once more with a change."""
    path, blocks = tmp_path / "mine.py", ("rule", "registration", "guard", "drafter")
    text = "\n".join([*(BLOCKS[name] for name in blocks), ENTRIES])
    for change in ("", "", "# changed"):
        path.write_text(text + change)
        load_plugin(str(path))
    assert parse_arm("likely:.10,opening=40@repeat:4").text == "likely:0.1,opening=40@repeat:4"


REPLACES = "from eagle_fsd.rules import RULES\nRULES['mine'] = RULES['fsd'] = RULES['exact']\n"
GUARD = BLOCKS["guard"] + "\nfrom eagle_fsd.rules.guards import GUARDS\nGUARDS['mine'] = Opening\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = (\n", "line 1: SyntaxError"),
        ("x = 1\ncompile('(', 'other', 'exec')\n", "line 2: SyntaxError"),  # another's line
        (REPLACES, "the rule 'fsd' is the library's own"),
        (BLOCKS["rule"].replace("step", "setp") + BLOCKS["registration"], "did you mean step"),
        (f"{REPLACES}1 / 0\n", "line 3: ZeroDivisionError"),
        (GUARD.replace("tokens: int", "tokens = 9"), "must have one field"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_line(tmp_path, text, told):
    """The tables stay as they were, and the same file is no better the second time. Bug held down:
    with the entry of such a guard every arm was refused."""
    path, before = tmp_path / "mine.py", {kind: table.copy() for kind, table in TABLES.items()}
    path.write_text(text)
    for _ in range(2):
        with pytest.raises(BadInput, match=f"(?s)plugin {path}.*{told}"):
            load_plugin(str(path))
        assert before == TABLES


@pytest.mark.processes
def test_a_run_with_a_plugin_is_known_by_its_file(call, models, tmp_path):
    """The run's file holds name and checksum of what was run; a changed file does not go on."""
    likely = tmp_path / "likely.py"
    likely.write_text(BLOCKS["rule"] + BLOCKS["registration"])
    options = [*bench_options(models, tmp_path), "--questions", 1, "--arms", "likely:0.001"]
    assert "unknown rule 'likely'" in call("evaluate/mt_bench.py", *options)
    assert "likely:0.001 " in call("evaluate/mt_bench.py", *options, "--plugin", likely)
    stated = json.loads((tmp_path / "run" / "run.json").read_text())["options"]
    assert stated["plugin"] == str(likely) and len(stated["plugin/likely.py"]) == 16
    likely.write_text(likely.read_text() + "# changed")
    told = call("evaluate/mt_bench.py", *options, "--plugin", likely)
    assert "other settings (another file plugin/likely.py)" in told
