"""What a run folder holds, read without changing it: another process may be writing to it.

run.json                  options and sessions
records/ARM.jsonl         the answers; everything measured is made from them
scores/table.json         optional: rows of what a task's scorers gave
judge/JUDGE/*.json        optional: rows of what judges gave
traces/ARM.jsonl          optional: trees and sources of chosen answers
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.arms import BY_TRANSFORMERS, parse_arm
from eagle_fsd.evaluation.metrics import rounds_of, seconds, summarize
from eagle_fsd.runs.jsonl import read_lines

BASELINES = ("plain", "generate", "generate_compiled", "exact")  # first in every table
KEYS = ("question_id", "arm", "turns")  # of every record and trace
NOT_TIMED = (
    "made by several processes at once, or for quality only: seconds are not timings, so no speed "
    "is given"
)


@dataclass(frozen=True)
class RunData:
    """A run.

    Attributes:
        name: the folder's, made unique among the report's runs.
        records: arm -> its records, baselines first, then by line and value.
        scores: rows of scorers and judges, see task_scores.compare_scores.
        pairwise: rows of judges that compared pairs, see judge_scores.pairwise_rows.
        traces: arm -> its trace rows.
        warnings: what a reader should know.
    """

    name: str
    folder: Path
    options: dict
    sessions: list[dict]
    records: dict[str, list[dict]]
    scores: list[dict] = field(default_factory=list)
    pairwise: list[dict] = field(default_factory=list)
    traces: dict[str, list[dict]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def used_sessions(self) -> list[dict]:
        """Those that the records are of."""
        used = {row.get("session") for rows in self.records.values() for row in rows}
        return [session for session in self.sessions if session.get("session") in used]

    @property
    def timed(self) -> bool:
        """Whether seconds are timings: no session had several processes, or was for quality."""
        return all(session.get("timed", True) for session in self.used_sessions)

    @property
    def questions(self) -> int:
        """How many questions at least one arm has answered."""
        return len({row["question_id"] for rows in self.records.values() for row in rows})

    def rows(self) -> list[dict]:
        """summarize's rows; its BadInput names the folder."""
        try:
            return summarize(self.records, timed=self.timed)
        except BadInput as error:
            raise BadInput(f"{self.folder}: {error}") from error

    def doubts(self) -> list[str]:
        """What makes the arms less comparable than they look."""
        doubts, used = [], {}
        for rows in self.records.values():
            for row in rows:
                used.setdefault(row["question_id"], set()).add(row.get("session", "?"))
        mixed = sum(len(found) > 1 for found in used.values())
        if mixed:
            doubts.append(
                f"{mixed} of {len(used)} questions were answered in more than one session: their "
                "arms were not timed side by side"
            )
        doubts += [] if self.timed else [NOT_TIMED]
        sessions = self.used_sessions
        doubts += dict.fromkeys(text for s in sessions for text in s.get("warnings", []))
        for key, words in (("device", "hardware"), ("commit", "commits")):
            values = {str(session.get(key)) for session in sessions}
            if len(values) > 1:
                doubts.append(f"different {words}: {' / '.join(sorted(values))}")
        if any(str(session.get("commit")).endswith("+") for session in sessions):
            doubts.append("made from a checkout with uncommitted changes (commit ends in +)")
        return doubts + self._left_out()

    def _left_out(self) -> list[str]:
        """Whether rows leave out answers that not all arms have."""
        answered = {
            arm: {_key(row) for row in rows}
            for arm, rows in self.records.items()
            if arm not in BY_TRANSFORMERS
        }
        every = set().union(*answered.values())
        short = [f"{arm} {len(keys)}" for arm, keys in answered.items() if len(keys) < len(every)]
        if not short:
            return []
        unit = "answers" if any(choice for _, choice in every) else "questions"
        return [
            f"everything measured is over the {len(set.intersection(*answered.values()))} {unit} "
            f"that all arms have; fewer than {len(every)}: {', '.join(short)}"
        ]

    def same_work(self) -> list[float]:
        """How much longer the slowest of several arms took than the fastest, for every answer that
        they made by the same rounds, token for token: what noise alone does. 0.1: 10 %."""
        groups: dict[tuple, list[float]] = {}
        for arm, rows in self.records.items():
            drafter = parse_arm(arm).drafter
            for row in rows if drafter else []:
                made = tuple(tuple(r["tokens"]) for r in rounds_of(row))
                groups.setdefault((drafter, *_key(row), made), []).append(seconds(row))
        return [max(found) / min(found) - 1 for found in groups.values() if len(found) > 1]


def read_runs(folders: list[str], *, allow_different_targets: bool = False) -> list[RunData]:
    """Read every folder.

    Raises:
        BadInput: a folder is given twice, is no run, is empty or damaged (the line is named), or
            the runs are of different targets and that was not allowed.
    """
    paths = [Path(folder) for folder in folders]
    places = [path.resolve() for path in paths]
    for path in paths:
        if places.count(path.resolve()) > 1:
            raise BadInput(f"{path} is given twice: name every run once")
    unique = len({place.name for place in places}) == len(paths)
    runs = [
        read_run(path, name=place.name if unique else str(path))
        for path, place in zip(paths, places, strict=True)
    ]
    targets = {run.name: f"{run.options['target']} in {run.options['dtype']}" for run in runs}
    if len(set(targets.values())) > 1 and not allow_different_targets:
        told = "; ".join(f"{name}: {target}" for name, target in targets.items())
        raise BadInput(
            f"the runs are of different targets ({told}): make a report of each, or give "
            "--allow_different_targets"
        )
    return runs


def read_run(folder: Path, *, name: str) -> RunData:
    """Read one folder; see read_runs."""
    options, sessions = _read_settings(folder / "run.json")
    warnings: list[str] = []
    records = _read_arms(folder / "records", warnings)
    if not records:
        raise BadInput(f"{folder} holds no records: let its command answer a question first")
    try:
        records = {arm: records[arm] for arm in sorted(records, key=_place)}
    except BadInput as error:
        raise BadInput(f"{folder}: {error}; made by an older version? Run it again") from error
    scores = _read_scores(folder, list(records))
    run = RunData(
        name,
        folder,
        options,
        sessions,
        records,
        scores=[row for row in scores if "score" in row],
        pairwise=[row for row in scores if "score" not in row],
        traces=_read_arms(folder / "traces", warnings),
        warnings=warnings,
    )
    if any(folder.glob("shards/*/*.jsonl")):
        warnings.append(
            "holds answers of several processes that are not merged yet and not counted here: run "
            "its command again when it has ended"
        )
    warnings += run.doubts()
    return run


def _read_settings(path: Path) -> tuple[dict, list[dict]]:
    if not path.is_file():
        raise BadInput(f"{path.parent} is no run: it has no run.json")
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        options, sessions = settings["options"], settings["sessions"]
        if not all(isinstance(options.get(key), str) for key in ("target", "dtype")):
            raise ValueError("its options name no target and dtype")
        return options, list(sessions)
    except KeyError as error:
        raise BadInput(f"{path} lacks {error}: made by an older version? Run it again") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise BadInput(f"{path} is damaged ({error})") from error


def _key(row: dict) -> tuple[int | str, int]:
    return row["question_id"], row.get("choice", 0)


def _read_arms(folder: Path, warnings: list[str]) -> dict[str, list[dict]]:
    """Arm -> rows of every file that holds any."""
    arms = {}
    for path in sorted(folder.glob("*.jsonl")):
        rows = read_lines(path, keys=KEYS, warn=warnings.append)
        counts = Counter(map(_key, rows))
        twice = next((key for key, count in counts.items() if count > 1), None)
        if twice:
            raise BadInput(f"{path} answers question {twice[0]!r}, choice {twice[1]} twice")
        if rows:
            arms[rows[0]["arm"]] = rows
        else:
            warnings.append(f"{path.name} holds no whole line: the arm is left out")
    return arms


def _place(arm: str) -> tuple:
    """Where an arm stands in tables: baselines first, then by line and value."""
    parsed = parse_arm(arm)
    place = BASELINES.index(parsed.kind) if parsed.kind in BASELINES else len(BASELINES)
    return place, parsed.line, parsed.value or 0.0


def _read_scores(folder: Path, arms: list[str]) -> list[dict]:
    """The rows that the commands of tasks and judges have written, in the arms' order."""
    rows = []
    for path in [*folder.glob("scores/table.json"), *sorted(folder.glob("judge/*/*.json"))]:
        try:
            rows += json.loads(path.read_text(encoding="utf-8"))["rows"]
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(
                f"{path} is damaged ({error!r}): let its command make it again"
            ) from error
    known = [row for row in rows if row["arm"] in arms]
    kinds = ("score", "judge", "baseline")  # what a table groups by
    return sorted(
        known, key=lambda row: ([row.get(key) or "" for key in kinds], arms.index(row["arm"]))
    )
