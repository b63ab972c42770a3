"""JSON-lines files: our own, which outlive a kill, and those that users bring."""

import gzip
import json
import math
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import UnionType
from typing import Any

from eagle_fsd.config import BadInput, check_text

# what a value read must be: of a type, a list [FORM] of such, a dict {key: FORM} that has these, a
# tuple (FORM, ...) of which each holds, or what a function says yes to
Form = type | UnionType | list | dict | tuple | Callable[[Any], bool]
NUMBER = int | float
LARGEST = 2**63  # of numbers: what is made of larger ones overflows


def read_lines(
    path: Path,
    *,
    form: Form = object,
    repair: bool = False,
    warn: Callable[[str], None] = lambda text: print(f"warning: {text}", file=sys.stderr),
) -> list[dict]:
    """The rows of a file of ours, of this form. A torn last line, as a killed writer leaves it
    or a running one has it, is left out with a warning; `repair` cuts it off the file.

    Raises:
        BadInput: a line amid the file is broken, or a row is of another form; names the line.
    """
    rows, good = [], 0
    data = path.read_bytes()
    for number, line in enumerate(data.splitlines(keepends=True), start=1):
        try:
            if not line.endswith(b"\n"):
                raise ValueError("no line end")
            row = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError) as error:
            if good + len(line) < len(data):
                raise BadInput(f"{path}, line {number} is no JSON: {error}") from error
            warn(f"{path.name}: its last line is torn (a killed or running writer) and left out")
            if repair:
                os.truncate(path, good)
            break
        good += len(line)
        if row is not None:
            check_form(row, form, f"{path}, line {number}")
            rows.append(row)
    return rows


def read_records(path: str | Path) -> Iterator[tuple[int, object]]:
    """Records of a user's .jsonl or .json file, gzipped or not, with their numbers (lines of a
    .jsonl); BadInput if it is missing or damaged, or a .json file holds no list."""
    path = Path(path)
    if not os.path.isfile(path):  # of a name too long Path's own raises
        raise BadInput(f"there is no file at {path}: name one that is there")
    number = 0
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8-sig") as file:
            if path.name.removesuffix(".gz").endswith(".json"):
                records = _parsed(file.read())
                if not isinstance(records, list):
                    raise ValueError(f"{type(records)} in the place of a list of records")
                yield from enumerate(records, start=1)
                return
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, _parsed(line)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is damaged behind line {number} ({error})") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}, line {max(1, number)} is no JSON: {error}") from error


def _parsed(text: str) -> object:
    """Raises ValueError also for half a surrogate pair, which no tokenizer and no file takes."""
    value = json.loads(text)
    check_text(json.dumps(value, ensure_ascii=False))
    return value


def check_form(value: object, form: Form, place: str) -> None:
    """Refuse a value of another form; `place` says where it is.

    Example: a form {"turns": [{"text": str}]} refuses {"turns": [{}]} with "turns 0, text is None".
    """
    if isinstance(form, tuple):
        for part in form:
            check_form(value, part, place)
        return
    if isinstance(form, list | dict | type | UnionType):
        fits = isinstance(value, type(form) if isinstance(form, list | dict) else form)
    else:
        fits = form(value)
    if isinstance(value, NUMBER):
        fits = fits and is_number(value)
    elif isinstance(value, str):
        fits = fits and not is_torn_text(value)
    if not fits:
        raise _misfit(value, place)
    if isinstance(form, dict):
        for key, part in form.items():
            if key not in value:  # also where None would fit
                raise _misfit(None, f"{place}, {key}")
            check_form(value[key], part, f"{place}, {key}")
    elif isinstance(form, list):
        for number, part in enumerate(value):
            check_form(part, form[0], f"{place} {number}")


def _misfit(value: object, place: str) -> BadInput:
    return BadInput(
        f"{place} is {value!r:.60}: it is damaged, or of an older version; make it anew, elsewhere"
    )


def is_number(value: object) -> bool:
    """Finite, and not so large that what is made of it is not."""
    return isinstance(value, NUMBER) and abs(value) <= LARGEST


def is_torn_text(text: str) -> bool:
    """Half a surrogate pair is in it, which no file takes."""
    try:
        check_text(text)
    except BadInput:
        return True
    return False


def _finite(digits: str) -> float:
    """Raises ValueError for what we write nowhere: numbers beyond a float, NaN and Infinity."""
    if not math.isfinite(value := float(digits)):
        raise ValueError(f"{digits} is no number")
    return value


def read_json(path: Path, **forms: Form) -> list:
    """The values of these keys in a JSON file of ours; BadInput if it is damaged, or one is of
    another form."""
    try:
        text = path.read_text(encoding="utf-8")
        whole = json.loads(text, parse_float=_finite, parse_constant=_finite)
        check_text(json.dumps(whole, ensure_ascii=False))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path} is damaged ({error!r}): make it anew, elsewhere") from error
    check_form(whole, forms, f"{path}")
    return [whole[key] for key in forms]


def append_lines(path: Path, rows: Iterable[dict]) -> None:
    """Append rows; they are on disk when this returns. BadInput: as write_file, and the file is as
    it was, so that another thread's rows do not follow half of these."""
    end = path.stat().st_size if path.is_file() else 0
    try:
        _write(path, _lines(rows).encode(), "ab")
    except OSError as error:
        if path.is_file():
            os.truncate(path, end)
        raise _not_written(path, error) from error


def write_lines(path: Path, rows: Iterable[dict]) -> None:
    """Replace a file as write_file does."""
    write_file(path, _lines(rows))


def write_json(path: Path, value: dict) -> None:
    """Replace an indented JSON file as write_file does."""
    write_file(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def _lines(rows: Iterable[dict]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)


def check_writable(path: str, option: str) -> None:
    """Refuse, by a BadInput, a file that could not be written later; nothing is left behind."""
    try:
        new = not os.path.exists(path)
        Path(path).open("a").close()
        if new:
            os.unlink(path)
    except (OSError, ValueError) as error:
        raise BadInput(
            f"cannot write to {option} {path} ({error}): name a file in a folder that is there"
        ) from error


def write_file(path: Path, content: str | bytes) -> None:
    """Replace a file in one rename, its folder made if need be: it is whole, or as it was. On disk
    when this returns, so that what it was made from may be deleted. BadInput: it cannot be written,
    as on a full disk."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".tmp")
        _write(temporary, content.encode() if isinstance(content, str) else content, "wb")
        temporary.replace(path)
    except OSError as error:
        raise _not_written(path, error) from error


def _write(path: Path, content: bytes, mode: str) -> None:
    with path.open(mode) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _not_written(path: Path, error: OSError) -> BadInput:
    return BadInput(
        f"cannot write to {path} ({error}): make room there, or let it be written to, and run the "
        "same command again; nothing that was there is lost"
    )
