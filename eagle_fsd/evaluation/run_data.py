"""A run as a report needs it: what its folder holds, its rows, and what to doubt about them.

A folder is read without changing it, since another process may be writing to it:

run.json                  options and sessions
records/ARM.jsonl         the answers; everything measured is made from them (runs/folder.py)
scores/table.json         optional: rows of what a task's scorers gave
scores/ARM.jsonl          optional: what they gave to each answer, and its references
judge/JUDGE/single.json   optional: rows of what judges gave
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median

from eagle_fsd.arms import BY_TRANSFORMERS, PLAIN, parse_arm
from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.metrics import EXACT, by_category, summarize
from eagle_fsd.evaluation.record_numbers import Record, rounds_of, seconds
from eagle_fsd.evaluation.tables import Table, run_tables, verdict
from eagle_fsd.runs.folder import answer_key, check_run, records_by_arm
from eagle_fsd.runs.jsonl import read_json, read_lines
from eagle_fsd.runs.provenance import digest

BASELINES = ("plain", "generate", "generate_compiled", "exact")  # first in every table

Answers = dict[str, dict[tuple, dict]]  # rows by arm and answer_key


@dataclass(frozen=True)
class RunData:
    name: str  # the folder, as it was given
    options: dict  # of the run's command
    sessions: list[dict]  # its starts that had something to do
    records: dict[str, list[dict]]  # by arm; baselines first, then by line and value
    scores: list[dict] = field(default_factory=list)  # see task_scores.compare_scores
    scored: Answers = field(default_factory=dict)  # what scorers gave: {"scores", "reference"}
    warnings: list[str] = field(default_factory=list)  # of the reading

    @cached_property
    def rows(self) -> list[dict]:
        try:
            return summarize(self.records, timed=self.timed)
        except BadInput as error:
            raise BadInput(f"{self.name}: {error}") from error

    @cached_property
    def categories(self) -> list[dict]:
        return by_category(self.records, timed=self.timed)

    @cached_property
    def tables(self) -> dict[str, Table]:
        return run_tables(self.records, self.rows, self.categories, self.scores)

    @property
    def all_records(self) -> list[dict]:
        return [row for rows in self.records.values() for row in rows]

    @property
    def used_sessions(self) -> list[dict]:
        """Those that the records are of."""
        names = {row["session"] for row in self.all_records}
        return [session for session in self.sessions if session["session"] in names]

    @property
    def timed(self) -> bool:
        """Whether seconds are timings: no session had several processes, or was for quality."""
        return all(session["timed"] for session in self.used_sessions)

    @cached_property
    def same_work(self) -> list[float]:
        return same_work(self.records) if self.timed else []

    @property
    def sampled(self) -> bool:
        """Whether answers were drawn, above temperature 0."""
        return any(row["temperature"] for row in self.all_records)

    @property
    def noise(self) -> float:
        """The machine's own spread of speed: the median of same_work, 0 where that is empty."""
        return median(self.same_work or [0.0])

    def verdict(self, row: dict) -> str:
        """A sentence on one of `rows`, behind the arm's row of the first score, which is the
        scorer's own, or a judge's."""
        first = [score for score in self.scores if score["score"] == self.scores[0]["score"]]
        by_arm = {score["arm"]: score for score in first}
        score = by_arm.get(row["arm"])
        return verdict(row, self.noise, sampled=self.sampled, score=score)

    def origin(self, key: str) -> str:
        """Commits, or devices, of the sessions."""
        return " / ".join(dict.fromkeys(session[key] for session in self.used_sessions))

    @property
    def subject(self) -> str:
        values = sorted({row["temperature"] for row in self.all_records})
        temperatures = ", ".join(f"{value:g}" for value in values)
        told = ", with a system message" if self.options.get("system") else ""
        made = f"{self.options['target']} in {self.options['dtype']}"
        return f"{made}, temperature {temperatures}{told}"

    @property
    def target(self) -> str:
        """Its name, and what tells it from others of that name."""
        files = [item for item in self.options.items() if item[0].startswith("target/")]
        return f"{self.options['target']} ({digest(files)})"

    def doubts_of_code(self) -> list[str]:
        """Whether several states of the library, or versions of packages, made the records."""
        used = self.used_sessions
        changed = {}
        if len({session.get("library") for session in used}) > 1:
            changed["the library's code"] = "several states of it"
        for package in dict.fromkeys(name for session in used for name in session["versions"]):
            versions = dict.fromkeys(str(session["versions"].get(package)) for session in used)
            if len(versions) > 1:
                changed[package] = f"the versions {' and '.join(versions)}"
        return [
            f"{what} was changed during this run, so its records were made by {makers}"
            for what, makers in changed.items()
        ]

    def doubts(self) -> list[str]:
        """What makes the arms less comparable than they look."""
        doubts = self.warnings + self.doubts_of_code()
        if "+" in self.origin("commit"):
            doubts.append(
                "the answers were made from a checkout with uncommitted changes, which is why its "
                "commit ends in +"
            )
        # 1. what was not timed, or not side by side, or by a machine that had other work
        sessions: dict[int | str, set[str]] = {}
        for row in self.all_records:
            sessions.setdefault(row["question_id"], set()).add(row["session"])
        if mixed := sum(len(names) > 1 for names in sessions.values()):
            doubts.append(
                f"{mixed} of {len(sessions)} questions were answered in more than one session, so "
                "their arms were not timed side by side"
            )
        if not self.timed:
            doubts.append(
                "the answers were made by several processes at once, or for quality only: their "
                "seconds are no timings, so no speed is given"
            )
        doubts += dict.fromkeys(
            text for session in self.used_sessions for text in session["warnings"]
        )
        # 2. other questions
        asked = {a: rows for a, rows in self.records.items() if a not in BY_TRANSFORMERS}
        if len({frozenset(map(answer_key, rows)) for rows in asked.values()}) > 1:
            counted = ", ".join(f"{arm} {len(rows)}" for arm, rows in asked.items())
            doubts.append(
                "arms have answers to different questions, and what is measured is over the "
                f"questions that all have answered. The answers of each: {counted}"
            )
        # 3. another text: a repeated one is easily drafted
        lossless = (PLAIN, EXACT, *BY_TRANSFORMERS)
        plain = next((row["looping"] for row in self.rows if row["rule"] == PLAIN), {})
        most = plain.get("high")
        loops = {row["arm"]: row["looping"] for row in self.rows if row["rule"] not in lossless}
        if most is not None and (beyond := {a: x for a, x in loops.items() if x["value"] > most}):
            shares = ", ".join(f"{100 * x['value']:.0f} % of {arm}'s" for arm, x in beyond.items())
            doubts.append(
                f"answers end in a loop, {shares}, where {100 * plain['value']:.0f} % of plain's "
                f"do and by chance {100 * most:.0f} % at most might: what loops gain is no gain"
            )
        return doubts

    def noise_note(self) -> str:
        if not self.same_work:
            return ""
        return (
            "Number of answers that several arms made by the same rounds, token for token: "
            f"{len(self.same_work)}. There the slowest arm took {100 * self.noise:.0f} % longer "
            f"than the fastest in the median, and {100 * max(self.same_work):.0f} % at most. This "
            "is the machine's noise: smaller differences in speed than the median say nothing"
        )


def same_work(records: Mapping[str, Sequence[Record]]) -> list[float]:
    """How much longer the slowest of several arms took than the fastest, for every answer that
    they made by the same rounds, token for token: what noise alone does. 0.1: 10 %."""
    groups: dict[tuple, list[float]] = {}
    for arm, rows in records.items():
        parsed = parse_arm(arm)
        for row in rows if parsed.drafts else []:
            work = tuple(tuple(r["tokens"]) for r in rounds_of(row))
            groups.setdefault((parsed.drafter, *answer_key(row), work), []).append(seconds(row))
    return [
        max(times) / min(times) - 1 for times in groups.values() if len(times) > 1 and all(times)
    ]


def read_run(folder: Path) -> RunData:
    check_run(folder)
    whole = read_json(folder / "run.json")
    options, sessions = whole["options"], whole["sessions"]
    warnings: list[str] = []
    records = records_by_arm(folder, warn=warnings.append)
    try:
        parsed = {arm: parse_arm(arm) for arm in records}
    except BadInput as error:
        advice = "made by an older version? Run it again"
        if plugin := options.get("plugin"):
            advice = f"the run was made with --plugin {plugin}: name that file here too"
        raise BadInput(f"{folder}: {error}; {advice}") from error
    # baselines first, then by line and value
    others = sorted(parsed, key=lambda arm: (parsed[arm].line, parsed[arm].value or 0.0))
    arms = sorted(others, key=lambda arm: (*BASELINES, parsed[arm].kind).index(parsed[arm].kind))
    scores = []
    for path in [*folder.glob("scores/table.json"), *sorted(folder.glob("judge/*/single.json"))]:
        scores += [row for row in read_json(path)["rows"] if row["arm"] in arms]
    names = list(dict.fromkeys(row["score"] for row in scores))  # a scorer's own comes first
    scores.sort(key=lambda row: (names.index(row["score"]), arms.index(row["arm"])))
    scored = {}
    for arm in arms:
        path = folder / "scores" / f"{parsed[arm].slug}.jsonl"
        if path.is_file():
            rows = read_lines(path, warn=warnings.append)
            scored[arm] = {answer_key(row): row for row in rows}
    return RunData(
        str(folder),
        options,
        sessions,
        records={arm: records[arm] for arm in arms},
        scores=scores,
        scored=scored,
        warnings=warnings,
    )
