"""The folder of a run: records are the truth, everything else is made from them.

run.json                      settings, and every session (launch) that added records
records/NAME.jsonl            what the run has made: a record a line, only ever appended to
records/process1/NAME.jsonl   the same, by the second of several processes, and so on

A session may have another number of processes than those before: all read all files.
"""

import fcntl
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable
from dataclasses import asdict, fields
from datetime import datetime
from glob import escape, glob
from itertools import count
from pathlib import Path
from typing import TextIO

from eagle_fsd.config import BadInput
from eagle_fsd.runs.jsonl import append_lines, read_json, read_lines, write_file, write_json
from eagle_fsd.runs.processes import Processes
from eagle_fsd.runs.provenance import describe_run, without_checkout


def answer_key(record: dict) -> tuple[int | str, int]:
    """What an answer is of: question_id and choice; those of older runs have one choice."""
    return record["question_id"], record.get("choice", 0)


def record_files(folder: str | Path, name: str = "*") -> list[Path]:
    """The files of all records, or of those of one name, in the order of their names."""
    paths = Path(folder).glob(f"records/**/{name}.jsonl")
    return sorted(paths, key=lambda path: (path.name, path))


def check_run(folder: str | Path) -> None:
    """Refuse a folder that is no run, and name the runs in it."""
    if not os.path.isfile(os.path.join(folder, "run.json")):  # Path's own raises for a long name
        within = sorted(map(os.path.dirname, glob(f"{escape(str(folder))}/*/run.json")))
        runs = f"; the folders in it that are: {', '.join(within)}" if within else ""
        raise BadInput(f"{folder} is no run, since it has no run.json{runs}")


def records_by_arm(folder: str | Path, **reading: Callable[[str], None]) -> dict[str, list[dict]]:
    """The answers of a finished or unfinished run, of two of one the later; see read_lines for
    `reading`. BadInput: it is no run, or holds none, as that of a command which answers by no
    arm."""
    records: defaultdict[str, dict[Hashable, dict]] = defaultdict(dict)
    for path in record_files(folder):
        for row in read_lines(path, **reading):
            if not {"arm", "question_id", "turns"} <= row.keys():
                raise BadInput(
                    f"{row.place} is no answer of an arm: give a folder of mt_bench.py or tasks.py"
                )
            records[row["arm"]][answer_key(row)] = row
    if not records:
        check_run(folder)
        raise BadInput(f"{folder} holds no records: let its command answer a question first")
    return {arm: list(rows.values()) for arm, rows in records.items()}


class FolderInUse(BadInput):
    """Another command is writing to a folder."""


def lock_folder(folder: Path, kind: int = fcntl.LOCK_EX) -> TextIO:
    """Make a folder, and hold the lock of the one command that may write there until the file that
    is returned is closed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("a+")
        fcntl.flock(lock, kind | fcntl.LOCK_NB)  # a kill releases it too
    except BlockingIOError:
        raise FolderInUse(
            f"another command is writing to {folder}: wait for it, or name another folder"
        ) from None
    except (FileExistsError, NotADirectoryError) as error:
        raise BadInput(f"{folder} is a file or lies in one: name a folder") from error
    except (OSError, ValueError) as error:  # a name may hold what no file system takes
        raise BadInput(
            f"cannot write to the folder {folder} ({error}): make it writable, or name another"
        ) from error
    return lock


def changed_settings(
    folder: Path, settings: dict, free: Collection[str]
) -> dict[str, tuple[object, object]]:
    """The settings in which the run of a folder differs, as (there, here); none where no run is."""
    if not (folder / "run.json").is_file():
        return {}
    before = read_json(folder / "run.json")["options"]
    # those that are only there count too: a file of a model may be gone
    names = sorted({*before, *settings} - {*free})
    pairs = {name: (before.get(name), settings.get(name)) for name in names}
    # an option that one of two versions of the library lacks counts where it is used
    return {name: (a, b) for name, (a, b) in pairs.items() if a != b and (a or b)}


def free_folder(name: str, settings: dict, free: Collection[str]) -> Path:
    """The first of runs/NAME, runs/NAME_2, ... that no other command is writing to, and that is new
    or holds a run of these settings. Says on standard error which, and what is in the others."""
    passed = []
    for number in count(1):
        folder = Path("runs", name if number == 1 else f"{name}_{number}")
        try:
            lock_folder(folder).close()
        except FolderInUse:
            passed.append(f"another command is writing to {folder}")
            continue
        if not (changed := changed_settings(folder, settings, free)):
            break
        passed.append(f"{folder} holds a run with another {', '.join(changed)}")
    held = "goes on there" if (folder / "run.json").is_file() else "is new"
    print("; ".join([f"the run {held}: {folder}", *passed]), file=sys.stderr)
    return folder


class Run:
    """Opens a folder, reads what it holds, and adds records.

    Args:
        folder: empty: the free_folder of that name.
        settings: JSON-able; a folder of others is refused, and what differs is named.
        free: settings that may differ from those of earlier sessions.
        key: what identifies a record among those of its name; of two with one key the later counts.

    Attributes:
        date: when it began, kept in its settings: chat templates that write a date write this one
            in every session.
        records: name -> key -> record, of the sessions before and of this process; after `finish`
            the main process has all.
    """

    def __init__(
        self,
        folder: str | Path,
        settings: dict,
        *,
        name: str = "",
        free: Collection[str] = (),
        key: Callable[[dict], Hashable] = answer_key,
        processes: Processes = Processes(),  # noqa: B008  (frozen)
    ):
        self.settings, free = without_checkout(settings), {*free, "date"}  # as read back
        self.processes = processes
        if name and not folder:
            if processes.is_main:
                folder = str(free_folder(name, self.settings, free))
            folder = self.settings["output"] = processes.shared(folder)
        self.folder = Path(folder)
        if self.folder == Path():  # as of an unset variable of a shell
            raise BadInput("the folder of a run needs a name, such as runs/mine; got an empty one")
        self.sessions: list[dict] = []
        self.records: defaultdict[str, dict[Hashable, dict]] = defaultdict(dict)
        self._key, self._session = key, ""
        self._adding = threading.Lock()
        self._place = self.folder / "records"  # where this process adds
        if processes.is_main:
            self._lock = lock_folder(self.folder)
        else:
            processes.wait()  # for the main one to mend what a killed session left
            self._lock = lock_folder(self.folder, fcntl.LOCK_SH)
            self._place /= f"process{processes.index}"
        self._place.mkdir(parents=True, exist_ok=True)
        if changed := changed_settings(self.folder, self.settings, free):
            or_none = "leave --output out, or " if name else ""
            told = [  # digests of files stand by folder and name
                f"another file {key}" if "/" in key else f"{key} {there!r} there and {here!r} here"
                for key, (there, here) in changed.items()
            ]
            raise BadInput(
                f"{self.folder} holds a run with other settings ({', '.join(told)}): "
                f"{or_none}name another folder"
            )
        if (path := self.folder / "run.json").is_file():
            self.sessions = read_json(path)["sessions"]
        self._read_records(repair=processes.is_main)
        if processes.is_main and processes.count > 1:
            # all share the lock from here, so that the folder is another command's only when the
            # last has ended, also one that has outlived its launcher
            fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            processes.wait()
        self.settings["date"] = processes.shared(self._began())
        self.date = datetime.fromisoformat(self.settings["date"])

    @classmethod
    def of(
        cls,
        *options: object,
        further: dict,
        name: str = "",
        key: Callable[[dict], Hashable] = answer_key,
        processes: Processes = Processes(),  # noqa: B008  (frozen)
    ) -> "Run":
        """A command's run. Its settings are the options, dataclasses of which the first says where
        it lies, and in their place or beside them `further` ones: digests of what the options
        name, since files may change. What the dataclasses do not compare may be another in a later
        session."""
        settings = {}
        for group in options:
            settings |= asdict(group)
        settings |= further
        free = {field.name for group in options for field in fields(group) if not field.compare}
        folder = settings["output"]
        return cls(folder, settings, name=name, free=free, key=key, processes=processes)

    def _began(self) -> str:
        """The date at which its first session did, in ISO 8601."""
        if not self.sessions:
            return datetime.now().isoformat()
        path = self.folder / "run.json"
        try:  # runs of older versions hold the time of each session alone
            if not (date := read_json(path)["options"].get("date")):
                date = datetime.fromtimestamp(self.sessions[0]["started"]).isoformat()
            return datetime.fromisoformat(date).isoformat()
        except (KeyError, OSError, OverflowError, TypeError, ValueError) as error:
            raise BadInput(
                f"{path} holds no date at which the run began ({error!r}): put the right one back, "
                "or name another folder"
            ) from error

    def _read_records(self, *, repair: bool = False) -> None:
        known = {session["session"] for session in self.sessions}
        for path in record_files(self.folder):
            for row in read_lines(path, repair=repair):
                # else nobody would know by what settings it was made
                if (session := row.get("session")) not in known:
                    raise BadInput(
                        f"{path} holds records of session {session!r}, of which the run.json of "
                        "this run does not tell: put the right one back, or name another folder"
                    )
                self.records[path.stem][self._key(row)] = row

    def begin_session(self, **notes: object) -> None:
        """Before the first record that a launch adds; every process calls it. The notes are kept
        beside the session's command, commit and machine."""
        self.processes.wait()  # until all have read what there is
        self._session = f"{len(self.sessions) + 1}"
        session = {"session": self._session, "started": time.time()}
        session |= describe_run(self.settings.get("device", "cpu"))
        self.sessions.append(session | {"processes": self.processes.count} | notes)
        if self.processes.is_main:
            whole = {"options": self.settings, "sessions": self.sessions}
            write_json(self.folder / "run.json", whole)
        self.processes.wait()  # no record is there before its session is

    def add(self, name: str, *records: dict) -> None:
        """Append records; they are on disk when this returns. Any thread may call it."""
        records = [record | {"session": self._session} for record in records]
        with self._adding:
            append_lines(self._place / f"{name}.jsonl", records)
            self.records[name] |= {self._key(record): record for record in records}

    def report(self, name: str, text: str, **found: object) -> None:
        """Write what was found as NAME.json, with settings and sessions, and its text as NAME.md,
        and print that."""
        whole = {"options": self.settings, "sessions": self.sessions} | found
        write_json(self.folder / f"{name}.json", whole)
        write_file(self.folder / f"{name}.md", text)
        print(f"\n{text}\nwritten to {self.folder}: {name}.md, {name}.json, records/")

    def finish(self) -> None:
        """Wait for the other processes, whose records the main one then reads; all call it."""
        self.processes.wait()
        if self.processes.is_main and self.processes.count > 1:
            self._read_records()
