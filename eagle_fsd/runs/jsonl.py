"""JSON-lines files that survive a kill: whole lines are kept, a torn last line is dropped."""

import json
import os
import sys
from pathlib import Path

from eagle_fsd.config import BadInput
from eagle_fsd.runs.checkout import without_checkout


def read_lines(path: Path, *, repair: bool = False) -> list[dict]:
    """All rows of a file; blank lines are skipped.

    Args:
        repair: cut a broken last line off the file, with a warning, as a killed writer leaves it.

    Raises:
        BadInput: the file is missing or a line is broken; names the line.
    """
    if not path.is_file():
        raise BadInput(f"no file at {path}")
    rows, good = [], 0
    data = path.read_bytes()
    for number, line in enumerate(data.splitlines(keepends=True), start=1):
        try:
            if repair and not line.endswith(b"\n"):
                raise ValueError("no line end")
            row = json.loads(line) if line.strip() else None
        except ValueError as error:
            if repair and good + len(line) == len(data):
                print(
                    f"warning: {path}, line {number} is torn ({error}); dropped, to be redone",
                    file=sys.stderr,
                )
                with path.open("r+b") as file:
                    file.truncate(good)
                break
            raise BadInput(f"{path}, line {number} is no JSON: {error}") from error
        good += len(line)
        if row is not None:
            rows.append(row)
    return rows


def whole_lines(path: Path, keys: tuple[str, ...], warnings: list[str]) -> list[dict]:
    """The whole lines of a file that another process may be writing to; a torn last line, as a
    killed writer leaves it, is skipped with a warning and stays in the file.

    Args:
        keys: what every row has.
        warnings: the warning is added to them.

    Raises:
        BadInput: a line is no JSON object or lacks one of the keys; names the line.
    """
    whole, _, torn = path.read_bytes().rpartition(b"\n")
    if torn.strip():
        warnings.append(
            f"{path.name}: its last line is torn (a killed or running writer) and left out"
        )
    rows = []
    for number, line in enumerate(whole.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise BadInput(f"{path}, line {number} is no JSON: {error}") from error
        lacking = [key for key in keys if not isinstance(row, dict) or key not in row]
        if lacking:
            raise BadInput(f"{path}, line {number} lacks {', '.join(lacking)}")
        rows.append(row)
    return rows


def append_line(path: Path, row: dict, *, wait: bool = True) -> None:
    """Append one row; it outlives a kill.

    Args:
        wait: until it is on disk, so that it outlives a power cut too.
    """
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
        if wait:
            file.flush()
            os.fsync(file.fileno())


def write_lines(path: Path, rows: list[dict]) -> None:
    """Replace a file in one rename."""
    lines = (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    _replace(path, "".join(lines))


def open_rows(path: Path, settings: dict, *, read_only: bool = False) -> dict[int | str, dict]:
    """Open a file of rows by question_id whose first line holds its settings; made if needed.

    Args:
        read_only: make no file; without one there are no rows.

    Raises:
        BadInput: it cannot be written to, or it was made with other settings.
    """
    settings = without_checkout(settings)
    try:
        rows = read_lines(path, repair=True) if path.is_file() else []
        if not rows and not read_only:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_lines(path, [{"settings": settings}])
    except OSError as error:
        raise BadInput(f"cannot write to {path} ({error})") from error
    if not rows:
        return {}
    before = rows[0].get("settings")
    if before is None:
        raise BadInput(f"{path} does not begin with its settings: name another folder")
    keys = [key for key in {**before, **settings} if before.get(key) != settings.get(key)]
    if keys:
        changed = {key: (before.get(key), settings.get(key)) for key in keys}
        raise BadInput(
            f"{path} was made with other settings (there, here): {changed}; name another folder"
        )
    return {row["question_id"]: row for row in rows[1:]}


def write_json(path: Path, value: dict) -> None:
    """Replace an indented JSON file in one rename."""
    _replace(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def _replace(path: Path, text: str) -> None:
    """On disk when this returns, so that what it was made from may be deleted."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
