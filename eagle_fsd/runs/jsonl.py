"""JSON-lines files: our own, which outlive a kill, and those that users bring."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from eagle_fsd.config import BadInput, check_text, step_of_setup

# the names of what a JSON object holds, with its type or None for any; under a name with Fields of
# its own stands a list of such
Fields = Mapping[str, "Fields | type | None"]

# that users' records come in
FORMS = "JSON lines, a JSON list, CSV, TSV, Parquet, or .txt with a text a line, in UTF-8"
# by the bytes that a file begins with: how it is unpacked, and what is not read
PACKED = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
FOREIGN = {
    b"PK\x03\x04": "a zip archive or an Excel workbook",
    b"\x28\xb5\x2f\xfd": "compressed by zstd",
    b"ARROW1": "an Arrow file",
    b"<": "a page in HTML or XML",
    b"version https://git-lfs": "a pointer of Git LFS, whose file `git lfs pull` brings",
}


class Row(dict):
    """A JSON object of a file of ours. A field that it lacks ends in a BadInput that names the
    place, so that readers take what they need of a row and no form of it is written down."""

    place = ""

    def __or__(self, more: dict) -> "Row":
        return _rows_of(self.place)({**self, **more})

    def __missing__(self, name: str) -> None:
        raise BadInput(
            f"{self.place} has no {name!r}: it is damaged, or made by an older version; make it "
            "anew, elsewhere"
        )


def _rows_of(place: str) -> Callable[[dict], Row]:
    """Of json.loads: objects, those within others too, are Rows of this place."""

    def row(found: dict) -> Row:
        made = Row(found)
        made.place = place
        return made

    return row


def read_lines(
    path: Path,
    *,
    fields: Fields | None = None,
    key: Callable[[dict], Hashable] | None = None,
    repair: bool = False,
    warn: Callable[[str], None] = lambda text: print(f"warning: {text}", file=sys.stderr),
) -> list[dict]:
    """The rows of a file of ours, which have these fields, and a key if they need one. A torn last
    line, as a killed writer leaves it or a running one has it, is left out with a warning; `repair`
    cuts it off the file.

    Raises:
        BadInput: a line amid the file is broken, or a row is of another form; names the line.
    """
    rows, good = [], 0
    data = path.read_bytes()
    for number, line in enumerate(data.splitlines(keepends=True), start=1):
        try:
            if not line.endswith(b"\n"):
                raise ValueError("no line end")
            row = {}
            if line.strip():
                row = json.loads(line, object_hook=_rows_of(f"{path}, line {number}"))
        except (ValueError, RecursionError) as error:
            if good + len(line) < len(data):
                raise BadInput(f"{path}, line {number} is no JSON: {error}") from error
            warn(f"{path.name}: its last line is torn (a killed or running writer) and left out")
            if repair:
                os.truncate(path, good)
            break
        good += len(line)
        if line.strip():
            check_fields(row, fields or {}, f"{path}, line {number}")
            try:
                hash(key and key(row))
            except (LookupError, TypeError) as error:
                raise _misfit(row, f"{path}, line {number}") from error
            rows.append(row)
    return rows


def read_records(path: str | Path) -> Iterator[tuple[int, object]]:
    """Records of a user's file with their numbers, those of lines where each has its own: JSON
    lines or a JSON list, by content; CSV or TSV with a line of names, or .txt with a text a line,
    by the file's name; Parquet. Text is UTF-8 or UTF-16, packed by gzip, bzip2 or xz or not.
    BadInput if it is missing, damaged, or anything else.
    """
    path = Path(path)
    if not os.path.isfile(path):  # of a name too long Path's own raises
        there = "a folder: name a file in it" if os.path.isdir(path) else "no file: name one"
        raise BadInput(f"at {path} there is {there} that holds the records")
    number = 0
    try:
        with path.open("rb") as file:
            begin = file.read(6)
        opened = next((PACKED[mark] for mark in PACKED if begin.startswith(mark)), open)
        with opened(path, "rb") as file:
            begin = file.read(64)
        for mark, form in FOREIGN.items():
            if begin.startswith(mark):
                raise ValueError(f"the file is {form}")
        if begin.startswith(b"PAR1"):
            yield from enumerate(_parquet(path), start=1)
            return
        encoding, kind = json.detect_encoding(begin), path.suffix
        if opened is not open:
            kind = Path(path.stem).suffix or kind
        with opened(path, "rt", encoding=encoding, newline="") as file:
            if kind in (".csv", ".tsv"):
                yield from _table(file)
                return
            first = begin.decode(encoding, "ignore").lstrip()[:1]
            if kind == ".txt" and first not in ("{", "["):
                yield from ((n, text.strip()) for n, text in enumerate(file, 1) if text.strip())
                return
            lines: Iterable[str] = file
            if kind == ".json" or first == "[":
                text = file.read()
                try:
                    records = _parsed(text)
                except json.JSONDecodeError as error:
                    if not error.msg.startswith("Extra data"):
                        raise
                    lines = io.StringIO(text)  # JSON lines in a file .json
                else:
                    if isinstance(records, dict):
                        raise ValueError(f"one object of {', '.join(records)!s:.100}, and no list")
                    if not isinstance(records, list):
                        raise ValueError(f"{records!r:.60} in the place of a list of records")
                    yield from enumerate(records, start=1)
                    return
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, _parsed(line)
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is no UTF-8 behind line {number} ({error}): save it so") from error
    except (OSError, EOFError, zlib.error, lzma.LZMAError, csv.Error) as error:
        raise BadInput(f"{path} is damaged behind line {number} ({error})") from error
    except (ValueError, RecursionError) as error:
        forms = "" if number > 1 else f"; give {FORMS}"
        raise BadInput(f"{path}, line {max(1, number)} is no record: {error}{forms}") from error


def _table(file: TextIO) -> Iterator[tuple[int, dict]]:
    """The rows of a table with a line of names; an empty cell is null, and of cells that hold JSON
    those with a list are that list."""
    csv.field_size_limit(2**31 - 1)  # conversations are long
    first = file.readline()
    delimiter = max(",;\t", key=first.count)
    (names,) = csv.reader([first], delimiter=delimiter)
    reader = csv.DictReader(file, names, restkey="", delimiter=delimiter)
    for row in reader:
        if "" in row:
            raise csv.Error(f"line {reader.line_num + 1} has more cells than there are names")
        for name, cell in row.items():
            row[name] = cell or None
            if cell and cell[0] == "[":
                with suppress(ValueError, RecursionError):
                    row[name] = _parsed(cell)
        yield reader.line_num + 1, row


def _parquet(path: Path) -> list[dict]:
    with step_of_setup("tasks"):
        from pyarrow.parquet import read_table
    try:
        return read_table(path).to_pylist()
    except ValueError as error:
        raise OSError(error) from error


def _parsed(text: str) -> object:
    """Raises ValueError also for half a surrogate pair, which no tokenizer and no file takes."""
    value = json.loads(text)
    check_text(json.dumps(value, ensure_ascii=False))
    return value


def check_fields(value: object, fields: Fields, place: str) -> None:
    """Refuse what is no JSON object, lacks a field or has one of another type, and nothing else;
    `place` says where it is.

    Example: of the fields {"turns": {"text": None}} {"turns": [{}]} lacks "turns 0, text".
    """
    if not isinstance(value, dict):
        raise _misfit(value, place)
    for key, inner in fields.items():
        if key not in value:
            raise _misfit(None, f"{place}, {key}")
        kind = inner if isinstance(inner, type) else list
        if inner is not None and not isinstance(value[key], kind):
            raise _misfit(value[key], f"{place}, {key}")
        for number, part in enumerate(value[key] if isinstance(inner, Mapping) else ()):
            check_fields(part, inner, f"{place}, {key} {number}")


def _misfit(value: object, place: str) -> BadInput:
    return BadInput(
        f"{place} is {value!r:.60}: it is damaged, or of an older version; make it anew, elsewhere"
    )


def read_json(path: Path, **kinds: type | Fields) -> list:
    """The values of these fields of a JSON file of ours; BadInput if it is damaged, or one is not
    of its kind."""
    try:
        text = path.read_text(encoding="utf-8")
        whole = json.loads(text, object_hook=_rows_of(f"{path}"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path} is damaged ({error!r}): make it anew, elsewhere") from error
    check_fields(whole, kinds, f"{path}")
    return [whole[key] for key in kinds]


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
