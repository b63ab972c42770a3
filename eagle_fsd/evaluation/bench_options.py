"""Options of the commands whose arms answer questions; nothing heavy is imported here."""

from dataclasses import dataclass, replace

from eagle_fsd.cli import option
from eagle_fsd.config import DEFAULT_ARM, BadInput, check_least
from eagle_fsd.evaluation.questions import Question, spread


@dataclass
class BenchOptions:
    arms: list[str] = option(
        [
            *("generate", "plain", "exact", DEFAULT_ARM, "exact@hybrid"),
            *(f"{rule},no_repeat=3,ends=1@hybrid" for rule in (DEFAULT_ARM, "path:0.75")),
        ],
        "rule[:value][,field=value][@drafter[:tree]]; see docs/evaluate.md",
    )
    output: str = option("runs/bench", "folder of the run")
    questions: int | None = option(None, "how many, over all categories; default: all")
    turns: int = option(0, "turns of each question; 0: all")
    generate_questions: int | None = option(None, "questions that `generate` answers; default all")
    num_choices: int = option(1, "answers of an arm to a question, each with its own seed")
    max_new_tokens: int = option(128, "budget of an answer")
    quality_only: bool = option(False, "give no speeds (others may use the machine), all of D")
    traces: int = option(0, "questions whose rounds are kept for the report, over all categories")

    def __post_init__(self):
        check_least(self, "--", turns=0, num_choices=1, traces=0, max_new_tokens=1)
        if self.num_choices > 1000:  # all are listed before the first is made
            raise BadInput(f"--num_choices must be at most 1000, got {self.num_choices}")

    def choose(self, questions: list[Question]) -> list[Question]:
        """As many as were asked for, evenly over the categories, cut to the turns asked for."""
        chosen = spread(questions, self.questions)
        return [replace(q, turns=q.turns[: self.turns or None]) for q in chosen]


@dataclass
class SpeedOptions(BenchOptions):
    output: str = option("runs/speed", "folder of the run")
    question_file: str = option("", "question.jsonl in FastChat's format; empty: MT-Bench")
    questions: int | None = option(None, "how many; default: all, 16 of MT-Bench")
    turns: int = option(1, "turns of each question; 0: all")
    num_choices: int = option(3, "how often every arm answers every question")
    arms: list[str] = option(
        ["generate", "plain", "exact", DEFAULT_ARM, "exact@hybrid", "exact@ngram"],
        "as in docs/evaluate.md; generate_compiled needs a C++ compiler",
    )
    context: list[int] = option(
        [200], "lengths of prompts at which rounds are profiled and forwards timed"
    )
    step_repeats: int = option(20, "measurements of every single forward")
    accepted: list[int] = option(
        [],
        "drafts that each round accepts, in turn, whatever the rule says: engine time, no quality; "
        "default for a random target 0 1 2 3",
    )

    def __post_init__(self):
        super().__post_init__()
        check_least(self, "--", step_repeats=1, context=2, accepted=0)
        if self.questions is None and not self.question_file:
            self.questions = 16
        self.context = sorted(set(self.context))
