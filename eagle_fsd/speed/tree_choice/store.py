"""What tuning has measured, kept as JSON files: KIND-HASH.json with the key in readable fields.

The hash is of the whole key, so anything that a measurement depends on gives it a file of its own.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from eagle_fsd.runs.jsonl import write_json

Measured = TypeVar("Measured")


def digest(*parts: bytes) -> str:
    """The first 16 hex digits of a SHA-256 over the parts."""
    value = hashlib.sha256()
    for part in parts:
        value.update(len(part).to_bytes(8, "little") + part)
    return value.hexdigest()[:16]


def kept(
    folder: Path | None,
    kind: str,
    key: dict,
    measure: Callable[[], Measured],
    *,
    to_json: Callable[[Measured], dict],
    from_json: Callable[[dict], Measured],
    retune: bool = False,
) -> Measured:
    """A measurement from its file, or made now and put there.

    Args:
        folder: made if needed; None keeps nothing.
        kind: first part of the file's name.
        key: JSON-able; what the measurement depends on.
        measure: makes it; a broken file is measured anew, with a warning.
        to_json, from_json: the file's "measured" field. from_json raises ValueError, KeyError,
            TypeError or AttributeError on what it cannot read.
        retune: measure even if there is a file.
    """
    if folder is None:
        return measure()
    path = folder / f"{kind}-{digest(json.dumps(key, sort_keys=True).encode())}.json"
    if path.is_file() and not retune:
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            if stored["key"] != key:
                raise ValueError("its key is another one")
            return from_json(stored["measured"])
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            _warn(f"{path} is broken ({type(error).__name__}: {error}); measuring again")
    measured = measure()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, {"key": key, "measured": to_json(measured)})
    except OSError as error:
        _warn(
            f"cannot keep what was measured in {folder} ({error}); set EAGLE_FSD_CACHE to a "
            "writable folder"
        )
    return measured


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)
