"""The judge over real HTTP on loopback: FastChat's protocol, what goes on, faults."""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
from commands import rows, write_rows
from judge_server import rating

from eagle_fsd.evaluation.questions import fastchat_answers, read_questions
from eagle_fsd.models.assets import asset_dir
from eagle_fsd.tasks.judge import parse_rating
from eagle_fsd.tasks.task_scores import compare_scores

pytestmark = pytest.mark.processes  # whole commands

ARMS = ("exact", "fsd:0.4", "plain")
IDS = (81, 101, 111)  # of MT-Bench: writing, reasoning, math; the latter two with a reference


@pytest.fixture
def folder(tmp_path):
    return write_run(tmp_path / "run")


def write_run(folder, ids=IDS, note=""):
    """A run of three arms, two turns each; braces in an answer are no fields of a template."""
    (folder / "records").mkdir(parents=True, exist_ok=True)
    asked = [q for q in read_questions("") if q.question_id in ids]
    for arm in ARMS:
        records = []
        for question in asked:
            said = [f"{{{arm}}} {question.question_id} {turn}{note}" for turn in (0, 1)]
            turns = [{"prompt": p, "text": t} for p, t in zip(question.turns, said, strict=True)]
            place = {"question_id": question.question_id, "answer_id": "x", "tstamp": 0.0}
            records.append(place | {"arm": arm, "turns": turns})
        write_rows(folder / "records" / f"{arm.replace(':', '_')}.jsonl", *records)
    return folder


@pytest.fixture
def judge(call, monkeypatch, server, folder):
    """Judges the folder; gives all that the command printed."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-4711")
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
    return lambda *options: call("evaluate/judge.py", "--run", folder, "--model", "gpt-4", *options)


def replies(folder) -> list[dict]:
    return rows(folder / "judge" / "gpt-4" / "verdicts" / "records" / "single.jsonl")


def test_requests_ratings_and_scores_are_fastchats(
    judge, server, folder, tmp_path, capsys, monkeypatch
):
    """The same requests and ratings as FastChat's own code, and show_result's means."""
    monkeypatch.setitem(sys.modules, "anthropic", ModuleType("anthropic"))  # imported, not used
    from fastchat.llm_judge import common, gen_judgment, show_result

    requests = []

    def reply(model, conv, temperature, max_tokens, api_dict=None) -> str:
        body = {"messages": conv.to_openai_api_messages(), "model": model}
        requests.append(body | {"temperature": temperature, "max_tokens": max_tokens})
        return rating(body)

    monkeypatch.setattr(common, "chat_completion_openai", reply)
    answers, data, played = {}, asset_dir("mt_bench"), tmp_path / "theirs.jsonl"
    for path in (folder / "records").iterdir():
        of_arm = list(fastchat_answers(rows(path)))
        answers[of_arm[0]["model_id"]] = {row["question_id"]: row for row in of_arm}
    questions = [q for q in rows(data / "question.jsonl") if q["question_id"] in IDS]
    references = common.load_model_answers(str(data / "reference_answer"))
    prompts = common.load_judge_prompts(str(data / "judge_prompts.jsonl"))
    for name, kind in gen_judgment.make_judge_single("gpt-4", prompts).items():
        refer = kind.ref_based
        asked = [q for q in questions if (q["category"] in common.NEED_REF_CATS) == refer]
        for match in gen_judgment.make_match_single(
            asked,
            list(ARMS),
            answers,
            kind,
            ref_answers=references if refer else None,
            multi_turn=name.endswith("-mt"),
        ):
            common.play_a_match_single(match, str(played))

    judge()
    mine = [{key: body[key] for key in requests[0]} for body in server.bodies]
    assert len(mine) == 3 * 3 * 2
    assert sorted(map(json.dumps, mine)) == sorted(map(json.dumps, requests))
    said = {
        (line["question_id"], line["turn"], line["arm"]): parse_rating(line["reply"])
        for line in replies(folder)
    }
    theirs = {(row["question_id"], row["turn"], row["model"]): row["score"] for row in rows(played)}
    assert said == theirs

    asked = {"input_file": str(played), "bench_name": "mt_bench", "model_list": None}
    capsys.readouterr()
    show_result.display_result_single(SimpleNamespace(**asked))
    shown = capsys.readouterr().out.splitlines()
    table = json.loads((folder / "judge" / "gpt-4" / "single.json").read_text())["rows"]
    for arm in ARMS:
        both, first, second = (row["mean"]["value"] for row in table if row["arm"] == arm)
        figures = [float(y) for x in shown if x.startswith(arm) for y in x.split()[1:]]
        assert figures == pytest.approx([1, first, 2, second, both], abs=1e-5)


FORMAT = 'strictly following this format: "[[rating]]", for example: "Rating: [[5]]"'
# replies, and which of their marks is the verdict by the prompts' own words
RATINGS = {
    "Good. Rating: [[8.5]]": 8.5,
    "Rating: [[10.]]": 10,
    "[[0]]": 0,
    "[[7]]\n\nIt is helpful and to the point.": 7,
    "The first turn is worth [[8]], the second less: [[6]]": 6,
    "First turn: rating: [[8]]. Second turn: rating: [[6]]": 6,
    "Rating: [[5]]. Had it shown its steps, I would have given [[7]].": 5,
    "A full answer has a rating of [[10]]. **Rating:** [[3]] (it misses half)": 3,
    f"I am to rate by {FORMAT}. It is good. [[8]]": 8,
    f"It is wrong. Rating: [[2]]\n\n(By {FORMAT}.)": 2,
    'It asks for "[[10]]". Rating: [[4]], see [1] and [[2023]].': 4,
    "in [1], so [[9]]": 9,
    "As [1] says, it is right. Rating: [6]": 6,
    "It is right, but short.\n\n**[6]**": 6,
    "Rating: [6]. It rests on [2].": 6,
    "It rests on [2] and [3], and is wrong.": None,
    "since [2023] nothing": None,
    "[[seven]] 7/10": None,
    "<think>A [[3]]? Or": None,
    "A [[3]]? No.</think>Rating: [9]": 9,  # the template began the thought
}


def test_ratings_of_replies():
    """Off the scale there is none. Regressions: a mark that the judge thought of or quoted was
    taken, as FastChat takes the first; then one behind the verdict, or a citation."""
    assert {text: parse_rating(text) for text in RATINGS} == RATINGS


def test_endpoints_of_newer_models(judge, server, folder):
    """What an error names is left out for the rest of the run, and told. Regressions: those that
    take no max_tokens or no temperature 0 could not be asked; content in parts ended the judging;
    one without a rating had status 0."""

    def refusal(body: dict) -> str:
        if "max_tokens" in body:
            return "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
        if "temperature" in body:
            return "Unsupported value: 'temperature' does not support 0 with this model."
        return ""

    server.refusal = refusal
    parts = [{"type": "thinking", "thinking": "[[1]]"}]
    parts += [{"type": "text", "text": text} for text in ("So [[", "4]]")]
    server.reply = lambda body: parts
    said = judge("--arms", "plain")
    assert "6 ratings" in said and said.count("asking without it") == 2
    assert {line["reply"] for line in replies(folder)} == {"So [[4]]"}
    assert all(line["max_completion_tokens"] > 2048 for line in replies(folder))
    assert not any("temperature" in line for line in replies(folder))
    judge("--arms", "fsd:0.4")  # asked anew by a command that knows nothing
    assert len(server.bodies) <= 2 * (6 + 2 * 4)
    # one long prompt is no reason to ask all others otherwise
    server.refusal = lambda body: "max_tokens is too large: your input has 3000 tokens"
    asked = len(server.bodies)
    said = judge("--arms", "exact")
    assert said.startswith("error: gpt-4: 0 ratings") and "max_tokens is too large" in said
    assert len(server.bodies) == asked + 6


def test_scores_of_ratings():
    """By hand: means over questions; differences over what both arms have, turns first averaged."""
    given = [("plain", 1, 1, 8), ("plain", 1, 2, 6), ("plain", 2, 1, 4), ("fsd", 3, 1, 10)]
    given += [("fsd", 1, 1, 6), ("fsd", 1, 2, 2), ("fsd", 2, 1, 3), ("fsd", 2, 2, 9)]
    keys = ("arm", "question_id", "turn", "value", "score")
    values = [dict(zip(keys, (*place, "judge"), strict=True)) for place in given]
    plain, fsd = compare_scores(values)
    assert plain["mean"]["value"] == (7 + 4) / 2 and plain["vs_plain"] is None
    # question 1: turns 6 and 2; question 2: 3 and 9; question 3: 10
    assert fsd["mean"]["value"] == pytest.approx((4 + 6 + 10) / 3) and fsd["questions"] == 3
    # question 1: 4 - 7; question 2, first turns: 3 - 4
    assert fsd["vs_plain"]["value"] == -2


def test_only_what_is_new_is_asked(judge, server, folder):
    """More arms and questions, and answers that have changed; the table is of all arms."""
    judge("--arms", "plain")
    before = replies(folder)
    assert len(before) == 6 and server.keys == {"Bearer sk-4711"}
    write_run(folder, (*IDS, 82))
    assert "24 ratings" in judge()
    assert replies(folder)[:6] == before and len(server.bodies) == 24
    write_run(folder, (*IDS, 82), note=" anew")
    judge()
    assert "judge gpt-4, turn 2" in judge("--arms", "exact")
    assert len(server.bodies) == 2 * 24


def test_faults(judge, server, folder):
    """What passes is tried again. What lasts, or is a page of something else, ends the judging, and
    the same command goes on with what has no rating yet."""
    server.faults = [429, 500]
    judge("--arms", "plain")
    assert len(server.bodies) == 6 + 2
    server.faults = [200, 200, *[401] * 9]
    said = judge("--arms", "exact")
    assert said.startswith("error: the judge gpt-4 failed") and "OPENAI_API_KEY" in said
    server.faults, server.reply, before = [], None, replies(folder)
    assert judge().startswith("error: the judge gpt-4 failed")
    server.reply = rating
    assert 6 + 2 <= len(before) < 12
    judge()
    assert replies(folder)[: len(before)] == before
    assert len({line["digest"] for line in replies(folder)}) == len(replies(folder)) == 18


def test_failures_are_counted_and_asked_again(judge, server, folder):
    """A refusal of one prompt alone, no content, and words without a rating. Bug held down: judges
    that do not take the parameters refused all prompts, and the reason was not told."""
    server.faults = [422]
    # half a surrogate pair, which JSON may hold and no file takes
    half = "Hm. \ud83d"
    server.reply = lambda body: half if "{plain} 81 0" in body["messages"][1]["content"] else ""
    said = judge("--arms", "plain")
    assert "0 ratings" in said and "6 replies" in said
    assert "The first of 1 refusals: " in said and "no luck" in said
    assert sorted(bool(line["error"]) for line in replies(folder)) == [False] * 5 + [True]
    server.reply = rating
    assert "6 ratings" in judge("--arms", "plain")
    assert len(server.bodies) == 12
