"""README and docs say what the commands take, and name what is there."""

import re
import subprocess
from dataclasses import fields, replace
from pathlib import Path

import pytest
from commands import ROOT, option_classes

import eagle_fsd
from eagle_fsd.arms import parse_arms
from eagle_fsd.evaluation.metrics import METRICS
from eagle_fsd.evaluation.questions import read_questions
from eagle_fsd.tasks.scorers import check_scorable

DOCS = sorted((ROOT / "docs").glob("*.md"))
RESULTS = sorted((ROOT / "results").glob("**/*.md"))
PAGES = [ROOT / "README.md", *DOCS, *RESULTS]
# Their commands have rules and guards that the library no longer has; the pages name the commit.
EARLIER = {"harm_signals", "rules_temperature_1"}


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
    """Options are fields of the command, and arms are arms; lm-eval's options are its own."""
    names = {word.removeprefix("--") for word in words if word.startswith("--")}
    if command != "evaluate/harness.py":
        assert names <= {field.name for kind in option_classes(command) for field in fields(kind)}
    for option in {"--arm", "--arms"} & set(words):
        place = words.index(option) + 1
        ends = [n for n, word in enumerate(words) if n >= place and word.startswith("-")]
        parse_arms(words[place : min(ends, default=len(words))])


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_what_is_named_is_there(page):
    """Links, and paths within backticks that begin with a folder of ours."""
    text = page.read_text()
    for link in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (page.parent / link).exists(), link
    folders = "checkpoints|docs|eagle_fsd|evaluate|results|scripts|tests|train"
    for path in re.findall(rf"`((?:{folders})/[\w./*-]*)`", text):
        assert list(ROOT.glob(path.rstrip("/"))), path


def anchors(page: Path) -> set[str]:
    """The headings' anchors, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*DOCS, *RESULTS], ids=name)
def test_an_anchor_is_a_heading_of_the_page_that_is_linked(page):
    for link, anchor in re.findall(r"\]\((?!http)([^)#]*)#([^)]+)\)", page.read_text()):
        assert anchor in anchors((page.parent / link) if link else page), f"{link}#{anchor}"


def test_every_folder_of_results_has_a_readme_that_another_page_links_to():
    linked = set()
    for page in [*DOCS, *RESULTS]:
        links = re.findall(r"\]\((?!http)([^)#]+)", page.read_text())
        linked |= {(page.parent / link).resolve() for link in links} - {page}
    folders = [folder for folder in (ROOT / "results").iterdir() if folder.is_dir()]
    assert folders and {folder / "README.md" for folder in folders} <= linked


def test_the_readme_is_two_screens():
    assert len((ROOT / "README.md").read_text().split()) <= 900


def test_the_questions_shown_can_be_asked_and_scored(tmp_path):
    lines = re.findall(r"^    (\{.*)$", (ROOT / "README.md").read_text(), re.M)
    (tmp_path / "mine.jsonl").write_text("\n".join(lines))
    questions = read_questions(tmp_path / "mine.jsonl")
    assert len(questions) == 3
    questions = [replace(question, turns=question.turns[:1]) for question in questions]
    check_scorable(questions, "contains")


def test_the_glossary_is_the_library_s():
    """All words of the package, and every column."""
    glossary = (ROOT / "docs/glossary.md").read_text()
    words = re.findall(r"^([a-z_]+(?: token)?) +|(?<=  )(\w+):", eagle_fsd.__doc__, re.M)
    for word in map("".join, words):
        assert word in glossary, word
    columns = [f"| {key} | {m.label} | {m.meaning} |" for key, m in METRICS.items()]
    assert "\n".join(columns) in glossary, f"in docs/glossary.md: {columns}"
