"""extras/my_rule.py, the skeleton of a rule of one's own, and the commands in its head."""

import ast
import re
import shlex
from collections.abc import Iterator

import pytest
from commands import ROOT, bench_options, registered, run_main
from reference_accept import SAMPLINGS, outcome, random_round
from tiny_folder import write_random_head, write_target

from eagle_fsd.rules import RULES
from eagle_fsd.rules.fsd import Exact
from eagle_fsd.rules.thresholds import Ratio

SKELETON = ROOT / "extras" / "my_rule.py"
HEAD = ast.get_docstring(ast.parse(SKELETON.read_text())).replace("\\\n", " ")


@pytest.fixture(scope="module", autouse=True)
def my_rule() -> Iterator[None]:
    """Registered for the tests of this file."""
    with registered(SKELETON):
        yield


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_it_goes_from_exact_to_whatever_costs_least(sampling):
    """Fuzzy tokens grow with the share: none at 0; without a limit they are ratio's, and so is the
    TV."""
    rounds = [random_round(seed) for seed in range(40)]
    fuzzy = []
    for share in (0.0, 0.2, 1.0, 1e9):
        made = [outcome(each, RULES["my_rule"](share), sampling) for each in rounds]
        fuzzy.append(sum(sum(each.fuzzy) for each in made))
        if limit := Exact() if share == 0 else Ratio(float("inf")) if share == 1e9 else None:
            wanted = [outcome(each, limit, sampling) for each in rounds]
            assert [x.tokens for x in made] == [x.tokens for x in wanted]
            assert share == 0 or repr([x.tv for x in made]) == repr([x.tv for x in wanted])
    assert 0 == fuzzy[0] < fuzzy[1] < fuzzy[2] < fuzzy[3]


@pytest.mark.processes
def test_the_commands_in_its_head(tmp_path, capsys):
    """As they are typed, on a tiny target. Bug held down: rule_front could not read such a run."""
    models = write_target(tmp_path / "target", layers=2), write_random_head(tmp_path / "head")
    options, plugin = [*bench_options(models, tmp_path), "--turns", 1], f"--plugin {SKELETON}"
    for line in re.findall(r"\n *\.venv/bin/python (\S+ .*)", HEAD):
        line = line.replace("$P", plugin).replace("runs/", f"{tmp_path}/")
        command, *words = [each for word in shlex.split(line) for each in braces(word)]
        run_main(command, *(options if "--arms" in words else ()), *words)
    table = capsys.readouterr().out
    assert "written to" in table and "3 questions; intervals" in table
    assert "less that of path" in table


def braces(word: str) -> list[str]:
    """What a shell makes of x:{1,2}."""
    front, brace, inner = word.partition("{")
    return [front + value for value in inner.rstrip("}").split(",")] if brace else [word]
