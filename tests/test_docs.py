"""README and docs say what the commands take, and name what is there."""

import re
import subprocess
from dataclasses import fields, replace

import pytest
from commands import ROOT, option_classes

import eagle_fsd
from eagle_fsd.arms import parse_arms
from eagle_fsd.evaluation.metrics import METRICS
from eagle_fsd.evaluation.questions import read_questions
from eagle_fsd.tasks.scorers import check_scorable

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands() -> list[tuple[str, str, list[str]]]:
    """(page, command, its words as the shell expands them) of every command that is shown."""
    found = []
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        for command, rest in re.findall(r"^    .*?((?:evaluate|train)/\w+\.py)\b(.*)$", text, re.M):
            shell = ["bash", "-c", f"printf '%s\\n' {rest}"]
            words = subprocess.run(shell, capture_output=True, text=True, check=True, cwd="/")
            found.append((page.name, command, words.stdout.splitlines()))
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_named_is_there(page):
    """Links, and paths within backticks that begin with a folder of ours."""
    text = page.read_text()
    for link in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (page.parent / link).exists(), link
    folders = "checkpoints|docs|eagle_fsd|evaluate|results|scripts|tests|train"
    for path in re.findall(rf"`((?:{folders})/[\w./*-]*)`", text):
        assert list(ROOT.glob(path.rstrip("/"))), path


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
