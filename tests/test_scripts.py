"""What a script of scripts/ lacks is told in a sentence, before anything is made; and those of
models of 7 and 8 billion parameters run to their end on stand-ins of the same layout."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from commands import ROOT, rows, write_rows
from tiny_folder import byte_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from eagle_fsd.messages import read_system
from eagle_fsd.models.chat import prompt_ids

HEAD = ROOT / "checkpoints/smollm2-135m-eagle2"
NEEDS = ("VLLM_ENV", "QUESTIONS", "DATA", "IFEVAL", "PART", "MINUTES")


@pytest.mark.parametrize(
    ("script", "given", "told"),
    [
        ("serve_vllm.sh", {}, "give TARGET and HEAD"),
        (f"serve_vllm.sh smollm2 {HEAD}", {"VLLM_ENV": "nowhere"}, "set VLLM_ENV .*docs/serve.md"),
        ("test_vllm.sh", {"VLLM_ENV": "{folder}"}, "VLLM_ENV=.* is an environment"),
        ("ablate_head.sh", {}, "QUESTIONS= is no file"),
        ("ablate_head.sh", {"QUESTIONS": __file__, "STEPS": "7x"}, "STEPS=7x must be"),
        ("learning_curve.sh", {"QUESTIONS": __file__}, "DATA= is not there"),
        ("figures.sh", {}, "QUESTIONS= must be a file of 64"),
        ("figures.sh tasks", {}, "needs EXECUTE_CODE"),
        ("figures.sh tasks", {"IFEVAL": "nowhere"}, "IFEVAL=nowhere is no file"),
        ("figures.sh drafters", {"PART": "0"}, "PART=0 and PROCESSES=1 must be"),
        ("figures.sh drafter", {}, "drafter is no page"),
        ("train_smollm2_head.sh", {"MINUTES": "1"}, "MINUTES=1"),
        ("setup.sh everything", {}, "everything is no step"),
        ("setup.sh", {}, "python3.x is none; name one with PYTHON"),
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


# --- targets of 7 and 8 billion parameters --------------------------------------------------------

# what their config.json say, but for the width: 64, and 8 heads in the place of 32
THIN = {"hidden_size": 64, "num_hidden_layers": 32, "num_attention_heads": 8, "head_dim": 8}
LLAMA3 = {"num_key_value_heads": 2, "intermediate_size": 224, "vocab_size": 128256}
LLAMA3 |= {"rms_norm_eps": 1e-5, "bos_token_id": 0, "eos_token_id": 1}
SCALED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALED |= {"original_max_position_embeddings": 8192, "rope_theta": 500000.0}
PLAIN = {"rope_type": "default", "rope_theta": 500000.0}
VICUNA = {"num_key_value_heads": 8, "intermediate_size": 172, "vocab_size": 32000}
VICUNA |= {"rms_norm_eps": 1e-6, "bos_token_id": 0, "eos_token_id": 1}
LAYOUTS = {
    "mt_bench_llama31_8b_eagle3": (
        LLAMA3 | {"rope_parameters": SCALED, "max_position_embeddings": 131072},
        "random:eagle3:32000",
        "exact@eagle:59x6x10",
    ),
    "mt_bench_llama3_8b": (
        LLAMA3 | {"rope_parameters": PLAIN, "max_position_embeddings": 8192},
        "random:eagle",
        "exact@eagle:59x8x10",
    ),
    "mt_bench_vicuna7b": (VICUNA | {"max_position_embeddings": 2048}, "random:eagle", "exact"),
}


def checkout(folder: Path, *launcher: str) -> Path:
    """A checkout whose set-up is done, and whose python is this one, or begins with a launcher."""
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    (folder / "scripts/setup.sh").write_text("")
    (folder / "evaluate").symlink_to(ROOT / "evaluate")
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {" ".join([sys.executable, *launcher])} "$@"\n')
    python.chmod(0o755)
    return folder


@pytest.mark.processes
@pytest.mark.parametrize(
    ("script", "count"),
    [
        ("mt_bench_llama31_8b_eagle3", 1),
        ("mt_bench_llama3_8b", 2),
        ("mt_bench_vicuna7b", 1),
        pytest.param("mt_bench_llama31_8b_eagle3", 2, marks=pytest.mark.slow),
        pytest.param("mt_bench_llama3_8b", 1, marks=pytest.mark.slow),
        pytest.param("mt_bench_vicuna7b", 2, marks=pytest.mark.slow),
    ],
)
def test_scripts_of_7b_and_8b_run_to_their_end(tmp_path, script, count):
    """With its own arguments but for the names of the models, two questions and short answers, by
    one process and by two of a launcher; LLaMA's under the system message, Vicuna's without."""
    layout, head, other = LAYOUTS[script]
    tokenizer = byte_tokenizer()
    template = "vicuna_v1.1" if "vicuna" in script else ""
    if template:
        tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path / "target")
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**THIN | layout))
    model.half().save_pretrained(tmp_path / "target")
    questions = [{"question_id": n, "turns": [f"Say {n}."]} for n in range(2)]
    asked = write_rows(tmp_path / "question.jsonl", *questions)
    launcher = ["-m", "accelerate.commands.launch", "--config_file"]
    launcher += [str(ROOT / "scripts/accelerate/ddp.yaml"), "--num_processes", "2"]
    launcher += ["--main_process_port", "0"]
    folder = checkout(tmp_path / "checkout", *(launcher if count > 1 else ()))
    given = ["--target", tmp_path / "target", "--head", head, "--device", "cpu"]
    given += ["--question_file", asked, "--max_new_tokens", 3, "--quality_only"]
    if template or count > 1:
        given += ["--arms", *dict.fromkeys(["plain", "exact", other])]
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", str(folder / f"scripts/{script}.sh"), *map(str, given)],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "tokens/round" in done.stdout
    records = [*(folder / "runs" / script / "records").rglob("*.jsonl")]
    assert {path.parent.name for path in records} == {"records", "process1"} or count == 1
    system = "" if template else read_system(str(ROOT / "scripts/llama_system.txt"))
    arms = set()
    for record in (record for path in records for record in rows(path)):
        arms.add(record["arm"])
        (turn,) = record["turns"]
        prompt = prompt_ids(tokenizer, turn["prompt"], conv_template=template, system=system)
        assert turn["prompt_tokens"] == len(prompt) and turn["token_ids"]
    assert {"plain", "exact", other} <= arms
    assert template or count > 1 or len(arms) == 8
