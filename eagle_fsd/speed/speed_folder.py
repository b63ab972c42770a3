"""A speed run's folder: rows are appended as they are measured, so that a killed run goes on.

records/repeat_N/ARM.jsonl   one timed answer a line
profile/ARM.jsonl            one profiled answer a line (phases, memory, synchronisations)
steps.jsonl                  single forwards, a line a context
sessions.jsonl               every process that added rows: command, commit, versions, machine

The first line of the first three holds the settings; rows of others are refused.
"""

import time
from collections.abc import Iterable
from pathlib import Path

from eagle_fsd.runs.jsonl import append_line, open_rows, read_lines
from eagle_fsd.runs.provenance import describe_run


class SpeedFolder:
    """Opens a folder and adds rows to it.

    Args:
        folder: made by `open`.
        settings: what every row depends on.
        machine: from describe_machine; noted with the session.
    """

    def __init__(self, folder: str | Path, settings: dict, machine: dict):
        self.path = Path(folder)
        self.settings = settings
        self._machine = machine
        self._rows: dict[str, dict] = {}
        sessions = self.path / "sessions.jsonl"
        self.sessions = read_lines(sessions, repair=True) if sessions.is_file() else []

    def rows(self, file: str) -> dict[int | str, dict]:
        """The rows of a file such as "profile/plain", by question_id; none if it is not there.

        Raises:
            BadInput: it is damaged, or holds rows of other settings.
        """
        if file not in self._rows:
            path = self.path / f"{file}.jsonl"
            self._rows[file] = open_rows(path, self.settings, read_only=True)
        return self._rows[file]

    def open(self, files: Iterable[str]) -> None:
        """Make the files that rows will be added to.

        Raises:
            BadInput: one cannot be written to.
        """
        for file in files:
            self._rows[file] = open_rows(self.path / f"{file}.jsonl", self.settings)

    def add(self, file: str, row: dict) -> None:
        """Append a row; it is on disk when this returns."""
        row = {**row, "session": len(self.sessions)}
        append_line(self.path / f"{file}.jsonl", row)
        self.rows(file)[row["question_id"]] = row

    def begin_session(self, engine: str, first_calls: dict[str, float]) -> None:
        """Before the first row that a process adds.

        Args:
            engine: how the target is run (eagle_fsd.engine.select).
            first_calls: seconds of each arm's first answer, compilation included.
        """
        session = {"started": time.time(), **describe_run(self.settings["device"])}
        session |= {"machine": self._machine, "engine": engine, "first_call_seconds": first_calls}
        self.sessions.append(session)
        append_line(self.path / "sessions.jsonl", session)

    def origin(self, rows: list[dict]) -> str:
        """Where the rows come from, in words."""
        used = {row["session"] for row in rows}
        sessions = [s for number, s in enumerate(self.sessions, start=1) if number in used]
        words = [
            f"{key} " + " / ".join(dict.fromkeys(s[key] for s in sessions))
            for key in ("engine", "device", "commit")
        ]
        policies = dict.fromkeys(str(s["machine"]["wait_policy"]) for s in sessions)
        return ", ".join([*words, "OMP_WAIT_POLICY " + " / ".join(policies)])
