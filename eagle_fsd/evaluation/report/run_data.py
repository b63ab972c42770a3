"""A run as a report needs it: its rows, where it comes from, and what to doubt about it."""

from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

from eagle_fsd.arms import BY_TRANSFORMERS, PLAIN
from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.disturbed import DISTURBED, Disturbed, disturbed_turns, same_work
from eagle_fsd.evaluation.metrics import by_category, summarize
from eagle_fsd.evaluation.tables import verdict
from eagle_fsd.runs.provenance import CHANGED, digest

NAMED = 5  # disturbed turns


@dataclass(frozen=True)
class RunData:
    """A run.

    Attributes:
        name: the folder, as it was given.
        records, traces: by arm; baselines first, then by line and value.
        scores: rows of scorers and judges, see task_scores.compare_scores.
        scored: by arm and answer_key what scorers gave, {"scores", "reference"}.
        warnings: of the reading.
    """

    name: str
    options: dict  # of the run's command
    sessions: list[dict]  # its starts that had something to do
    records: dict[str, list[dict]]
    scores: list[dict] = field(default_factory=list)
    scored: dict[str, dict[tuple, dict]] = field(default_factory=dict)
    traces: dict[str, list[dict]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @cached_property
    def rows(self) -> list[dict]:
        """Those of summarize; its BadInput names the run."""
        try:
            return summarize(self.records, timed=self.timed)
        except BadInput as error:
            raise BadInput(f"{self.name}: {error}") from error

    @cached_property
    def categories(self) -> list[dict]:
        return by_category(self.records, timed=self.timed)

    def verdict(self, row: dict) -> str:
        """A sentence on one of `rows`, behind the arm's row of the first score, which is the
        scorer's own, or a judge's."""
        first = [score for score in self.scores if score["score"] == self.scores[0]["score"]]
        by_arm = {score["arm"]: score for score in first}
        disturbed = {turn.arm for turn in self.disturbed} & {row["arm"], PLAIN}
        return verdict(row, self.noise, score=by_arm.get(row["arm"]), disturbed=bool(disturbed))

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
        names = {row["session"] for row in self.all_records}
        return [session for session in self.sessions if session["session"] in names]

    def origin(self, key: str) -> str:
        """Commits, or devices, of the sessions."""
        return " / ".join(dict.fromkeys(session[key] for session in self.used_sessions))

    @property
    def subject(self) -> str:
        """Whose answers these are."""
        values = sorted({row["temperature"] for row in self.all_records})
        temperatures = ", ".join(f"{value:g}" for value in values)
        return f"{self.options['target']} in {self.options['dtype']}, temperature {temperatures}"

    @property
    def target(self) -> str:
        """Its name, and what tells it from others of that name; not when its files were changed,
        since a copy on another machine is the same target."""
        files = [
            (key, value)
            for key, value in self.options.items()
            if key.startswith("target/") and not key.endswith(CHANGED)
        ]
        return f"{self.options['target']} ({digest(files)})"

    def doubts_of_code(self) -> list[str]:
        """Whether several states of the library, or versions of packages, made the records."""
        doubts = []
        if len({session.get("library") for session in self.used_sessions}) > 1:
            doubts.append(
                "the library's code was changed during this run, so its records were made by "
                "several states of it"
            )
        versions: dict[str, list[str]] = {}
        for session in self.used_sessions:
            for package, version in session["versions"].items():
                versions.setdefault(package, []).append(str(version))
        for package, used in versions.items():
            if len(set(used)) > 1:
                doubts.append(
                    f"{package} was changed during this run, so its records were made by the "
                    f"versions {' and '.join(dict.fromkeys(used))}"
                )
        return doubts

    def doubts(self) -> list[str]:
        """What makes the arms less comparable than they look."""
        doubts = self.warnings + self.doubts_of_code()
        sessions: dict[int | str, set[str]] = {}
        for row in self.all_records:
            sessions.setdefault(row["question_id"], set()).add(row["session"])
        mixed = sum(len(names) > 1 for names in sessions.values())
        if mixed:
            doubts.append(
                f"{mixed} of {len(sessions)} questions were answered in more than one session, so "
                "their arms were not timed side by side"
            )
        if self.disturbed:
            turns = sum(len(row["turns"]) for row in self.all_records)
            named = [
                f"{one.arm} on question {one.question_id}"
                + f", choice {one.choice}" * bool(one.choice)
                + f", turn {one.turn} ({one.times:.1f} times)"
                for one in self.disturbed[:NAMED]
            ]
            named += ["..."] * (len(self.disturbed) > NAMED)
            doubts.append(
                f"{len(self.disturbed)} of {turns} turns took more than {DISTURBED:g} times as "
                "long as their neighbours, as where something else on the machine is at work: "
                f"{'; '.join(named)}. Read the speeds' medians, or make these answers again by the "
                "same command with --retime"
            )
        if not self.timed:
            doubts.append(
                "the answers were made by several processes at once, or for quality only: their "
                "seconds are no timings, so no speed is given"
            )
        doubts += dict.fromkeys(text for s in self.used_sessions for text in s["warnings"])
        if "+" in self.origin("commit"):
            doubts.append(
                "the answers were made from a checkout with uncommitted changes, which is why its "
                "commit ends in +"
            )
        counts = {a: len(rows) for a, rows in self.records.items() if a not in BY_TRANSFORMERS}
        if len(set(counts.values())) > 1:
            counted = ", ".join(f"{arm} {count}" for arm, count in counts.items())
            doubts.append(
                "arms have different numbers of answers, and what is measured is over the "
                f"questions that all have answered. The answers of each: {counted}"
            )
        return doubts

    @cached_property
    def same_work(self) -> list[float]:
        """See disturbed.same_work; empty where seconds are no timings."""
        return same_work(self.records) if self.timed else []

    @cached_property
    def disturbed(self) -> list[Disturbed]:
        """See disturbed_turns; empty where seconds are no timings."""
        return disturbed_turns(self.records) if self.timed else []

    @property
    def noise(self) -> float:
        """The machine's own spread of speed: the median of same_work, 0 where that is empty."""
        return median(self.same_work or [0.0])

    def noise_note(self) -> str:
        """A sentence on same_work; "" where it is empty."""
        if not self.same_work:
            return ""
        return (
            "Number of answers that several arms made by the same rounds, token for token: "
            f"{len(self.same_work)}. There the slowest arm took {100 * self.noise:.0f} % longer "
            f"than the fastest in the median, and {100 * max(self.same_work):.0f} % at most. This "
            "is the machine's noise: smaller differences in speed than the median say nothing"
        )
