"""Options of the commands whose arms answer questions; nothing heavy is imported here."""

from dataclasses import dataclass, field, replace

from eagle_fsd.config import DEFAULT_ARM, BadInput
from eagle_fsd.evaluation.questions import Question, spread
from eagle_fsd.runs.command import option


@dataclass
class BenchOptions:
    """Options of every command that lets arms answer questions."""

    arms: list[str] = field(
        default_factory=lambda: ["generate", "plain", "exact", DEFAULT_ARM, "fsd:0.4", "path:0.5"],
        metadata={"help": "rule[:value][,field=value][@drafter[:tree]]; see docs/evaluate.md"},
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
        for name, least in {"turns": 0, "num_choices": 1, "traces": 0, "max_new_tokens": 1}.items():
            if getattr(self, name) < least:
                raise BadInput(f"--{name} must be at least {least}, got {getattr(self, name)}")

    def choose(self, questions: list[Question]) -> list[Question]:
        """As many as were asked for, evenly over the categories, cut to the turns asked for."""
        chosen = spread(questions, self.questions)
        return [replace(q, turns=q.turns[: self.turns or None]) for q in chosen]
