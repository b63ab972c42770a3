"""The report: it says what the records say, its page stands alone and trusts no answer, and
damaged or foreign folders are told, changed by nothing."""

import json
import random
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from commands import bench_options, run_main
from hand_records import ARMS, TEXT, made_run, write_run

from eagle_fsd.arms import parse_arm
from eagle_fsd.evaluation.answering import traced_token
from eagle_fsd.evaluation.metrics import by_category, summarize
from eagle_fsd.evaluation.questions import Question
from eagle_fsd.evaluation.record_numbers import repetition
from eagle_fsd.evaluation.report import write_report
from eagle_fsd.evaluation.report.write_report import text_parts
from eagle_fsd.evaluation.run_data import RunData, read_run
from eagle_fsd.evaluation.tables import cell_text, verdict
from eagle_fsd.models.loaded import load
from eagle_fsd.rules import RULES
from eagle_fsd.rules.fsd import Random
from eagle_fsd.runs.jsonl import read_lines, write_json, write_lines
from eagle_fsd.tasks.task_scores import compare_scores, score_run

REPORT = "evaluate/report.py"
NODE = shutil.which("node")
FSD = "fsd:0.2"
SESSION = {"session": "1", "timed": True}

pytestmark = pytest.mark.processes  # long: pages and plots are drawn


@pytest.fixture
def run_folder(tmp_path):
    return write_run(tmp_path / "run", made_run())


@pytest.fixture(scope="module")
def report_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    run_main(REPORT, write_run(folder / "run", made_run()), "--output", folder / "report")
    return folder / "report"


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def table_rows(report: Path, table: str) -> list[dict]:
    return json.loads((report / "tables.json").read_text())[table]


def told(*arguments: object) -> str:
    """The error of a report that is refused."""
    with pytest.raises(SystemExit) as exit:
        run_main(REPORT, *arguments)
    return str(exit.value.code)


class Page(HTMLParser):
    """Elements, texts by element, and the answers' data; fails on what is not closed."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        assert not self.open, f"not closed: {self.open}"
        self.data: list[dict] = json.loads(self.texts["script"][0])

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def lines(self, tag: str) -> list[str]:
        return [text.strip() for text in self.texts[tag] if text.strip()]


@pytest.fixture(scope="module")
def page(report_folder):
    return Page((report_folder / "index.html").read_text())


def test_tables_are_those_of_the_records(report_folder, page):
    """JSON and page hold the rows that summarize makes of the records; the page has a verdict on
    every arm, and says where the records come from."""
    records = made_run()
    rows = summarize(records)
    for name, made in (("arms", rows), ("by_category", by_category(records))):
        found = table_rows(report_folder, name)
        assert [{k: v for k, v in row.items() if k != "run"} for row in found] == made
    arms = [row["arm"] for row in table_rows(report_folder, "arms")]
    assert arms == list(ARMS) == page.texts["code"]
    shown = [text.strip() for text in page.texts["td"]]
    assert all(f"{row['tokens_per_round']['value']:.2f}" in shown for row in rows)
    assert page.lines("li") == list(map(verdict, rows))
    words = " ".join(page.texts["pre"] + page.texts["p"])
    assert all(part in words for part in ("commit abc", "a machine", "'torch': '9.9'"))


def test_what_makes_arms_less_comparable_is_told(run_folder, tmp_path):
    """Several sessions, other hardware and packages, missing answers, and times that are none: no
    speed is given then. Bug held down: two releases of torch were compared without a word."""
    settings = json.loads((run_folder / "run.json").read_text())
    second = {"session": "2", "device": "another", "commit": "abc+", "versions": {"torch": "9.10"}}
    second |= {"timed": False, "warnings": ["the machine is busy"]}
    settings["sessions"].append(settings["sessions"][0] | second)
    write_json(run_folder / "run.json", settings)
    assert not read_run(run_folder).doubts()  # no record is of the second
    path = run_folder / "records" / "arm1.jsonl"
    write_lines(path, [row | {"session": "2"} for row in read_lines(path)[:3]])
    run = read_run(run_folder)
    doubts = " ".join(run.doubts())
    for words in ("3 of 4", "uncommitted", "busy", "no speed", "exact 3", "torch was changed"):
        assert words in doubts
    assert run.rows[1]["speed_vs_plain"]["value"] is None
    # bug held down: it stood below all tables, and the speeds that it is about on top
    write_report.write_report([run], tmp_path / "report")
    page = (tmp_path / "report" / "index.html").read_text()
    assert page.index("the machine is busy") < page.index("tokens per round over exact")
    assert run.origin("device") == "a machine / another"


@pytest.mark.parametrize("questions", [7, 8])
def test_an_arm_that_loops_more_than_plain_is_told(tmp_path, questions):
    """Of eight answers; of fewer no interval of plain's is known. exact's are plain's."""
    records = made_run(questions)
    for arm, looping in {"fsd:0.4": 4, "random:0.3": 2, "exact": 8}.items():
        for record in records[arm][:looping]:
            record["turns"][0]["token_ids"] += [3, 1, 4] * 9
    run = read_run(write_run(tmp_path / "run", records))
    told = " ".join(run.doubts())
    if questions == 7:
        assert not told
        return
    assert "50 % of fsd:0.4's" in told and "0 % of plain's do and by chance 37 % at most" in told
    assert "random" not in told and "exact" not in told
    write_report.write_report([run], tmp_path / "report")
    page = Page((tmp_path / "report" / "index.html").read_text())
    assert "50 % of fsd:0.4's" in " ".join(page.texts["p"])


def test_what_lacks_a_field_is_told_by_file_and_field(run_folder, tmp_path):
    """Of records and scores by line too, and of what is no record at all."""
    first = read_lines(run_folder / "records/arm2.jsonl")[0]
    (turn,) = first["turns"]
    half = {"turns": [{key: turn[key] for key in turn if key != "rounds"}]}
    for path, words, line in (
        (
            "records/arm2.jsonl",
            "has no 'category'",
            {k: first[k] for k in first if k != "category"},
        ),
        ("records/arm2.jsonl", "has no 'rounds'", first | half),
        ("records/arm2.jsonl", "", [1]),
        (f"scores/{parse_arm(FSD).slug}.jsonl", "has no 'scores'", {"question_id": 0}),
    ):
        folder = shutil.copytree(run_folder, tmp_path / "copy", dirs_exist_ok=True)
        (folder / path).parent.mkdir(exist_ok=True)
        write_lines(folder / path, [line])
        assert f"{folder / path}, line 1 {words}" in told(folder, "--output", tmp_path / "report")
    whole = json.loads((run_folder / "run.json").read_text())
    del whole["sessions"][0]["device"]
    write_json(run_folder / "run.json", whole)
    assert f"{run_folder / 'run.json'} has no 'device'" in told(run_folder)


def test_several_runs_in_the_place_of_an_old_report(run_folder, report_folder, tmp_path, capsys):
    """Side by side under their own names, each line with one colour throughout. A torn last line,
    as a killed or running writer leaves it, is left out with a warning and stays in the file. Of an
    old report what it wrote goes, and nothing else."""
    output = shutil.copytree(report_folder, tmp_path / "report")
    (output / "plot_speed.svg").write_text("of the old one")
    (output / "plot_score1.svg").write_text("of the old one")
    (output / "notes.txt").write_text("mine")
    other = shutil.copytree(run_folder, tmp_path / "other")
    for path in (other / "records").iterdir():
        first, second, *_ = path.read_text().splitlines(keepends=True)
        path.write_text(first + second[:50])
    before = contents(other)
    run_main(REPORT, run_folder, other, "--output", output)
    assert "arm1.jsonl: its last line is torn" in capsys.readouterr().err
    assert contents(other) == before
    assert (output / "plot_speed.svg").read_text() != "of the old one"
    assert not (output / "plot_score1.svg").exists()
    assert (output / "notes.txt").read_text() == "mine"
    arms = table_rows(output, "arms")
    assert [row["run"] for row in arms] == [str(run_folder)] * 6 + [str(other)] * 6
    assert [row["questions"] for row in arms] == [4] * 6 + [1] * 6
    page = Page((output / "index.html").read_text())
    looks = [attrs["style"] for tag, attrs in page.elements if tag == "i"]
    verdicts = [f"background: {color}" for packed in page.data for color in packed["colors"]]
    assert looks[:12] == verdicts and len(set(verdicts)) == 8 and set(looks) == set(verdicts)
    svg = (output / "plot_speed.svg").read_text()
    assert all(look.removeprefix("background: ") in svg for look in verdicts)


def test_a_folder_of_something_else_is_left_alone(run_folder, report_folder, tmp_path):
    """Bugs held down: a project that has a page of its own, or links to another's, counted as an
    old report, and lost all its other files."""
    project, made = tmp_path / "project", tmp_path / "project" / "index.html"
    project.mkdir()
    (project / "thesis.tex").write_text("years of work")
    for own in ("<html>", "\0", None):
        made.write_text(own) if own else made.unlink()
        if not own:
            made.symlink_to(report_folder / "index.html")
        before = contents(project)
        assert "is something else than a report" in told(run_folder, "--output", project)
        assert contents(project) == before


def test_page_stands_alone_and_trusts_no_text(report_folder, page):
    """No element, style or script reaches for anything outside the file; a category and a prompt
    that close scripts and open images stay text."""
    for tag, attrs in page.elements:
        for name in ("src", "href", "xlink:href", "action", "data", "poster", "srcset"):
            assert attrs.get(name, "#").startswith(("#", "data:")), (tag, name)
        assert tag not in ("link", "iframe", "object", "base", "img") and "onerror" not in attrs
    code = " ".join(page.texts["style"] + page.texts["script"][-1:])
    for word in ("http:", "https:", "//cdn", "@import", "fetch(", "innerHTML"):
        assert word not in code
    assert sum(tag == "script" for tag, _ in page.elements) == 2
    (run,) = page.data
    assert run["arms"] == list(ARMS) and run["greedy"] and len(run["questions"]) == 4
    assert run["questions"][0]["prompts"] == [TEXT]
    (turn,) = run["questions"][0]["answers"][list(ARMS).index(FSD)]
    assert turn["repetition"] == repetition(made_run()[FSD][0]["turns"][0]["token_ids"])
    assert TEXT not in (report_folder / "index.html").read_text()


def test_scores_stand_in_tables_verdicts_and_answers(tmp_path):
    """Those of tasks.py first, then a judge's, in the order of the arms; an arm that came later is
    shown without. Answers end in 18, which is right, or in 17; one reference closes a script."""
    draw, records = random.Random(3), made_run()
    for row in (row for rows in records.values() for row in rows):
        row["turns"][0]["text"] += f"The answer is {draw.choice([17, 18])}."
    asked = [Question(i, "", ["?"], ["</script><b>18" if i else "18"]) for i in range(4)]
    folder = write_run(tmp_path / "run", dict(reversed(records.items())))
    with_scores = [arm for arm in ARMS if arm != "fsd:0.4"]
    score_run({arm: records[arm] for arm in with_scores[::-1]}, asked, "last_number", folder)
    judged = {"arm": "exact", "question_id": 0, "choice": 0, "score": "judge gpt-4", "value": 8}
    of_judge = compare_scores([judged, judged | {"arm": "plain", "value": 6}])
    write_json(folder / "judge" / "gpt-4" / "single.json", {"rows": of_judge})
    run_main(REPORT, folder, "--output", tmp_path / "report")
    for number, score in enumerate(("last_number", "as_plain", "judge gpt-4"), 1):
        assert f">{score}</text>" in (tmp_path / "report" / f"plot_score{number}.svg").read_text()
    shown = table_rows(tmp_path / "report", "scores")
    means = {r["arm"]: r["mean"]["value"] for r in shown if r["score"] == "last_number"}
    assert list(means) == with_scores and len(set(means.values())) > 1
    last = [(row["score"], row["arm"], row["mean"]["value"]) for row in shown[-2:]]
    assert last == [("judge gpt-4", "plain", 6), ("judge gpt-4", "exact", 8)]
    page = Page((tmp_path / "report" / "index.html").read_text())
    (packed,) = page.data
    for number, (arm, words) in enumerate(zip(ARMS, page.lines("li"), strict=True)):
        scored = [question["scores"][number] for question in packed["questions"]]
        if arm in means:
            assert words.startswith(f"last_number {means[arm]:.3f}")
            rows = read_lines(folder / "scores" / f"{parse_arm(arm).slug}.jsonl")
            assert [given["scores"] for given in scored] == [row["scores"] for row in rows]
            assert scored[-1]["reference"] == ["</script><b>18"]
        else:
            assert scored == [None] * 4 and "last_number" not in words


def test_notes_are_true_of_their_tables():
    """Of brackets and of what is pooled. Bug held down: with 4 questions the page explained
    brackets that it did not have."""
    for questions in (4, 8):
        for title, table in RunData("", {}, [SESSION], made_run(questions)).tables.items():
            shown, rows, note = table
            cells = " ".join(cell_text(row[key], form) for row in rows for _, key, form in shown)
            assert ("In brackets" in note) == ("[" in cells), title
            assert ("In parentheses" in note) == ("] (" in cells), title
            if any(label.endswith("- plain") for label, _, _ in shown):
                pooled = title == "Equal gain"
                assert ("is a mean over questions" in note) != pooled, title


def test_fuzzy_tokens_are_cut_out_of_the_text():
    """With what the rounds say of them; one that was trimmed is not there."""
    first = {"fuzzy": [0, 1], "regret": [0, 0.5], "divergence": [None, 0.2]}
    last = {"fuzzy": [1, 1], "regret": [0.7, 9], "divergence": [0.1, 0.3]}
    turn = {"text": "abcdef", "fuzzy_spans": [[2, 3], [3, 6]], "rounds": [first, last]}
    assert text_parts(turn) == [
        ["ab", None],
        ["c", {"regret": 0.5, "D": 0.2}],
        ["def", {"regret": 0.7, "D": 0.1}],
    ]


def test_a_thought_is_counted_as_javascript_does_and_of_a_trace_in_tokens():
    turn = {"prompt": "", "text": "\U0001f600 no", "token_ids": [1, 2], "thought": 1}
    turn |= {"rounds": [], "fuzzy_spans": []}
    traced = turn | {"trace": {"first": {"text": ""}, "rounds": [], "thought": 5}}
    record = {"question_id": 1, "category": "", "temperature": 0.0, "turns": [turn, traced]}
    (question,) = write_report.pack_answers(RunData("", {}, [], {"plain": [record]}))["questions"]
    assert [answer["thought"] for answer in question["answers"][0]] == [2, 5]


@pytest.mark.skipif(NODE is None, reason="no node here")
def test_an_arm_of_a_plugin_is_in_the_first_view(tmp_path, monkeypatch):
    """Bug held down: plain, path and fsd stood there, and the rule that --plugin had named in a
    drop-down only."""
    monkeypatch.setitem(RULES, "mine", Random)
    records = made_run() | {f"mine:{share}": made_run()[f"random:{share}"] for share in (0.1, 0.3)}
    run = write_report.pack_answers(RunData("", {}, [SESSION], records))
    script = (Path(write_report.__file__).parent / "page.js").read_text()
    chooses = script[script.index("const fuzzyOf") : script.index("function show(")]
    packed, program = json.dumps(run), "const shown = { arms: [] };"
    program += f"{chooses}\nconst run = {packed}; chooseArms(run, run.questions[0]);"
    program += "console.log(shown.arms.map((index) => run.arms[index]).join())"
    done = subprocess.run([NODE, "-e", program], capture_output=True, text=True, check=True)
    first = done.stdout.strip().split(",")
    assert len(first) == 3 and {"plain", "mine:0.3", "fsd:0.4"} == set(first)


@pytest.mark.skipif(NODE is None, reason="no node here")
def test_a_page_of_one_answer_opens_with_a_tree_that_tells_something():
    """Bug held down: it opened with round 1, whose tree was empty."""
    script = (Path(write_report.__file__).parent / "page.js").read_text()
    program = script[script.index("function tellingRound") : script.index("function show(")]
    exact, fuzzy = ({"source": source} for source in ("hit", "fuzzy"))
    for emitted, first in (([exact, exact, exact], 1), ([exact, exact, fuzzy], 2)):
        rounds = [
            {"emitted": [token], "nodes": [0] * size}
            for token, size in zip(emitted, (1, 7, 5), strict=True)
        ]
        told = f"{program}\nconsole.log(tellingRound({json.dumps(rounds)}))"
        done = subprocess.run([NODE, "-e", told], capture_output=True, text=True, check=True)
        assert int(done.stdout) == first


def test_the_end_of_an_answer_is_none_of_its_text(models):
    """Bug held down: <|im_end|> stood in a traced answer."""
    model = load(str(models[0]), head=None, device="cpu", dtype="float32")
    end = next(iter(model.ends.ids))
    assert traced_token(model, end)["end"] and "end" not in traced_token(model, end + 1)


@pytest.fixture(scope="module")
def traced(tmp_path_factory, models):
    """A report on a run of evaluate/mt_bench.py on a tiny target, with traces."""
    folder = tmp_path_factory.mktemp("traced")
    options = [*bench_options(models, folder), "--questions", 2, "--traces", 1]
    options += ["--arms", "generate", "plain", "fsd:0.6"]
    run_main("evaluate/mt_bench.py", *options)
    run_main(REPORT, folder / "run", "--output", folder / "report")
    return folder


def test_traces_tell_where_tokens_came_from(traced):
    """The page has every answer's text, and of the traced question, but for generate, the trace,
    which repeats its record; sources, path and probabilities agree with its rounds. Bug held down:
    it went on to the end of the last round, beyond what was emitted."""
    found = read_run(traced / "run").records
    (run,) = Page((traced / "report" / "index.html").read_text()).data
    shown, other = (question["answers"] for question in run["questions"])
    assert not any("rounds" in turn for turns in other for turn in turns)
    sources, trimmed = [], 0
    for arm, turns in zip(run["arms"], shown, strict=True):
        for turn, done in zip(turns, found[arm][0]["turns"], strict=True):
            assert "".join(part for part, _ in turn["parts"]) == done["text"]
            if arm == "generate":  # which has no rounds
                assert "rounds" not in turn
                continue
            trace = done["trace"]
            assert (turn["first"], turn["rounds"]) == (trace["first"], trace["rounds"])
            emitted = [e["token"] for r in trace["rounds"] for e in r["emitted"]]
            assert [trace["first"]["token"], *emitted] == done["token_ids"]
            for round_, recorded in zip(trace["rounds"], done["rounds"], strict=True):
                emitted, nodes, path = (round_[key] for key in ("emitted", "nodes", "path"))
                count = len(emitted)
                trimmed += len(recorded["tokens"]) - count
                assert [int(e["source"] == "fuzzy") for e in emitted] == recorded["fuzzy"][:count]
                *drafts, last = (e["source"] for e in emitted)
                assert (last == "target") == (count == len(recorded["tokens"]) == len(path))
                sources += drafts
                for e, known in zip(emitted, recorded["divergence"], strict=False):
                    assert known is None or known == pytest.approx(e["divergence"], abs=2e-6)
                    assert (e["best_prob"] == e["target_prob"]) == (e["regret"] == 0)
                assert len(nodes) == (1 if arm == "plain" else 8) and nodes[0]["parent"] == -1
                for parent, child, e in zip(path, path[1:], emitted, strict=False):
                    assert nodes[child]["parent"] == parent
                    for key in ("token", "target_prob", "draft_prob"):
                        assert nodes[child][key] == e[key]
    assert "fuzzy" in sources and "target" not in sources and trimmed > 0


@pytest.mark.skipif(NODE is None, reason="no node here")
def test_a_box_of_the_tree_says_of_its_token_what_the_text_says(traced):
    """Bug held down: a box showed the D of the place behind its token, by which the next one is
    judged, and the answer's text the D that the token was judged by: .493 here and .468 there."""
    script = write_report.page_file("answer", "js")
    draws = script[script.index("function treeNodes") : script.index("/* Depth goes")]
    found = read_run(traced / "run").records["fsd:0.6"][0]["turns"][0]["trace"]["rounds"]
    program = f"{draws}\nconsole.log(JSON.stringify({json.dumps(found)}.map(treeNodes)))"
    done = subprocess.run([NODE, "-e", program], capture_output=True, text=True, check=True)
    fuzzy = 0
    for made, boxes in zip(found, json.loads(done.stdout), strict=True):
        emitted = [box for box in boxes[1:] if box["mark"]]
        said = [(e["text"], e["divergence"], e["target_prob"]) for e in made["emitted"]]
        assert [(box["word"], box["d"], box["p"]) for box in emitted] == said
        assert [box["mark"] == "next" for box in emitted] == [
            e["source"] == "target" for e in made["emitted"]
        ]
        fuzzy += sum(box["mark"] == "fuzzy" for box in boxes)
        assert all(box["d"] is None for box in boxes if not box["mark"])
    assert fuzzy > 0
