"""Every command runs on the CPU with a tiny random model; killed runs resume; bad input is told."""

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from commands import ROOT, bench_options, load_command, rows
from tiny_folder import write_random_head, write_target

from eagle_fsd.evaluation.arms import parse_arm

pytestmark = pytest.mark.processes  # whole commands


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return write_target(folder / "target"), write_random_head(folder / "head")


COMMANDS = {path: load_command(path) for path in ("evaluate/mt_bench.py", "evaluate/answer.py")}


@pytest.fixture
def run(capsys, monkeypatch):
    """Calls a command's main in this process, as `python COMMAND OPTIONS` would."""

    def call(command: str, *options: object) -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", [command, *map(str, options)])
        capsys.readouterr()
        code, message = 0, ""
        try:
            COMMANDS[command].main()
        except SystemExit as exit:
            code, message = 1, f"{exit.code}\n"
        out = capsys.readouterr()
        return SimpleNamespace(returncode=code, stdout=out.out, stderr=out.err + message)

    return call


NAMES = ["generate", "plain", "exact", "fsd:0", "fsd:0.2", "fsd-paper:0", "path:0.5", "ratio:1"]
NAMES += ["exact@lookup:4"]
ALL_ARMS = ["--arms", *NAMES]


def test_mt_bench_writes_everything_and_can_be_extended(run, models, tmp_path):
    """Table, JSON, PNG, FastChat's answers; exact = plain = generate = fsd at T 0; a second run
    answers only what was added."""
    options = bench_options(models, tmp_path)
    done = run("evaluate/mt_bench.py", *options, "--questions", 2, *ALL_ARMS)
    assert done.returncode == 0, done.stderr
    assert "tokens/round" in done.stdout and "fsd-paper:0 " in done.stdout
    folder = tmp_path / "run"
    summary = json.loads((folder / "summary.json").read_text())
    assert [row["arm"] for row in summary["rows"]] == NAMES
    by_arm = {row["arm"]: row for row in summary["rows"]}
    for arm in ("generate", "exact", "fsd:0", "exact@lookup:4"):
        assert by_arm[arm]["same_as_plain"]["value"] == 1
    assert by_arm["fsd:0"]["fuzzy_share"]["value"] == 0
    assert by_arm["fsd:0"]["ceiling"]["value"] == 1
    assert by_arm["plain"]["tokens_per_round"]["value"] == 1

    before = rows(folder / "records" / "exact.jsonl")
    done = run("evaluate/mt_bench.py", *options, "--questions", 5, *ALL_ARMS)
    assert done.returncode == 0, done.stderr
    after = rows(folder / "records" / "exact.jsonl")
    assert after[:2] == before
    assert sorted(row["question_id"] for row in after) == [0, 1, 2, 3, 4]
    # FastChat reads these keys (fastchat/llm_judge/common.py, gen_judgment.py)
    for answer, record in zip(rows(folder / "answers" / "exact.jsonl"), after, strict=True):
        assert set(answer) == {"question_id", "answer_id", "model_id", "choices", "tstamp"}
        assert answer["question_id"] == record["question_id"]
        assert answer["choices"][0]["turns"] == [turn["text"] for turn in record["turns"]]
    # second turns continue the arm's own first answer
    assert all(r["turns"][1]["prompt_tokens"] > r["turns"][0]["prompt_tokens"] for r in after)


def test_mt_bench_survives_kill_9(run, models, tmp_path):
    """Killed in the middle and with a torn last line: nothing is lost or answered twice."""
    options = [*bench_options(models, tmp_path), "--questions", 5, *ALL_ARMS]
    options[options.index("--max_new_tokens") + 1] = 60
    command = [sys.executable, str(ROOT / "evaluate/mt_bench.py"), *map(str, options)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    record = tmp_path / "run" / "records" / "exact.jsonl"
    deadline = time.monotonic() + 60
    while not (record.is_file() and record.read_text().count("\n") >= 2):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = rows(record)
    assert len(kept) < 5, "the run ended before it was killed"
    with record.open("a") as file:
        file.write('{"question_id": 4, "turns": [{"te')
    done = run("evaluate/mt_bench.py", *options)
    assert done.returncode == 0, done.stderr
    assert "torn" in done.stderr
    assert rows(record)[: len(kept)] == kept
    for name in NAMES:
        for kind in ("records", "answers"):
            ids = [
                row["question_id"]
                for row in rows(tmp_path / "run" / kind / f"{parse_arm(name).slug}.jsonl")
            ]
            assert sorted(ids) == [0, 1, 2, 3, 4], (kind, name)


def test_mt_bench_samples_repeatably(run, models, tmp_path):
    """At temperature 1 a seed repeats its answers; processed rows and child sample work."""
    texts = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        options = bench_options(models, tmp_path / name)
        options += ["--questions", 1, "--temperature", 1, "--top_k", 20, "--arms", "plain", "exact"]
        options += ["fsd:0.5,child=sample,logits=processed"]
        done = run("evaluate/mt_bench.py", *options)
        assert done.returncode == 0, done.stderr
        files = sorted((tmp_path / name / "run" / "records").iterdir())
        texts.append([[t["token_ids"] for t in rows(f)[0]["turns"]] for f in files])
    assert texts[0] == texts[1]
    assert files[1].name == "fsd_0.5_child-sample_logits-processed.jsonl"


def test_an_answer_stops_where_the_positions_end(run, models, tmp_path):
    """The second turn's budget is what the target's positions leave, the same for every arm."""
    target = write_target(tmp_path / "short", max_positions=128, layers=2)
    options = bench_options((target, models[1]), tmp_path)
    options[options.index("--max_new_tokens") + 1] = 40
    done = run("evaluate/mt_bench.py", *options, "--questions", 1)
    assert done.returncode == 0, done.stderr
    for name in ("generate", "plain", "exact"):
        _, second = rows(tmp_path / "run" / "records" / f"{name}.jsonl")[0]["turns"]
        assert 0 < len(second["token_ids"]) == 128 - second["prompt_tokens"] < 40


BAD_BENCH = {
    "an engine of another device": (("--engine", "graphs"), "needs one CUDA device"),
    "no such device": (["--device", "cuda:x"], "cuda:x"),
    "depth 0": (["--tree", "7x0x3"], "tree_depth"),
    "no tree": (["--arms", "exact@eagle:7x3"], "DRAFTSxLEVELSxTOPK"),
    "a tree to be chosen": (["--arms", "exact@eagle:auto"], "choose_tree"),
    "negative turns": (["--turns", "-1"], "--turns"),
    "unknown rule": (["--arms", "fsdd"], "fsdd"),
    "unknown divergence": (["--arms", "fsd:0.2,divergence=jss"], "known: kl_target_draft"),
    "unknown field": (["--arms", "fsd:0.2,chidl=draft"], "chidl=draft"),
    "one arm twice": (["--arms", "fsd:0.2", "fsd:0.20,child=draft"], "are the same"),
    "negative T": (["--arms", "fsd:-0.1"], "-0.1"),
    "negative temperature": (["--temperature", "-1"], "temperature"),
    "impossible tree": (["--tree", "7x2x1"], "candidates"),
    "processed at 0": (["--arms", "fsd:0.2,logits=processed"], "processed"),
    "too many questions": (["--questions", "6"], "1..5"),
    "no such target": (["--target", "nowhere/at-all"], "nowhere/at-all"),
    "question file missing": (["--question_file", "gone.jsonl"], "gone.jsonl"),
    "budget beyond positions": (["--max_new_tokens", "3000"], "2048"),
    "no budget": (["--max_new_tokens", "0"], "max_new_tokens"),
    "output not writable": (["--output", "/proc/run"], "/proc/run"),
    "unknown template": (["--conv_template", "vicunja"], "vicunja"),
}


@pytest.mark.parametrize("fault", BAD_BENCH)
def test_mt_bench_tells_bad_input(run, models, tmp_path, fault):
    """A clear line that names the value, no traceback, nothing answered."""
    extra, told = BAD_BENCH[fault]
    done = run("evaluate/mt_bench.py", *bench_options(models, tmp_path), *extra)
    assert done.returncode == 1
    assert "error: " in done.stderr and told in done.stderr
    assert not list(tmp_path.glob("run/records/*"))


def test_mt_bench_tells_a_broken_question_line(run, models, tmp_path):
    """The line's number is named."""
    options = bench_options(models, tmp_path)
    path = tmp_path / "question.jsonl"
    path.write_text(path.read_text() + "{torn\n")
    done = run("evaluate/mt_bench.py", *options)
    assert done.returncode == 1 and "line 6" in done.stderr


def test_mt_bench_refuses_a_head_of_another_model(run, models, tmp_path):
    """Both widths are named, before the target's weights load."""
    target, _ = models
    head = write_random_head(tmp_path / "wide", hidden_size=64)
    done = run("evaluate/mt_bench.py", *bench_options((target, head), tmp_path))
    assert done.returncode == 1 and "64" in done.stderr and "32" in done.stderr


def test_mt_bench_refuses_to_mix_settings(run, models, tmp_path):
    """A folder of another temperature is not continued; what differs is named."""
    options = [*bench_options(models, tmp_path), "--questions", 1, "--arms", "plain"]
    assert run("evaluate/mt_bench.py", *options).returncode == 0
    done = run("evaluate/mt_bench.py", *options, "--temperature", 0.5)
    assert done.returncode == 1 and "temperature" in done.stderr


def test_answer_streams_and_tells_bad_input(run, models):
    """Text on standard output, metrics on standard error; an empty prompt is told."""
    target, head = models
    options = ["--target", target, "--head", head, "--dtype", "float32", "--max_new_tokens", 9]
    options += ["--tree", "7x3x3"]
    done = run("evaluate/answer.py", *options, "--prompt", "Hello")
    assert done.returncode == 0, done.stderr
    assert "9 tokens" in done.stderr and "per round" in done.stderr
    plain = run("evaluate/answer.py", *options, "--prompt", "Hello", "--arm", "plain")
    exact = run("evaluate/answer.py", *options, "--prompt", "Hello", "--arm", "exact")
    assert plain.stdout == exact.stdout
    done = run("evaluate/answer.py", *options, "--prompt", " ")
    assert done.returncode == 1 and "empty" in done.stderr
    for arm, told in {"generate": "transformers' own", "exact@eagle:auto": "15x4x6"}.items():
        done = run("evaluate/answer.py", *options, "--prompt", "Hello", "--arm", arm)
        assert done.returncode == 1 and "error: " in done.stderr and told in done.stderr


@pytest.mark.embedded
@pytest.mark.parametrize("script", ["mt_bench", "mt_bench_vicuna7b", "mt_bench_llama3_8b"])
def test_scripts_run(models, tmp_path, script):
    """Each script sets up and runs its command from any directory; here on the tiny model."""
    options = [*bench_options(models, tmp_path), "--questions", 1]
    command = ["bash", str(ROOT / "scripts" / f"{script}.sh"), *map(str, options)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "tokens/round" in done.stdout
    assert ("not measured here" in done.stdout) == (script != "mt_bench")
