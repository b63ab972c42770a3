"""The files of a run that makes dialogues, so that a killed one goes on where it stopped.

data.jsonl           one finished dialogue a line
data.dropped.jsonl   number and reason of every candidate that was dropped
data.json            the record of the finished run
"""

import json
import resource
from collections import Counter
from pathlib import Path

from eagle_fsd.runs.jsonl import append_line, read_lines, write_lines


class Journal:
    """Finished and dropped candidates on disk, each appended when it is known.

    Args:
        path: of the dialogues; the other files lie beside it.

    Attributes:
        seconds: of the runs before.
        peak_memory_mb: likewise.
    """

    def __init__(self, path: Path):
        self.path = path
        self.ids: set[int] = set()
        self.users: set[str] = set()
        self.sources: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.answer_tokens = self.tokens = self.finished = self.dialogues = 0
        record = read_record(path)
        self.peak_memory_mb = record.get("peak_memory_mb", 0)
        self.seconds = record.get("seconds", 0.0)
        for row in _rows(path):
            self._count(row)
            # a later run that was killed left later lines, but no record
            self.seconds = max(self.seconds, row.get("seconds", 0.0))
        for row in _rows(dropped_path(path)):
            self._count_dropped(row)

    def keep(self, row: dict, *, seconds: float) -> None:
        """Append a dialogue."""
        append_line(self.path, row | {"seconds": round(seconds, 1)}, wait=False)
        self._count(row)

    def drop(self, number: int, reason: str) -> None:
        """Append a dropped candidate."""
        row = {"id": number, "reason": reason}
        append_line(dropped_path(self.path), row, wait=False)
        self._count_dropped(row)

    def counts(self, seconds: float) -> dict:
        """The counts of all the runs that made these files; `seconds` are theirs too."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # Linux counts in KB
        return {
            "dialogues": self.dialogues,
            "answer_tokens": self.answer_tokens,
            "tokens": self.tokens,
            "share_finished": self.finished / max(1, self.dialogues),
            "by_source": dict(self.sources),
            "dropped": dict(sorted(self.reasons.items())),
            "seconds": seconds,
            "tokens_per_s": self.answer_tokens / seconds if seconds else None,
            "peak_memory_mb": max(self.peak_memory_mb, round(peak)),
        }

    def _count(self, row: dict) -> None:
        self.ids.add(row["id"])
        self.users.add(row["user"])
        self.sources[row["source"]] += 1
        self.dialogues += 1
        self.answer_tokens += sum(row["loss_mask"])
        self.tokens += len(row["input_ids"])
        self.finished += row["finished"]

    def _count_dropped(self, row: dict) -> None:
        self.ids.add(row["id"])
        self.reasons[row["reason"]] += 1


def dropped_path(path: Path) -> Path:
    return path.with_suffix(".dropped.jsonl")


def read_record(path: Path) -> dict:
    """What the runs before recorded beside these dialogues; empty if none came to its end."""
    record = path.with_suffix(".json")
    return json.loads(record.read_text()) if record.is_file() else {}


def merge(output: Path, parts: list[Path]) -> dict:
    """Put the processes' dialogues together, in the order of their numbers; returns the counts.

    Duplicates between processes are dropped here. The parts stay, so that a run can be continued.
    """
    kept: dict[str, dict] = {}
    dropped = [row for part in parts for row in _rows(dropped_path(part))]
    for row in sorted((row for part in parts for row in _rows(part)), key=_number):
        if row["user"] in kept:
            dropped.append({"id": row["id"], "reason": "duplicate"})
        else:
            kept[row["user"]] = row
    write_lines(output, list(kept.values()))
    write_lines(dropped_path(output), sorted(dropped, key=_number))
    records = [read_record(part) for part in parts]
    return Journal(output).counts(max(r["seconds"] for r in records)) | {
        "peak_memory_mb": sum(r["peak_memory_mb"] for r in records),
    }


def _rows(path: Path) -> list[dict]:
    return read_lines(path, repair=True) if path.is_file() else []


def _number(row: dict) -> int:
    return row["id"]
