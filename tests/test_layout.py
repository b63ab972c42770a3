"""The shape of the library: who may import whom, and that a name is one file's."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

LIBRARY = Path(__file__).parent.parent / "eagle_fsd"


def module_of(path: Path) -> str:
    parts = path.relative_to(LIBRARY.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> set[str]:
    """Modules of the library that a file imports when it is loaded; not those for type checkers."""
    found = set()
    nodes = list(ast.parse(path.read_text()).body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("eagle_fsd"):
            # from package import module, or from module import name
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.Try | ast.With):
            nodes += node.body
    return found


FILES = {module_of(path): path for path in sorted(LIBRARY.rglob("*.py"))}
GRAPH = {name: (imports(path) & FILES.keys()) - {name} for name, path in FILES.items()}


def closure(name: str) -> set[str]:
    """What loading a module loads; importing from a package counts as its own file too."""
    seen, waiting = set(), [name]
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += GRAPH[module]
    return seen


def test_no_module_imports_itself_in_a_circle():
    """A file can be read, and tested, after those that it imports."""
    circles = {name for name in GRAPH for other in GRAPH[name] if name in closure(other)}
    assert not circles, circles


def test_the_core_stands_alone():
    """decoding imports itself and the settings; everything else imports it."""
    for name in GRAPH:
        if name.startswith("eagle_fsd.decoding"):
            outside = {o for o in GRAPH[name] if not o.startswith("eagle_fsd.decoding")}
            assert outside <= {"eagle_fsd.config"}, (name, outside)


def test_who_may_not_know_whom():
    """The report reads files, not the commands that wrote them; what is timed and what is measured
    of answers meet in commands alone; training needs no replay; a head is run by whoever has a
    target and an engine; a run's folder holds what others made; a reader of JSON lines needs no
    torch, nor do the modules that the commands of train/ import before their options are read:
    `--help` took four seconds of CPU for one type's name."""
    for folder, unknown in {
        "eagle_fsd.evaluation": ("eagle_fsd.tasks", "eagle_fsd.training", "eagle_fsd.speed"),
        "eagle_fsd.speed": ("eagle_fsd.evaluation", "eagle_fsd.tasks", "eagle_fsd.training"),
        "eagle_fsd.training": ("eagle_fsd.evaluation", "eagle_fsd.tasks"),
        "eagle_fsd.heads": (
            "eagle_fsd.training",
            "eagle_fsd.drafters",
            "eagle_fsd.engine",
            "eagle_fsd.models",
            "eagle_fsd.decoding.engine",
            "eagle_fsd.decoding.target",
        ),
        "eagle_fsd.models": ("eagle_fsd.evaluation", "eagle_fsd.training", "eagle_fsd.tasks"),
        "eagle_fsd.drafters": ("eagle_fsd.models", "eagle_fsd.arms"),
        "eagle_fsd.runs": ("eagle_fsd.models", "eagle_fsd.heads", "eagle_fsd.decoding"),
        "eagle_fsd.rules": ("eagle_fsd.drafters", "eagle_fsd.evaluation"),
    }.items():
        for name in FILES:
            if name.startswith(folder):
                reached = {o for o in closure(name) if o.startswith(unknown)}
                assert not reached, (name, reached)
    for module in ("runs.jsonl", "training.prompts", "training.recipe"):
        for name in closure(f"eagle_fsd.{module}"):
            assert "import torch" not in FILES[name].read_text(), name


def test_nobody_imports_the_python_call():
    """Not within a function either: eagle_fsd.api stands above all of the library."""
    for name, path in FILES.items():
        nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom)]
        assert "eagle_fsd.api" not in {node.module for node in nodes}, name


def test_no_two_files_of_one_name():
    names = Counter(path.stem for path in FILES.values() if path.stem != "__init__")
    assert not [name for name, count in names.items() if count > 1]


def test_rules_and_arms_need_no_transformers():
    """They are used where there is another one; a drafter's own file may need it, once built."""
    names = "arms rules rules.guards drafters.settings"
    names += " decoding.columns decoding.divergence decoding.verified decoding.acceptance"
    modules = ", ".join(f"eagle_fsd.{name}" for name in names.split())
    program = f"import sys; sys.modules['transformers'] = None; import {modules}"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=LIBRARY.parent)
