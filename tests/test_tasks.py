"""Tasks: sources of every kind, scores of a run against hand-computed ones, and the command."""

import gzip
import json
import shutil
from dataclasses import replace

import pytest
from commands import model_options, rows, write_rows

# imported first: a library's failed import would keep the command's frame, and its folder locked
import eagle_fsd.evaluation.tables  # noqa: F401
from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.questions import Question, read_questions
from eagle_fsd.runs.folder import records_by_arm
from eagle_fsd.tasks.scorers import check_scorable, read_task
from eagle_fsd.tasks.task_scores import score_run

pytestmark = pytest.mark.processes  # whole commands

GSM8K = {"question": "How much is 2 * 3?", "answer": "2 * 3 = <<2*3=6>>6\n#### 6"}
IFEVAL = {"key": 1000, "prompt": "No commas.", "kwargs": [{}]}
IFEVAL["instruction_id_list"] = ["punctuation:no_comma"]


def test_files_of_every_kind(tmp_path):
    """Prompts, ids by row; a text may hold a line separator of Unicode; a question.jsonl has no
    scorer of its own; HumanEval's package is fetched at first use."""
    odd = {"question": "One\u2028two?", "answer": "It is #### 1,000"}
    questions, scorer = read_task(f"gsm8k:{write_rows(tmp_path / 'g.jsonl', GSM8K, '', odd)}")
    assert [q.question_id for q in questions] == ["gsm8k/0", "gsm8k/1"]
    assert questions[1].reference == ["1,000"] and scorer == "last_number"
    assert questions[0].turns[0].startswith("How much is 2 * 3?\n\nSolve this")
    packed = tmp_path / "i.jsonl.gz"
    packed.write_bytes(gzip.compress(json.dumps(IFEVAL).encode()))
    extra = {name: IFEVAL[name] for name in ("instruction_id_list", "kwargs")}
    wanted = [Question(1000, "ifeval", ["No commas."], [], extra)]
    assert read_task(f"ifeval:{packed}") == (wanted, "ifeval")
    path = write_rows(tmp_path / "question.jsonl", *QUESTIONS)
    assert read_task(str(path)) == (read_questions(path), "")
    questions, scorer = read_task("humaneval")
    check_scorable(questions, scorer, execute_code=True)
    assert len(questions) == 164 and scorer == "humaneval"
    assert "```python\nfrom typing import List" in questions[0].turns[0]
    first = questions[0].extra | {"task_id": "own"}
    (question,), _ = read_task(f"humaneval:{write_rows(tmp_path / 'h.jsonl', first)}")
    assert question == replace(questions[0], question_id="own")


def test_a_row_of_a_set_that_lacks_a_field(tmp_path):
    """It is named, missing or null. Regression: null arguments of IFEval, as the hub's copy has
    them, were given to the checkers."""
    first = {"task_id": "own", "prompt": "p", "test": "t", "entry_point": "e"}
    for kind, row in {"gsm8k": GSM8K, "ifeval": IFEVAL, "humaneval": first}.items():
        for name in row:
            path = write_rows(tmp_path / "broken.jsonl", row | {name: None})
            told = f"line 1 is no row of {kind}: it lacks '{name}'"
            with pytest.raises(BadInput, match=told):
                read_task(f"{kind}:{path}")
    padded = IFEVAL | {"kwargs": [{"num_words": None, "relation": None}]}
    (question,), _ = read_task(f"ifeval:{write_rows(tmp_path / 'i.jsonl', padded)}")
    check_scorable([question], "ifeval")
    assert question.extra["kwargs"] == [{}]


def record(question_id: int, text: str, choice: int = 0) -> dict:
    place = {"question_id": question_id, "arm": "plain", "choice": choice}
    return place | {"turns": [{"text": text}]}


def test_scores_of_a_run_by_hand(tmp_path):
    """Choices are averaged by question; McNemar only where every score is 0 or 1. Answers to other
    questions are told before anything is written."""
    questions = [Question(i, "x", ["?"], ["yes"]) for i in range(8)]
    texts = {arm: ["yes", "no"] * 4 for arm in ("plain", "exact")}
    texts["fsd:0.3"] = ["no", "no", "no", "yes"] * 2
    records = {arm: [record(i, t) for i, t in enumerate(x)] for arm, x in texts.items()}
    sampled = [(0, "yes", 0), (1, "yes", 0), (0, "yes", 1), (1, "no", 1)]
    records["ratio:1"] = [record(*answer) for answer in sampled]
    records["ratio:2"] = [{"question_id": 3, "turns": [{"text": "yes"}]}]  # without a choice
    with pytest.raises(BadInput, match="such as 3"):
        score_run(records, questions[:3] + questions[4:], "exact_match", tmp_path / "none")
    assert not list(tmp_path.iterdir())
    _, compared = score_run(records, questions, "exact_match", tmp_path)
    (written,) = rows(tmp_path / "scores" / "ratio_2.jsonl")
    given = {"exact_match": 1.0, "as_plain": 0.0}  # plain says no
    assert written == {"question_id": 3, "choice": 0, "scores": given, "reference": ["yes"]}
    agree = {row["arm"]: row["mean"]["value"] for row in compared if row["score"] == "as_plain"}
    assert agree == {"exact": 1, "fsd:0.3": 0.25, "ratio:1": 0.5, "ratio:2": 0}
    for row in records["plain"][:2]:  # plain says nothing there: nobody agrees or differs
        row["turns"][0]["text"] = "..."
    again = score_run(records, questions, "exact_match", tmp_path)[1]
    counted = {row["arm"]: row["questions"] for row in again if row["score"] == "as_plain"}
    assert counted == {"exact": 6, "fsd:0.3": 6, "ratio:2": 1}
    row = {row["arm"]: row for row in compared if row["score"] == "exact_match"}
    assert row["plain"]["mean"]["value"] == 0.5 and row["plain"]["vs_plain"] is None
    assert row["exact"]["vs_plain"]["value"] == 0 and row["exact"]["mcnemar_p"] == 1
    assert row["fsd:0.3"]["vs_plain"]["value"] == -0.25
    assert row["fsd:0.3"]["vs_plain"]["detectable"] > 0.5
    assert [row["fsd:0.3"][key] for key in ("gained", "lost", "mcnemar_p")] == [2, 4, 0.6875]
    assert row["ratio:1"]["questions"] == 2 and row["ratio:1"]["mean"]["value"] == 0.75
    assert row["ratio:1"]["vs_plain"]["value"] == 0.25 and row["ratio:1"]["gained"] is None
    assert row["ratio:2"]["gained"] == 1


QUESTIONS = [
    {"question_id": i, "category": "x", "turns": [f"Say {i}."], "reference": ["nothing"]}
    for i in range(2)
]
TASKS = "evaluate/tasks.py"


def test_command_scores_rescores_and_needs_no_weights_for_it(call, models, tmp_path):
    """A run; then, with the answers of plain as references, the same command with another scorer,
    and with the target gone --rescore: plain and exact are right, McNemar counts what fsd lost."""
    target = shutil.copytree(models[0], tmp_path / "target")
    task, folder = write_rows(tmp_path / "question.jsonl", *QUESTIONS), tmp_path / "run"
    options = [*model_options((target, models[1])), "--task", task, "--output", folder]
    options += ["--max_new_tokens", 8, "--arms", "plain", "exact", "fsd:0.6"]
    out = call(TASKS, *options, "--scorer", "contains")
    assert "| contains " in out and "tokens/round" in out
    table = json.loads((folder / "scores" / "table.json").read_text())
    assert [row["mean"]["value"] for row in table["rows"]] == [0, 0, 0]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["scores"] == table["rows"] and summary["scorer"] == "contains"

    gold = {r["question_id"]: r["turns"][0]["text"] for r in records_by_arm(folder)["plain"]}
    known = [q | {"reference": [gold[q["question_id"]]]} for q in QUESTIONS]
    write_rows(tmp_path / "question.jsonl", *known)
    assert "| exact_match " in call(TASKS, *options, "--scorer", "exact_match")
    shutil.rmtree(target)
    records = records_by_arm(folder)
    call(TASKS, *options, "--scorer", "exact_match", "--rescore", "--questions", 1)
    made = json.loads((folder / "scores/table.json").read_text())["rows"]
    found = {row["arm"]: row for row in made if row["score"] == "exact_match"}
    same = [row["turns"][0]["text"] == gold[row["question_id"]] for row in records["fsd:0.6"]]
    assert found["plain"]["mean"]["value"] == found["exact"]["mean"]["value"] == 1
    assert found["fsd:0.6"]["lost"] == same.count(False) > 0
    assert records_by_arm(folder) == records
