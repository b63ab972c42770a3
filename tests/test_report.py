"""The report: its figures are those of the records, its page stands alone and trusts no answer, and
damaged or foreign folders are told, changed by nothing."""

import csv
import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tiny_folder import write_random_head, write_target

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.metrics import by_category, summarize
from eagle_fsd.evaluation.report.arm_rows import (
    accepted_by_depth,
    arm_rows,
    at_loss,
    cell,
    divergences_by_source,
    lines,
    score_rows,
)
from eagle_fsd.evaluation.report.page import script_json
from eagle_fsd.evaluation.report.plots import MOST_LINES, panels
from eagle_fsd.evaluation.report.read_runs import read_run, read_runs
from eagle_fsd.evaluation.report.trace_data import pack_traces
from eagle_fsd.evaluation.tables import SPEED as SPEED_COLUMNS
from eagle_fsd.evaluation.tables import markdown_table
from eagle_fsd.tasks.judge_scores import pairwise_rows, single_rows
from eagle_fsd.tasks.task_scores import compare_scores, write_table

pytestmark = pytest.mark.processes  # whole commands

ROOT = Path(__file__).parent.parent
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
QUESTIONS = [
    {"question_id": i, "category": "ab"[i % 2] + HOSTILE, "turns": [f"Say {i}. {HOSTILE}"]}
    for i in range(4)
]
ARMS = ["generate", "plain", "exact", "fsd_js_T0.3", "fsd_js_T0.6", "random_r0.5"]
CHROMIUM = shutil.which("chromium")


def load_command(path: str):
    """A command's module; commands do nothing on import."""
    spec = importlib.util.spec_from_file_location(f"command_{Path(path).stem}", ROOT / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


REPORT = load_command("evaluate/report.py")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of evaluate/mt_bench.py on a tiny target, with traces; not to be changed."""
    folder = tmp_path_factory.mktemp("made")
    target, head = write_target(folder / "target"), write_random_head(folder / "head")
    questions = folder / "question.jsonl"
    questions.write_text("".join(json.dumps(q) + "\n" for q in QUESTIONS))
    options = ["--target", target, "--head", head, "--question_file", questions]
    options += ["--num_draft_tokens", 7, "--tree_depth", 3, "--branch_top_k", 3]
    options += ["--max_new_tokens", 12, "--dtype", "float32", "--questions", 4, "--traces", 2]
    options += ["--arms", "generate", "plain", "exact", "fsd", "random", "--rates", 0.5]
    options += ["--thresholds", 0.3, 0.6, "--output", folder / "run"]
    load_command("evaluate/mt_bench.py").main(list(map(str, options)))
    return folder / "run"


@pytest.fixture
def run_folder(made, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(made, tmp_path / "run")


@pytest.fixture(scope="module")
def report_folder(made, tmp_path_factory):
    output = tmp_path_factory.mktemp("reports") / "report"
    REPORT.main([str(made), "--output", str(output)])
    return output


def read_rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def digest(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def told(capsys, *arguments: object) -> str:
    """The error of a report that is refused."""
    with pytest.raises(SystemExit) as exit:
        REPORT.main(list(map(str, arguments)))
    capsys.readouterr()
    return str(exit.value.code)


class Page(HTMLParser):
    """Elements, their attributes and the texts of script elements; fails on what is not closed."""

    VOID = {"meta", "img", "br", "link", "input"}

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


@pytest.fixture(scope="module")
def page(report_folder):
    return Page((report_folder / "index.html").read_text())


# --- what the report says -----------------------------------------------------------------------


def test_tables_are_those_of_the_records(made, report_folder, page):
    """JSON, CSV, Markdown and page hold summarize's and by_category's figures of the records."""
    records = {arm: read_rows(made / "records" / f"{arm}.jsonl") for arm in ARMS}
    order = ["plain", "generate", "exact", *ARMS[3:]]
    rows = summarize({arm: records[arm] for arm in order})
    found = json.loads((report_folder / "report.json").read_text())["tables"]
    assert [row["arm"] for row in found["arms"]] == order
    for mine, row in zip(found["arms"], rows, strict=True):
        assert {key: mine[key] for key in row} == row
    categories = by_category({arm: records[arm] for arm in order})
    assert [{k: row[k] for k in categories[0]} for row in found["categories"]] == categories

    with (report_folder / "tables" / "arms.csv").open(newline="") as file:
        for mine, row in zip(csv.DictReader(file), rows, strict=True):
            assert float(mine["tokens_per_second"]) == row["tokens_per_second"]
            gain = row["tokens_per_round_vs_exact"]
            assert mine["tokens_per_round_vs_exact"] == (str(gain["value"]) if gain else "")
    table = markdown_table(rows, SPEED_COLUMNS)
    assert table in (report_folder / "report.md").read_text()
    for line in table.splitlines()[2:]:
        for text in line.strip("| ").split("|"):
            assert text.strip() in page.texts["td"]


def test_cells_and_provenance(made, report_folder, page):
    """Settings of every arm; command, commit, hardware and versions on the page."""
    rows = {
        r["arm"]: r
        for r in json.loads((report_folder / "report.json").read_text())["tables"]["arms"]
    }
    fsd, random, exact = rows["fsd_js_T0.3"], rows["random_r0.5"], rows["exact"]
    assert (fsd["rule"], fsd["divergence"], fsd["threshold"]) == ("fsd", "js", 0.3)
    assert (fsd["tree"], fsd["temperature"], fsd["child"]) == ("7x3x3", "0", "draft")
    assert (random["divergence"], random["threshold"]) == (None, 0.5)
    assert (exact["tree"], exact["threshold"], rows["plain"]["tree"]) == ("7x3x3", None, None)
    session = json.loads((made / "run.json").read_text())["sessions"][0]
    words = " ".join(page.texts["dd"])
    for part in (session["commit"], session["device"], session["versions"]["torch"]):
        assert part in words


def test_every_picture_is_drawn(report_folder, page):
    """As a PNG, and in the page; named and explained in report.md."""
    names = {path.stem for path in (report_folder / "plots").iterdir()}
    assert names == {
        *("quality_argmax_share_minus_plain", "quality_mean_logp_minus_plain"),
        *("depths", "divergences", "lengths"),
        *({"iso_quality"} & names),  # only where a line reaches a loss
    }
    for path in (report_folder / "plots").iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")
        assert f"plots/{path.name}" in (report_folder / "report.md").read_text()
    images = [attrs["src"] for tag, attrs in page.elements if tag == "img"]
    assert len(images) == len(names)


def write_scores(folder: Path, name: str, values: dict[str, list[float]]) -> None:
    """As evaluate/tasks.py leaves them."""
    (folder / "scores").mkdir()
    scores = {
        arm: [{"question_id": q, "scores": {name: value}} for q, value in enumerate(of_arm)]
        for arm, of_arm in values.items()
    }
    write_table(folder, compare_scores(scores), scorer=name)


def test_scores_of_tasks(run_folder, tmp_path):
    """The rows of scores/table.json, in the table and on the page, with McNemar's test."""
    write_scores(run_folder, "right", {"exact": [0, 0, 1, 1], "plain": [1, 1, 0, 1]})
    run = read_run(run_folder, name="run")
    rows = {row["arm"]: row for row in arm_rows(run)}
    plain, exact = score_rows(run)
    assert (plain["arm"], plain["mean"]["value"], plain["vs_plain"]) == ("plain", 0.75, None)
    assert exact["vs_plain"]["value"] == -0.25 and exact["questions"] == 4
    assert rows["exact"]["score right"] == exact["mean"] and rows["generate"]["score right"] is None
    REPORT.main([str(run_folder), "--output", str(tmp_path / "report")])
    table = json.loads((tmp_path / "report" / "report.json").read_text())["tables"]["scores"]
    split = [[row[key] for key in ("gained", "lost", "mcnemar_p")] for row in table]
    assert split == [[None] * 3, [1, 2, 1.0]]
    assert "McNemar p" in (tmp_path / "report" / "report.md").read_text()


def write_rows(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def judged(arm: str, verdicts: list) -> list[dict]:
    """Verdicts on first turns of questions 0, 1, ...; of a pair one for each order."""
    place = {"arm": arm, "category": "a", "choice": 0, "turn": 1}
    return [
        place | {"question_id": question, "game": game, "verdict": verdict}
        for question, games in enumerate(verdicts)
        for game, verdict in enumerate(games, start=1)
    ]


def test_scores_of_judges(run_folder, tmp_path):
    """The rows that judge.py has written, alone and against every baseline, in the arms' order."""
    folder = run_folder / "judge" / "gpt-4"
    folder.mkdir(parents=True)
    alone = [*judged("exact", [[8], [9]]), *judged("plain", [[6], [6]])]
    plain = [
        *judged("fsd_js_T0.3", ["AB", "AA"]),
        *judged("exact", [["tie"] * 2]),
    ]
    exact = judged("fsd_js_T0.3", ["BA"])
    rows = {"single": single_rows(alone, judge="gpt-4", baseline="plain")}
    for name, verdicts in (("plain", plain), ("exact", exact)):
        rows[f"pairwise_{name}"] = pairwise_rows(verdicts, judge="gpt-4", baseline=name)
    for name, found in rows.items():
        for row in found:
            del row["categories"]
        (folder / f"{name}.json").write_text(json.dumps({"rows": found}))
    REPORT.main([str(run_folder), "--output", str(tmp_path / "report")])
    tables = json.loads((tmp_path / "report" / "report.json").read_text())["tables"]
    keys = ("score", "arm", "mean", "vs_plain")
    found = [
        [row[k]["value"] if isinstance(row[k], dict) else row[k] for k in keys]
        for row in tables["scores"]
    ]
    assert found == [["judge gpt-4", "plain", 6, None], ["judge gpt-4", "exact", 8.5, 2.5]]
    pairs = [(row["baseline"], row["arm"], row["adjusted"]["value"]) for row in tables["pairwise"]]
    fsd = "fsd_js_T0.3"
    assert pairs == [("exact", fsd, 0), ("plain", "exact", 0.5), ("plain", fsd, 0.75)]
    assert "Pairwise verdicts" in (tmp_path / "report" / "index.html").read_text()
    (folder / "single.json").write_text("{")
    with pytest.raises(BadInput, match="single.json is damaged"):
        read_run(run_folder, name="run")


def test_arms_of_other_temperatures_have_their_own_plain(run_folder):
    """Names with a temperature had no difference to plain, a compiled loop was a plain generate,
    and slow arms that answer fewer were told as short; others are, with what that leaves."""
    for arm, other in {"plain": "plain_t0.7", "exact": "exact_t0.7"}.items():
        rows = read_rows(run_folder / "records" / f"{arm}.jsonl")
        rows = [row | {"arm": other, "temperature": 0.7} for row in rows]
        write_rows(run_folder / "records" / f"{other}.jsonl", rows)
    rows = read_rows(run_folder / "records" / "generate.jsonl")
    rows = [row | {"arm": "generate_compiled_t0.7", "temperature": 0.7} for row in rows[:2]]
    write_rows(run_folder / "records" / "generate_compiled_t0.7.jsonl", rows)
    run = read_run(run_folder, name="run")
    rows = {row["arm"]: row for row in arm_rows(run)}
    assert rows["generate_compiled_t0.7"]["rule"] == "generate_compiled"
    assert not any("fewer" in text for text in run.warnings)
    path = run_folder / "records" / "exact_t0.7.jsonl"
    write_rows(path, read_rows(path)[1:])
    (told,) = [text for text in read_run(run_folder, name="run").warnings if "fewer" in text]
    assert "over the 3 questions that all arms have; fewer than 4: exact_t0.7 3" in told


def test_mixed_and_sharded_sessions_are_told(run_folder):
    """Several sessions, other hardware, and times that are none: no speed is given then."""
    settings = json.loads((run_folder / "run.json").read_text())
    second = settings["sessions"][0] | {"session": "2", "device": "another", "commit": "abc+"}
    settings["sessions"].append(second | {"timed": False, "warnings": ["the machine is busy"]})
    (run_folder / "run.json").write_text(json.dumps(settings))
    path = run_folder / "records" / "exact.jsonl"
    rows = read_rows(path)
    path.write_text("".join(json.dumps(row | {"session": "2"}) + "\n" for row in rows[:3]))
    run = read_run(run_folder, name="run")
    told = " ".join(run.warnings)
    for words in ("3 of 4", "another", "uncommitted", "busy", "no speed", "exact 3"):
        assert words in told
    assert not run.timed and all(row["tokens_per_second"] is None for row in arm_rows(run))


def test_several_runs_one_torn_and_of_one_question(
    made, run_folder, report_folder, tmp_path, capsys
):
    """Side by side under their own names. A torn last line, as a killed or running writer leaves
    it, is left out with a warning and stays in the file; one question has no interval. Of an old
    report nothing stays, and nothing lies beside the new one."""
    output = tmp_path / "deep" / "report"
    shutil.copytree(report_folder, output)
    (output / "stale.txt").write_text("of the old one")
    other = run_folder.rename(tmp_path / "other")
    for path in (other / "records").iterdir():
        first, second, *_ = path.read_text().splitlines(keepends=True)
        path.write_text(first + second[:50])
    before = digest(other)
    REPORT.main([str(made), str(other), "--output", str(output)])
    assert not (output / "stale.txt").exists()
    assert [path.name for path in output.parent.iterdir()] == ["report"]
    assert "exact.jsonl: its last line is torn" in capsys.readouterr().err
    assert digest(other) == before
    found = json.loads((output / "report.json").read_text())
    arms = found["tables"]["arms"]
    assert [row["run"] for row in arms] == ["run"] * 6 + ["other"] * 6
    assert [row["questions"] for row in arms] == [4] * 6 + [1] * 6
    text = (output / "report.md").read_text()
    part = text[text.index("## other") : text.index("## Pictures")]
    assert not [line for line in part.splitlines() if line.startswith("| exact") and "[" in line]
    assert "| fsd_js_T0.3" in part
    Page((output / "index.html").read_text())


def test_different_targets_only_when_allowed(made, run_folder, capsys):
    """Both are named, and the option."""
    settings = json.loads((run_folder / "run.json").read_text())
    settings["options"]["dtype"] = "bfloat16"
    (run_folder / "run.json").write_text(json.dumps(settings))
    message = told(capsys, made, run_folder)
    assert "float32" in message and "bfloat16" in message and "--allow_different" in message
    allowed = read_runs([str(made), str(run_folder)], allow_different_targets=True)
    assert [run.name for run in allowed] == [str(made), str(run_folder)]  # both folders are "run"


# --- the page -----------------------------------------------------------------------------------


def test_page_stands_alone(report_folder, page):
    """No element, style or script reaches for anything outside the file."""
    for tag, attrs in page.elements:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            value = attrs.get(name, "#")
            assert value.startswith(("#", "data:image/png;base64,")), (tag, name, value[:80])
        assert tag not in ("link", "iframe", "object", "base")
    code = " ".join(page.texts["style"] + page.texts["script"][-1:])
    for word in ("http:", "https:", "//cdn", "url(", "@import", "fetch(", "innerHTML"):
        assert word not in code
    policy = [attrs["content"] for _, attrs in page.elements if "http-equiv" in attrs]
    assert policy and "default-src 'none'" in policy[0]
    assert (report_folder / "index.html").stat().st_size < 2_000_000


def test_page_trusts_no_text(report_folder, page):
    """A category and a prompt that close scripts and open images stay text."""
    assert [attrs for tag, attrs in page.elements if "onerror" in attrs] == []
    assert sum(tag == "script" for tag, _ in page.elements) == 2
    assert sum(tag == "img" for tag, _ in page.elements) == len(
        list((report_folder / "plots").iterdir())
    )
    data = json.loads(page.texts["script"][0])
    assert any(HOSTILE in text for text in data["strings"])
    assert HOSTILE not in (report_folder / "index.html").read_text()


def test_traces_are_the_records_rounds(made, page):
    """Every traced arm and question; tokens and fuzzy flags of every round are the record's, the
    path and the target's own token end where they should."""
    data = json.loads(page.texts["script"][0])
    text = data["strings"]
    assert {text[trace[1]] for trace in data["traces"]} == {*ARMS} - {"generate"}
    fuzzy = 0
    for _, arm, question, choice, category, turns in data["traces"]:
        rows = read_rows(made / "records" / f"{text[arm]}.jsonl")
        record = next(row for row in rows if row["question_id"] == question)
        assert choice == 0 and category == record["category"]
        for (prompt, _, rounds, same), turn in zip(turns, record["turns"], strict=True):
            assert text[prompt] == QUESTIONS[question]["turns"][0] and same == 1
            assert len(rounds) == len(turn["rounds"])
            for (nodes, path, emitted), recorded in zip(rounds, turn["rounds"], strict=True):
                sources = emitted[1::6]
                assert [int(source == 1) for source in sources] == recorded["fuzzy"]
                assert len(path) == len(sources) and sources[-1] == 2
                words = [nodes[4 * node] for node in path[1:]]
                assert words == emitted[0::6][: len(words)]
                assert [nodes[4 * node + 1] for node in path] == [-1, *path[:-1]]
                fuzzy += sum(recorded["fuzzy"])
    assert fuzzy > 0


def trace_row(question: int, rounds: int, width: int) -> dict:
    """A trace with full trees, every probability different."""
    nodes = [{"text": "root", "parent": -1, "target_prob": None, "draft_prob": None}]
    for i in range(1, width):
        probs = {"target_prob": i * 0.03137, "draft_prob": 1 / (i + question + 3)}
        nodes.append(
            {"text": f" word{i * question % 97}", "parent": (i - 1) // 2, "depth": 1} | probs
        )
    figures = {"divergence": 0.12345, "target_prob": 0.5, "draft_prob": None, "regret": 0.0}
    emitted = [{"text": " word", "source": "draft"} | figures] * 2
    one = {"nodes": nodes, "path": [0, 1], "emitted": emitted}
    turn = {"prompt": "?", "first": {"text": "a"}, "same_as_record": True, "rounds": [one] * rounds}
    return {"question_id": question, "choice": 0, "category": "c", "turns": [turn]}


def test_traces_stay_small(made):
    """20 traces of 128 tokens in trees of 16 nodes are far below 5 MB; what is too much is left
    out whole, and counted."""
    run = read_run(made, name="run")
    run.traces.clear()
    run.traces["exact"] = [trace_row(question, rounds=64, width=16) for question in range(20)]
    data, left_out = pack_traces([run])
    size = len(script_json(data))
    assert left_out == 0 and len(data["traces"]) == 20 and size < 1_000_000
    data, left_out = pack_traces([run], most_bytes=size // 2)
    assert left_out == 20 - len(data["traces"]) and 5 < left_out < 15


@pytest.mark.processes
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_browser_draws_the_tree_of_a_round(report_folder, tmp_path):
    """A link to a round opens its tree: a box for every node and one for the target's own token."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    options += ["--disable-background-networking", f"--user-data-dir={tmp_path}", "--dump-dom"]
    place = f"file://{report_folder}/index.html#trace=2&turn=0&round=1"
    command = [CHROMIUM, *options, "--virtual-time-budget=2000", place]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    drawn = Page(done.stdout[done.stdout.index("<html") :])
    assert sum(tag == "g" for tag, _ in drawn.elements) == 1 + 7 + 1
    assert any("round 2 of" in text for text in drawn.texts["strong"])
    shown = [attrs for tag, attrs in drawn.elements if attrs.get("id") == "panel"]
    assert "hidden" not in shown[0]
    tokens = [attrs for _, attrs in drawn.elements if "token" in (attrs.get("class") or "")]
    assert sum("data-tip" in attrs for attrs in tokens) >= 12
    assert [attrs for _, attrs in drawn.elements if "onerror" in attrs] == []


# --- figures ------------------------------------------------------------------------------------


def round_of(divergences: list, fuzzy: list[int]) -> dict:
    return {"tokens": [7] * len(fuzzy), "fuzzy": fuzzy, "divergence": divergences}


def test_depths_and_divergences_by_hand():
    """Three rounds of 0, 1 and 2 drafts; null is not judged, inf is left out."""
    rounds = [
        round_of([None], [0]),
        round_of([0.1, 0.5], [0, 0]),
        round_of([0.2, "inf", 0.3], [1, 0, 0]),
    ]
    records = [{"turns": [{"rounds": rounds}]}]
    assert accepted_by_depth(records) == pytest.approx([2 / 3, 1 / 3])
    assert divergences_by_source(records) == {
        "draft": [0.1],
        "fuzzy": [0.2],
        "target": [0.5, 0.3],
    }
    assert accepted_by_depth([{"turns": [{"rounds": []}]}]) == []


def test_at_loss_interpolates_and_never_extrapolates():
    points = [(0.0, 1.0), (0.1, 1.5), (0.04, 1.2)]
    assert at_loss(points, 0.02) == pytest.approx(1.1)
    assert at_loss(points, 0.07) == pytest.approx(1.35)
    assert at_loss(points, 0.1) == 1.5
    assert at_loss(points, 0.11) is None and at_loss(points, -0.01) is None
    assert at_loss([(0.02, 1.1)], 0.02) is None  # one point is no line


def arm_row(rule: str, divergence: str, threshold: float, child: str = "draft") -> dict:
    accept = {"rule": rule, "divergence": divergence, "logits": "raw", "child": child}
    tree = {"num_draft_tokens": 7, "tree_depth": 3, "branch_top_k": 3}
    record = {"arm": "?", "accept": accept | {"threshold": threshold}, "tree": tree}
    return {"run": "r", "arm": "?"} | cell([record | {"temperature": 0.0}], {})


def test_lines_join_thresholds_and_are_named_by_what_differs():
    rows = [arm_row("fsd", "js", t) for t in (0.4, 0.2)] + [arm_row("fsd", "tv", 0.3)]
    rows += [arm_row("exact", "js", 0.0), arm_row("random", "js", 0.05)]
    found = lines(rows)
    assert list(found) == ["fsd, js", "fsd, tv", "random"]
    assert [row["threshold"] for row in found["fsd, js"]] == [0.2, 0.4]
    found = lines([*rows, arm_row("fsd", "js", 0.3, child="target")])
    assert "fsd, js, target" in found and "fsd, js, draft" in found


def test_panels_hold_sixty_arms():
    """No panel has more lines than it can show, none is lost, the control is in each of them."""
    rows = [
        arm_row(rule, divergence, t, child)
        for rule in ("fsd", "fsd-paper")
        for divergence in ("js", "tv", "kl_target_draft")
        for child in ("draft", "target", "deepest", "sample")
        for t in (0.1, 0.2, 0.3)
    ]
    named = lines([*rows, arm_row("random", "js", 0.05)])
    groups = panels(named)
    assert all(len(group) <= MOST_LINES for _, group in groups)
    assert {name for _, group in groups for name in group} == set(named)
    assert all("random, draft" in group for _, group in groups)
    for divergence, group in groups:
        assert {arms[0]["divergence"] for arms in group.values()} <= {divergence, None}


# --- what is refused, and what is kept ----------------------------------------------------------


def break_line(path: Path, number: int, text: str) -> None:
    lines = path.read_text().splitlines()
    lines[number - 1] = text
    path.write_text("\n".join(lines) + "\n")


FAULTS = {
    "no run.json": (lambda run: (run / "run.json").unlink(), "no run.json"),
    "broken run.json": (lambda run: (run / "run.json").write_text("{"), "damaged"),
    "run.json of an old version": (
        lambda run: (run / "run.json").write_text('{"options": {"target": "t", "dtype": "d"}}'),
        "sessions",
    ),
    "no records": (lambda run: shutil.rmtree(run / "records"), "no records"),
    "no such folder": (shutil.rmtree, "no run.json"),
    "a broken line": (lambda run: break_line(run / "records/exact.jsonl", 2, "{torn"), "line 2"),
    "a line without turns": (
        lambda run: break_line(
            run / "records/plain.jsonl", 3, '{"question_id": 9, "arm": "plain"}'
        ),
        "line 3 lacks turns",
    ),
    "a line that is no object": (
        lambda run: break_line(run / "records/plain.jsonl", 1, "[1]"),
        "line 1 lacks question_id",
    ),
    "an answer twice": (
        lambda run: (run / "records/exact.jsonl").write_text(
            (run / "records/exact.jsonl").read_text() * 2
        ),
        "question 0, choice 0 twice",
    ),
    "no question in common": (
        lambda run: [
            break_line(run / "records/exact.jsonl", n, json.dumps({**row, "question_id": n + 50}))
            for n, row in enumerate(read_rows(run / "records/exact.jsonl"), start=1)
        ],
        "no question was answered by all",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_damaged_runs_are_told_and_the_old_report_stays(fault, run_folder, tmp_path, capsys):
    """The message names folder and line; nothing of an earlier report is lost, nothing is left."""
    output = tmp_path / "report"
    output.mkdir()
    (output / "report.json").write_text("{}")
    (output / "index.html").write_text("the old one")
    before = digest(output)
    break_run, words = FAULTS[fault]
    break_run(run_folder)
    message = told(capsys, run_folder, "--output", output)
    assert message.startswith("error: ") and words in message and str(run_folder) in message
    assert digest(output) == before
    assert sorted(p.name for p in tmp_path.iterdir() if p != run_folder) == ["report"]


def test_report_replaces_only_reports(made, run_folder, tmp_path, capsys):
    """Another folder, a file and the run itself are refused, and stay as they are."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("kept")
    assert "something else" in told(capsys, made, "--output", mine)
    assert "is a file" in told(capsys, made, "--output", mine / "thesis.txt")
    assert "overlap" in told(capsys, run_folder, "--output", run_folder)
    assert "overlap" in told(capsys, run_folder, "--output", run_folder / "report")
    assert "overlap" in told(capsys, run_folder, "--output", tmp_path)
    assert "cannot write" in told(capsys, made, "--output", "/proc/report")
    assert "twice" in told(capsys, made, made, "--output", tmp_path / "report")
    assert (mine / "thesis.txt").read_text() == "kept"
    assert digest(run_folder) == digest(made)
