"""The judge over real HTTP on loopback: FastChat's protocol, faults, a kill, bad input."""

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from judge_server import ScriptedJudge, verdict

from eagle_fsd.models.assets import embedded_target_dir, mt_bench_dir
from eagle_fsd.tasks.judge_protocol import parse_verdict
from eagle_fsd.tasks.judge_scores import pairwise_rows, single_rows

pytestmark = pytest.mark.processes  # whole commands

ROOT = Path(__file__).parent.parent
COMMAND = ROOT / "evaluate" / "judge.py"
KEY = "sk-secret-4711"
ARMS = ("exact", "fsd:0.4", "plain")  # fsd_0.4.jsonl is its file
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
    always = ["--run", folder, "--model", "gpt-4"]
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
        write_rows(folder / "answers" / f"{arm.replace(':', '_')}.jsonl", rows)
    return folder


def write_rows(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def lines(folder: Path, judge: str = "gpt-4") -> list[dict]:
    """The verdict file."""
    return read_rows(folder / "judge" / judge / "verdicts.jsonl")


def scores(folder: Path, name: str = "single") -> dict:
    return json.loads((folder / "judge" / "gpt-4" / f"{name}.json").read_text())


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
        by_file = common.load_model_answers(str(folder / "answers")).values()
        answers = {next(iter(rows.values()))["model_id"]: rows for rows in by_file}
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
    mine = [{key: body[key] for key in theirs[0]} for body, _ in server.requests]
    assert len(mine) == {"single": 3 * 3 * 2, "pairwise": 2 * 3 * 2 * 2}[mode]
    assert sorted(map(json.dumps, mine)) == sorted(map(json.dumps, theirs))

    def comparable(rows: list[dict]) -> list[str]:
        dropped = ("tstamp", "choice")
        kept = [{k: v for k, v in row.items() if k not in dropped} for row in rows]
        return sorted(json.dumps(row, sort_keys=True) for row in kept)

    name = {"single": "single", "pairwise": "pairwise_plain"}[mode]
    rows = read_rows(folder / "judge" / "gpt-4" / f"{name}.fastchat.jsonl")
    for row in rows:
        if mode == "single":
            row["score"] = int(row["score"])
    assert comparable(rows) == comparable(read_rows(tmp_path / "theirs.jsonl"))


def fastchat_rating(monkeypatch, text: str) -> float | None:
    """By FastChat's own patterns, used as its run_judge_single does."""
    monkeypatch.setitem(sys.modules, "anthropic", ModuleType("anthropic"))  # imported, not used
    from fastchat.llm_judge import common

    patterns = common.one_score_pattern, common.one_score_pattern_backup
    found = next((match for p in patterns if (match := re.search(p, text))), None)
    return float(found.groups()[0]) if found else None


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
def test_ratings(monkeypatch, text, rating):
    assert parse_verdict(text, pairwise=False) == rating == fastchat_rating(monkeypatch, text)


def test_a_rating_off_the_scale_is_none(monkeypatch):
    """FastChat counts [2023] as a score."""
    assert fastchat_rating(monkeypatch, "since [2023] nothing") == 2023
    assert parse_verdict("since [2023] nothing", pairwise=False) is None
    assert parse_verdict("Rating: [[11]]", pairwise=False) is None


@pytest.mark.parametrize(
    ("text", "preference"),
    [("[[A]]", "A"), ("x [[B]]", "B"), ("[[C]]", "tie"), ("[[B]] not [[A]]", "A"), ("[A]", None)],
)
def test_preferences(text, preference):
    assert parse_verdict(text, pairwise=True) == preference


@pytest.mark.parametrize("mode", ["single", "pairwise"])
def test_fastchats_show_result_reads_the_verdicts(judge, tmp_path, mode):
    """Its means and rates are those of our table, with several choices too."""
    folder = write_answers(tmp_path / "run", questions=range(81, 89), choices=2)
    with ScriptedJudge() as server:
        done = judge(folder, server.url, "--mode", mode)
    assert done.returncode == 0, done.stderr
    name = {"single": "single", "pairwise": "pairwise_plain"}[mode]
    module = [sys.executable, "-m", "fastchat.llm_judge.show_result", "--bench-name", "mt_bench"]
    module += ["--mode", {"single": "single", "pairwise": "pairwise-baseline"}[mode]]
    module += ["--baseline-model", "plain", "--input-file"]
    module += [str(folder / "judge" / "gpt-4" / f"{name}.fastchat.jsonl")]
    shown = subprocess.run(module, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    rows = {row["arm"]: row for row in scores(folder, name)["rows"]}
    assert set(rows) == set(ARMS if mode == "single" else ARMS[:2])
    for arm, row in rows.items():
        figures = [
            [float(number) for number in line.split()[1:]]
            for line in shown.stdout.splitlines()
            if line.startswith(arm)
        ]
        if mode == "single":
            assert row["verdicts"] == 8 * 2 * 2
            expected = [[1, row["first"]["value"]], [2, row["second"]["value"]]]
            expected.append([row["mean"]["value"]])
        else:
            win, loss, adjusted = (row[key]["value"] for key in ("win", "loss", "adjusted"))
            count = row["verdicts"]
            counts = [win * count, loss * count, row["tie"]["value"] * count]
            expected = [[*counts, win, loss, adjusted]]
        assert len(figures) == len(expected)
        for theirs, mine in zip(figures, expected, strict=True):
            assert theirs == pytest.approx(mine, abs=1e-5)


# --- scores -------------------------------------------------------------------------------------


def line(arm: str, question: int, turn: int, verdict, *, choice=0, game=1) -> dict:
    place = {"question_id": question, "category": "a" if question < 3 else "b", "turn": turn}
    return place | {"arm": arm, "choice": choice, "game": game, "verdict": verdict}


def test_scores_of_answers_judged_alone():
    """By hand: means over verdicts; differences over what both arms have, turns first averaged."""
    given = [("plain", 1, 1, 8), ("plain", 1, 2, 6), ("plain", 2, 1, 4)]
    given += [("fsd", 1, 1, 5), ("fsd", 1, 2, 2), ("fsd", 2, 1, 3), ("fsd", 2, 2, 9)]
    verdicts = [line(*place) for place in given]
    verdicts += [line("fsd", 1, 1, 7, choice=1), line("fsd", 3, 1, 10)]
    plain, fsd = single_rows(verdicts, judge="gpt-4", baseline="plain")
    assert plain["second"] == {"value": 6, "low": None, "high": None}
    assert plain["mean"]["value"] == 6 and plain["difference"] is None
    assert fsd["first"]["value"] == pytest.approx((5 + 7 + 3 + 10) / 4)
    assert fsd["mean"]["value"] == 36 / 6 and (fsd["questions"], fsd["verdicts"]) == (3, 6)
    # question 1: (6 + 2) / 2 - (8 + 6) / 2 = -3; question 2, first turns: 3 - 4 = -1
    assert fsd["difference"]["value"] == -2 and fsd["vs_plain"] == fsd["difference"]
    assert fsd["difference"]["detectable"] == pytest.approx(2.8 * 2**0.5 / 2**0.5)
    assert {name: mean["value"] for name, mean in fsd["categories"].items()} == {"a": 5.2, "b": 10}
    _, other = single_rows(verdicts, judge="gpt-4", baseline="exact")
    assert other["difference"] is other["vs_plain"] is None


def test_win_rates_of_pairs():
    """By hand: a tie where the two orders name two winners, nothing where one is missing, and
    McNemar's p of questions won against questions lost."""
    games = {1: ["AB", "BA"], 2: ["AB", "AA"], 3: [("tie", "tie"), ("tie", "B")], 4: ["AB"]}
    games |= {5: ["AB"], 6: [("A", None)]}
    verdicts = [
        line("fsd", question, 1, verdict, choice=choice, game=game)
        for question, matches in games.items()
        for choice, match in enumerate(matches)
        for game, verdict in enumerate(match, start=1)
        if verdict
    ]
    (row,) = pairwise_rows(verdicts, judge="gpt-4", baseline="plain")
    assert (row["questions"], row["verdicts"]) == (5, 8)
    values = [row[name]["value"] for name in ("win", "tie", "loss", "adjusted")]
    assert values == pytest.approx([4 / 8, 3 / 8, 1 / 8, 5.5 / 8])
    assert row["consistent"] == pytest.approx(6 / 8)
    # by question: 1/2, 3/4, 1/2, 1, 1
    assert row["difference"]["value"] == pytest.approx((0 + 0.25 + 0 + 0.5 + 0.5) / 5)
    # 2, 4 and 5 are won, none is lost: 2 / 2^3
    assert (row["gained"], row["lost"], row["mcnemar_p"]) == (3, 0, 0.25)
    assert row["categories"]["a"]["value"] == pytest.approx((2 / 2 + 1.5) / 4)


def test_the_end_of_a_judging(judge, folder):
    """Tables and files; no key anywhere; a second run asks nothing and says the same."""
    with ScriptedJudge() as server:
        url = server.url.replace("//", "//me:pa55@")
        first = judge(folder, "nowhere", "--base_url", url)
        assert first.returncode == 0, first.stderr
        again = judge(folder, server.url)
    assert len(server.requests) == 18
    assert again.stdout == first.stdout
    written = next(row for row in lines(folder) if (row["question_id"], row["turn"]) == (111, 2))
    assert (written["prompt"], written["category"]) == ("single-math-v1-multi-turn", "math")
    assert written["parameters"] == {"temperature": 0, "max_tokens": 2048}
    for word in ("first turn", "second turn", "both", "- baseline", "18 of 18", "by category"):
        assert word in first.stdout
    whole = scores(folder)
    assert [row["arm"] for row in whole["rows"]] == list(ARMS)
    assert whole["hosts"] == [f"127.0.0.1:{server.server_port}"] and whole["made"]["commit"]
    assert set(whole["categories"][0]) == {"arm", "writing", "reasoning", "math"}
    for path in (folder / "judge" / "gpt-4").iterdir():
        assert KEY not in path.read_text() and "pa55" not in path.read_text()


# --- what is asked ------------------------------------------------------------------------------


def test_another_judge_stands_beside(judge, folder):
    """Its own folder, with a safe name; another endpoint under the same name is told."""
    with ScriptedJudge() as server, ScriptedJudge() as other:
        assert judge(folder, server.url, "--arms", "plain").returncode == 0
        done = judge(folder, server.url, "--arms", "plain", "--model", "../meta/judge 7B")
        assert done.returncode == 0, done.stderr
        assert len(lines(folder)) == len(lines(folder, "..%2Fmeta%2Fjudge%207B")) == 6
        done = judge(folder, other.url)
    places = sorted(f"127.0.0.1:{s.server_port}" for s in (server, other))
    assert f"come from {', '.join(places)}" in done.stdout and len(other.requests) == 12
    body, authorization = server.requests[-1]
    assert body["model"] == "../meta/judge 7B" and authorization == f"Bearer {KEY}"


def test_only_what_is_new_is_asked(judge, folder):
    """More arms, questions and choices; an answer that has changed; another system prompt."""
    with ScriptedJudge() as server:
        assert judge(folder, server.url, "--arms", "plain").returncode == 0
        before = lines(folder)
        write_answers(folder, questions=(*ASKED, 82), choices=2)
        assert judge(folder, server.url).returncode == 0
        assert lines(folder)[:6] == before and len(lines(folder)) == 3 * 4 * 2 * 2
        assert len(server.requests) == len(set(server.texts())) == 48
        write_answers(folder, questions=(*ASKED, 82), choices=2, arms=["plain"], note=" anew")
        assert judge(folder, server.url).returncode == 0
        assert len(server.requests) == 48 + 16 and scores(folder)["rows"][2]["verdicts"] == 16
        rows = read_rows(mt_bench_dir() / "judge_prompts.jsonl")
        write_rows(folder / "kind.jsonl", [row | {"system_prompt": "Be kind."} for row in rows])
        options = ("--prompt_file", folder / "kind.jsonl", "--arms", "plain")
        assert judge(folder, server.url, *options).returncode == 0
    assert len(server.requests) == 64 + 16
    assert [row["verdicts"] for row in scores(folder)["rows"]] == [16]


def test_parameters_of_a_request(judge, folder):
    """Added, replaced, and left out by null."""
    given = '{"temperature": null, "max_tokens": 7, "seed": 1}'
    with ScriptedJudge() as server:
        assert judge(folder, server.url, "--parameters", given).returncode == 0
    body = server.requests[0][0]
    assert set(body) == {"model", "messages", "max_tokens", "seed"} and body["max_tokens"] == 7


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
    assert len(server.requests) == 2 * (3 + 3 + 4)
    asked = "".join(server.texts())
    assert all(f"{{recorded}} {question} a" in asked for question in (*ASKED, 82))
    assert "{exact} 81 0 a" in asked and "{plain} 81 0 a" not in asked


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
    count = Counter((line["arm"], line["question_id"]) for line in lines(folder))
    assert count == {(arm, q): 1 for arm in ("plain", "exact") for q in (1, 2, 3)} | {
        ("exact", 2): 2
    }


# --- faults -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["close", "429 0.1", "500", "408", "stall"])
def test_a_passing_fault_is_retried(judge, folder, fault):
    """Two such faults, then replies: every verdict is there once."""
    with ScriptedJudge(faults=[fault, fault]) as server:
        done = judge(folder, server.url, "--arms", "plain", "--request_seconds", 0.5)
    assert done.returncode == 0, done.stderr
    assert len({line["digest"] for line in lines(folder)}) == len(lines(folder)) == 6
    assert len(server.requests) == 6 + 2


@pytest.mark.parametrize("fault", ["close", "500", "stall", "broken", "text", "empty"])
def test_a_lasting_fault_ends_the_judging(judge, folder, fault):
    """What is judged is kept and told, and the same command goes on."""
    options = ("--arms", "plain", "--request_seconds", 0.3, "--retries", 1, "--concurrency", 1)
    with ScriptedJudge(faults=["", "", fault, fault]) as server:
        done = judge(folder, server.url, *options)
        assert done.returncode == 1
        for words in (f"127.0.0.1:{server.server_port}", "untouched", "2 of 6", "same command"):
            assert words in done.stderr
        before = lines(folder)
        assert len(before) == 2
        server.faults.clear()
        assert judge(folder, server.url, *options).returncode == 0
    assert lines(folder)[:2] == before and len(lines(folder)) == 6


@pytest.mark.parametrize(("fault", "told"), [("401", "OPENAI_API_KEY"), ("404", "--model")])
def test_a_refusal_ends_the_judging_at_once(judge, folder, fault, told):
    """With the server's words, without the key that it repeats."""
    with ScriptedJudge(faults=[fault] * 9) as server:
        done = judge(folder, server.url, "--concurrency", 1)
    assert done.returncode == 1 and len(server.requests) == 1 and told in done.stderr
    assert "no luck with Bearer [key]" in done.stderr and KEY not in done.stderr
    assert "0 of 18 verdicts" in done.stderr


def test_no_judge_there(judge, folder):
    """Nobody listens: told, with how to go on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        done = judge(folder, f"http://127.0.0.1:{port}/v1", "--retries", 1)
    assert done.returncode == 1 and f"127.0.0.1:{port} failed" in done.stderr
    assert "0 of 18 verdicts" in done.stderr and "same command" in done.stderr


def test_replies_without_a_verdict(judge, folder):
    """Kept with their words, counted, asked again only when told to: of a pair only that game."""
    mute = {"on": True}

    def reply(body: dict) -> str:
        text = body["messages"][-1]["content"]
        first, second = text.find("{plain} 81"), text.find("{exact} 81")
        return "Hm." if mute["on"] and 0 <= first < second else "[[C]]"

    options = ("--mode", "pairwise", "--arms", "exact")
    with ScriptedJudge(reply) as server:
        first = judge(folder, server.url, *options)
        assert first.returncode == 0, first.stderr
        assert "10 of 12 verdicts" in first.stdout and "2 replies held no" in first.stdout
        assert [r["reply"] for r in lines(folder) if r["verdict"] is None] == ["Hm."] * 2
        rows = read_rows(folder / "judge" / "gpt-4" / "pairwise_plain.fastchat.jsonl")
        assert [r["g2_winner"] for r in rows if r["question_id"] == 81] == ["error"] * 2
        assert scores(folder, "pairwise_plain")["rows"][0]["verdicts"] == 4
        assert judge(folder, server.url, *options).stdout == first.stdout
        assert len(server.requests) == 12
        mute["on"] = False
        last = judge(folder, server.url, *options, "--retry_unparsed")
        assert "12 of 12 verdicts" in last.stdout and "no verdict" not in last.stdout
        assert judge(folder, server.url, *options, "--retry_unparsed").returncode == 0
    assert len(server.requests) == 12 + 2
    assert scores(folder, "pairwise_plain")["rows"][0]["verdicts"] == 6


@pytest.mark.parametrize("fault", ["null", "422"])
def test_a_prompt_that_is_refused(judge, folder, fault):
    """No content, or a refusal of this one prompt, is a reply without a verdict."""
    with ScriptedJudge(faults=[fault]) as server:
        done = judge(folder, server.url, "--arms", "plain")
    assert done.returncode == 0 and "1 replies held no verdict" in done.stdout
    (line,) = [line for line in lines(folder) if line["verdict"] is None]
    assert line["reply"] == "" and KEY not in str(line)
    assert (line["error"] is None) == (fault == "null")


def test_a_judge_that_never_gives_a_verdict(judge, folder):
    """Stopped early, its last words told; told too where there were fewer to ask."""
    with ScriptedJudge(lambda body: "I like both.") as server:
        done = judge(folder, server.url, "--give_up", 5, "--concurrency", 1)
        assert done.returncode == 1 and len(server.requests) == 5
        assert "5 replies" in done.stderr and "I like both." in done.stderr
        done = judge(folder, server.url)
    assert done.returncode == 1 and "--retry_unparsed" in done.stderr
    assert len(server.requests) == 18


def test_the_judge_is_killed(judge, tmp_path):
    """kill -9 amid pairs, the last line torn: nothing lost, nothing twice but what was under way.
    A second command at the same time is refused."""
    folder = write_answers(tmp_path / "run", questions=range(81, 91), arms=("exact", "plain"))
    options = ("--mode", "pairwise", "--concurrency", 3)
    with ScriptedJudge(seconds=0.1) as server:
        environment = os.environ | {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": KEY}
        command = [sys.executable, str(COMMAND), *arguments(folder, *options)]
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, env=environment, **silent)
        while len(server.requests) < 11:
            assert process.poll() is None
            time.sleep(0.002)
        other = judge(folder, server.url, *options)
        assert other.returncode == 1 and "another process is judging" in other.stderr
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        time.sleep(0.3)  # the server ends what it had begun
        kept = lines(folder)
        assert 0 < len(kept) < 40
        with (folder / "judge" / "gpt-4" / "verdicts.jsonl").open("a") as file:
            file.write('{"question_id": 81, "tu')
        server.seconds = 0
        done = judge(folder, server.url, *options)
    assert done.returncode == 0 and "torn" in done.stderr
    assert lines(folder)[: len(kept)] == kept
    assert len({line["digest"] for line in lines(folder)}) == len(lines(folder)) == 40
    asked = Counter(server.texts())
    assert len(asked) == 40 and sum(asked.values()) <= 40 + 3


# --- bad input ----------------------------------------------------------------------------------

BAD = {
    "unknown arm": (["--arms", "fsdd"], "fsdd: no such arm; the run has exact, fsd:0.4, plain"),
    "unknown mode": (["--mode", "both"], "single or pairwise"),
    "unknown baseline": (["--mode", "pairwise", "--baseline", "generate"], "--baseline generate"),
    "unknown baseline, alone": (["--baseline", "generate"], "--baseline generate"),
    "only the baseline": (["--mode", "pairwise", "--arms", "plain"], "nothing to compare"),
    "no concurrency": (["--concurrency", "0"], "--concurrency"),
    "no time": (["--request_seconds", "nan"], "--request_seconds"),
    "negative retries": (["--retries", "-1"], "--retries"),
    "no run": (["--run", "nowhere"], "nowhere holds no answer"),
    "no judge": (["--model", ""], "--model is empty"),
    "no question file": (["--question_file", "gone.jsonl"], "gone.jsonl"),
    "no prompt file": (["--prompt_file", "gone.jsonl"], "gone.jsonl"),
    "no reference file": (["--reference_file", "gone.jsonl"], "gone.jsonl"),
    "no parameters": (["--parameters", "temperature=0"], "--parameters temperature=0"),
    "parameters that are ours": (["--parameters", '{"model": "x"}'], "--parameters"),
    "no address": (["--base_url", "localhost:8000/v1"], "--base_url"),
    "no port": (["--base_url", "http://me:pa55@host:port/v1"], "--base_url"),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_options_are_told(judge, folder, fault):
    """One line that names the value; nothing is asked."""
    options, told = BAD[fault]
    with ScriptedJudge() as server:
        done = judge(folder, server.url, *options)
    assert done.returncode == 1 and "error: " in done.stderr and told in done.stderr
    assert not server.requests and "pa55" not in done.stderr and not lines(folder)


@pytest.mark.parametrize("key", ["", "top-secret\n"])
def test_a_bad_key_is_told(command, folder, monkeypatch, key):
    """Before any request, without showing it, and how to go on."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(SystemExit) as exit:
        command.main(arguments(folder))
    message = str(exit.value.code)
    assert "OPENAI_API_KEY" in message and "secret" not in message and "0 of 18" in message


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

    told("the question file lacks 101, 111", *own)
    told("'single-v1' cannot be filled", "--prompt_file", tmp_path / "changed.jsonl")
    told("no judge prompt 'single-v1-multi-turn'", "--prompt_file", tmp_path / "few.jsonl")
    told("output_format [[rating]]", "--prompt_file", tmp_path / "format.jsonl")
    write_answers(folder, questions=[81])
    told("question 81 (math) has no reference answer to turn 1", *own)
    write_answers(folder, questions=[82], arms=["plain"])
    told("exact, fsd:0.4 shares an answered question", "--mode", "pairwise")
    (folder / "run.json").write_text("{")
    told("run.json is damaged")
    (folder / "answers" / "plain.jsonl").write_text("")
    told("plain: no such arm", "--mode", "pairwise", *own)
    (folder / "answers" / "plain.jsonl").write_text('{"question_id": 81}\n')
    told("plain.jsonl, line 1 lacks choices", *own)


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
        options = ("--model", served.name, "--parameters", '{"max_tokens": 48}', "--concurrency", 1)
        done = judge(folder, f"http://127.0.0.1:{port}/v1", *options)
    finally:
        server.terminate()
        server.wait()
    assert done.returncode == 0 or "no verdict" in done.stderr, done.stderr
    rows = lines(folder, served.name)
    assert len(rows) == 2 and all(row["error"] is None and row["reply"] for row in rows)
