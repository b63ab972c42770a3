"""The files of a run that makes dialogues, so that a killed one goes on where it stopped.

data.jsonl           one finished dialogue a line
data.dropped.jsonl   number and reason of every candidate that was dropped
data.options.json    options; a run with others is not continued
data.json            the record of the finished run
"""

import json
import os
import resource
import time
from collections import Counter
from pathlib import Path

import torch

from eagle_fsd.config import BadInput
from eagle_fsd.runs.jsonl import read_lines, write_json, write_lines
from eagle_fsd.training.features import FeatureWriter

SYNC_SECONDS = 1.0


class Journal:
    """Finished and dropped candidates on disk, each appended when it is known.

    Args:
        path: of the dialogues; the other files lie beside it.
    """

    def __init__(self, path: Path):
        self.path = path
        self.dropped_path = path.with_suffix(".dropped.jsonl")
        self.features: FeatureWriter | None = None
        self.ids: set[int] = set()
        self.users: set[str] = set()
        self.sources: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.answer_tokens = self.tokens = self.finished = self.dialogues = 0
        self.seconds, self.peak_memory_mb = 0.0, 0  # of the runs before
        if path.is_file():
            for row in read_lines(path, repair=True):
                self._count(row)
                self.seconds = row.pop("seconds", 0.0)
        if self.dropped_path.is_file():
            for row in read_lines(self.dropped_path, repair=True):
                self.ids.add(row["id"])
                self.reasons[row["reason"]] += 1
        if path.is_file() and (record := read_record(path)):
            # a later run that was killed left later lines, but no record
            self.seconds = max(self.seconds, record["seconds"])
            self.peak_memory_mb = record["peak_memory_mb"]
        self._lines, self._dropped_lines = _Lines(path), _Lines(self.dropped_path)

    def attach(self, features: FeatureWriter) -> None:
        """Keep features too from now on.

        Raises:
            BadInput: the writer lacks those of dialogues that are there already.
        """
        if features.dialogues < self.dialogues:
            raise BadInput(
                f"{features.folder} holds features of {features.dialogues} dialogues, but "
                f"{self.path} has {self.dialogues}: delete both and start anew"
            )
        features.truncate(self.dialogues)  # a kill may have come between features and line
        self.features = features

    def keep(self, row: dict, features_LD: torch.Tensor | None, *, seconds: float) -> None:
        """Append a dialogue; its features first, so that no line is without."""
        if self.features is not None:
            self.features.append(row["input_ids"], features_LD)
        self._lines.append(row | {"seconds": round(seconds, 1)})
        self._count(row)

    def drop(self, number: int, reason: str) -> None:
        """Append a dropped candidate."""
        self._dropped_lines.append({"id": number, "reason": reason})
        self.ids.add(number)
        self.reasons[reason] += 1

    def close(self) -> None:
        """Wait until every line is on disk."""
        self._lines.close()
        self._dropped_lines.close()

    def counts(self, seconds: float) -> dict:
        """The figures of all the runs that made these files; `seconds` are theirs too."""
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


class _Lines:
    """A file to which rows are appended.

    A line is handed to the system at once, so that a kill loses none. The disk is waited for once a
    second at most: a full GPU batch ends many dialogues at a time.
    """

    def __init__(self, path: Path):
        self.path = path
        self._file = None  # opened by the first row
        self._synced = 0.0

    def append(self, row: dict) -> None:
        if self._file is None:
            self._file = self.path.open("a", encoding="utf-8")
        self._file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
        self._file.flush()
        if time.monotonic() - self._synced > SYNC_SECONDS:
            os.fsync(self._file.fileno())
            self._synced = time.monotonic()

    def close(self) -> None:
        if self._file is not None:
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None


def read_record(path: Path) -> dict:
    """What the runs before recorded beside these dialogues; empty if none came to its end."""
    record = path.with_suffix(".json")
    return json.loads(record.read_text()) if record.is_file() else {}


def check_same_options(path: Path, mine: dict, *, free: tuple[str, ...]) -> None:
    """Record a run's options beside its output, and refuse a run whose options differ.

    Args:
        free: options that may change between the runs that make one output.

    Raises:
        BadInput: names the options that differ, or the folder cannot be written.
    """
    options = path.with_suffix(".options.json")
    if options.is_file():
        theirs = json.loads(options.read_text())
        changed = {k: (theirs.get(k), v) for k, v in mine.items() if theirs.get(k) != v}
        changed = {k: v for k, v in changed.items() if k not in free}
        if changed:
            raise BadInput(
                f"{path} was begun with other options (there, here): {changed}; "
                "name another --output or delete it"
            )
    elif path.exists():
        raise BadInput(f"--output {path} exists and is no output of this command; name another")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(options, mine)
    except OSError as error:
        raise BadInput(f"cannot write to --output {path} ({error})") from error


def merge(output: Path, parts: list[Path]) -> dict:
    """Put the processes' dialogues together, in the order of their numbers; returns the counts.

    Duplicates between processes are dropped here. The parts stay, so that a run can be continued.
    """
    rows = sorted((row for p in parts if p.is_file() for row in read_lines(p)), key=_number)
    dropped = [p.with_suffix(".dropped.jsonl") for p in parts]
    others = [row for p in dropped if p.is_file() for row in read_lines(p)]
    users: set[str] = set()
    kept = []
    for row in rows:
        if row["user"] in users:
            others.append({"id": row["id"], "reason": "duplicate"})
        else:
            kept.append(row)
        users.add(row["user"])
    write_lines(output, kept)
    write_lines(output.with_suffix(".dropped.jsonl"), sorted(others, key=_number))
    records = [read_record(p) for p in parts]
    return Journal(output).counts(max(r["seconds"] for r in records)) | {
        "peak_memory_mb": sum(r["peak_memory_mb"] for r in records),
    }


def _number(row: dict) -> int:
    return row["id"]
