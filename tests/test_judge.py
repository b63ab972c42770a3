"""The judge over real HTTP on loopback: FastChat's protocol, faults, bad input."""

import base64
import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from urllib.parse import unquote, unquote_plus

import pytest
from commands import rows
from judge_server import ScriptedJudge, verdict

from eagle_fsd.evaluation.questions import fastchat_answers
from eagle_fsd.models.assets import asset_dir
from eagle_fsd.runs.jsonl import write_lines
from eagle_fsd.tasks.judge_protocol import parse_verdict
from eagle_fsd.tasks.task_scores import pairwise_rows, single_rows

pytestmark = pytest.mark.processes  # whole commands

KEY = "sk-secret-4711"
ARMS = ("exact", "fsd:0.4", "plain")  # fsd_0.4.jsonl is its file
ASKED = (81, 101, 111)  # writing, reasoning, math: the latter two with a reference


@pytest.fixture
def judge(call, monkeypatch):
    """Judges a folder by the judge behind a URL; gives all that the command printed."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    def ask(folder: Path, url: str, *options: object) -> str:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        return call("evaluate/judge.py", "--run", folder, "--model", "gpt-4", *options)

    return ask


@pytest.fixture
def folder(tmp_path):
    """A run of three arms, two turns each; braces in an answer are no fields of a template."""
    return write_run(tmp_path / "run")


def write_run(folder: Path, questions=ASKED, arms=ARMS, choices=1, note="") -> Path:
    (folder / "records").mkdir(parents=True, exist_ok=True)
    for arm in arms:
        records = [
            {"question_id": question, "choice": c, "answer_id": "x", "arm": arm, "tstamp": 0.0}
            | {"turns": [{"text": f"{{{arm}}} {question} {c} {t}{note}"} for t in "ab"]}
            for question in questions
            for c in range(choices)
        ]
        write_lines(folder / "records" / f"{arm.replace(':', '_')}.jsonl", records)
    return folder


def lines(folder: Path, name: str = "single", *, model: str = "gpt-4") -> list[dict]:
    """All replies."""
    return rows(folder / "judge" / model / "verdicts" / "records" / f"{name}.jsonl")


def scores(folder: Path, name: str = "single") -> dict:
    return json.loads((folder / "judge" / "gpt-4" / f"{name}.json").read_text())


def play_by_fastchat(folder: Path, output: Path, mode: str, monkeypatch) -> list[dict]:
    """FastChat's own judging, by the scripted verdict; returns its requests."""
    from fastchat.llm_judge import common, gen_judgment

    requests = []

    def reply(model, conv, temperature, max_tokens, api_dict=None) -> str:
        body = {"messages": conv.to_openai_api_messages(), "model": model}
        requests.append(body | {"temperature": temperature, "max_tokens": max_tokens})
        return verdict(body)

    monkeypatch.setattr(common, "chat_completion_openai", reply)
    answers, data = {}, asset_dir("mt_bench")
    for path in (folder / "records").iterdir():
        given = list(fastchat_answers(rows(path)))
        answers[given[0]["model_id"]] = {row["question_id"]: row for row in given}
    questions = [q for q in rows(data / "question.jsonl") if q["question_id"] in ASKED]
    references = common.load_model_answers(str(data / "reference_answer"))
    prompts = common.load_judge_prompts(str(data / "judge_prompts.jsonl"))
    make, play_one = gen_judgment.make_match, common.play_a_match_pair
    if mode == "single":
        make, play_one = gen_judgment.make_match_single, common.play_a_match_single
    for name, kind in getattr(gen_judgment, f"make_judge_{mode}")("gpt-4", prompts).items():
        refer = kind.ref_based
        asked = [q for q in questions if (q["category"] in common.NEED_REF_CATS) == refer]
        given, second = references if refer else None, name.endswith("-mt")
        for match in make(asked, list(ARMS), answers, kind, "plain", given, second):
            play_one(match, str(output))
    return requests


@pytest.mark.parametrize("mode", ["single", "pairwise"])
def test_requests_verdicts_and_scores_are_fastchats(
    judge, folder, tmp_path, mode, capsys, monkeypatch
):
    """The same requests and verdicts as FastChat's own code, and show_result's means and rates."""
    monkeypatch.setitem(sys.modules, "anthropic", ModuleType("anthropic"))  # imported, not used
    from fastchat.llm_judge import show_result

    played = tmp_path / "theirs.jsonl"
    theirs = play_by_fastchat(folder, played, mode, monkeypatch)
    with ScriptedJudge() as server:
        judge(folder, server.url, "--mode", mode)
    mine = [{key: body[key] for key in theirs[0]} for body, _ in server.requests]
    assert len(mine) == {"single": 3 * 3 * 2, "pairwise": 2 * 3 * 2 * 2}[mode]
    assert sorted(map(json.dumps, mine)) == sorted(map(json.dumps, theirs))

    name = {"single": "single", "pairwise": "pairwise_plain"}[mode]
    said = {
        (line["question_id"], line["turn"], line["arm"], line["game"]): line["verdict"]
        for line in lines(folder, name)
    }
    for row in rows(played):
        place = row["question_id"], row["turn"], row.get("model") or row["model_1"]
        if mode == "single":
            assert said.pop((*place, 1)) == row["score"]
        else:
            for game, order in enumerate(("AB", "BA"), start=1):
                winners = dict(zip(order, ("model_1", "model_2"), strict=True)) | {"tie": "tie"}
                assert winners[said.pop((*place, game))] == row[f"g{game}_winner"]
    assert not said

    asked = {"input_file": str(played), "bench_name": "mt_bench", "model_list": None}
    capsys.readouterr()
    display = getattr(show_result, f"display_result_{mode}")
    display(SimpleNamespace(**asked, baseline_model="plain"))
    shown = capsys.readouterr().out.splitlines()
    found: dict[str, list[float]] = {}
    for row in scores(folder, name)["rows"]:
        if mode == "single":
            found.setdefault(row["arm"], []).append(row["mean"]["value"])
        else:
            rates = [row[key]["value"] for key in ("win", "loss", "tie", "adjusted")]
            counts = [rate * row["verdicts"] for rate in rates[:3]]
            found[row["arm"]] = [*counts, rates[0], rates[1], rates[3]]
    for arm, values in found.items():
        figures = [float(y) for x in shown if x.startswith(arm) for y in x.split()[1:]]
        if mode == "single":  # both turns, each turn; there with its number
            values = [1, values[1], 2, values[2], values[0]]
        assert figures == pytest.approx(values, abs=1e-5)


RATINGS = {"Good. Rating: [[7]]": 7, "[[8.5]] or [[2]]": 8.5, "as in [1], so [[9]]": 9}
RATINGS |= {"Rating: [6]": 6, "[[0]]": 0} | dict.fromkeys(["[[ 7 ]]", "[[seven]] 7/10", "[[-3]]"])


def test_verdicts_of_replies():
    """Ratings as FastChat's run_judge_single reads them; off the scale there is none, where it
    counts [2023] as a score."""
    for text, rating in RATINGS.items():
        assert parse_verdict(text, pairwise=False) == rating, text
    assert parse_verdict("since [2023] nothing", pairwise=False) is None
    preferences = {"[[A]]": "A", "x [[B]]": "B", "[[C]]": "tie", "[[B]] not [[A]]": "A"}
    for text, preference in (preferences | {"[A]": None}).items():
        assert parse_verdict(text, pairwise=True) == preference


def line(arm: str, question: int, turn: int, verdict, *, choice=0, game=1) -> dict:
    place = {"question_id": question, "turn": turn, "choice": choice, "game": game}
    return place | {"arm": arm, "verdict": verdict}


def test_scores_of_answers_judged_alone():
    """By hand: means over questions; differences over what both arms have, turns first averaged."""
    given = [("plain", 1, 1, 8), ("plain", 1, 2, 6), ("plain", 2, 1, 4)]
    given += [("fsd", 1, 1, 5), ("fsd", 1, 2, 2), ("fsd", 2, 1, 3), ("fsd", 2, 2, 9)]
    verdicts = [line(*place) for place in given]
    verdicts += [line("fsd", 1, 1, 7, choice=1), line("fsd", 3, 1, 10)]
    rows = {(row["score"], row["arm"]): row for row in single_rows(verdicts, judge="x")}
    assert rows["judge x, turn 2", "plain"]["mean"] == {"value": 6, "low": None, "high": None}
    plain, fsd = rows["judge x", "plain"], rows["judge x", "fsd"]
    assert plain["mean"]["value"] == (7 + 4) / 2 and plain["vs_plain"] is None
    # question 1: turns 6 and 2; question 2: 3 and 9; question 3: 10
    assert fsd["mean"]["value"] == pytest.approx((4 + 6 + 10) / 3) and fsd["questions"] == 3
    # question 1: 4 - 7; question 2, first turns: 3 - 4
    assert fsd["vs_plain"]["value"] == -2


def test_win_rates_of_pairs():
    """By hand: a tie where the two orders name two winners, nothing where one is missing."""
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


def test_the_end_of_a_judging(judge, folder):
    """Tables and files; no key anywhere; a second run asks nothing and says the same. Parameters
    of a request are added, replaced, and left out by null."""
    given = '{"temperature": null, "max_tokens": 7, "seed": 1}'
    with ScriptedJudge() as server:
        url = server.url.replace("//", "//me:pa55@")
        first = judge(folder, url, "--parameters", given)
        assert first.startswith(judge(folder, server.url))
    assert len(server.requests) == 18
    body = server.requests[0][0]
    assert set(body) == {"model", "messages", "max_tokens", "seed"} and body["max_tokens"] == 7
    written = next(row for row in lines(folder) if (row["question_id"], row["turn"]) == (111, 2))
    assert (written["prompt"], written["category"]) == ("single-math-v1-multi-turn", "math")
    path = folder / "judge" / "gpt-4" / "verdicts" / "run.json"
    (session,) = json.loads(path.read_text())["sessions"]
    assert session["parameters"] == {"max_tokens": 7, "seed": 1}
    assert session["host"] == f"127.0.0.1:{server.server_port}"
    for word in ("judge gpt-4, turn 2", "- plain", "18 of 18"):
        assert word in first
    assert [row["arm"] for row in scores(folder)["rows"]] == list(ARMS) * 3
    for path in (folder / "judge").rglob("*.*"):
        assert KEY not in path.read_text() and "pa55" not in path.read_text()


def test_no_key_reaches_a_file_or_the_screen(judge, folder):
    """Neither the endpoint's key nor what its address holds, whoever repeats it; a short word of
    the address is no key. Bugs held down: ?api-key= stood in run.json, and replies were as sent."""
    given, name = "4711-in-the-query", "4711-in-the-netloc"
    token = base64.b64encode(f"me:{name}".encode()).decode()
    with ScriptedJudge(lambda body: f"{KEY} {given} {token} [[7]]", faults=["", "401"]) as server:
        url = server.url.replace("//", f"//me:{name}@") + f"?api-key={given}&version=7"
        said = judge(folder, "nowhere", "--base_url", url, "--concurrency", 1)
        assert "no luck with" in said and "same command" in said
        said += judge(folder, url)
    assert set(server.paths) == {f"/v1/chat/completions?api-key={given}&version=7"}
    assert {line["reply"] for line in lines(folder)} == {"[key] [key] [key] [[7]]"}
    assert {line["verdict"] for line in lines(folder)} == {7}
    files = [path.read_text() for path in (folder / "judge").rglob("*.*")]
    assert f"--base_url {server.url} " in "".join(files)
    for secret in (KEY, given, name, token):
        assert secret not in said and not any(secret in text for text in files)


@pytest.mark.parametrize("typed", ["4711+and/more", "4711%2band%2Fmore", "4711%20and%20more"])
def test_no_key_of_the_address_is_told_however_it_is_written(judge, folder, typed):
    """As it was typed, as httpx sends it, and decoded by either rule for a plus; nor in the reason
    for an end. Bug held down: a plus was known only as a space, and the reason was as sent."""
    written = [typed, unquote(typed), unquote_plus(typed)]
    with ScriptedJudge(lambda body: " ".join([*written, sent(), "[[7]]"])) as server:

        def sent() -> str:
            server.finish = server.paths[-1].partition("api-key=")[2]
            return server.finish

        said = judge(folder, server.url + f"?api-key={typed}", "--concurrency", 1)
    assert {line["reply"] for line in lines(folder)} == {"[key] [key] [key] [key] [[7]]"}
    assert {line["finish"] for line in lines(folder)} == {"[key]"}
    assert "18 of 18" in said and "4711" not in said
    assert not any("4711" in path.read_text() for path in (folder / "judge").rglob("*.*"))


def test_only_what_is_new_is_asked(judge, folder):
    """More arms, questions and choices; an answer that has changed; another judge, in a folder of
    its own with a safe name."""
    with ScriptedJudge() as server:
        judge(folder, server.url, "--arms", "plain")
        before = lines(folder)
        write_run(folder, questions=(*ASKED, 82), choices=2)
        judge(folder, server.url)
        assert lines(folder)[:6] == before and len(lines(folder)) == 3 * 4 * 2 * 2
        assert len(server.requests) == len(set(server.texts())) == 48
        write_run(folder, questions=(*ASKED, 82), choices=2, arms=["plain"], note=" anew")
        judge(folder, server.url)
        assert len(server.requests) == 48 + 16
        options = ("--arms", "plain", "--model", "../meta/judge 7B", "--base_url", server.url)
        judge(folder, "nowhere", *options)
    assert len(server.requests) == 64 + 16
    assert len(lines(folder, model="..%2Fmeta%2Fjudge%207B")) == 16
    body, authorization = server.requests[-1]
    assert body["model"] == "../meta/judge 7B" and authorization == f"Bearer {KEY}"


def test_questions_of_ones_own(judge, folder, tmp_path):
    """Of one turn, two or three: second turns are of questions with exactly two, as FastChat takes
    them; an answer cut to its first turn has one verdict, a torn record none. The references of
    math are the file's, though MT-Bench has the same id."""
    asked = [{"question_id": q, "category": "x", "turns": list("abc")[:q]} for q in (1, 2, 3)]
    asked.append({"question_id": 111, "category": "math", "turns": ["1?"], "reference": "mine"})
    write_lines(tmp_path / "question.jsonl", asked)
    write_run(folder, questions=(1, 2, 3, 111))
    path = folder / "records" / "plain.jsonl"
    records = rows(path)
    records[1]["turns"].pop()
    write_lines(path, records)
    torn = path.read_text() + '{"question_id": 2, "ch'
    path.write_text(torn)
    # the run's own question file, as its settings name it
    options = {"options": {"question_file": str(tmp_path / "question.jsonl")}, "sessions": []}
    (folder / "run.json").write_text(json.dumps(options))
    with ScriptedJudge() as server:
        done = judge(folder, server.url, "--arms", "plain", "exact")
    assert "plain.jsonl: its last line is torn" in done
    assert path.read_text() == torn
    count = Counter((line["arm"], line["question_id"]) for line in lines(folder))
    wanted = {(arm, q): 1 for arm in ("plain", "exact") for q in (1, 2, 3, 111)}
    assert count == wanted | {("exact", 2): 2}
    assert sum("mine" in text for text in server.texts()) == 2


def test_passing_faults_are_retried(judge, folder):
    """Verdicts are there once."""
    with ScriptedJudge(faults=["close", "429 0.1", "500", "stall"]) as server:
        judge(folder, server.url, "--arms", "plain", "--request_seconds", 0.3)
    assert len({line["digest"] for line in lines(folder)}) == len(lines(folder)) == 6
    assert len(server.requests) == 6 + 4


@pytest.mark.parametrize("fault", ["close", "401", "500", "broken", "text", "empty"])
def test_a_lasting_fault_ends_the_judging(judge, folder, fault):
    """What is judged is kept and told, and the same command goes on; nothing but the failed
    request is asked twice. A refusal ends it at once, without the key that the server repeats."""
    options = ("--arms", "plain", "--retries", 9 if fault == "401" else 0, "--concurrency", 1)
    with ScriptedJudge(faults=["", "", fault]) as server:
        done = judge(folder, server.url, *options)
        assert KEY not in done and ("no luck with Bearer [key]" in done or not fault.isdigit())
        for words in (f"127.0.0.1:{server.server_port}", "untouched", " of 6", "same command"):
            assert words in done
        before = lines(folder)
        assert before[:2] and len(before) < 6
        judge(folder, server.url, *options)
    assert lines(folder)[: len(before)] == before and len(lines(folder)) == 6
    assert sorted(set(server.texts())) == sorted(server.texts()[:2] + server.texts()[3:])


def test_replies_without_a_verdict(judge, folder):
    """Kept with their words, counted, asked again only when told to: of a pair only that game. No
    content, or a refusal of this one prompt, is such a reply too."""
    mute = {"on": True}

    def reply(body: dict) -> str:
        text = body["messages"][-1]["content"]
        first, second = text.find("{plain} 81"), text.find("{exact} 81")
        return "Hm." if mute["on"] and 0 <= first < second else "[[C]]"

    options = ("--mode", "pairwise", "--arms", "exact", "--concurrency", 1)
    with ScriptedJudge(reply, faults=[*[""] * 10, "null", "422"]) as server:
        first = judge(folder, server.url, *options)
        assert "8 of 12 verdicts" in first and "4 replies held no" in first
        silent = [r for r in lines(folder, "pairwise_plain") if r["verdict"] is None]
        assert [r["reply"] for r in silent] == ["Hm.", "Hm.", "", ""]
        assert silent[2]["error"] is None and "no luck" in silent[3]["error"]
        assert scores(folder, "pairwise_plain")["rows"][0]["verdicts"] == 3
        assert first.startswith(judge(folder, server.url, *options))
        assert len(server.requests) == 12
        mute["on"] = False
        last = judge(folder, server.url, *options, "--retry_unparsed")
        assert "12 of 12 verdicts" in last and "no verdict" not in last
        judge(folder, server.url, *options, "--retry_unparsed")
    assert len(server.requests) == 12 + 4
    assert scores(folder, "pairwise_plain")["rows"][0]["verdicts"] == 6


def test_a_judge_that_never_gives_a_verdict(judge, folder):
    """Stopped early, its last words told; told too where there were fewer to ask."""
    with ScriptedJudge(lambda body: "I like both.") as server:
        done = judge(folder, server.url)
        assert len(server.requests) == 18
        assert "error: " in done and "18 replies" in done and "--retry_unparsed" in done
        done = judge(folder, server.url, "--mode", "pairwise", "--concurrency", 1)
    assert 18 + 20 <= len(server.requests) < 18 + 24
    assert "no verdict in 20 replies" in done and "I like both." in done
