"""The names in an arm's text (arms.py). Commands check them before torch is imported, which takes
seconds, so the tables of rules and drafters, which import it, are looked up in their source."""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from eagle_fsd.config import BadInput, check_known

PLAIN, GENERATE, COMPILED = "plain", "generate", "generate_compiled"
BY_TRANSFORMERS = (GENERATE, COMPILED)


def check_own_names(texts: Sequence[str]) -> None:
    """check_names of arms that can name no plug-in's."""
    rules = names_in_source("rules/__init__.py", "RULES")
    drafters = names_in_source("drafters/settings.py", "DRAFTERS")
    for text in texts:
        check_names(text, rules, drafters)


def names_in_source(file: str, table: str) -> list[str]:
    """The names in a table of a file of the library, which is a dict literal."""
    source = (Path(__file__).parent / file).read_text(encoding="utf-8")
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.AnnAssign) and statement.target.id == table:
            return [name.value for name in statement.value.keys]
    raise AssertionError(f"{file} has no {table}")


def check_names(text: str, rules: Iterable[str], drafters: Iterable[str]) -> None:
    """Refuse an arm whose rule or drafter is none of these, and several arms in one text."""
    alone = (PLAIN, *BY_TRANSFORMERS)
    rule_text, at, drafter_text = text.partition("@")
    name, drafter = (re.split("[:,]", part)[0] for part in (rule_text, drafter_text))
    parts = [(part, re.split("[:@]", part)[0] in (*rules, *alone)) for part in text.split(",")]
    with about(text):
        if any(begins for _, begins in parts[1:]):
            apart = "".join((" " if begins else ",") + part for part, begins in parts)[1:]
            raise BadInput(f"several arms are separated by spaces, as in: {apart}")
        check_known("rule", name, (*rules, *alone))
        if name in alone and text != name:
            raise BadInput(f"{name} has no fields and no drafter: give it alone")
        if at:
            check_known("drafter", drafter, drafters)


@contextmanager
def about(text: str) -> Iterator[None]:
    """What is refused within is told with the arm's text."""
    try:
        yield
    except BadInput as error:
        raise BadInput(f"arm {text!r}: {error}") from error
