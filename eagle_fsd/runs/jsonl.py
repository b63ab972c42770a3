"""JSON-lines files: our own, which outlive a kill, and those that users bring."""

import gzip
import io
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from eagle_fsd.config import BadInput, check_text, step_of_setup

# that users' records come in
FORMS = "JSON lines, a JSON list, Parquet, or .txt with a text a line, in UTF-8"


class Row(dict):
    """A JSON object of a file of ours. A field that it lacks ends in a BadInput that names the
    place, so that readers take what they need of a row; of what type it is, LINE and FILE say."""

    def __init__(self, place: str, found: dict):
        super().__init__(found)
        self.place = place

    def __or__(self, more: dict) -> "Row":
        return Row(self.place, {**self, **more})

    def __missing__(self, name: str) -> None:
        raise BadInput(
            f"{self.place} has no {name!r}: it is damaged, or made by an older version; make it "
            "anew, elsewhere"
        )


# What fields of our files hold that must be of some type, wherever they are: one of these, or a
# list of these, or of objects with such fields
NUMBER, NONE = (int, float), type(None)
ROUND = {"tokens": [int], "fuzzy": [int], "divergence": [*NUMBER, NONE]}
ROUND |= {"tv": [*NUMBER], "regret": [*NUMBER]}
TURN = {"prompt": (str,), "text": (str,), "token_ids": [int], "fuzzy_spans": [list]}
TURN |= {"finish": (str,), "seconds": NUMBER, "thought": (int,), "rounds": [ROUND]}
TURN |= {"seed": (int, NONE), "prompt_tokens": (int,)}
LINE = {"session": (str,), "arm": (str,), "question_id": (int, str), "choice": (int,)}
LINE |= {"category": (str,), "temperature": NUMBER, "tree": (str, NONE), "turns": [TURN]}
LINE |= {"id": (int,), "part": (int,), "input_ids": [int], "loss_mask": [int], "reason": (str,)}
LINE |= {"finished": (bool,), "reply": (str,), "digest": (str,), "scores": (Row,)}
LINE |= {"prompt_ids": [int], "greedy_ids": [int], "step": (int,), "reference": [str]}
LINE |= {"seconds": (*NUMBER, list, Row), "top_k": (int,), "top_p": NUMBER}
LINE |= {"answer_id": (str,), "tstamp": NUMBER}
SESSION = {"session": (str,), "versions": (Row,), "timed": (bool,), "warnings": [str]}
SESSION |= {name: (str,) for name in ("commit", "device", "command")}
SCORED = {"score": (str,), "arm": (str,), "questions": (int,), "mean": (Row,)}
FILE = {"options": (Row,), "sessions": [SESSION], "rows": [SCORED], "step": (int,)}


def wrong_field(row: object, kinds: dict) -> str:
    """The first of these fields that an object has of another type; "": none, of the right kind."""
    if not isinstance(row, dict):
        return "object"
    for name, kind in kinds.items():
        if name not in row:
            continue
        entries = row[name] if isinstance(kind, list) else [row[name]]
        if not isinstance(entries, list):
            return name
        if isinstance(kind[0], dict):
            if any(wrong_field(entry, kind[0]) for entry in entries):
                return name
        elif set(map(type, entries)).difference(kind):
            return name
    return ""


def read_lines(
    path: Path,
    *,
    repair: bool = False,
    warn: Callable[[str], None] = lambda text: print(f"warning: {text}", file=sys.stderr),
) -> list[Row]:
    """The rows of a file of ours; BadInput names a line that is damaged. A torn last line, as a
    killed or running writer leaves it, is left out with a warning; `repair` cuts it off the file.
    """
    rows, good = [], 0
    data = path.read_bytes()
    if not data:  # a file is made with its first row
        warn(f"{path.name} is empty: what it held is lost")
    for number, line in enumerate(data.splitlines(keepends=True), start=1):
        place = f"{path}, line {number}"
        try:
            row = json.loads(line, object_hook=partial(Row, place)) if line.strip() else {}
            torn = not line.endswith(b"\n")
        except (ValueError, RecursionError):
            row, torn = None, good + len(line) == len(data)
        if torn:
            warn(f"{path.name}: its last line is torn (a killed or running writer) and left out")
            if repair:
                os.truncate(path, good)
            break
        if wrong_field(row, LINE):
            raise BadInput(
                f"{place} is damaged: {wrong_field(row, LINE)} of another type, or no JSON, in "
                f"{line!r:.60}; mend or delete that line, or make the records anew, elsewhere"
            )
        good += len(line)
        if row:
            rows.append(row)
    return rows


def read_records(path: str | Path) -> Iterator[tuple[int, object]]:
    """Records of a user's file with their numbers, those of lines where each has its own: JSON
    lines or a JSON list, by content; .txt with a text a line, by the file's name; Parquet. Text is
    UTF-8 or UTF-16, packed by gzip or not. BadInput if it is missing, damaged, or anything else.
    """
    path = Path(path)
    if not os.path.isfile(path):  # of a name too long Path's own raises
        there = "a folder: name a file in it" if os.path.isdir(path) else "no file: name one"
        raise BadInput(f"at {path} there is {there} that holds the records")
    number = 0
    try:
        # 1. What the file is, by its first bytes; its name tells texts alone.
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        opened = gzip.open if packed else open
        with opened(path, "rb") as file:
            begin = file.read(64)
        if begin.startswith(b"PAR1"):
            with step_of_setup("tasks"):
                from pyarrow.parquet import read_table
            yield from enumerate(read_table(path).to_pylist(), start=1)
            return
        kind, encoding = path.suffix, json.detect_encoding(begin)
        if packed:
            kind = Path(path.stem).suffix or kind
        first = begin.decode(encoding, "ignore").lstrip()[:1]
        # a wrong byte is refused where it is, with its line
        reading = {"encoding": encoding, "errors": "surrogateescape", "newline": ""}
        with opened(path, "rt", **reading) as file:
            # 2. Texts.
            if kind == ".txt" and first not in ("{", "["):
                for number, text in enumerate(file, start=1):
                    check_text(text)
                    if text.strip():
                        yield number, text.strip()
                return
            # 3. A JSON list, which a file .json may be, or JSON lines.
            lines: Iterable[str] = file
            if kind == ".json" or first == "[":
                text = file.read()
                for number, line in enumerate(io.StringIO(text), start=1):  # noqa: B007, for what is told
                    check_text(line)
                number = 0
                try:
                    records = _parsed(text)
                except json.JSONDecodeError as error:
                    if not error.msg.startswith("Extra data"):
                        raise
                    lines = io.StringIO(text)
                else:
                    if not isinstance(records, list):
                        raise ValueError(f"{records!r:.60} in the place of a list of records")
                    yield from enumerate(records, start=1)
                    return
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, _parsed(line)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        where = f" after line {number}" if number else ""
        fault = f"{path} is damaged, or no UTF-8{where} ({error})"
        raise BadInput(f"{fault}: mend it, or save it anew") from error
    except (ValueError, RecursionError) as error:
        forms = "" if number > 1 else f"; give {FORMS}"
        raise BadInput(f"{path}, line {max(1, number)} is no record: {error}{forms}") from error


def _parsed(text: str) -> object:
    """Raises ValueError also for half a surrogate pair, which no tokenizer and no file takes."""
    value = json.loads(text)
    check_text(json.dumps(value, ensure_ascii=False))
    return value


def read_json(path: Path) -> Row:
    """A JSON file of ours; BadInput if it is gone or damaged."""
    try:
        text = path.read_text(encoding="utf-8")
        whole = json.loads(text, object_hook=partial(Row, f"{path}"))
        if name := wrong_field(whole, FILE):
            raise ValueError(f"{name} of another type")
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path} is damaged ({error!r}): make it anew, elsewhere") from error
    return whole


def append_lines(path: Path, rows: Iterable[dict]) -> None:
    """Append rows; they are on disk when this returns. Where that fails the file is as it was, so
    that another thread's rows do not follow half of these."""
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
    """Replace a file in one rename: it is whole, or as it was. It is on disk when this returns, so
    that what it was made from may be deleted."""
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
