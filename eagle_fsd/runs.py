"""A benchmark run's folder: records are the truth, everything else is made from them.

run.json            settings, and every session (process) that added records
records/ARM.jsonl   one answered question a line: tokens, times, rounds, session
answers/ARM.jsonl   the same answers in FastChat's format
"""

import json
import time
from pathlib import Path

from eagle_fsd.jsonl import append_line, read_lines, write_json, write_lines
from eagle_fsd.provenance import describe_run, without_checkout


class Run:
    """Opens a folder, reads what it holds, and adds records.

    Args:
        folder: made if needed.
        settings: what was asked for; a folder with records of other settings is refused.
        extendable: settings that may differ from those of earlier sessions.

    Raises:
        ValueError: the folder cannot be written to, is damaged, or holds another run.
    """

    def __init__(self, folder: str | Path, settings: dict, *, extendable: frozenset[str]):
        self.folder = Path(folder)
        self.settings = without_checkout(settings)
        self.records: dict[str, dict] = {}
        self._session: str | None = None
        try:
            for name in ("records", "answers"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
                (self.folder / name / ".writable").touch()
                (self.folder / name / ".writable").unlink()
        except OSError as error:
            raise ValueError(f"cannot write to --output {folder} ({error})") from error
        self.sessions = self._read_sessions(extendable)

    def _read_sessions(self, extendable: frozenset[str]) -> list[dict]:
        path = self.folder / "run.json"
        if not path.is_file() or not any((self.folder / "records").iterdir()):
            return []
        try:
            before = json.loads(path.read_text())
            options, sessions = before["options"], before["sessions"]
        except (ValueError, KeyError) as error:
            raise ValueError(f"{path} is damaged ({error}); name another --output") from error
        changed = {
            key: (options.get(key), value)
            for key, value in self.settings.items()
            if key not in extendable and options.get(key) != value
        }
        if changed:
            raise ValueError(
                f"{self.folder} holds a run with other settings (there, here): {changed}; "
                "name another --output"
            )
        return sessions

    def open_arm(self, arm: str) -> None:
        """Read what the arm has answered, and bring its answer file in line with it."""
        path = self.folder / "records" / f"{arm}.jsonl"
        rows = read_lines(path, repair=True) if path.is_file() else []
        self.records[arm] = {row["question_id"]: row for row in rows}
        if rows:
            answers = self.folder / "answers" / f"{arm}.jsonl"
            write_lines(answers, [fastchat_answer(row) for row in rows])

    def add(self, arm: str, record: dict) -> None:
        """Append a record; it is on disk when this returns."""
        if self._session is None:
            self._start_session()
        record = {**record, "session": self._session}
        append_line(self.folder / "records" / f"{arm}.jsonl", record)
        append_line(self.folder / "answers" / f"{arm}.jsonl", fastchat_answer(record))
        self.records[arm][record["question_id"]] = record

    def _start_session(self) -> None:
        self._session = f"{len(self.sessions) + 1}"
        described = describe_run(self.settings.get("device", "cpu"))
        self.sessions.append({"session": self._session, "started": time.time(), **described})
        write_json(self.folder / "run.json", {"options": self.settings, "sessions": self.sessions})

    def origin(self, records: dict[str, list[dict]]) -> tuple[str, int]:
        """Where the records come from, in words, and how many questions mix sessions."""
        used = {row["session"] for rows in records.values() for row in rows}
        sessions = [s for s in self.sessions if s["session"] in used]
        words = []
        for key in ("device", "commit"):
            words.append(f"{key} " + " / ".join(dict.fromkeys(s[key] for s in sessions)))
        per_question: dict = {}
        for rows in records.values():
            for row in rows:
                per_question.setdefault(row["question_id"], set()).add(row["session"])
        return ", ".join(words), sum(len(found) > 1 for found in per_question.values())


def fastchat_answer(record: dict) -> dict:
    """FastChat's model_answer row (fastchat/llm_judge/gen_model_answer.py)."""
    return {
        "question_id": record["question_id"],
        "answer_id": record["answer_id"],
        "model_id": record["arm"],
        "choices": [{"index": 0, "turns": [turn["text"] for turn in record["turns"]]}],
        "tstamp": record["tstamp"],
    }
