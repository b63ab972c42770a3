"""The judge over real HTTP on loopback: FastChat's protocol, faults, kills, resuming, bad input."""

import importlib.util
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from email.utils import formatdate
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from judge_server import ScriptedJudge, verdict

from eagle_fsd.models.assets import embedded_target_dir, mt_bench_dir
from eagle_fsd.tasks.judge import judge_scores
from eagle_fsd.tasks.judge.endpoint import backoff, retry_after
from eagle_fsd.tasks.judge.judge_prompts import parse_preference, parse_rating
from eagle_fsd.tasks.judge.judge_scores import pairwise_rows, single_rows

pytestmark = pytest.mark.processes  # whole commands

ROOT = Path(__file__).parent.parent
COMMAND = ROOT / "evaluate" / "judge.py"
KEY = "sk-secret-4711"
ARMS = ("exact", "fsd_js_T0.4", "plain")
ASKED = (81, 101, 111)  # writing, reasoning, math: the latter two with a reference


@pytest.fixture(scope="module")
def command():
    spec = importlib.util.spec_from_file_location("judge_command", COMMAND)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def judge(command, capsys, monkeypatch):
    """Calls the command's main on a folder, its judge behind a URL."""

    def call(folder: Path, url: str, *options: object) -> SimpleNamespace:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        capsys.readouterr()
        code, message = 0, ""
        try:
            command.main(arguments(folder, *options))
        except SystemExit as exit:
            code, message = 1, str(exit.code)
        out = capsys.readouterr()
        return SimpleNamespace(returncode=code, stdout=out.out, stderr=out.err + message)

    return call


def arguments(folder: Path, *options: object) -> list[str]:
    always = ["--run", folder, "--model", "gpt-4", "--retry_seconds", 0.01]
    return [*map(str, always), *map(str, options)]


@pytest.fixture
def folder(tmp_path):
    """A run of three arms, two turns each; braces in an answer are no fields of a template."""
    return write_answers(tmp_path / "run")


def write_answers(folder: Path, questions=ASKED, arms=ARMS, choices=1, note="") -> Path:
    (folder / "answers").mkdir(parents=True, exist_ok=True)
    for arm in arms:
        rows = [
            {
                "question_id": question,
                "answer_id": f"{arm}-{question}",
                "model_id": arm,
                "choices": [
                    {"index": c, "turns": [f"{{{arm}}} {question} {c} {t}{note}" for t in "ab"]}
                    for c in range(choices)
                ],
                "tstamp": 0.0,
            }
            for question in questions
        ]
        write_rows(folder / "answers" / f"{arm}.jsonl", rows)
    return folder


def write_rows(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def verdict_rows(folder: Path, kind: str = "single") -> list[dict]:
    return read_rows(folder / "model_judgment" / f"gpt-4_{kind}.jsonl")


def unparsed_rows(folder: Path, kind: str = "single") -> list[dict]:
    return read_rows(folder / "model_judgment" / f"gpt-4_{kind}.unparsed.jsonl")


def record(folder: Path, kind: str = "single") -> dict:
    return json.loads((folder / "model_judgment" / f"gpt-4_{kind}.json").read_text())


def keys(rows: list[dict]) -> list[tuple]:
    named = ("question_id", "model", "model_1", "turn", "choice")
    return [tuple(row.get(name) for name in named) for row in rows]


# --- FastChat's protocol ------------------------------------------------------------------------


@pytest.fixture
def fastchat(monkeypatch):
    """FastChat's own judging; its requests go to the scripted verdict and are noted."""
    monkeypatch.setitem(sys.modules, "anthropic", ModuleType("anthropic"))  # imported, not used
    from fastchat.llm_judge import common, gen_judgment

    requests = []

    def reply(model, conv, temperature, max_tokens, api_dict=None) -> str:
        body = {"messages": conv.to_openai_api_messages(), "model": model}
        requests.append(body | {"temperature": temperature, "max_tokens": max_tokens})
        return verdict(body)

    monkeypatch.setattr(common, "chat_completion_openai", reply)

    def play(folder: Path, output: Path, mode: str) -> list[dict]:
        data = mt_bench_dir()
        questions = common.load_questions(str(data / "question.jsonl"), None, None)
        questions = [q for q in questions if q["question_id"] in ASKED]
        answers = common.load_model_answers(str(folder / "answers"))
        references = common.load_model_answers(str(data / "reference_answer"))
        prompts = common.load_judge_prompts(str(data / "judge_prompts.jsonl"))
        single = mode == "single"
        make = gen_judgment.make_match_single if single else gen_judgment.make_match
        play_one = common.play_a_match_single if single else common.play_a_match_pair
        judges = getattr(gen_judgment, f"make_judge_{mode}")("gpt-4", prompts)
        for name, kind in judges.items():
            asked = [
                q for q in questions if (q["category"] in common.NEED_REF_CATS) == kind.ref_based
            ]
            given = references if kind.ref_based else None
            multi_turn = name.endswith("-mt")
            for match in make(asked, list(ARMS), answers, kind, "plain", given, multi_turn):
                play_one(match, str(output))
        return requests

    return play


@pytest.mark.parametrize("mode", ["single", "pairwise"])
def test_requests_and_rows_are_fastchats(judge, fastchat, folder, tmp_path, mode):
    """The same requests and the same rows, field by field, as FastChat's own code makes."""
    theirs = fastchat(folder, tmp_path / "theirs.jsonl", mode)
    with ScriptedJudge() as server:
        done = judge(folder, server.url, "--mode", mode)
    assert done.returncode == 0, done.stderr
    mine = [{key: body[key] for key in theirs[0]} for body, _, _ in server.requests]
    assert len(mine) == {"single": 3 * 3 * 2, "pairwise": 2 * 3 * 2 * 2}[mode]
    assert sorted(map(json.dumps, mine)) == sorted(map(json.dumps, theirs))

    def comparable(rows: list[dict]) -> list[str]:
        dropped = ("tstamp", "choice")
        kept = [{k: v for k, v in row.items() if k not in dropped} for row in rows]
        return sorted(json.dumps(row) for row in kept)

    rows = verdict_rows(folder, {"single": "single", "pairwise": "pair"}[mode])
    for row in rows:
        if mode == "single":
            row["score"] = int(row["score"])
    assert comparable(rows) == comparable(read_rows(tmp_path / "theirs.jsonl"))


def test_the_second_turn_of_a_math_question(judge, folder):
    """Both turns, both references and both answers, in the prompt of that name."""
    with ScriptedJudge() as server:
        assert judge(folder, server.url, "--arms", "plain").returncode == 0
    references = {
        row["question_id"]: row["choices"][0]["turns"]
        for row in read_rows(mt_bench_dir() / "reference_answer" / "gpt-4.jsonl")
    }
    (row,) = [r for r in verdict_rows(folder) if r["question_id"] == 111 and r["turn"] == 2]
    assert row["judge"] == ["gpt-4", "single-math-v1-multi-turn"]
    for text in (*references[111], "{plain} 111 0 a", "{plain} 111 0 b"):
        assert text in row["user_prompt"]
    body, authorization, _ = next(
        r for r in server.requests if r[0]["messages"][-1]["content"] == row["user_prompt"]
    )
    assert body["temperature"] == 0 and body["max_tokens"] == 2048
    assert authorization == f"Bearer {KEY}"


def fastchat_rating(text: str) -> float | None:
    """FastChat's way, with its patterns."""
    match = re.search(r"\[\[(\d+\.?\d*)\]\]", text) or re.search(r"\[(\d+\.?\d*)\]", text)
    return float(match.groups()[0]) if match else None


@pytest.mark.parametrize(
    ("text", "rating"),
    [
        ("Good. Rating: [[7]]", 7),
        ("[[8.5]] or [[2]]", 8.5),
        ("as in [1], so [[9]]", 9),
        ("Rating: [6]", 6),
        ("[[10]]", 10),
        ("[[0]]", 0),
        ("[[ 7 ]]", None),
        ("[[seven]] 7/10", None),
        ("[[rating]]", None),
        ("[[-3]]", None),
        ("", None),
    ],
)
def test_ratings(text, rating):
    assert parse_rating(text) == rating == fastchat_rating(text)


def test_a_rating_off_the_scale_is_none():
    """FastChat counts [2023] as a score."""
    assert fastchat_rating("since [2023] nothing") == 2023
    assert parse_rating("since [2023] nothing") is None
    assert parse_rating("Rating: [[11]]") is None


@pytest.mark.parametrize(
    ("text", "preference"),
    [("[[A]]", "A"), ("x [[B]]", "B"), ("[[C]]", "tie"), ("[[B]] not [[A]]", "A"), ("[A]", None)],
)
def test_preferences(text, preference):
    assert parse_preference(text) == preference


@pytest.mark.processes
@pytest.mark.parametrize("mode", ["single", "pairwise"])
def test_fastchats_show_result_reads_the_verdicts(judge, tmp_path, mode):
    """Its means and rates are those of our table, with several choices too."""
    folder = write_answers(tmp_path / "run", questions=range(81, 89), choices=2)
    with ScriptedJudge() as server:
        done = judge(folder, server.url, "--mode", mode)
    assert done.returncode == 0, done.stderr
    kind = {"single": "single", "pairwise": "pair"}[mode]
    module = [sys.executable, "-m", "fastchat.llm_judge.show_result", "--bench-name", "mt_bench"]
    module += ["--mode", {"single": "single", "pairwise": "pairwise-baseline"}[mode]]
    module += ["--baseline-model", "plain", "--input-file"]
    module += [str(folder / "model_judgment" / f"gpt-4_{kind}.jsonl")]
    shown = subprocess.run(module, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    rows = {row["arm"]: row for row in record(folder, kind)["rows"]}
    assert set(rows) == set(ARMS if mode == "single" else ARMS[:2])
    for arm, row in rows.items():
        figures = [
            [float(number) for number in line.split()[1:]]
            for line in shown.stdout.splitlines()
            if line.startswith(arm)
        ]
        if mode == "single":
            assert row["verdicts"] == 8 * 2 * 2
            expected = [[turn, row[name]["value"]] for turn, name in ((1, "first"), (2, "second"))]
            expected.append([row["both"]["value"]])
        else:
            win, loss, adjusted = (row[name]["value"] for name in ("win", "loss", "adjusted"))
            count = row["verdicts"]
            counts = [win * count, loss * count, row["tie"]["value"] * count]
            expected = [[*counts, win, loss, adjusted]]
        assert len(figures) == len(expected)
        for theirs, mine in zip(figures, expected, strict=True):
            assert theirs == pytest.approx(mine, abs=1e-5)


# --- figures ------------------------------------------------------------------------------------


def single_verdict(arm: str, question: int, turn: int, score: float, choice: int = 0) -> dict:
    return {
        "model": arm,
        "question_id": question,
        "turn": turn,
        "score": score,
        "choice": choice,
        "judge": ["gpt-4", "x"],
    }


def test_figures_of_single_grading(folder):
    """By hand: means over verdicts; differences over what both arms have, turns first averaged."""
    rows = [single_verdict("plain", q, t, s) for q, t, s in [(1, 1, 8), (1, 2, 6), (2, 1, 4)]]
    rows += [single_verdict("fsd", 1, 1, 5), single_verdict("fsd", 1, 1, 7, choice=1)]
    rows += [single_verdict("fsd", 1, 2, 2), single_verdict("fsd", 2, 1, 3)]
    rows += [single_verdict("fsd", 2, 2, 9), single_verdict("fsd", 3, 1, 10)]
    plain, fsd = single_rows(rows, "plain")
    assert plain["both"]["value"] == 6 and plain["second"] == {
        "value": 6,
        "low": None,
        "high": None,
    }
    assert plain["difference"] is None
    assert fsd["first"]["value"] == pytest.approx((5 + 7 + 3 + 10) / 4)
    assert fsd["both"]["value"] == 36 / 6 and (fsd["questions"], fsd["verdicts"]) == (3, 6)
    # question 1: (6 + 2) / 2 - (8 + 6) / 2 = -3; question 2, first turns: 3 - 4 = -1
    assert fsd["difference"]["value"] == -2 and fsd["shared"] == 2
    assert fsd["detectable"] == pytest.approx(2.8 * 2**0.5 / 2**0.5)
    (folder / "model_judgment").mkdir()
    write_rows(folder / "model_judgment" / "gpt-4_single.jsonl", rows)
    write_rows(folder / "model_judgment" / "gpt-4_single.unparsed.jsonl", rows[:1])
    write_rows(folder / "model_judgment" / "gpt-4_pair.jsonl", [])
    warnings: list[str] = []
    assert judge_scores(folder, warnings) == {
        "gpt-4": {
            "plain": {1: {1: 8, 2: 6}, 2: {1: 4}},
            "fsd": {1: {1: 6, 2: 2}, 2: {1: 3, 2: 9}, 3: {1: 10}},
        }
    }
    assert not warnings


def test_figures_of_pairwise_comparison():
    """By hand: a tie where the orders disagree; verdicts against other baselines do not count."""
    games = [(1, "model_1", "model_1"), (1, "model_2", "model_2"), (2, "model_1", "model_1")]
    games += [(2, "model_1", "model_2"), (3, "tie", "tie"), (3, "tie", "model_1")]
    rows = [
        {"question_id": q, "model_1": "fsd", "model_2": "plain", "g1_winner": a, "g2_winner": b}
        for q, a, b in games
    ]
    (row,) = pairwise_rows([*rows, rows[0] | {"model_2": "exact"}], "plain")
    values = [row[name]["value"] for name in ("win", "tie", "loss", "adjusted")]
    assert values == pytest.approx([2 / 6, 3 / 6, 1 / 6, 3.5 / 6])
    assert row["consistent"] == pytest.approx(4 / 6)
    assert row["difference"]["value"] == pytest.approx((0 + 0.25 + 0) / 3)
    assert row["win"]["low"] <= values[0] <= row["win"]["high"] and row["verdicts"] == 6


def test_the_end_of_a_judging(judge, folder):
    """Table, record and tokens; no key anywhere; a second run asks nothing and says the same."""
    prices = ("--prompt_price", 10, "--reply_price", 30)
    with ScriptedJudge() as server:
        first = judge(folder, server.url.replace("//", "//me:pa55@"), *prices)
        assert first.returncode == 0, first.stderr
        again = judge(folder, server.url, *prices)
    assert len(server.requests) == 18
    assert again.stdout == first.stdout
    for word in ("first turn", "second turn", "both", "difference", "detectable", "18 of 18"):
        assert word in first.stdout
    noted = record(folder)
    assert (noted["prompt_tokens"], noted["reply_tokens"]) == (1800, 126)
    assert noted["cost"] == pytest.approx(1800 * 10e-6 + 126 * 30e-6)
    (session,) = noted["sessions"]
    assert session["host"] == server.url.removeprefix("http://").removesuffix("/v1")
    assert session["versions"]["openai"]
    for path in (folder / "model_judgment").iterdir():
        assert KEY not in path.read_text() and "pa55" not in path.read_text()


def test_costs_are_of_each_launchs_prices(judge, folder):
    """A launch without prices took the cost of an earlier one away. Prices given later are also
    those of launches that had none; a record that was moved away leaves its replies unpriced."""
    first = ("--arms", "plain", "--prompt_price", 10, "--reply_price", 30)
    with ScriptedJudge() as server:
        assert judge(folder, server.url, *first).returncode == 0
        done = judge(folder, server.url, "--arms", "plain", "exact")
        paid = 600 * 10e-6 + 42 * 30e-6
        assert record(folder)["cost"] == pytest.approx(paid)
        assert "cost 0.01 without 6 replies that no price was given for" in done.stdout
        assert judge(folder, server.url, "--prompt_price", 20).returncode == 0
        assert record(folder)["cost"] == pytest.approx(paid + 1200 * 20e-6)
        assert len(server.requests) == 18
        (folder / "model_judgment" / "gpt-4_single.json").unlink()
        write_answers(folder, questions=(*ASKED, 82))
        assert judge(folder, server.url, *first).returncode == 0
    noted = record(folder)
    assert noted["cost"] == pytest.approx(200 * 10e-6 + 14 * 30e-6)
    assert noted["replies_without_price"] == 18 and noted["sessions"][0]["session"] == 4


def test_another_endpoint_under_the_same_name_is_told(judge, folder):
    """Verdicts of two endpoints were one figure without a word."""
    with ScriptedJudge() as first, ScriptedJudge() as second:
        done = judge(folder, first.url, "--arms", "plain")
        assert "warning" not in done.stderr and "come from" not in done.stdout
        done = judge(folder, second.url)
        places = [f"127.0.0.1:{server.server_port}" for server in (first, second)]
        assert f"at {places[0]} and is now asked at {places[1]}" in done.stderr
        assert f"The replies come from {', '.join(places)}." in done.stdout
        assert len(second.requests) == 12


def test_a_judges_name_is_made_safe(judge, folder):
    """No slash reaches the file's name; the rows keep the name as it is."""
    with ScriptedJudge() as server:
        done = judge(folder, server.url, "--arms", "plain", "--model", "../meta/judge 7B")
    assert done.returncode == 0, done.stderr
    rows = read_rows(folder / "model_judgment" / "..%2Fmeta%2Fjudge%207B_single.jsonl")
    assert len(rows) == 6 and rows[0]["judge"][0] == "../meta/judge 7B"
    assert set(judge_scores(folder, [])) == {"../meta/judge 7B"}


def test_arms_and_choices_are_added(judge, folder):
    """More arms, questions and choices: only what is new is asked."""
    with ScriptedJudge() as server:
        assert judge(folder, server.url, "--arms", "plain").returncode == 0
        before = verdict_rows(folder)
        write_answers(folder, questions=(*ASKED, 82), choices=2)
        assert judge(folder, server.url).returncode == 0
    rows = verdict_rows(folder)
    assert rows[:6] == before
    assert len(server.requests) == len(rows) == len(set(keys(rows))) == 3 * 4 * 2 * 2


def test_records_go_before_answers(judge, folder):
    """answers/ lags behind records/ after a kill: the records are judged, a torn one is not."""
    (folder / "records").mkdir()
    rows = [
        {"question_id": question, "choice": 0, "answer_id": "x", "arm": "plain", "tstamp": 0.0}
        | {"turns": [{"text": f"{{recorded}} {question} {turn}"} for turn in "ab"]}
        for question in (*ASKED, 82)
    ]
    path = folder / "records" / "plain.jsonl"
    write_rows(path, rows)
    path.write_text(path.read_text() + json.dumps(rows[0] | {"question_id": 83})[:70])
    before = path.read_text()
    with ScriptedJudge() as server:
        done = judge(folder, server.url)
    assert done.returncode == 0 and "plain.jsonl: its last line is torn" in done.stderr
    assert path.read_text() == before
    prompts = {
        (r["model"], r["question_id"]): r["user_prompt"]
        for r in verdict_rows(folder)
        if r["turn"] == 1
    }
    assert {arm for arm, _ in prompts} == set(ARMS) and len(prompts) == 3 + 3 + 4
    assert all(f"{{recorded}} {q} a" in prompts["plain", q] for q in (*ASKED, 82))
    assert "{exact} 81 0 a" in prompts["exact", 81]


def test_questions_with_one_turn_or_three(judge, folder, tmp_path):
    """Second turns are of questions with exactly two, as FastChat takes them; an answer cut to its
    first turn has one verdict."""
    asked = [{"question_id": q, "category": "x", "turns": list("abc")[:q]} for q in (1, 2, 3)]
    write_rows(tmp_path / "question.jsonl", asked)
    write_answers(folder, questions=(1, 2, 3))
    rows = read_rows(folder / "answers" / "plain.jsonl")
    rows[1]["choices"][0]["turns"].pop()
    write_rows(folder / "answers" / "plain.jsonl", rows)
    # the run's own question file, as its record names it
    options = {"options": {"question_file": str(tmp_path / "question.jsonl")}, "sessions": []}
    (folder / "run.json").write_text(json.dumps(options))
    with ScriptedJudge() as server:
        done = judge(folder, server.url, "--arms", "plain", "exact")
    assert done.returncode == 0, done.stderr
    count = Counter((row["model"], row["question_id"]) for row in verdict_rows(folder))
    assert count == {(arm, q): 1 for arm in ("plain", "exact") for q in (1, 2, 3)} | {
        ("exact", 2): 2
    }


# --- faults -------------------------------------------------------------------------------------

PASSING = ["broken", "text", "empty", "close", "429", "500", "503", "408", "stall", "trickle"]


@pytest.mark.parametrize("fault", PASSING)
def test_a_passing_fault_is_retried(judge, folder, fault):
    """Two such faults, then replies: every verdict is there once."""
    with ScriptedJudge(faults=[fault, fault]) as server:
        done = judge(folder, server.url, "--arms", "plain", "--request_seconds", 0.5)
    assert done.returncode == 0, done.stderr
    rows = verdict_rows(folder)
    assert len(rows) == len(set(keys(rows))) == 6 and not unparsed_rows(folder)
    assert len(server.requests) == 6 + 2


def test_retry_after_is_waited_out(judge, folder):
    """The endpoint's wait goes before ours."""
    with ScriptedJudge(faults=["429 0.6"]) as server:
        options = ("--arms", "plain", "--concurrency", 1)
        assert judge(folder, server.url, *options).returncode == 0
    (_, _, first), (_, _, second), *_ = server.requests
    assert second - first >= 0.6
    assert server.texts()[0] == server.texts()[1]


def test_waits():
    """Seconds or a date; doubled, with jitter, up to a minute."""
    assert retry_after(None) is None and retry_after("soon") is None
    assert retry_after("12.5") == 12.5 and retry_after("-3") == 0
    assert 8 < retry_after(formatdate(time.time() + 10, usegmt=True)) <= 10
    assert retry_after(formatdate(time.time() - 10, usegmt=True)) == 0
    for attempt in range(12):
        full = min(60, 0.5 * 2**attempt)
        assert full / 2 <= backoff(attempt, 0.5, None) <= full
        assert 7 <= backoff(attempt, 0.5, 7.0) <= 7.5


@pytest.mark.parametrize("fault", PASSING)
def test_a_lasting_fault_ends_the_judging(judge, folder, fault):
    """After the retries: what is judged is kept and named, and the same command goes on."""
    options = ("--arms", "plain", "--request_seconds", 0.3, "--retries", 1, "--concurrency", 1)
    with ScriptedJudge(faults=["", "", fault, fault]) as server:
        done = judge(folder, server.url, *options)
        assert done.returncode == 1
        for words in ("2 attempts", "answers are untouched", "2 of 6 verdicts", "same command"):
            assert words in done.stderr
        before = verdict_rows(folder)
        assert len(before) == 2 and record(folder)["verdicts"] == 2
        assert judge(folder, server.url, *options).returncode == 0
    assert verdict_rows(folder)[:2] == before
    assert len(server.requests) == 6 + 2 and len(record(folder)["sessions"]) == 2


@pytest.mark.parametrize(("fault", "status"), [("401", 401), ("404", 404), ("quota", 429)])
def test_a_refusal_ends_the_judging_at_once(judge, folder, fault, status):
    """The server's words are given, without the key that it repeats; so is an empty account."""
    with ScriptedJudge(faults=[fault] * 9) as server:
        done = judge(folder, server.url, "--concurrency", 1)
    assert done.returncode == 1 and len(server.requests) == 1
    assert f"HTTP {status}: no luck with Bearer [key]" in done.stderr and KEY not in done.stderr
    assert "0 of 18 verdicts" in done.stderr


def test_too_long_a_wait_ends_the_judging(judge, folder):
    """Hours of Retry-After are not slept through."""
    with ScriptedJudge(faults=["429 7200"]) as server:
        done = judge(folder, server.url, "--concurrency", 1)
    assert done.returncode == 1 and "asks to wait 7200 s" in done.stderr


def test_no_judge_there(judge, folder):
    """Nobody listens: told, with how to go on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        done = judge(folder, url, "--retries", 1)
    assert done.returncode == 1 and "Connection error" in done.stderr
    assert "0 of 18 verdicts" in done.stderr and "same command" in done.stderr
    assert not verdict_rows(folder)


def test_replies_without_a_verdict(judge, folder):
    """Kept apart with their text, counted, asked again only when told to."""
    silent = {"content": "I cannot say."}

    def reply(body: dict) -> str:
        return silent["content"] if "{exact} 101" in str(body) else verdict(body)

    with ScriptedJudge(reply) as server:
        first = judge(folder, server.url)
        assert first.returncode == 0, first.stderr
        assert "16 of 18 verdicts" in first.stdout and "2 replies held no verdict" in first.stdout
        rows = unparsed_rows(folder)
        assert [(row["judgment"], row["score"]) for row in rows] == [("I cannot say.", -1)] * 2
        assert all(row["score"] > 0 for row in verdict_rows(folder))
        assert judge(folder, server.url).stdout == first.stdout and len(server.requests) == 18
        silent["content"] = "[[3]]"
        last = judge(folder, server.url, "--retry_unparsed")
        assert "18 of 18 verdicts" in last.stdout and "no verdict" not in last.stdout
        assert len(server.requests) == 20
        assert judge(folder, server.url, "--retry_unparsed").returncode == 0
    assert len(server.requests) == 20 and len(set(keys(verdict_rows(folder)))) == 18
    assert record(folder)["reply_tokens"] == 20 * 7


def test_one_game_of_a_pair_without_a_verdict(judge, folder):
    """Only that game is asked again."""
    mute = {"on": True}

    def reply(body: dict) -> str:
        text = body["messages"][-1]["content"]
        first, second = text.find("{plain} 81"), text.find("{exact} 81")
        return "Hm." if mute["on"] and 0 <= first < second else "[[C]]"

    options = ("--mode", "pairwise", "--arms", "exact")
    with ScriptedJudge(reply) as server:
        assert judge(folder, server.url, *options).returncode == 0
        rows = unparsed_rows(folder, "pair")
        assert [(r["g1_winner"], r["g2_winner"]) for r in rows] == [("tie", "error")] * 2
        mute["on"] = False
        assert judge(folder, server.url, *options, "--retry_unparsed").returncode == 0
    assert len(server.requests) == 3 * 2 * 2 + 2
    assert len(set(keys(verdict_rows(folder, "pair")))) == 6


@pytest.mark.parametrize("fault", ["null", "422"])
def test_a_prompt_that_is_refused(judge, folder, fault):
    """No content, or a refusal of this one prompt, is a reply without a verdict."""
    with ScriptedJudge(faults=[fault]) as server:
        done = judge(folder, server.url, "--arms", "plain")
    assert done.returncode == 0 and "1 replies held no verdict" in done.stdout
    (row,) = unparsed_rows(folder)
    assert row["judgment"] == "" and KEY not in str(row)
    assert row["errors"] == ([] if fault == "null" else ["HTTP 422: no luck with Bearer [key]"])


@pytest.mark.parametrize("mode", ["single", "pairwise"])
def test_a_judge_that_never_gives_a_verdict(judge, folder, mode):
    """Stopped early, its last words told; told too where there were fewer to ask."""
    with ScriptedJudge(lambda body: "Nice weather.") as server:
        options = ("--mode", mode, "--give_up", 5, "--concurrency", 1)
        done = judge(folder, server.url, *options)
        assert done.returncode == 1 and len(server.requests) == 5 * {"single": 1}.get(mode, 2)
        for words in ("first 5 judgments", "Nice weather.", "--retry_unparsed"):
            assert words in done.stderr
        asked = len(server.requests)
        done = judge(folder, server.url, *options, "--retry_unparsed")
        assert done.returncode == 1 and len(server.requests) == 2 * asked
        done = judge(folder, server.url, "--mode", mode)
    assert done.returncode == 1 and "no verdict to report" in done.stderr


# --- kills --------------------------------------------------------------------------------------


def start(folder: Path, url: str, *options: object) -> subprocess.Popen:
    environment = os.environ | {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": KEY}
    command = [sys.executable, str(COMMAND), *arguments(folder, *options)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.processes
def test_the_judge_is_killed(judge, tmp_path):
    """kill -9 amid pairs, lines torn: nothing lost, no row twice; at most the requests under way
    are asked again. A second command at the same time is refused."""
    folder = write_answers(tmp_path / "run", questions=range(81, 101), arms=("exact", "plain"))
    options = ("--mode", "pairwise", "--concurrency", 3)
    rng = random.Random(0)
    with ScriptedJudge(seconds=0.1) as server:
        for wanted in (9, 37):
            process = start(folder, server.url, *options)
            while len(server.requests) < wanted + rng.randrange(4):
                assert process.poll() is None
                time.sleep(0.002)
            other = judge(folder, server.url, *options)
            assert other.returncode == 1 and "another process is judging" in other.stderr
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
            time.sleep(0.3)  # the server ends what it had begun
        kept = verdict_rows(folder, "pair")
        assert 0 < len(kept) < 40
        for path in (folder / "model_judgment").glob("*.jsonl"):
            with path.open("a") as file:
                file.write('{"question_id": 81, "tu')
        server.seconds = 0
        done = judge(folder, server.url, *options)
    assert done.returncode == 0 and "torn" in done.stderr
    rows = verdict_rows(folder, "pair")
    assert rows[: len(kept)] == kept
    assert len(rows) == len(set(keys(rows))) == 20 * 2
    asked = Counter(server.texts())
    assert len(asked) == 80 and sum(asked.values()) <= 80 + 2 * 3


@pytest.mark.processes
def test_the_server_is_killed(judge, tmp_path):
    """Dead amid the judging: told; once it is back the same command ends it."""
    folder = write_answers(tmp_path / "run", questions=range(81, 91))
    log = tmp_path / "log"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/v1"

    def serve(*options: str) -> subprocess.Popen:
        script = [sys.executable, str(Path(__file__).parent / "judge_server.py"), str(port)]
        process = subprocess.Popen([*script, str(log), *options])
        for _ in range(500):
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", port)):
                    return process
            time.sleep(0.02)
        raise AssertionError("the server did not start")

    options = ("--retries", 2, "--concurrency", 3)
    server = serve("--die_after", "25", "--seconds", "0.01")
    done = judge(folder, url, *options)
    assert server.wait() == -signal.SIGKILL
    assert done.returncode == 1 and "3 attempts" in done.stderr
    kept = verdict_rows(folder)
    assert 25 - 3 <= len(kept) < 25 and f"{len(kept)} of 60 verdicts" in done.stderr
    server = serve()
    try:
        done = judge(folder, url, *options)
    finally:
        server.kill()
        server.wait()
    assert done.returncode == 0, done.stderr
    rows = verdict_rows(folder)
    assert rows[: len(kept)] == kept and len(rows) == len(set(keys(rows))) == 60
    asked = Counter(json.loads(line) for line in log.read_text().splitlines())
    assert len(asked) == 60 and sum(asked.values()) <= 60 + 3


def test_a_reply_without_its_row(judge, folder):
    """Killed between the two writes: the row is made from the reply, nothing is asked."""
    with ScriptedJudge() as server:
        assert judge(folder, server.url, "--mode", "pairwise").returncode == 0
        path = folder / "model_judgment" / "gpt-4_pair.jsonl"
        before = read_rows(path)
        write_rows(path, before[:-3])
        assert judge(folder, server.url, "--mode", "pairwise").returncode == 0
    assert len(server.requests) == 24
    assert sorted(keys(verdict_rows(folder, "pair"))) == sorted(keys(before))


# --- bad input ----------------------------------------------------------------------------------

BAD = {
    "unknown arm": (["--arms", "fsdd"], "fsdd: no such arm; the run has exact, fsd_js_T0.4, plain"),
    "unknown mode": (["--mode", "both"], "single or pairwise"),
    "unknown baseline": (["--mode", "pairwise", "--baseline", "generate"], "--baseline generate"),
    "only the baseline": (["--mode", "pairwise", "--arms", "plain"], "no arm is left"),
    "no concurrency": (["--concurrency", "0"], "--concurrency"),
    "no time": (["--request_seconds", "nan"], "--request_seconds"),
    "negative retries": (["--retries", "-1"], "--retries"),
    "no run": (["--run", "nowhere"], "nowhere holds no records/ARM.jsonl or answers"),
    "no judge": (["--model", ""], "--model is empty"),
    "no question file": (["--question_file", "gone.jsonl"], "gone.jsonl"),
    "no prompt file": (["--prompt_file", "gone.jsonl"], "gone.jsonl"),
    "no reference file": (["--reference_file", "gone.jsonl"], "gone.jsonl"),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_options_are_told(judge, folder, fault):
    """One line that names the value; nothing is asked and nothing written."""
    options, told = BAD[fault]
    with ScriptedJudge() as server:
        done = judge(folder, server.url, *options)
    assert done.returncode == 1 and done.stderr.startswith("error: ") and told in done.stderr
    assert not server.requests and not (folder / "model_judgment").exists()


def test_bad_files_are_told(judge, folder, tmp_path):
    """Questions, references, prompts and answers that do not fit together."""
    questions = [{"question_id": 81, "category": "math", "turns": ["a", "b"]}]
    write_rows(tmp_path / "question.jsonl", questions)
    own = ("--question_file", tmp_path / "question.jsonl")
    prompts = read_rows(mt_bench_dir() / "judge_prompts.jsonl")
    changed = [row | {"prompt_template": "{anwser}"} for row in prompts]
    write_rows(tmp_path / "changed.jsonl", changed)
    write_rows(tmp_path / "few.jsonl", prompts[:5])
    write_rows(tmp_path / "format.jsonl", [row | {"output_format": "[[x]]"} for row in prompts])

    def told(words: str, *options: object) -> None:
        done = judge(folder, "http://127.0.0.1:9/v1", *options)
        assert done.returncode == 1 and done.stderr.startswith("error: "), done.stderr
        assert words in done.stderr

    told("exact answered question 101, 111, which the question file has not", *own)
    told("'single-v1' cannot be filled", "--prompt_file", tmp_path / "changed.jsonl")
    told("'single-v1-multi-turn' lacks system_prompt", "--prompt_file", tmp_path / "few.jsonl")
    told("output_format '[[x]]'", "--prompt_file", tmp_path / "format.jsonl")
    write_answers(folder, questions=[81])
    told("question 81 (math) has no reference answer to turn 1", *own)
    write_answers(folder, questions=[82], arms=["plain"])
    told("exact, fsd_js_T0.4 shares no answered question", "--mode", "pairwise")
    (folder / "run.json").write_text("{")
    told("run.json is damaged")
    (folder / "answers" / "plain.jsonl").write_text("")
    told("plain.jsonl holds no answer yet", *own)
    (folder / "answers" / "plain.jsonl").write_text('{"question_id": 81}\n')
    told("is no row of model answers", *own)


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("OPENAI_API_KEY", "", "OPENAI_API_KEY is not set"),
        ("OPENAI_API_KEY", "sk-4711\n", "OPENAI_API_KEY holds"),
        ("OPENAI_BASE_URL", "localhost:8000/v1", "OPENAI_BASE_URL"),
        ("OPENAI_BASE_URL", "http://me:pa55@host:port/v1", "OPENAI_BASE_URL"),
    ],
)
def test_bad_variables_are_told(command, folder, monkeypatch, variable, value, told):
    """Before any request, without showing a key or a password."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit) as exit:
        command.main(arguments(folder))
    message = str(exit.value.code)
    assert told in message and "4711" not in message and "pa55" not in message


@pytest.mark.parametrize("variable", ["OPENAI_API_KEY", "OPENAI_BASE_URL"])
def test_bad_variables_tell_how_to_go_on(command, judge, folder, monkeypatch, variable):
    """Amid a judging, as where the endpoint cannot be reached."""
    with ScriptedJudge() as server:
        assert judge(folder, server.url, "--arms", "plain").returncode == 0
    monkeypatch.setenv(variable, " ")
    with pytest.raises(SystemExit) as exit:
        command.main(arguments(folder))
    for words in (variable, "answers are untouched", "6 of 18 verdicts", "same command"):
        assert words in str(exit.value.code)


@pytest.mark.parametrize("mode", ["single", "pairwise"])
def test_verdicts_under_another_system_prompt_are_not_counted(judge, folder, tmp_path, mode):
    """It is in no row of FastChat's, but in the replies; rows without replies are FastChat's own
    and go by what they hold."""
    prompts = read_rows(mt_bench_dir() / "judge_prompts.jsonl")
    other = [row | {"system_prompt": "Be kind."} for row in prompts]
    write_rows(tmp_path / "prompts.jsonl", other)
    options = ("--mode", mode, "--arms", "exact")
    with ScriptedJudge() as server:
        assert judge(folder, server.url, *options).returncode == 0
        asked = len(server.requests)
        changed = (*options, "--prompt_file", tmp_path / "prompts.jsonl")
        done = judge(folder, server.url, *changed)
        assert done.returncode == 1 and "judges other answers or prompts" in done.stderr
        assert len(server.requests) == asked
        for path in (folder / "model_judgment").glob("*.replies.jsonl"):
            path.unlink()
        assert judge(folder, server.url, *options).returncode == 0
    assert len(server.requests) == asked


def test_verdicts_of_other_answers_are_not_counted(judge, folder):
    """Answers made anew after the judging: told, with the remedy, and nothing is asked."""
    with ScriptedJudge() as server:
        assert judge(folder, server.url).returncode == 0
        write_answers(folder, note=" anew")
        done = judge(folder, server.url)
    assert done.returncode == 1 and "judges other answers" in done.stderr
    assert "move gpt-4_single* away" in done.stderr and len(server.requests) == 18


# --- a real server ------------------------------------------------------------------------------


@pytest.mark.embedded
@pytest.mark.slow  # the other tests of the protocol are seconds
def test_transformers_own_server(judge, tmp_path):
    """The embedded target judges behind `transformers serve`: every reply is kept, with or without
    a verdict, and none is asked twice. So small a judge seldom gives one."""
    for package in ("fastapi", "uvicorn", "rich"):
        pytest.importorskip(package)
    folder = write_answers(tmp_path / "run", questions=[81], arms=["plain"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    served = embedded_target_dir()
    script = str(Path(sys.executable).with_name("transformers"))
    serve = [script, "serve", served.name, "--port", str(port), "--host", "127.0.0.1"]
    with (tmp_path / "serve.log").open("w") as log:
        server = subprocess.Popen(
            [*serve, "--device", "cpu"], cwd=served.parent, stdout=log, stderr=log
        )
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if server.poll() is not None or not probe.connect_ex(("127.0.0.1", port)):
                    break
            time.sleep(0.2)
        assert server.poll() is None, (tmp_path / "serve.log").read_text()
        options = ("--model", served.name, "--max_tokens", 48, "--concurrency", 1)
        done = judge(folder, f"http://127.0.0.1:{port}/v1", *options)
    finally:
        server.terminate()
        server.wait()
    assert done.returncode == 0 or "no verdict" in done.stderr, done.stderr
    (replies,) = (folder / "model_judgment").glob("*.replies.jsonl")
    rows = read_rows(replies)
    assert len(rows) == 2
    assert all(row["error"] is None and row["text"] and row["prompt_tokens"] for row in rows)
    assert all(0 < row["completion_tokens"] <= 48 for row in rows)
