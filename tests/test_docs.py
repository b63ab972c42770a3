"""README and docs say what the commands take, and name what is there."""

import ast
import os
import re
import runpy
import subprocess
from dataclasses import fields, replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from commands import ROOT, option_classes, write_rows
from training_runs import convert

from eagle_fsd.arms import parse_arms
from eagle_fsd.decoding import loop
from eagle_fsd.decoding.columns import PLACES
from eagle_fsd.decoding.divergence import DIVERGENCES, divergence
from eagle_fsd.evaluation.questions import read_questions
from eagle_fsd.heads.files import read_head
from eagle_fsd.rules import RULES
from eagle_fsd.rules.guards import GUARDS
from eagle_fsd.tasks.scorers import check_scorable

DOCS = sorted((ROOT / "docs").glob("*.md"))
RESULTS = sorted((ROOT / "results").glob("**/*.md"))
PAGES = [ROOT / "README.md", ROOT / "extras/README.md", *DOCS, *RESULTS]
# Their commands have rules, guards or options that are gone; the pages name the commit.
EARLIER = {"calibration"}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def commands() -> list[tuple[str, str, list[str]]]:
    """(page, command, its words as the shell expands them) of every command that is shown."""
    found = []
    for page in PAGES:
        if page.parent.name in EARLIER:
            continue
        text = page.read_text().replace("\\\n", " ")
        for command, rest in re.findall(r"^    .*?((?:evaluate|train)/\w+\.py)\b(.*)$", text, re.M):
            shell = ["bash", "-c", f"printf '%s\\n' {rest}"]
            words = subprocess.run(shell, capture_output=True, text=True, check=True, cwd="/")
            found.append((name(page), command, words.stdout.splitlines()))
    return found


@pytest.mark.parametrize("page,command,words", commands())
def test_commands_take_what_is_shown(page, command, words):
    """Options are fields of the command, and arms are arms. A page
    that names a plug-in of extras/ may show its arms."""
    names = {word.removeprefix("--") for word in words if word.startswith("--")}
    assert names <= {field.name for kind in option_classes(command) for field in fields(kind)}
    for option in {"--arm", "--arms"} & set(words):
        place = words.index(option) + 1
        ends = [n for n, word in enumerate(words) if n >= place and word.startswith("-")]
        with patch.dict(RULES), patch.dict(GUARDS), patch.dict(PLACES):
            for plugin in set(re.findall(r"--plugin (extras/\w+\.py)", (ROOT / page).read_text())):
                runpy.run_path(str(ROOT / plugin))
            parse_arms(words[place : min(ends, default=len(words))])


def anchors(page: Path) -> set[str]:
    """The headings' anchors, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_what_is_named_is_there(page):
    """Links, their headings, and paths within backticks that begin with a folder of ours."""
    text = page.read_text()
    for link, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", text):
        assert (page.parent / link).exists(), link
        assert not anchor or anchor in anchors((page.parent / link) if link else page), anchor
    folders = "checkpoints|docs|eagle_fsd|evaluate|extras|results|scripts|tests|train"
    for path in re.findall(rf"`((?:{folders})/[\w./*-]*)`", text):
        assert list(ROOT.glob(path.rstrip("/"))), path


@pytest.mark.parametrize("script", sorted((ROOT / "scripts").glob("*.sh")), ids=name)
def test_scripts_are_started_by_their_names_and_give_options_that_commands_have(script):
    """Bug held down: the two of vLLM, which pages start so, had no right to run."""
    assert os.access(script, os.X_OK)
    text = script.read_text().replace("\\\n", " ")
    for command, words in re.findall(r"((?:evaluate|train)/\w+\.py)(.*)", text):
        known = {field.name for kind in option_classes(command) for field in fields(kind)}
        assert set(re.findall(r"(?<= )--(\w+)", words)) <= known, (command, words)


def test_every_folder_of_results_has_a_readme_that_another_page_links_to():
    linked = set()
    for page in [*DOCS, *RESULTS]:
        links = re.findall(r"\]\((?!http)([^)#]+)", page.read_text())
        linked |= {(page.parent / link).resolve() for link in links} - {page}
    folders = [folder for folder in (ROOT / "results").iterdir() if folder.is_dir()]
    assert folders and {folder / "README.md" for folder in folders} <= linked


def table_rows(text: str) -> list[list[str]]:
    """The cells of every row of Markdown tables, without emphasis."""
    rows = re.findall(r"^ *\|(.+)\| *$", text, re.M)
    return [[cell.strip().replace("**", "") for cell in row.split("|")] for row in rows]


def rows_with_sources() -> list[tuple[str, list[str]]]:
    """(folders, cells) of every row of those tables in the README that name their source."""
    tables = re.findall(
        r"<!-- numbers from: (.+?) -->\n((?:\|.*\n)+)", (ROOT / "README.md").read_text()
    )
    return [(folders, cells) for folders, table in tables for cells in table_rows(table)[2:]]


@pytest.mark.parametrize("folders,cells", rows_with_sources())
def test_the_numbers_of_the_readme_are_those_of_results(folders, cells):
    """In each folder the row is looked for that has most of the numbers; together they have all.
    A row is of the same arm if a cell of it is the arm, on hybrid trees or not."""
    arms = set(re.findall("`([^`]+)`", " ".join(cells[:2]))) or set(cells[:2])
    arms |= {arm.removesuffix("@hybrid") for arm in arms} if "speed" not in folders else set()
    left = {cell for cell in cells if re.search(r"\d\.\d", cell) and "`" not in cell}
    assert left, "a row without numbers"
    for folder in folders.split():
        text = "\n".join(page.read_text() for page in (ROOT / folder).glob("*.md"))
        same = [
            row
            for row in table_rows(text)
            if arms & {cell.strip("`").partition(", ")[0] for cell in row}
        ]
        same += [row for row in table_rows(text) if any(f"{arm}@hybrid" in row for arm in arms)]

        def found(row: list[str], wanted: set[str] = left) -> set[str]:
            return {
                cell
                for cell in wanted
                if any(re.match(rf"{re.escape(cell)}(?![\d.])", other) for other in row)
            }

        left = left - max(map(found, same), key=len, default=set())
    assert not left, f"{left} is in no row of {arms} in {folders}"


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\d+\.\d+", text))


def test_the_numbers_of_the_readme_s_sentences_are_those_of_results():
    """What has a decimal point, in no table, program or link; but for versions."""
    readme = (ROOT / "README.md").read_text()
    prose = re.sub(
        r"```.*?```|^ {4}.*?$|^\|.*?$|`[^`]*`|\]\([^)]*\)", "", readme, flags=re.M | re.S
    )
    known = set().union(*(numbers(page.read_text()) for page in RESULTS))
    assert numbers(prose) - known <= {"3.11"}


def test_the_loop_of_the_readme_is_the_loop():
    """decoding/loop.py's, but for comments, its lock and assert, and what it hands out."""

    def statements(source: str) -> list[str]:
        (body,) = (node.body for node in ast.walk(ast.parse(source)) if isinstance(node, ast.While))
        body = body[0].body if isinstance(body[0], ast.With) else body
        kept = [node for node in body if not isinstance(node, ast.Assert | ast.Expr)]
        return [ast.unparse(node) for node in kept]

    (shown,) = re.findall(r"```python\n(while .*?)```", (ROOT / "README.md").read_text(), re.S)
    source = Path(loop.__file__).read_text()
    assert statements(shown) == statements(source[source.index("def decode_rounds") :])


def test_the_questions_shown_can_be_asked_and_scored(tmp_path):
    lines = re.findall(r"^ +(\{.*)$", (ROOT / "docs/evaluate.md").read_text(), re.M)
    (tmp_path / "mine.jsonl").write_text("\n".join(lines))
    questions = read_questions(tmp_path / "mine.jsonl")
    assert len(questions) == 3
    questions = [replace(question, turns=question.turns[:1]) for question in questions]
    check_scorable(questions, "contains")


def test_the_divergences_of_the_page_of_rules_are_the_library_s():
    """A row of the table: a target's and a draft's probabilities, and each divergence of them."""
    _, _, table = (ROOT / "docs" / "rules.md").read_text().partition("\n| target |")
    table, _, _ = table.partition("\n\n")
    header, _, *lines = table.splitlines()
    _, *names = [cell.strip() for cell in header.strip("| ").split("|")]
    assert set(names) == set(DIVERGENCES) and len(lines) == 5
    for line in lines:
        target, draft, *shown = [cell.strip() for cell in line.strip("| ").split(" | ")]
        logits = [
            torch.tensor([float(p) for p in row.split(", ")]).log() for row in (target, draft)
        ]
        for name, value in zip(names, shown, strict=True):
            half_a_digit = 0.5 * 10 ** -len(value.partition(".")[2])
            computed = divergence(name, *logits).item()
            assert computed == pytest.approx(float(value), abs=half_a_digit * 1.01), (name, target)


def test_the_command_that_makes_the_shipped_head_whole(tmp_path, monkeypatch):
    """docs/rules.md's: the weights stay, and no divergence is infinite by the draft vocabulary."""
    place = ("docs/rules.md", "train/convert_head.py")
    (words,) = [words for *where, words in commands() if tuple(where) == place]
    data = write_rows(tmp_path / "data.jsonl", {"input_ids": [1, 2, 3], "loss_mask": [0, 0, 1]})
    given = {"runs/whole": tmp_path / "whole", "DATA": data}
    assert given.keys() <= {*words}
    monkeypatch.chdir(ROOT)
    convert(*(given.get(word, word) for word in words))
    paths = "checkpoints/smollm2-135m-eagle2", tmp_path / "whole"
    (shipped, _), (whole, _) = map(read_head, paths)
    assert shipped.draft_token_R is not None and whole.draft_token_R is None
    for name, weight in shipped.named_parameters():
        assert torch.equal(weight, whole.get_parameter(name))
