"""The library as pip installs it: into a fresh environment beside the torch that is here, without a
network, used from a folder that is not the checkout."""

import json
import re
import shutil
import subprocess
import sysconfig
import tomllib
import venv
from itertools import chain
from pathlib import Path

import pytest
from commands import ROOT
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import eagle_fsd
from eagle_fsd.versions import told_versions

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = [ROOT / f"requirements{step}.txt" for step in ("", "-tasks", "-test", "-demo")]


def pins() -> dict[str, Version]:
    lines = chain.from_iterable(path.read_text().splitlines() for path in PINS)
    found = re.findall("^(.+)==(.+)$", "\n".join(lines), re.M)
    return {name: Version(version) for name, version in found}


def test_every_dependency_has_a_range_that_begins_at_its_pin():
    """What was tested is the least that is asked for, and the next major version is not let in. Of
    torch and transformers, whose inside is known here, no minor version is that was not tried: bug
    held down, transformers 5.24 was let in and filled no cache. Errors and CI name the ranges."""
    extras = PROJECT["optional-dependencies"]
    asked = map(Requirement, chain(PROJECT["dependencies"], *extras.values()))
    ranges = {asked.name: asked.specifier for asked in asked if asked.name != PROJECT["name"]}
    assert ranges.keys() == pins().keys()
    for name, pin in pins().items():
        least, beyond = ranges[name], Version(f"{pin.major + 1}")
        assert pin in least and beyond not in least, (name, pin, least)
        (lowest,) = (Version(part.version) for part in least if part.operator == ">=")
        assert lowest <= pin and lowest.release[:2] == pin.release[:2], (name, pin, least)
    told = dict(re.findall(r"(transformers|torch)([<>=]\S+)", told_versions()))
    for name in ("transformers", "torch"):
        assert SpecifierSet(told[name]) == ranges[name]
        assert re.search(r"<\d+\.\d+(,|$)", str(ranges[name])), ranges[name]
    assert "scripts/test_newest.sh" in (ROOT / ".ci" / "run").read_text()
    assert "scripts/test_newest.sh" in (ROOT / "docs" / "extend.md").read_text()


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy of what the package is made from: building writes beside its sources."""
    folder = tmp_path_factory.mktemp("source")
    shutil.copytree(
        ROOT / "eagle_fsd",
        folder / "eagle_fsd",
        symlinks=True,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    shutil.copytree(ROOT / "checkpoints", folder / "checkpoints")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def installed(folder: Path, wanted: str) -> Path:
    """Python of a fresh environment into which pip has installed this. Every dependency is found
    in its range among the packages of the running environment, which a .pth file adds, and so is
    setuptools; pip could fetch nothing."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    run = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    own = Path(subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip())
    (own / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [python, "-I", "-m", "pip", "install", "--quiet", "--no-index", "--no-build-isolation"]
    made = subprocess.run([*pip, wanted], capture_output=True, text=True, cwd=folder)
    assert made.returncode == 0, made.stderr
    return python


def printed(python: Path, program: str, *arguments: object) -> dict:
    """What a program prints as JSON, run away from the checkout and from PYTHONPATH."""
    command = [python, "-I", "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=python.parent)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def python(source, tmp_path_factory) -> Path:
    return installed(tmp_path_factory.mktemp("environment"), str(source))


USED = """
import json, sys
import eagle_fsd
model = eagle_fsd.load(sys.argv[1], head=sys.argv[2], dtype="float32")
answer = eagle_fsd.generate(model, "Say it.", arm="fsd:0.3", max_new_tokens=8)
print(json.dumps({"place": eagle_fsd.__file__, "tokens": len(answer.tokens)}))
"""


@pytest.mark.processes
def test_an_installed_library_answers_and_has_every_file(python, models):
    """Whatever is read by its path is there: the report's page, lists, the shipped head."""

    def files(package: Path) -> set[str]:
        folders = [package, *(path for path in package.iterdir() if path.is_symlink())]
        found = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
        return {str(p.relative_to(package)) for p in found if "__pycache__" not in p.parts}

    found = printed(python, USED, *models)
    assert Path(found["place"]).is_relative_to(python.parent.parent) and found["tokens"] == 8
    assert files(Path(found["place"]).parent) == files(Path(eagle_fsd.__file__).parent)


@pytest.mark.processes
def test_what_is_in_extras_needs_no_more_than_the_installed_library(python):
    """But for the one that is a model of lm-eval, which its page says to install."""
    scripts = sorted({*(ROOT / "extras").glob("*.py")} - {ROOT / "extras" / "lm_eval_model.py"})
    program = "import json, runpy, sys\n"
    program += "sys.path.insert(0, sys.argv.pop(1))\n"  # as `python extras/NAME.py` has it
    program += "print(json.dumps([sorted(runpy.run_path(path)) for path in sys.argv[1:]]))"
    names = printed(python, program, ROOT / "extras", *scripts)
    assert len(names) == len(scripts) > 2 and all("__doc__" in found for found in names)
    assert not [path for path in scripts if "sys.path" in path.read_text()]
