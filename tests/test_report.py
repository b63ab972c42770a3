"""The report: it says what the records say, its page stands alone and trusts no answer, and
damaged or foreign folders are told, changed by nothing."""

import copy
import functools
import json
import operator
import os
import random
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from commands import load_command
from hand_records import ARMS, TEXT, made_run, write_run
from tiny_folder import write_random_head, write_target

from eagle_fsd.arms import parse_arm
from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.metrics import METRICS, by_category, summarize
from eagle_fsd.evaluation.questions import Question
from eagle_fsd.evaluation.record_numbers import rounds_of
from eagle_fsd.evaluation.report import write_report
from eagle_fsd.evaluation.report.answer_data import pack_answers, text_parts
from eagle_fsd.evaluation.report.read_runs import read_run
from eagle_fsd.evaluation.report.report_tables import note_of, run_tables
from eagle_fsd.evaluation.report.run_data import RunData
from eagle_fsd.evaluation.tables import cell_text
from eagle_fsd.runs.jsonl import read_lines, write_json, write_lines
from eagle_fsd.tasks.task_scores import (
    compare_scores,
    pairwise_rows,
    score_run,
    single_rows,
    write_table,
)

REPORT = load_command("evaluate/report.py")
CHROMIUM, NODE = shutil.which("chromium"), shutil.which("node")
FSD = "fsd:0.2"

pytestmark = pytest.mark.processes  # long: pages and plots are drawn


@pytest.fixture
def run_folder(tmp_path):
    return write_run(tmp_path / "run", made_run())


@pytest.fixture(scope="module")
def report_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    REPORT.main([str(write_run(folder / "run", made_run())), "--output", str(folder / "report")])
    return folder / "report"


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def told(*arguments: object) -> str:
    """The error of a report that is refused."""
    with pytest.raises(SystemExit) as exit:
        REPORT.main(list(map(str, arguments)))
    return str(exit.value.code)


class Page(HTMLParser):
    """Fails on what is not closed."""

    VOID = {"meta", "img", "br", "link", "input"}

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict]] = []
        self.texts: dict[str, list[str]] = {}
        self.in_sight: list[str] = []  # arms with a verdict, those that are not folded
        self.feed(text)
        assert not self.open, f"not closed: {self.open}"
        self.data: list[dict] = json.loads(self.texts["script"][0])

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)
        if self.open[-1:] == ["code"] and "details" not in self.open:
            self.in_sight.append(data)


@pytest.fixture(scope="module")
def page(report_folder):
    return Page((report_folder / "index.html").read_text())


def test_tables_are_those_of_the_records(report_folder, page):
    """JSON, CSV and page hold the rows that summarize makes of the records."""
    records = made_run()
    rows = summarize(records)
    found = json.loads((report_folder / "report.json").read_text())["tables"]
    assert [{key: mine[key] for key in rows[0]} for mine in found["arms"]] == rows
    categories = by_category(records)
    assert [{k: row[k] for k in categories[0]} for row in found["by_category"]] == categories
    assert found.keys() == {"arms", "by_category", "equal_speed"}
    lines = (report_folder / "tables" / "arms.csv").read_text().splitlines()
    assert [line.split(",")[1] for line in lines[1:]] == list(ARMS)
    shown = [text.strip() for text in page.texts["td"]]
    assert all(f"{row['tokens_per_round']['value']:.2f}" in shown for row in rows)


def test_page_opens_with_the_answer(page):
    """A verdict on every arm, the plots, the answers, a table of at most 7 columns; the rest is
    folded, with origins; columns are explained on hover."""
    order = [attrs.get("class") or attrs.get("id") or tag for tag, attrs in page.elements]
    places = [order.index(name) for name in ("verdicts", "figure", "answers", "table", "details")]
    assert places == sorted(places)
    assert page.texts["code"] == list(ARMS)
    assert len([tag for tag, _ in page.elements if tag == "svg"]) == 3  # two plots and a tree
    heads = [i for i, (tag, _) in enumerate(page.elements) if tag == "th"]
    first = next(i for i, (tag, _) in enumerate(page.elements) if tag == "tbody")
    assert sum(i < first for i in heads) == 7
    assert ("th", {"title": METRICS["regret_per_token"].meaning, "tabindex": "0"}) in page.elements
    words = " ".join(page.texts["pre"] + page.texts["p"])
    assert all(part in words for part in ("commit abc", "a machine", "'torch': '9.9'"))


def judged(**verdicts: list) -> list[dict]:
    """Of first turns of questions 0, 1, ...; of a pair one for each order."""
    return [
        {"arm": arm, "category": "a", "choice": 0, "turn": 1}
        | {"question_id": question, "game": game, "verdict": verdict, "value": verdict}
        for arm, answers in verdicts.items()
        for question, games in enumerate(answers)
        for game, verdict in enumerate(games, start=1)
    ]


def test_scores_of_tasks_and_judges(run_folder, tmp_path):
    """The rows that tasks.py and judge.py have written, with McNemar's test, in the arms' order."""
    (run_folder / "scores").mkdir()
    right = judged(plain=[[1], [1], [0], [1]], exact=[[0], [0], [1], [1]])
    scores = compare_scores([row | {"score": "right"} for row in right])
    write_table(run_folder / "scores" / "table", "", scores)
    folder = run_folder / "judge" / "gpt-4"
    folder.mkdir(parents=True)
    alone = judged(exact=[[8], [9]], plain=[[6], [6]])
    write_json(folder / "single.json", {"rows": single_rows(alone, judge="gpt-4")})
    pairs = judged(**{FSD: ["AB", "AA"], "exact": [["tie", "tie"]]})
    pairs = pairwise_rows(pairs, judge="gpt-4", baseline="plain")
    write_json(folder / "pairwise_plain.json", {"rows": pairs})
    REPORT.main([str(run_folder), "--output", str(tmp_path / "report")])
    tables = json.loads((tmp_path / "report" / "report.json").read_text())["tables"]
    found = [(row["score"], row["arm"], row["mean"]["value"]) for row in tables["scores"]]
    of_judge = [("judge gpt-4", "plain", 6), ("judge gpt-4", "exact", 8.5)]
    by_turn = [(f"{score}, turn 1", arm, mean) for score, arm, mean in of_judge]
    assert found == [("right", "plain", 0.75), ("right", "exact", 0.5), *of_judge, *by_turn]
    assert [tables["scores"][1][key] for key in ("gained", "lost", "mcnemar_p")] == [1, 2, 1.0]
    assert tables["scores"][1]["vs_plain"]["value"] == -0.25
    pairs = [(row["baseline"], row["arm"], row["adjusted"]["value"]) for row in tables["pairwise"]]
    assert pairs == [("plain", "exact", 0.5), ("plain", FSD, 0.75)]
    (folder / "single.json").write_text("{")
    assert "single.json is damaged" in told(run_folder, "--output", tmp_path / "report")


def test_mixed_and_sharded_sessions_are_told(run_folder):
    """Several sessions, other hardware, and times that are none: no speed is given then."""
    settings = json.loads((run_folder / "run.json").read_text())
    second = settings["sessions"][0] | {"session": "2", "device": "another", "commit": "abc+"}
    settings["sessions"].append(second | {"timed": False, "warnings": ["the machine is busy"]})
    write_json(run_folder / "run.json", settings)
    path = run_folder / "records" / "arm1.jsonl"
    write_lines(path, [row | {"session": "2"} for row in read_lines(path)[:3]])
    run = read_run(run_folder)
    doubts = " ".join(run.doubts())
    for words in ("3 of 4", "uncommitted", "busy", "no speed", "exact 3"):
        assert words in doubts
    assert run.rows[1]["speed_vs_plain"]["value"] is None
    assert run.origin("device") == "a machine / another"


def test_versions_that_changed_between_sessions_are_told(run_folder):
    """Bug held down: records made by two releases of torch were compared without a word."""
    settings = json.loads((run_folder / "run.json").read_text())
    second = settings["sessions"][0] | {"session": "2", "versions": {"torch": "9.10"}}
    settings["sessions"].append(second)
    write_json(run_folder / "run.json", settings)
    assert not read_run(run_folder).doubts()  # no record is of the second
    path = run_folder / "records" / "arm1.jsonl"
    write_lines(path, [row | {"session": "2"} for row in read_lines(path)])
    (doubt,) = (doubt for doubt in read_run(run_folder).doubts() if "torch" in doubt)
    assert doubt.startswith("torch was changed") and doubt.endswith("versions 9.9 and 9.10")


def places(value, path: tuple = ()) -> list[tuple]:
    """Of everything in a JSON-able value, but itself."""
    pairs = value.items() if isinstance(value, dict) else []
    pairs = enumerate(value) if isinstance(value, list) else pairs
    return [p for key, of in pairs for p in [(*path, key), *places(of, (*path, key))]]


def test_a_record_that_lacks_a_field_is_told_by_file_and_line(tmp_path):
    """Or is read as if nothing were missing, where the report does not read that field."""
    folder = write_run(tmp_path / "run", made_run(2, rounds=3))
    path, told = folder / "records" / "arm2.jsonl", set()
    good, last = read_lines(path)
    tables = run_tables(read_run(folder))
    for *parents, field in places(last):
        if isinstance(field, str):
            row = copy.deepcopy(last)
            del functools.reduce(operator.getitem, parents, row)[field]
            write_lines(path, [good, row])
            try:
                assert run_tables(read_run(folder)) == tables
            except BadInput as error:
                assert f"{path}, line 2, " in str(error) and f"{field} is None" in str(error)
                told.add(field)
    assert told >= {"turns", "rounds", "token_ids", "seconds", "fuzzy", "regret", "category"}


@pytest.mark.parametrize("line", ["[1]", "3", "null", '{"question_id": 1, "turns": 2}', "{"])
def test_a_line_of_another_kind_is_told_by_file_and_line(run_folder, line):
    path = run_folder / "records" / "arm2.jsonl"
    first, *more = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first, line + "\n", *more]))
    with pytest.raises(BadInput, match="arm2.jsonl, line 2"):
        read_run(run_folder)


def test_a_run_whose_name_is_no_text_is_refused(tmp_path):
    """Bug held down: a traceback, after everything had been computed."""
    folder = write_run(tmp_path / os.fsdecode(b"run\xff"), made_run(2))
    assert "give UTF-8 text" in told(folder, "--output", tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_damaged_sessions_and_traces_are_told(run_folder):
    (run_folder / "traces").mkdir()
    write_lines(run_folder / "traces" / "arm2.jsonl", [{"question_id": 0, "arm": FSD}])
    with pytest.raises(BadInput, match=r"arm2.jsonl, line 1, turns is .* damaged"):
        read_run(run_folder)
    shutil.rmtree(run_folder / "traces")
    whole = json.loads((run_folder / "run.json").read_text())
    del whole["sessions"][0]["device"]
    write_json(run_folder / "run.json", whole)
    with pytest.raises(BadInput, match=r"run.json, sessions 0, device is .* damaged"):
        read_run(run_folder)


def test_several_runs_one_torn_and_of_one_question(run_folder, report_folder, tmp_path, capsys):
    """Side by side under their own names. A torn last line, as a killed or running writer leaves
    it, is left out with a warning and stays in the file. Of an old report nothing stays."""
    output = shutil.copytree(report_folder, tmp_path / "report")
    (output / "tables" / "scores.csv").write_text("of the old one")
    other = shutil.copytree(run_folder, tmp_path / "other")
    for path in (other / "records").iterdir():
        first, second, *_ = path.read_text().splitlines(keepends=True)
        path.write_text(first + second[:50])
    before = contents(other)
    REPORT.main([str(run_folder), str(other), "--output", str(output)])
    assert "arm1.jsonl: its last line is torn" in capsys.readouterr().err
    assert contents(other) == before and not (output / "tables" / "scores.csv").exists()
    arms = json.loads((output / "report.json").read_text())["tables"]["arms"]
    assert [row["run"] for row in arms] == [str(run_folder)] * 6 + [str(other)] * 6
    assert [row["questions"] for row in arms] == [4] * 6 + [1] * 6
    Page((output / "index.html").read_text())


def test_a_folder_of_something_else_is_left_alone(run_folder, tmp_path):
    """Bug held down: a project that has a report.json of its own counted as an old report, and lost
    all its other files with status 0."""
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (project / "src" / "thesis.tex").write_text("years of work")
    for own in ("{}", '{"runs": [], "warnings": [], "tables": {}}', "[1]", "no JSON"):
        (project / "report.json").write_text(own)
        before = contents(project)
        assert "is something else than a report" in told(run_folder, "--output", project)
        assert contents(project) == before


def test_a_linked_report_is_none_and_an_older_one_is_told(run_folder, report_folder, tmp_path):
    """Bugs held down: a folder that links to another's report.json was replaced as a report, and
    nothing said what to do about a report that an older version made."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "index.html").write_text("my own page")
    (project / "report.json").symlink_to(report_folder / "report.json")
    assert "of an older version: delete it" in told(run_folder, "--output", project)
    assert (project / "index.html").read_text() == "my own page"


@pytest.mark.parametrize("own", ["tables", "index.html", "plot.pdf", "tables/pairwise.csv"])
def test_a_report_that_cannot_be_put_in_place_changes_nothing(
    run_folder, report_folder, tmp_path, own
):
    """Bug held down: what stands before somebody's file or folder was replaced all the same."""
    output = shutil.copytree(report_folder, tmp_path / "report")
    if own == "tables":
        shutil.rmtree(output / own)
        (output / own).write_text("mine")
    else:
        (output / own).unlink(missing_ok=True)
        (output / own).mkdir()
    (output / "plot.svg").write_text("of the old one")
    before = sorted(output.rglob("*")), contents(output)
    (tmp_path / "link").symlink_to(output)
    for folder in (output, tmp_path / "link"):
        assert f"{folder / own} is" in told(run_folder, "--output", folder)
    assert (sorted(output.rglob("*")), contents(output)) == before


def test_only_what_a_report_writes_is_replaced(run_folder, report_folder, tmp_path):
    """Notes beside a report stay, and so does what links in it lead to. Bug held down: they were
    removed, and a link to a folder ended this call and all later ones in a traceback."""
    output = shutil.copytree(report_folder, tmp_path / "report")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "arms.csv").write_text("of somebody else")
    (output / "notes.txt").write_text("mine")
    (output / "link").symlink_to(elsewhere)
    shutil.rmtree(output / "tables")
    for name in ("tables", ".unfinished"):
        (output / name).symlink_to(elsewhere)
    before = contents(elsewhere)
    for _ in range(2):
        REPORT.main([str(run_folder), "--output", str(output)])
        assert contents(elsewhere) == before and (output / "link").is_symlink()
        assert (output / "notes.txt").read_text() == "mine"
        assert (output / "tables" / "arms.csv").read_bytes().startswith(b"run,arm")
        assert not (output / ".unfinished").exists()


def test_curves_stand_under_the_names_that_were_given(tmp_path, monkeypatch):
    """Literally. Bug held down: a folder with two dollars was set as a formula, or ended in a
    traceback, and the curves of one that begins with _ were left out of the legend."""
    monkeypatch.chdir(tmp_path)
    names = ["_run", r"d$\foo$", "b$", "a_{b}"]
    for name in names:
        write_run(Path(name), made_run(1))
    REPORT.main([*names, "--output", "report"])
    drawn = Path("report/plot.svg").read_text()
    assert all(f">{name}: fsd: 0.2, 0.4</text>" in drawn for name in names)


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
    (policy,) = (attrs["content"] for _, attrs in page.elements if "http-equiv" in attrs)
    assert "default-src 'none'" in policy
    assert sum(tag == "script" for tag, _ in page.elements) == 2
    (run,) = page.data
    assert run["arms"] == list(ARMS) and run["greedy"] and len(run["questions"]) == 4
    assert run["questions"][0]["prompts"] == [TEXT]
    assert TEXT not in (report_folder / "index.html").read_text()
    assert (report_folder / "index.html").stat().st_size < 300_000


def reported(folder: Path, records: dict[str, list[dict]]) -> Page:
    REPORT.main([str(write_run(folder / "run", records)), "--output", str(folder / "report")])
    return Page((folder / "report" / "index.html").read_text())


def scored_run(folder: Path) -> Path:
    """Four questions whose answers end in 18, which is right, or in 17; one reference closes a
    script and an element."""
    draw, records = random.Random(3), made_run()
    for row in (row for rows in records.values() for row in rows):
        row["turns"][0]["text"] += f"The answer is {draw.choice([17, 18])}."
    asked = [Question(i, "", ["?"], ["</script><b>18" if i else "18"]) for i in range(4)]
    write_run(folder, records)
    score_run(records, asked, "last_number", folder)
    return folder


def test_a_report_of_a_task_begins_with_the_score(tmp_path):
    """Of every verdict, and of the tables; also without the scores of an arm that came later."""
    folder = scored_run(tmp_path / "run")
    table = json.loads((folder / "scores" / "table.json").read_text())["rows"]
    means = {row["arm"]: row["mean"]["value"] for row in table if row["score"] == "last_number"}
    assert len(set(means.values())) > 1
    REPORT.main([str(folder), "--output", str(tmp_path / "report")])
    page = Page((tmp_path / "report" / "index.html").read_text())
    verdicts = [text.strip() for text in page.texts["li"] if text.strip()]
    for verdict, mean in zip(verdicts, means.values(), strict=True):
        assert verdict.startswith(f"last_number {mean:.3f}")
    assert page.texts["h2"][0] == "Scores"
    assert next(iter(run_tables(read_run(folder)))) == "Scores"
    later = [row for row in table if row["arm"] != FSD]
    write_json(folder / "scores" / "table.json", {"rows": later})
    assert read_run(folder).score_of(FSD) is None


def test_answers_bear_their_scores_and_references(tmp_path):
    """Those of scores/ARM.jsonl; a damaged one is named, and an arm without is shown without."""
    folder = scored_run(tmp_path / "run")
    packed = pack_answers(read_run(folder))
    for number, arm in enumerate(packed["arms"]):
        for question, record in zip(packed["questions"], made_scores(folder, arm), strict=True):
            assert question["scores"][number]["scores"] == record["scores"]
    last = packed["questions"][-1]["scores"]
    assert all(scored["reference"] == ["</script><b>18"] for scored in last)
    path = folder / "scores" / "exact.jsonl"
    path.unlink()
    questions = pack_answers(read_run(folder))["questions"]
    assert all(question["scores"][1] is None for question in questions)
    write_lines(path, [{"question_id": 0}])
    with pytest.raises(BadInput, match=r"exact.jsonl, line 1, scores is .* damaged"):
        read_run(folder)


def made_scores(folder: Path, arm: str) -> list[dict]:
    return read_lines(folder / "scores" / f"{parse_arm(arm).slug}.jsonl")


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_browser_marks_answers_right_or_wrong_beside_the_reference(tmp_path):
    folder = scored_run(tmp_path / "run")
    REPORT.main([str(folder), "--output", str(tmp_path / "report")])
    packed = pack_answers(read_run(folder))
    marks = set()
    for number, question in enumerate(packed["questions"]):
        page = in_browser(tmp_path / "report", tmp_path / "profile", f"#q=0/{number}")
        words = {attrs.get("class") for tag, attrs in page.elements if tag == "strong"}
        shown = [text for text in page.texts["strong"] if text[2:] in ("right", "wrong")]
        assert len(shown) == 3 and {text[2:] for text in shown} == words & {"right", "wrong"}
        references = [text for text in page.texts["span"] if text.startswith("Reference: ")]
        assert references == [f"Reference: {question['scores'][0]['reference'][0]}"] * 3
        scores = [
            dict(text.split() for text in part.strip("()").split(", "))
            for part in page.texts["span"]
            if part.startswith("(last_number")
        ]
        for mark, score in zip(shown, scores, strict=True):
            assert {"1": "right", "0": "wrong"}[score["last_number"]] == mark[2:]
        marks |= set(shown)
    assert len(marks) == 2


def test_the_rule_path_is_never_folded_away(tmp_path):
    """Bug held down: with more than ten arms path stood among those that are folded, behind fsd."""
    records = made_run()
    names = [f"fsd:{n / 100:g}" for n in range(1, 12)] + ["path:0.5", "path:0.9,no_repeat=3"]
    records |= {arm: records[FSD] for arm in names}
    records = {arm: [row | {"arm": arm} for row in rows] for arm, rows in records.items()}
    page = reported(tmp_path, records)
    assert set(page.texts["code"]) == set(records)
    assert {"path:0.5", "path:0.9,no_repeat=3"} <= set(page.in_sight) < set(records)


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_browser_shows_path_beside_fsd_and_plain(tmp_path):
    records = made_run()
    records |= {"path:0.5": [row | {"arm": "path:0.5"} for row in records[FSD]]}
    reported(tmp_path, records)
    page = in_browser(tmp_path / "report", tmp_path / "profile")
    chosen = [attrs["data-arm"] for _, attrs in page.elements if "data-arm" in attrs]
    assert sorted(chosen) == ["fsd:0.4", "path:0.5", "plain"]


def test_few_questions_are_too_few_to_rank_and_no_interval_is_claimed(tmp_path):
    """Bug held down: with 4 questions the page explained bars and brackets that it did not have."""
    for questions, few in ((4, True), (8, False)):
        page = reported(tmp_path / str(questions), made_run(questions))
        of_arms = [text for text in page.texts["p"] if text.startswith("A column whose title")]
        text = " ".join([of_arms[0], *page.texts["figcaption"]])
        assert ("4 questions are too few to rank arms" in text) == few
        for words in ("Bars are 95 % intervals", "In parentheses stands"):
            assert (words in text) != few
        for title, table in run_tables(read_run(tmp_path / str(questions) / "run")).items():
            shown, rows = table
            cells = " ".join(cell_text(row[key], form) for row in rows for _, key, form in shown)
            assert ("In brackets" in note_of(title, table)) == ("[" in cells), title


def test_a_page_says_why_it_has_no_plot(tmp_path):
    records = {arm: rows for arm, rows in made_run().items() if arm != "exact"}
    page = reported(tmp_path, records)
    captions = [text for text in page.texts["figcaption"] if text.strip()]
    assert captions[0].startswith("There is no plot of gain") and "add exact" in captions[0]
    assert captions[1].startswith("Each point is an arm")


def test_tables_say_whether_their_columns_are_pooled():
    """Arms, Cost and Answers have both sorts side by side; at equal speed all are pooled."""
    tables = run_tables(RunData("", {}, [{"session": "1", "timed": True}], made_run()))
    for title, table in tables.items():
        labels = [label for label, _, _ in table[0]]
        if any(label.endswith("- plain") for label in labels):
            note = note_of(title, table)
            all_pooled = title == "Equal speed"
            assert ("All columns are pooled" in note) == all_pooled, title
            assert ("is a mean over questions" in note and "pooled" in note) != all_pooled, title


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


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """A report on a run of evaluate/mt_bench.py on a tiny target, with traces."""
    folder = tmp_path_factory.mktemp("traced")
    target, head = write_target(folder / "target"), write_random_head(folder / "head")
    questions = [{"question_id": i, "category": "a", "turns": [f"Say {i}."]} for i in range(2)]
    write_lines(folder / "question.jsonl", questions)
    options = ["--target", target, "--head", head, "--question_file", folder / "question.jsonl"]
    options += ["--tree", "7x3x3", "--max_new_tokens", 12, "--dtype", "float32", "--traces", 1]
    options += ["--arms", "generate", "plain", "exact", "fsd:0.6", "--output", folder / "run"]
    load_command("evaluate/mt_bench.py").main(list(map(str, options)))
    REPORT.main([str(folder / "run"), "--output", str(folder / "report")])
    return folder


def test_traces_are_the_records_rounds(traced):
    """The page has the text of every answer, and the rounds of the traced question's."""
    (run,) = Page((traced / "report" / "index.html").read_text()).data
    assert run["arms"] == ["plain", "generate", "exact", "fsd:0.6"]
    traced_question, other = run["questions"]
    assert not any("rounds" in answer[0] for answer in other["answers"])
    found = read_run(traced / "run")
    for arm, (turn,) in zip(run["arms"], traced_question["answers"], strict=True):
        record = found.records[arm][0]
        assert "".join(part for part, _ in turn["parts"]) == record["turns"][0]["text"]
        if arm != "generate":
            (trace,) = found.traces[arm]
            assert turn["rounds"] == trace["turns"][0]["rounds"]
            assert len(turn["rounds"]) == len(rounds_of(record)) > 0
            emitted = [e for r in turn["rounds"] for e in r["emitted"]]
            assert 1 + len(emitted) == turn["tokens"]


@pytest.mark.skipif(NODE is None, reason="no node here")
def test_a_box_of_the_tree_says_of_its_token_what_the_text_says(traced):
    """Bug held down: a box showed the D of the place behind its token, by which the next one is
    judged, and the answer's text the D that the token was judged by: .493 here and .468 there."""
    script = (Path(write_report.__file__).parent / "page.js").read_text()
    draws = script[script.index("function treeNodes") : script.index("/* Depth goes")]
    found = read_run(traced / "run").traces["fsd:0.6"][0]["turns"][0]["rounds"]
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


def in_browser(report: Path, profile: Path, place: str = "") -> Page:
    """The page as a browser has it once its script has run."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    options += ["--disable-background-networking", f"--user-data-dir={profile}", "--dump-dom"]
    url = f"file://{report}/index.html{place}"
    command = [CHROMIUM, *options, "--virtual-time-budget=2000", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return Page(done.stdout[done.stdout.index("<html") :])


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_browser_draws_answers_and_the_tree_of_a_round(traced, tmp_path):
    """A link to a round opens its tree: a box for every node and one for the target's own token;
    three answers stand side by side, fuzzy tokens marked. One plot is in sight, the other one to
    choose."""
    drawn = in_browser(traced / "report", tmp_path, "#q=0/0&arm=3&turn=0&round=1")
    plots = ["hidden" in attrs for tag, attrs in drawn.elements if tag == "figure"]
    assert plots == [False, True]
    assert {"gain in tokens per round", "tokens per second"} <= set(drawn.texts["option"])
    classes = [attrs.get("class") for _, attrs in drawn.elements]
    assert classes.count("column") == 3 and classes.count("prompt") == 1
    fuzzy = [attrs for _, attrs in drawn.elements if "token fuzzy" in (attrs.get("class") or "")]
    assert any("exact would have emitted" in attrs.get("data-tip", "") for attrs in fuzzy)
    tree = [i for i, (_, attrs) in enumerate(drawn.elements) if attrs.get("id") == "tree"][0]
    assert sum(tag == "g" for tag, _ in drawn.elements[tree:]) == 1 + 7 + 1
    assert any("round 2 of" in text for text in drawn.texts["strong"])


def test_same_work_is_that_of_the_same_rounds():
    """Other tokens, or the same in other rounds, or by another drafter, are other work."""

    def answer(seconds: float, *rounds: list[int]) -> list[dict]:
        turn = {"seconds": seconds, "rounds": [{"tokens": tokens} for tokens in rounds]}
        return [{"question_id": 1, "session": "1", "turns": [turn]}]

    records = {
        "plain": answer(9.0, [1, 2]),
        "exact": answer(2.0, [1, 2]),
        "fsd:0.1": answer(3.0, [1, 2]),
        "fsd:0.2": answer(5.0, [1, 3]),
        "fsd:0.3": answer(5.0, [1], [2]),
        "fsd:0.3@eagle:7x3x4": answer(5.0, [1, 2]),
    }
    run = RunData("", {}, [], records)
    assert run.same_work == [0.5] and run.noise == 0.5
    assert "1 answer was made by several arms" in run.noise_note()
    assert "took 50 % longer than the fastest in the median" in run.noise_note()
    assert RunData("", {}, [], {"plain": records["plain"]}).noise == 0
