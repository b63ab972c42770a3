"""A benchmark run's folder: records are the truth, everything else is made from them.

run.json            settings, and every session (launch) that added records
records/ARM.jsonl   one question answered by an arm a line (ARM is its slug): tokens, times, rounds,
                    session; with several choices a line each
answers/ARM.jsonl   the same answers in FastChat's format, all choices of a question in a line
shards/S.N/ARM.jsonl  records of process N of session S, until they are merged

Records of a killed session are merged when the next one opens the folder.
"""

import fcntl
import json
import shutil
import time
from pathlib import Path

from eagle_fsd.config import BadInput
from eagle_fsd.runs.checkout import without_checkout
from eagle_fsd.runs.jsonl import append_line, read_lines, write_json, write_lines
from eagle_fsd.runs.processes import Processes
from eagle_fsd.runs.provenance import describe_run

Key = tuple[int | str, int]  # question_id, choice


def record_key(record: dict) -> Key:
    """What a record answers; those of older runs have one choice."""
    return record["question_id"], record.get("choice", 0)


class Run:
    """Opens a folder, reads what it holds, and adds records.

    Args:
        folder: made if needed.
        settings: of the command; a folder with records of other settings is refused.
        extendable: settings that may differ from those of earlier sessions.
        arms: those that will answer, with the name of each one's files.
        processes: all of them open the same folder; each adds its own records.

    Raises:
        BadInput: the folder cannot be written to, is damaged, holds another run, or another
            command is writing to it.
    """

    def __init__(
        self,
        folder: str | Path,
        settings: dict,
        *,
        extendable: frozenset[str],
        arms: dict[str, str],
        processes: Processes = Processes(),  # noqa: B008  (frozen)
    ):
        self.folder = Path(folder)
        self.settings = without_checkout(settings)
        self.processes = processes
        self.sessions: list[dict] = []
        self.records: dict[str, dict[Key, dict]] = {}
        self._session = ""
        self._slugs = arms
        if processes.is_main:  # mends what a killed session left, before the others read
            self._lock = self._open()
            self.sessions = self._read_sessions(extendable)
            self.merge()
            self.read()
        processes.wait()
        if not processes.is_main:
            self.sessions = self._read_sessions(extendable)
            self.read()

    def _open(self):
        """Make the folders, and hold the lock of the one command that may write."""
        try:
            for name in ("records", "answers"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            lock = (self.folder / ".lock").open("w")
        except OSError as error:
            raise BadInput(f"cannot write to --output {self.folder} ({error})") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BadInput(
                f"another command is writing to {self.folder}: wait for it, or name another "
                "--output"
            ) from error
        return lock

    def _read_sessions(self, extendable: frozenset[str]) -> list[dict]:
        path = self.folder / "run.json"
        if not path.is_file():
            return []
        try:
            before = json.loads(path.read_text())
            options, sessions = dict(before["options"]), list(before["sessions"])
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(f"{path} is damaged ({error}); name another --output") from error
        changed = {
            key: (options.get(key), here)
            for key, here in self.settings.items()
            if key not in extendable and options.get(key) != here
        }
        if changed:
            raise BadInput(
                f"{self.folder} holds a run with other settings (there, here): {changed}; "
                "name another --output"
            )
        return sessions

    def _file(self, kind: str, arm: str) -> Path:
        return self.folder / kind / f"{self._slugs[arm]}.jsonl"

    def merge(self) -> None:
        """Take the shards' records into records/: every answer once, and the shards away.

        Killed in the middle, it can be done again.
        """
        shards = self.folder / "shards"
        for path in sorted(shards.glob("*/*.jsonl")):
            whole = self.folder / "records" / path.name
            rows = read_lines(whole, repair=True) if whole.is_file() else []
            merged = {record_key(row): row for row in read_lines(path, repair=True)}
            merged |= {record_key(row): row for row in rows}
            write_lines(whole, list(merged.values()))
            path.unlink()
        shutil.rmtree(shards, ignore_errors=True)

    def read(self) -> None:
        """Read what the arms have answered, and bring their answer files in line with it."""
        for arm in self._slugs:
            path = self._file("records", arm)
            rows = read_lines(path, repair=self.processes.is_main) if path.is_file() else []
            self.records[arm] = {record_key(row): row for row in rows}
            if self.processes.is_main and rows:
                write_lines(self._file("answers", arm), fastchat_answers(rows))

    def begin_session(self, *, timed: bool, warnings: list[str]) -> None:
        """Before the first record that a launch adds; every process calls it.

        Args:
            timed: the records' seconds are timings.
            warnings: what speaks against its times.
        """
        self.processes.wait()  # until all have read what there is
        self._session = f"{len(self.sessions) + 1}"
        device = self.settings.get("device", "cpu")
        session = {"session": self._session, "started": time.time(), **describe_run(device)}
        session |= {"processes": self.processes.count, "timed": timed, "warnings": warnings}
        self.sessions.append(session)
        if self.processes.is_main:
            whole = {"options": self.settings, "sessions": self.sessions}
            write_json(self.folder / "run.json", whole)
        else:
            (self.folder / self._shard).mkdir(parents=True, exist_ok=True)

    @property
    def _shard(self) -> str:
        """The folder of this session alone: what outlives its launcher finds none to write to."""
        return f"shards/{self._session}.{self.processes.index}"

    def add(self, arm: str, record: dict) -> None:
        """Append a record; it is on disk when this returns."""
        record = {**record, "session": self._session}
        path = self._file("records", arm)
        if not self.processes.is_main:
            path = self._file(self._shard, arm)
        append_line(path, record)
        self.records[arm][record_key(record)] = record

    def finish(self) -> None:
        """Wait for the other processes and merge what they have added; all processes call it."""
        self.processes.wait()
        if self.processes.is_main:
            self.merge()
            self.read()

    def sessions_of(self, records: dict[str, list[dict]]) -> list[dict]:
        """The sessions that the records are of."""
        used = {row["session"] for rows in records.values() for row in rows}
        return [s for s in self.sessions if s["session"] in used]

    def origin(self, records: dict[str, list[dict]]) -> tuple[str, int]:
        """Where the records come from, in words, and how many questions mix sessions."""
        sessions = self.sessions_of(records)
        words = []
        for key in ("device", "commit"):
            words.append(f"{key} " + " / ".join(dict.fromkeys(s[key] for s in sessions)))
        per_question: dict = {}
        for rows in records.values():
            for row in rows:
                per_question.setdefault(row["question_id"], set()).add(row["session"])
        return ", ".join(words), sum(len(found) > 1 for found in per_question.values())


def fastchat_answers(records: list[dict]) -> list[dict]:
    """FastChat's model_answer rows (fastchat/llm_judge/gen_model_answer.py), one a question."""
    rows: dict = {}
    for record in sorted(records, key=lambda r: r.get("choice", 0)):
        row = rows.setdefault(
            record["question_id"],
            {
                "question_id": record["question_id"],
                "answer_id": record["answer_id"],
                "model_id": record["arm"],
                "choices": [],
                "tstamp": record["tstamp"],
            },
        )
        turns = [turn["text"] for turn in record["turns"]]
        row["choices"].append({"index": record.get("choice", 0), "turns": turns})
    return list(rows.values())
