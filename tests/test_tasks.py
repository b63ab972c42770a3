"""Tasks: sources of every kind, scores of a run against hand-computed ones, and the command."""

import gzip
import json
import shutil
from pathlib import Path

import pytest
from commands import model_options, rows, write_rows

# imported first: a library's failed import would keep the command's frame, and its folder locked
import eagle_fsd.evaluation.report.report_tables  # noqa: F401
from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.questions import Question, read_questions
from eagle_fsd.tasks.scorers import check_scorable
from eagle_fsd.tasks.task_scores import records_by_arm, score_run
from eagle_fsd.tasks.task_sources import read_task

pytestmark = pytest.mark.processes  # whole commands

GSM8K = {"question": "How much is 2 * 3?", "answer": "2 * 3 = <<2*3=6>>6\n#### 6"}
IFEVAL = {
    "key": 1000,
    "prompt": "Say hello without commas.",
    "instruction_id_list": ["punctuation:no_comma"],
    "kwargs": [{}],
}
HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": "def f() -> int:\n",
    "test": "def check(f): assert f() == 1",
    "entry_point": "f",
    "canonical_solution": "    return 1\n",
}


def test_gsm8k_and_ifeval_files(tmp_path):
    """Prompts, ids by row; a text may hold a line separator of Unicode; a question.jsonl has no
    scorer of its own."""
    odd = {"question": "One\u2028two?", "answer": "It is #### 1,000"}
    questions, scorer = read_task(f"gsm8k:{write_rows(tmp_path / 'g.jsonl', GSM8K, '', odd)}")
    assert [q.question_id for q in questions] == ["gsm8k/0", "gsm8k/1"]
    assert questions[1].reference == ["1,000"] and scorer == "last_number"
    assert questions[0].turns[0].startswith("How much is 2 * 3?\n\nSolve this")
    packed = tmp_path / "i.jsonl.gz"
    packed.write_bytes(gzip.compress(json.dumps(IFEVAL).encode()))
    questions, scorer = read_task(f"ifeval:{packed}")
    assert questions[0].question_id == 1000
    assert questions[0].turns == [IFEVAL["prompt"]] and scorer == "ifeval"
    assert questions[0].extra["instruction_id_list"] == ["punctuation:no_comma"]
    path = write_rows(tmp_path / "question.jsonl", *QUESTIONS)
    assert read_task(str(path)) == (read_questions(path), "")


def test_humaneval_of_the_package(tmp_path):
    """Fetched at first use; a file of the same form may be given."""
    questions, scorer = read_task("humaneval")
    check_scorable(questions, scorer, execute_code=True, without_isolation=True)
    assert len(questions) == 164 and scorer == "humaneval"
    assert "```python\nfrom typing import List" in questions[0].turns[0]
    questions, scorer = read_task(f"humaneval:{write_rows(tmp_path / 'h.jsonl', HUMANEVAL)}")
    assert questions[0].extra == {k: HUMANEVAL[k] for k in ("prompt", "test", "entry_point")}


BROKEN = {
    "no JSON": ("gsm8k", [GSM8K, "{torn"], "line 2 is no JSON"),
    "no object": ("gsm8k", ["[1]"], "line 1 is no row of gsm8k"),
    "no question": ("gsm8k", ["", {"answer": "#### 1"}], "line 2 .*'question'"),
    "no gold answer": ("gsm8k", [GSM8K | {"answer": "6"}], "line 1 .*no #### "),
    "an id twice": ("ifeval", [IFEVAL, IFEVAL], "line 2 .*the id 1000 occurs twice"),
    "no key": ("ifeval", [{"prompt": "x"}], "line 1 .*'instruction_id_list'"),
    "nothing": ("gsm8k", [""], "holds no question"),
}


def test_broken_and_unknown_files_are_told(tmp_path):
    for kind, lines, told in BROKEN.values():
        with pytest.raises(BadInput, match=told):
            read_task(f"{kind}:{write_rows(tmp_path / 'x.jsonl', *lines)}")
    for source in ("gsm8k:gone.jsonl", "gone.jsonl", "hub:openai/gsm8k"):
        with pytest.raises(BadInput, match=f"no file at '.*{source[-5:]}.*evaluate/harness.py"):
            read_task(source)


def record(question_id: int, text: str, choice: int = 0) -> dict:
    place = {"question_id": question_id, "arm": "plain", "choice": choice}
    return place | {"turns": [{"text": text}]}


def test_scores_of_a_run_by_hand(tmp_path):
    """Choices are averaged by question; McNemar only where every score is 0 or 1."""
    questions = [Question(i, "x", ["?"], ["yes"]) for i in range(8)]
    half = ["yes", "no"] * 4
    texts = {"plain": half, "exact": half, "fsd:0.3": ["no", "no", "no", "yes"] * 2}
    records = {arm: [record(i, t) for i, t in enumerate(x)] for arm, x in texts.items()}
    sampled = [(0, "yes", 0), (1, "yes", 0), (0, "yes", 1), (1, "no", 1)]
    records["ratio:1"] = [record(*answer) for answer in sampled]
    records["ratio:2"] = [{"question_id": 3, "turns": [{"text": "yes"}]}]  # without a choice
    text, compared = score_run(records, questions, "exact_match", tmp_path)
    scores = {path.stem: rows(path) for path in (tmp_path / "scores").glob("*.jsonl")}
    assert scores["ratio_2"] == [{"question_id": 3, "choice": 0, "scores": {"exact_match": 1.0}}]
    assert len(scores["ratio_1"]) == 4
    row = {row["arm"]: row for row in compared}
    assert row["plain"]["mean"]["value"] == 0.5 and row["plain"]["vs_plain"] is None
    assert row["exact"]["vs_plain"]["value"] == 0 and row["exact"]["mcnemar"]["p"] == 1
    assert row["fsd:0.3"]["vs_plain"]["value"] == -0.25
    assert row["fsd:0.3"]["vs_plain"]["detectable"] > 0.5
    assert row["fsd:0.3"]["mcnemar"] == {"gained": 2, "lost": 4, "p": 0.6875}
    assert row["ratio:1"]["questions"] == 2 and row["ratio:1"]["mean"]["value"] == 0.75
    assert row["ratio:1"]["vs_plain"]["value"] == 0.25 and row["ratio:1"]["mcnemar"] is None
    assert row["ratio:2"]["mcnemar"]["gained"] == 1
    (line,) = (line for line in text.splitlines() if line.startswith("| fsd:0.3 "))
    arm, mean, count, difference, *test = (cell.strip() for cell in line.strip("|").split("|"))
    assert mean.startswith("0.250 [") and difference.startswith("-0.250 [") and count == "8"
    assert test == ["2", "4", "0.688"]


def test_records_that_are_no_answers_to_the_task(tmp_path, capsys):
    """None, or of other questions; a torn last line, of a run that is being made, is left out with
    a warning and stays."""
    with pytest.raises(BadInput, match="holds no records"):
        records_by_arm(tmp_path)
    asked = [Question(1, "x", ["?"], ["x"])]
    with pytest.raises(BadInput, match="such as 7"):
        score_run({"plain": [record(7, "x")]}, asked, "exact_match", tmp_path)
    assert not list(tmp_path.iterdir())
    (tmp_path / "records").mkdir()
    path = write_rows(tmp_path / "records" / "plain.jsonl", record(1, "x"), record(2, "y"))
    path.write_text(path.read_text() + '{"question_id": 3, "tu')
    before = path.read_text()
    assert records_by_arm(tmp_path) == {"plain": [record(1, "x"), record(2, "y")]}
    assert "plain.jsonl: its last line is torn" in capsys.readouterr().err
    assert path.read_text() == before


QUESTIONS = [
    {"question_id": i, "category": "x", "turns": [f"Say {i}."], "reference": ["nothing"]}
    for i in range(2)
]
TASKS = "evaluate/tasks.py"


def command_options(models, folder: Path) -> list:
    options = [*model_options(models), "--max_new_tokens", 8, "--arms", "plain", "exact", "fsd:0.6"]
    path = write_rows(folder / "question.jsonl", *QUESTIONS)
    return [*options, "--task", path, "--output", folder / "run"]


def test_command_scores_rescores_and_needs_no_weights_for_it(call, models, tmp_path):
    """A run; then, with the target gone and the answers of plain as references, the same command
    with another scorer, and --rescore: plain and exact are right, and McNemar counts what fsd lost.
    A task of other questions is not scored."""
    target = shutil.copytree(models[0], tmp_path / "target")
    options = command_options((target, models[1]), tmp_path)
    out = call(TASKS, *options, "--scorer", "contains")
    assert "| contains " in out and "tokens/round" in out
    folder = tmp_path / "run"
    table = json.loads((folder / "scores" / "table.json").read_text())
    assert [row["mean"]["value"] for row in table["rows"]] == [0, 0, 0]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["scores"] == table["rows"] and summary["scorer"] == "contains"
    assert "contains" in (folder / "summary.md").read_text()

    gold = {r["question_id"]: r["turns"][0]["text"] for r in records_by_arm(folder)["plain"]}
    write_rows(
        tmp_path / "question.jsonl",
        *(q | {"reference": [gold[q["question_id"]]]} for q in QUESTIONS),
    )
    shutil.rmtree(target)
    assert "| exact_match " in call(TASKS, *options, "--scorer", "exact_match")
    records = records_by_arm(folder)
    again = call(TASKS, *options, "--scorer", "exact_match", "--rescore", "--questions", 1)
    assert "| exact_match " in again
    found = {r["arm"]: r for r in json.loads((folder / "scores/table.json").read_text())["rows"]}
    same = [row["turns"][0]["text"] == gold[row["question_id"]] for row in records["fsd:0.6"]]
    assert found["plain"]["mean"]["value"] == found["exact"]["mean"]["value"] == 1
    assert found["fsd:0.6"]["mcnemar"]["lost"] == same.count(False) > 0
    assert records_by_arm(folder) == records
    write_rows(tmp_path / "question.jsonl", QUESTIONS[0] | {"turns": ["Say it."]}, QUESTIONS[1])
    assert "another text" in call(TASKS, *options, "--scorer", "contains", "--rescore")


REFUSED = {
    "no task": (["--task", ""], "--task is missing"),
    "no scorer": ([], "give --scorer"),
    "unknown scorer": (["--scorer", "bleu"], "known: exact_match"),
    "references that do not fit": (["--scorer", "last_number"], "is not right itself"),
    "code": (["--scorer", "humaneval"], "--execute_code"),
    "nothing to rescore": (["--scorer", "contains", "--rescore"], "holds no records"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_command_tells_bad_input(call, models, tmp_path, fault):
    """Before weights load: there are none."""
    extra, told = REFUSED[fault]
    options = command_options((tmp_path / "no target", models[1]), tmp_path)
    out = call(TASKS, *options, *extra)
    assert out.startswith("error: ") and told in out
    assert not (tmp_path / "run" / "records").exists()
