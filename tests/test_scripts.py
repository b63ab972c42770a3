"""What a script of scripts/ lacks is told in a sentence, before anything is made."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from commands import ROOT

HEAD = ROOT / "checkpoints/smollm2-135m-eagle2"
NEEDS = ("VLLM_ENV", "QUESTIONS", "DATA", "IFEVAL", "GSM8K", "MINUTES")


@pytest.mark.parametrize(
    ("script", "given", "told"),
    [
        ("serve_vllm.sh", {}, "give TARGET and HEAD"),
        (f"serve_vllm.sh smollm2 {HEAD}", {"VLLM_ENV": "nowhere"}, "set VLLM_ENV .*docs/serve.md"),
        ("test_vllm.sh", {"VLLM_ENV": "{folder}"}, "VLLM_ENV=.* is an environment"),
        ("ablate_head.sh", {}, "QUESTIONS= is no file"),
        ("ablate_head.sh", {"QUESTIONS": __file__, "STEPS": "7x"}, "STEPS=7x must be"),
        ("learning_curve.sh", {"QUESTIONS": __file__}, "DATA= is not there"),
        ("evaluate_smollm2.sh", {"GSM8K": "nowhere"}, "nowhere is no file"),
        ("train_smollm2_head.sh", {"MINUTES": "1"}, "MINUTES=1"),
        ("setup.sh everything", {}, "everything is no step"),
        ("setup.sh", {}, "name one with PYTHON"),
    ],
)
def test_what_a_script_lacks_is_told(tmp_path, script, given, told):
    """Bugs held down: without its environment serve_vllm.sh ended in bash's own words, files that
    were not there were missed after hours, and test_vllm.sh cleared a user's environment."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "vllm").touch()
    # no set-up can begin, whatever a script takes for enough
    given = {"PYTHON": "python3.x"} | given
    given = {name: value.format(folder=tmp_path) for name, value in given.items()}
    environment = {name: value for name, value in os.environ.items() if name not in NEEDS} | given
    ended = subprocess.run(
        ["bash", *f"{ROOT}/scripts/{script}".split()],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2 and not ended.stdout
    assert re.match(f"error: .*{told}", ended.stderr.splitlines()[-1])
    assert [path.name for path in tmp_path.rglob("*")] == ["bin", "vllm"]


def test_set_up_clears_no_environment_through_a_link(tmp_path):
    """Bug held down: of a checkout whose .venv was a link it emptied another one's environment."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/setup.sh", tmp_path / "scripts")
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "kept").touch()
    (tmp_path / ".venv").symlink_to("others")
    command = ["bash", str(tmp_path / "scripts/setup.sh")]
    environment = os.environ | {"PYTHON": sys.executable}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 2 and "is a link to an environment" in ended.stderr
    assert (tmp_path / "others" / "kept").exists()
