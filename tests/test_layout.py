"""The shape of the library: who may import whom, and that a name is one file's."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

import pytest

from eagle_fsd.config import BadInput, step_of_setup
from eagle_fsd.drafters.settings import DRAFTERS
from eagle_fsd.families import TESTED_FAMILIES
from eagle_fsd.recurrent.kinds import FAMILIES as RECURRENT_FAMILIES
from eagle_fsd.rules import RULES

LIBRARY = Path(__file__).parent.parent / "eagle_fsd"


def module_of(path: Path) -> str:
    parts = path.relative_to(LIBRARY.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_by(nodes: Iterable[ast.AST]) -> set[str]:
    """Modules of the library that these statements import, not what is within them."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("eagle_fsd"):
            # from package import module, or from module import name
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & FILES.keys()


def top_statements(path: Path, *, for_types: bool) -> list[ast.AST]:
    """Of a file, what runs when it is loaded; with what is there for type checkers alone."""
    nodes = list(ast.parse(path.read_text()).body)
    for node in nodes:
        if isinstance(node, ast.Try | ast.With) or (for_types and isinstance(node, ast.If)):
            nodes += node.body
    return nodes


FILES = {module_of(path): path for path in sorted(LIBRARY.rglob("*.py"))}
# by module, what it imports when it is loaded, and with what it names for type checkers
LOADS, NAMES = (
    {
        name: imported_by(top_statements(path, for_types=for_types)) - {name}
        for name, path in FILES.items()
    }
    for for_types in (False, True)
)


def closure(name: str, graph: dict[str, set[str]] = LOADS) -> set[str]:
    """What loading a module loads; importing from a package counts as its own file too."""
    seen, waiting = set(), [name]
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += graph[module]
    return seen


def test_no_module_imports_itself_in_a_circle():
    """A file can be read, and tested, after those that it imports, for its types too."""
    circles = {name for name in NAMES for other in NAMES[name] if name in closure(other, NAMES)}
    assert not circles, circles
    # nor by an import within a function, of which the settings of drafters have some
    for name in [name for name in FILES if name.startswith("eagle_fsd.drafters.")]:
        assert "eagle_fsd.drafters.settings" not in closure(name) - {name}, name


# Folders and single files of the library from below upwards: each imports those above it in this
# list alone, and none beside it. So the core is read first, a head is run by whoever has a target
# and an engine, a run's folder holds what others made, what is timed and what is measured of
# answers meet in commands alone, and of the Python call the time is taken.
LEVELS = (
    ("config", "versions"),
    ("messages", "arm_names"),
    ("thoughts",),
    ("recurrent",),
    ("families",),
    ("decoding",),
    ("rules", "engine", "runs"),
    ("heads",),
    ("drafters",),
    ("arms", "models"),
    ("plugin",),
    ("options",),
    ("cli", "timing", "stats", "seen"),
    ("evaluation", "training", "api", "transformers_generate"),
    ("tasks", "speed"),
)
LEVEL_OF = {name: level for level, names in enumerate(LEVELS) for name in names}


def part_of(module: str) -> str:
    """The folder or single file of the library that a module belongs to."""
    return module.split(".")[1]


def test_imports_run_one_way():
    """Those within a function and those for type checkers too."""
    for name, path in FILES.items():
        for other in imported_by(ast.walk(ast.parse(path.read_text()))) - {"eagle_fsd"}:
            if name == "eagle_fsd":  # its names are imported when they are asked for
                assert part_of(other) == "config"
            elif part_of(other) != part_of(name):
                assert LEVEL_OF[part_of(other)] < LEVEL_OF[part_of(name)], (name, other)


def test_nothing_imports_the_extras():
    """The library and its commands run without that folder, whose files import them."""
    extras = {"extras", *(path.stem for path in (LIBRARY.parent / "extras").glob("*.py"))}
    importing = re.compile(rf"^ *(from|import) ({'|'.join(extras)})\b", re.M)
    for folder in ("eagle_fsd", "train", "evaluate"):
        for path in (LIBRARY.parent / folder).rglob("*.py"):
            assert not importing.search(path.read_text()), path


def test_heads_and_rules_know_no_target():
    """Of the core they import what they need alone, not what runs a model."""
    for name in FILES:
        if part_of(f"{name}.") in ("heads", "rules"):
            assert "eagle_fsd.decoding.target" not in closure(name), name


def test_the_core_names_no_rule_drafter_or_family():
    """In no text of its code, as a whole word; a new one needs no line there. (`exact` and `path`
    are words of the glossary too, and so names of variables.)"""
    names = {*RULES, *DRAFTERS, *TESTED_FAMILIES, *RECURRENT_FAMILIES}
    for path in (LIBRARY / "decoding").glob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if isinstance(node, ast.Constant) and id(node) not in docs:
                words = set(re.findall(r"[\w-]+", str(node.value)))
                assert not words & names, (path.name, node.lineno, words & names)


def packages_of(nodes: Iterable[ast.AST]) -> set[str]:
    """What of others these statements import, by the first part of its name."""
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


# the packages that rules and arms are used without, where there is another transformers or none
ALONE = "arms rules rules.guards drafters.settings"
ALONE += " decoding.columns decoding.divergence decoding.verified decoding.acceptance"


@pytest.mark.parametrize(
    ("package", "names"),
    [
        # a reader of JSON lines, and what commands of train/ import before their options are read;
        # bug held down: `--help` took four seconds of CPU for one type's name
        ("torch", "runs.jsonl training.prompts training.recipe"),
        ("transformers", ALONE),
    ],
)
def test_what_is_loaded_without(package, names):
    waiting, loaded = [f"eagle_fsd.{name}" for name in names.split()], set()
    while waiting:  # a module loads the packages that it is in, too
        if (module := waiting.pop()) in FILES and module not in loaded:
            loaded.add(module)
            waiting += [*LOADS[module], module.rpartition(".")[0]]
    for module in loaded:
        assert package not in packages_of(top_statements(FILES[module], for_types=False)), module


def test_what_only_the_tasks_need_is_imported_where_they_are_run():
    """Benchmark and report run without what requirements-tasks.txt adds: it is imported within
    functions, or by files that they never load, and always where one that is missing is told with
    the line that installs it."""
    tasks = {"openai", "lm_eval", "datasets", "if_verifiable", "immutabledict", "langdetect"}
    tasks |= {"nltk", "pandas", "pyarrow"}
    root, found = LIBRARY.parent, set()
    for path in [*FILES.values(), *(root / "evaluate").glob("*.py"), *(root / "train").glob("*")]:
        if path.suffix != ".py":
            continue
        nodes = list(ast.walk(ast.parse(path.read_text())))
        told = [n for n in nodes if isinstance(n, ast.With) and "step_of_setup" in ast.unparse(n)]
        allowed = {id(below) for node in told for below in node.body}
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom) and packages_of([node]) & tasks:
                assert id(node) in allowed, (path.name, node.lineno)
                found.add(path.name)
        if packages_of(top_statements(path, for_types=False)) & tasks:
            assert path.parent.name == "tasks", path
        if path.name in ("mt_bench.py", "report.py", "replay.py", "speed.py"):
            assert "eagle_fsd.tasks" not in "".join(imported_by(nodes)), path
    assert {"judge.py", "scorers.py"} <= found
    told = r"absent.*: scripts/setup.sh tasks installs it into .*'eagle_fsd\[tasks\]'"
    with pytest.raises(BadInput, match=told), step_of_setup("tasks"):
        import_module("absent")


def test_dir_lists_what_is_imported_when_asked_for():
    """Bug held down: `dir(eagle_fsd)` had neither load nor generate, so that no shell completed
    them. To list them imports none of them."""
    program = "import sys, eagle_fsd; print(*dir(eagle_fsd)); assert 'torch' not in sys.modules"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, cwd=LIBRARY.parent, capture_output=True, text=True)
    assert {"load", "generate", "stream", "Answer", "BadInput", "__doc__"} <= set(
        done.stdout.split()
    )


def test_no_two_files_of_one_name():
    names = Counter(path.stem for path in FILES.values() if path.stem != "__init__")
    assert not [name for name, count in names.items() if count > 1]
