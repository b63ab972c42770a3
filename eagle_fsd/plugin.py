"""Rules, guards and drafters of the user's own, from a Python file that a command's --plugin names.

The file puts its classes into RULES, GUARDS or DRAFTERS, as docs/extend.md shows.
"""

import re
import sys
import traceback
from dataclasses import fields, is_dataclass
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from eagle_fsd.arms import BY_TRANSFORMERS, NUMBERS, PLAIN
from eagle_fsd.config import BadInput
from eagle_fsd.decoding.verified import Guard, Rule
from eagle_fsd.drafters.settings import DRAFTERS, DrafterSettings
from eagle_fsd.rules import RULES
from eagle_fsd.rules.guards import GUARDS

TABLES = {"rule": (RULES, Rule), "guard": (GUARDS, Guard), "drafter": (DRAFTERS, DrafterSettings)}


def load_plugin(path: str) -> None:
    """Run a Python file that registers rules, guards or drafters. A file that this process has run
    already is not run again.

    Raises:
        BadInput: the file cannot be read, ends in an error (its line is named), or registers what
            is no rule, guard or drafter, or under a name that is taken. Then nothing is registered.
    """
    try:
        source = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot read the plugin {path} ({error}): name a Python file") from error
    name = f"eagle_fsd_plugin_{sha256(source).hexdigest()[:16]}"
    if name in sys.modules:
        return
    before = {kind: table.copy() for kind, (table, _) in TABLES.items()}
    sys.modules[name] = module = ModuleType(name)  # where dataclasses look their module up
    module.__file__ = path
    try:
        exec(compile(source, path, "exec"), vars(module))
        for kind, (table, base) in TABLES.items():
            for key, made in table.items():
                if before[kind].get(key) is not made:
                    _check_entry(kind, key, made, base, taken=key in before[kind])
    except (Exception, SystemExit) as error:  # whatever the user's file raises
        for kind, (table, _) in TABLES.items():
            table.clear()
            table.update(before[kind])
        del sys.modules[name]
        what = "" if isinstance(error, BadInput) else f"{type(error).__name__}: "
        reason = error.msg if isinstance(error, SyntaxError) else error
        place = f", line {line}" if (line := _line_in(path, error)) else ""
        raise BadInput(
            f"plugin {path}{place}: {what}{reason}; correct the file, or leave --plugin out"
        ) from error


def _check_entry(kind: str, key: object, made: object, base: type, *, taken: bool) -> None:
    """Refuse an entry that no arm's text could name, or could not be read into."""
    if taken:
        raise BadInput(f"the {kind} {key!r} is the library's own: give yours another name")
    if not isinstance(key, str) or not re.fullmatch(r"[\w-]+", key):
        raise BadInput(f"{key!r} is no name of a {kind}: use letters, digits, _ and -")
    if kind == "rule" and key in (PLAIN, *BY_TRANSFORMERS):
        raise BadInput(f"{key!r} is the name of an arm without a rule: give yours another name")
    if not isinstance(made, type) or base not in made.__mro__ or not is_dataclass(made):
        raise BadInput(
            f"the {kind} {key!r} is {made!r}, which must be a dataclass that is a {base.__name__}"
        )
    for field in fields(made):
        if field.type not in (str, *NUMBERS):
            raise BadInput(
                f"field {field.name} of the {kind} {key!r} is of type {field.type!r}, which must "
                "be float, int or str (and no text: leave out `from __future__ import annotations`)"
            )
    if kind == "guard" and len(fields(made)) != 1:
        raise BadInput(f"the guard {key!r} has {len(fields(made))} fields; a guard has one")
    for rule, settings in RULES.items():
        if both := GUARDS.keys() & {field.name for field in fields(settings)}:
            raise BadInput(
                f"{both.pop()!r} is a field of the rule {rule} and a guard: rename one of them"
            )


def _line_in(path: str, error: BaseException) -> int | None:
    """The last line of the file that the error has come through."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == path), None)
