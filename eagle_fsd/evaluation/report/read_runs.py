"""What a run folder holds, read without changing it: another process may be writing to it.

run.json                  options and sessions
records/ARM.jsonl         the answers; everything measured is made from them
scores/table.json         optional: rows of what a task's scorers gave
judge/JUDGE/*.json        optional: rows of what judges gave
traces/ARM.jsonl          optional: trees and sources of chosen answers
"""

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median

from eagle_fsd.arms import BY_TRANSFORMERS, parse_arm
from eagle_fsd.config import BadInput, check_text
from eagle_fsd.evaluation.metrics import by_category, summarize, untimed
from eagle_fsd.evaluation.record_numbers import rounds_of, seconds
from eagle_fsd.runs.folder import answer_key
from eagle_fsd.runs.jsonl import NUMBER, Form, check_form, is_number, read_json, read_lines
from eagle_fsd.runs.provenance import digest

BASELINES = ("plain", "generate", "generate_compiled", "exact")  # first in every table
# of what a report reads
ID = int | str
COSTS = ("divergence", "tv", "regret")  # of a round's tokens; null: not known


def is_whole_round(part: dict) -> bool:
    """Its lists tell of the same tokens. Element by element here, since a run has millions."""
    tokens, costs = part["tokens"], [value for key in COSTS for value in part[key]]
    return (
        {len(part[key]) for key in ("fuzzy", *COSTS)} == {len(tokens)}
        and all(isinstance(token, int) and is_number(token) for token in tokens)
        and all(flag in (0, 1) for flag in part["fuzzy"])
        and all(cost is None or cost == "inf" or is_number(cost) for cost in costs)
    )


def is_whole_turn(turn: dict) -> bool:
    """Its spans [begin, end) lie in its text, and tokens are numbers."""
    ends, spans = range(len(turn["text"]) + 1), turn["fuzzy_spans"]
    return all(isinstance(token, int) for token in turn["token_ids"]) and all(
        len(span) == 2 and all(end in ends for end in span) for span in spans
    )


def is_whole_record(record: dict) -> bool:
    """A record's, or a trace's; what older ones lack may be absent."""
    choice, tree = record.get("choice", 0), record.get("tree")
    return isinstance(choice, int) and (tree is None or isinstance(tree, str))


def is_whole_session(session: dict) -> bool:
    """What older ones lack may be absent."""
    return isinstance(session.get("library", ""), str)


def is_whole_tree(made: dict) -> bool:
    """Parents stand before their children, and the path is in the tree."""
    parents = [node["parent"] for node in made["nodes"]]
    return (
        all(-1 <= parent < number for number, parent in enumerate(parents))
        and all(0 <= node < len(parents) for node in made["path"])
        and 0 < len(made["emitted"]) <= len(made["path"]) <= len(made["emitted"]) + 1
    )


def is_estimate(value: object) -> bool:
    """None, or {"value", "low", "high"}, of differences also "detectable": numbers, or None of what
    is not known; both bounds are known or none."""
    if not isinstance(value, dict):
        return value is None
    known = {key for key, number in value.items() if is_number(number)}
    whole = value.keys() >= {"value", "low", "high"} and ("low" in known) == ("high" in known)
    return whole and all(value[key] is None for key in value.keys() - known)


ROUND = (dict.fromkeys(("tokens", "fuzzy", *COSTS), list), is_whole_round)
TURN = {"prompt": str, "text": str, "finish": str, "fuzzy_spans": [list], "token_ids": list}
TURN |= dict.fromkeys(("seconds", "rescored_argmax_share", "rescored_mean_logp"), NUMBER)
RECORD = {"question_id": ID, "arm": str, "category": str, "session": str, "temperature": NUMBER}
RECORD |= {"turns": [(TURN | {"rounds": [ROUND]}, is_whole_turn)]}
PROB = NUMBER | str | None
NODE = {"token": int, "text": str, "target_prob": PROB, "draft_prob": PROB}
EMITTED = NODE | {"source": str, "divergence": PROB, "regret": PROB, "best": str, "best_prob": PROB}
TREE = ({"nodes": [NODE | {"parent": int}], "path": [int], "emitted": [EMITTED]}, is_whole_tree)
TRACED = {"same_as_record": bool, "first": {"token": int, "text": str}, "rounds": [TREE]}
TRACE = {"question_id": ID, "arm": str, "turns": [TRACED]}
SCORE = {"arm": str, "questions": int} | dict.fromkeys(("mean", "vs_plain"), is_estimate)
SCORE |= dict.fromkeys(("gained", "lost", "mcnemar_p"), NUMBER | None) | {"score": str}
PAIRS = {"arm": str, "judge": str, "baseline": str, "questions": int, "verdicts": int}
PAIRS |= dict.fromkeys(("win", "tie", "loss", "adjusted"), is_estimate) | {"consistent": NUMBER}
SESSION = {"session": str, "commit": str, "device": str, "timed": bool, "warnings": [str]}
SESSION |= {"versions": dict}
RUN = {"options": {"target": str, "dtype": str}, "sessions": [(SESSION, is_whole_session)]}


@dataclass(frozen=True)
class RunData:
    """A run.

    Attributes:
        name: the folder, as it was given.
        records, traces: by arm; baselines first, then by line and value.
        scores: rows of scorers and judges, see task_scores.compare_scores.
        pairwise: rows of judges that compared pairs, see task_scores.pairwise_rows.
        warnings: of the reading.
    """

    name: str
    options: dict  # of the run's command
    sessions: list[dict]  # its starts that had something to do
    records: dict[str, list[dict]]
    scores: list[dict] = field(default_factory=list)
    pairwise: list[dict] = field(default_factory=list)
    traces: dict[str, list[dict]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @cached_property
    def rows(self) -> list[dict]:
        """Those of summarize; its BadInput names the run."""
        try:
            return summarize(self.measured)
        except BadInput as error:
            raise BadInput(f"{self.name}: {error}") from error

    @cached_property
    def categories(self) -> list[dict]:
        return by_category(self.measured)

    @property
    def measured(self) -> dict[str, list[dict]]:
        return self.records if self.timed else untimed(self.records)

    @property
    def timed(self) -> bool:
        """Whether seconds are timings: no session had several processes, or was for quality."""
        return all(session["timed"] for session in self.used_sessions)

    @property
    def all_records(self) -> list[dict]:
        return [row for rows in self.records.values() for row in rows]

    @property
    def used_sessions(self) -> list[dict]:
        """Those that the records are of."""
        used = {row["session"] for row in self.all_records}
        return [session for session in self.sessions if session["session"] in used]

    def origin(self, key: str) -> str:
        """Commits, or devices, of the sessions."""
        return " / ".join(dict.fromkeys(session[key] for session in self.used_sessions))

    @property
    def subject(self) -> str:
        """Whose answers these are."""
        warm = sorted({row["temperature"] for row in self.all_records})
        temperatures = ", ".join(f"{value:g}" for value in warm)
        return f"{self.options['target']} in {self.options['dtype']}, temperature {temperatures}"

    @property
    def target(self) -> str:
        """Its name, and what tells it from others of that name."""
        found = [pair for pair in self.options.items() if pair[0].startswith("target/")]
        return f"{self.options['target']} ({digest(found)})"

    def doubts_of_code(self) -> list[str]:
        """Whether several states of the library, or versions of packages, made the records."""
        doubts = []
        if len({session.get("library") for session in self.used_sessions}) > 1:
            doubts.append(
                "the library's code was changed under this run: its records are of several states"
            )
        versions: dict[str, list[str]] = {}
        for session in self.used_sessions:
            for package, version in session["versions"].items():
                versions.setdefault(package, []).append(str(version))
        for package, found in versions.items():
            if len(set(found)) > 1:
                doubts.append(
                    f"{package} was changed under this run: its records are of versions "
                    f"{' and '.join(dict.fromkeys(found))}"
                )
        return doubts

    def doubts(self) -> list[str]:
        """What makes the arms less comparable than they look."""
        doubts = self.warnings + self.doubts_of_code()
        sessions: dict[int | str, set[str]] = {}
        for row in self.all_records:
            sessions.setdefault(row["question_id"], set()).add(row["session"])
        mixed = sum(len(found) > 1 for found in sessions.values())
        if mixed:
            doubts.append(
                f"{mixed} of {len(sessions)} questions were answered in more than one session: "
                "their arms were not timed side by side"
            )
        if not self.timed:
            doubts.append(
                "made by several processes at once, or for quality only: seconds are not timings, "
                "so no speed is given"
            )
        doubts += dict.fromkeys(text for s in self.used_sessions for text in s["warnings"])
        if "+" in self.origin("commit"):
            doubts.append("made from a checkout with uncommitted changes (commit ends in +)")
        have = {a: len(rows) for a, rows in self.records.items() if a not in BY_TRANSFORMERS}
        if len(set(have.values())) > 1:
            counts = ", ".join(f"{arm} {count}" for arm, count in have.items())
            doubts.append(f"everything measured is over what all arms have answered; of: {counts}")
        return doubts

    @cached_property
    def same_work(self) -> list[float]:
        """How much longer the slowest of several arms took than the fastest, for every answer that
        they made by the same rounds, token for token: what noise alone does. 0.1: 10 %."""
        groups: dict[tuple, list[float]] = {}
        for arm, rows in self.records.items():
            drafter = parse_arm(arm).drafter
            for row in rows if drafter and self.timed else []:
                made = tuple(tuple(r["tokens"]) for r in rounds_of(row))
                groups.setdefault((drafter, *answer_key(row), made), []).append(seconds(row))
        return [
            max(found) / min(found) - 1 for found in groups.values() if found[1:] and all(found)
        ]

    @property
    def noise(self) -> float:
        """The machine's own spread of speed: the median of same_work, 0 where that is empty."""
        return median(self.same_work or [0.0])

    def noise_told(self) -> str:
        """A sentence on same_work; "" where it is empty."""
        if not self.same_work:
            return ""
        return (
            "Where arms made an answer by the same rounds, token for token (answers: "
            f"{len(self.same_work)}), their seconds differed by {100 * self.noise:.0f} % in the "
            f"median, {100 * max(self.same_work):.0f} % at most: a difference in speed within the "
            "median is none"
        )


def read_run(folder: Path) -> RunData:
    """Read a folder.

    Raises:
        BadInput: it is no run, is empty or damaged (the line is named), or its name is no text.
    """
    check_text(str(folder))
    if not os.path.isfile(folder / "run.json"):
        raise BadInput(f"{folder} is no run: it has no run.json")
    options, sessions = read_json(folder / "run.json", **RUN)
    warnings: list[str] = []
    found = _read_arms(folder / "records", (RECORD, is_whole_record), warnings)
    if not found:
        raise BadInput(f"{folder} holds no records: let its command answer a question first")
    try:
        arms = sorted(found, key=_place)
    except BadInput as error:
        plugin = options.get("plugin")
        advice = "made by an older version? Run it again"
        if plugin:
            advice = f"the run was made with --plugin {plugin}: name that file here too"
        raise BadInput(f"{folder}: {error}; {advice}") from error
    scores = []
    for path in [*folder.glob("scores/table.json"), *folder.glob("judge/*/*.json")]:
        (rows,) = read_json(path, rows=[dict])
        for number, row in enumerate(rows):
            check_form(row, SCORE if "score" in row else PAIRS, f"{path}, rows {number}")
        scores += [row for row in rows if row["arm"] in arms]
    kinds = ("score", "judge", "baseline")  # what a table groups by
    scores.sort(key=lambda row: ([row.get(key) or "" for key in kinds], arms.index(row["arm"])))
    return RunData(
        str(folder),
        options,
        sessions,
        records={arm: found[arm] for arm in arms},
        scores=[row for row in scores if "score" in row],
        pairwise=[row for row in scores if "score" not in row],
        traces=_read_arms(folder / "traces", (TRACE, is_whole_record), warnings),
        warnings=warnings,
    )


def _read_arms(folder: Path, form: Form, warnings: list[str]) -> dict[str, list[dict]]:
    arms = {}
    for path in sorted(folder.glob("*.jsonl")):
        rows = read_lines(path, form=form, warn=warnings.append)
        arm = rows[0]["arm"] if rows else ""
        for number, row in enumerate(rows, start=1):
            if row["arm"] != arm:
                raise BadInput(
                    f"{path}, line {number} is of arm {row['arm']!r:.60}, line 1 of {arm!r:.60}: "
                    "one of them is damaged; make them anew, elsewhere"
                )
        if rows:
            arms[arm] = rows
    return arms


def _place(arm: str) -> tuple:
    """Where an arm stands in tables: baselines first, then by line and value."""
    parsed = parse_arm(arm)
    place = BASELINES.index(parsed.kind) if parsed.kind in BASELINES else len(BASELINES)
    return place, parsed.line, parsed.value or 0.0
