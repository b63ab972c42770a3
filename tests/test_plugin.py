"""Rules, guards and drafters from a file that a command's --plugin names: they are arms as others
are, a run knows the file by its checksum, and what is wrong with the file is told with its line."""

import json
import re
import sys
from pathlib import Path

import pytest
from commands import ROOT, bench_options, model_options, rows

from eagle_fsd.arms import parse_arm
from eagle_fsd.config import BadInput
from eagle_fsd.drafters.settings import DRAFTERS
from eagle_fsd.plugin import load_plugin
from eagle_fsd.rules import RULES
from eagle_fsd.rules.guards import GUARDS
from eagle_fsd.tasks.harness_model import HarnessOptions

PAGE = (ROOT / "docs" / "extend.md").read_text()
BLOCKS = dict(re.findall(r"```python (\w+)\n(.*?)```", PAGE, flags=re.DOTALL))
BENCH = "evaluate/mt_bench.py"


@pytest.fixture(autouse=True)
def _as_another_process():
    """What a plugin has added goes with the test."""
    tables = RULES, GUARDS, DRAFTERS
    before = [table.copy() for table in tables]
    yield
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)
    for name in [name for name in sys.modules if name.startswith("eagle_fsd_plugin_")]:
        del sys.modules[name]


def write(path: Path, *parts: str) -> Path:
    path.write_text("\n".join(parts))
    return path


@pytest.fixture
def likely(tmp_path) -> Path:
    """The file that docs/extend.md describes."""
    return write(tmp_path / "likely.py", BLOCKS["rule"], BLOCKS["registration"])


ENTRIES = """
from eagle_fsd.drafters.settings import DRAFTERS
from eagle_fsd.rules.guards import GUARDS

GUARDS["opening"] = Opening
DRAFTERS["repeat"] = RepeatSettings
"""


def test_rules_guards_and_drafters_of_a_file_are_arms(tmp_path):
    blocks = [BLOCKS[name] for name in ("rule", "registration", "guard", "drafter")]
    load_plugin(str(write(tmp_path / "mine.py", *blocks, ENTRIES)))
    assert parse_arm("likely:.10,opening=40@repeat:4").text == "likely:0.1,opening=40@repeat:4"


def test_a_file_is_run_once_a_process(tmp_path):
    """Two commands' options in one process name it twice, as lm-eval's do."""
    path = tmp_path / "count.py"
    write(path, f"open({str(tmp_path / 'runs')!r}, 'a').write('x')")
    for _ in range(2):
        load_plugin(str(path))
    assert (tmp_path / "runs").read_text() == "x"
    assert not (tmp_path / "__pycache__").exists()


RULE = (
    "from dataclasses import dataclass\n"
    "from eagle_fsd.decoding.rule import Guard, Rule\n"
    "from eagle_fsd.rules import RULES\n"
    "from eagle_fsd.rules.guards import GUARDS\n"
    "@dataclass(frozen=True)\n"
    "class Mine(Rule):\n"
    "    value: float = 1.0\n"
)
GUARD = "@dataclass(frozen=True)\nclass Limit(Guard):\n    tokens: int\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = (\n", "line 1: SyntaxError: '[(]' was never closed"),
        ("\n\nimport no_such_package\n", "line 3: ModuleNotFoundError: No module named 'no_such"),
        ("def f():\n    return 1 / 0\n\nf()\n", "line 2: ZeroDivisionError: division by zero"),
        ("import json\n\njson.loads('{')\n", "line 3: JSONDecodeError"),
        ("raise SystemExit(3)\n", "line 1: SystemExit: 3"),
        ("\0", "SyntaxError"),
        (RULE + 'RULES["fsd"] = Mine\n', "the rule 'fsd' is the library's own.* another name"),
        (RULE + 'RULES["plain"] = Mine\n', "'plain' is the name of an arm without a rule"),
        (RULE + 'RULES["a:b"] = Mine\n', "'a:b' is no name .* letters, digits"),
        (RULE + 'RULES["mine"] = 3\n', "the rule 'mine' is 3, .* a dataclass that is a Rule"),
        (RULE + 'GUARDS["mine"] = Mine\n', "the guard 'mine' is .* a dataclass that is a Guard"),
        (
            "from __future__ import annotations\n" + RULE + 'RULES["mine"] = Mine\n',
            "field value of the rule 'mine' is of type 'float'.* annotations",
        ),
        (RULE + GUARD + 'GUARDS["threshold"] = Limit\n', "'threshold' is a field of the rule fsd"),
        (
            RULE + GUARD.replace("tokens", "pass; a: int; b") + 'GUARDS["limit"] = Limit\n',
            "the guard 'limit' has 2 fields; .* one",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_line(tmp_path, text, told):
    """And nothing of it is registered."""
    tables = RULES.copy(), GUARDS.copy(), DRAFTERS.copy()
    path = write(tmp_path / "mine.py", text)
    with pytest.raises(BadInput, match=f"(?s)plugin {path}.*{told}"):
        load_plugin(str(path))
    assert tables == (RULES, GUARDS, DRAFTERS)


@pytest.mark.processes
def test_a_run_with_a_plugin_is_reported_with_it_and_refused_with_another(
    call, models, likely, tmp_path
):
    """The commands of docs/extend.md: the run's file holds name and checksum of what was run; the
    report says what it needs; a resumed run takes the same file, wherever it lies, and no other."""
    (shown,) = re.findall(r"```sh plugin\n(.*?)```", PAGE, re.DOTALL)
    assert [line.split()[1:4:2] for line in shown.replace("\\\n", "").splitlines()] == [
        [BENCH, "likely.py"],
        ["evaluate/report.py", "likely.py"],
    ]
    arms = ["--arms", "plain", "likely:0.001"]
    options = [*bench_options(models, tmp_path), "--questions", 1, *arms]
    assert "unknown rule 'likely'" in call(BENCH, *options)
    assert "likely:0.001 " in call(BENCH, *options, "--plugin", likely)
    made = json.loads((tmp_path / "run" / "run.json").read_text())["options"]
    assert made["plugin"] == str(likely) and len(made["plugin/likely.py"]) == 16
    record = rows(tmp_path / "run" / "records" / "likely_0.001.jsonl")[0]
    assert sum(sum(r["fuzzy"]) for r in record["turns"][0]["rounds"]) > 0

    page = ["evaluate/report.py", tmp_path / "run", "--output", tmp_path / "page"]
    assert "written to" in call(*page, "--plugin", likely)
    _forget()
    assert f"made with --plugin {likely}: name that file" in call(*page)

    (tmp_path / "elsewhere").mkdir()
    moved = likely.rename(tmp_path / "elsewhere" / "likely.py")
    assert "likely:0.001 " in call(BENCH, *options, "--plugin", moved)
    _forget()
    write(moved, moved.read_text(), "# changed")
    assert "other settings (there, here): {'plugin/likely.py'" in call(
        BENCH, *options, "--plugin", moved
    )
    assert "other settings (there, here): {'plugin/likely.py'" in call(
        BENCH, *options[:-2], "plain"
    )


def _forget() -> None:
    """As in a new process."""
    RULES.pop("likely")
    for name in [name for name in sys.modules if name.startswith("eagle_fsd_plugin_")]:
        del sys.modules[name]


@pytest.mark.processes
def test_every_command_that_takes_arms_takes_a_plugin(call, models, likely, tmp_path):
    plugin = ["--plugin", likely]
    asked = ["--prompt", "Say it.", "--max_new_tokens", 8, *model_options(models)]
    said = call("evaluate/answer.py", *asked, "--arm", "likely:0.001", *plugin)
    assert re.search(r"[1-9]\d* fuzzy", said)
    questions = bench_options(models, tmp_path)
    arms = ["--arms", "likely:0.001", "likely:0.5", *plugin]
    assert "likely:0.001" in call("evaluate/calibrate.py", *questions, "--questions", 2, *arms)

    repeat = write(
        tmp_path / "repeat.py",
        BLOCKS["drafter"],
        "from eagle_fsd.drafters.settings import DRAFTERS",
        'DRAFTERS["repeat"] = RepeatSettings',
    )
    replay = ["--target", models[0], "--heads", models[1], "--device", "cpu", *questions[-6:-4]]
    replay += ["--output", tmp_path / "replay", "--texts", tmp_path / "texts"]
    replay += ["--max_new_tokens", 8, "--arms", "exact@repeat:3", "--plugin", repeat]
    assert "exact@repeat:3" in call("evaluate/replay.py", *replay)

    options = HarnessOptions.read({"arm": "likely:0.3", "plugin": str(likely)})
    assert options.arm == "likely:0.3"
