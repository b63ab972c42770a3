"""Options of evaluate/speed.py; nothing heavy is imported here."""

from dataclasses import dataclass, field

from eagle_fsd.config import DEFAULT_ARM, BadInput
from eagle_fsd.evaluation.bench_options import BenchOptions
from eagle_fsd.runs.command import option


@dataclass
class SpeedOptions(BenchOptions):
    output: str = option("runs/speed", "folder of the run")
    question_file: str = option("", "question.jsonl in FastChat's format; empty: MT-Bench")
    questions: int | None = option(16, "how many, over all categories")
    turns: int = option(1, "turns of each question; 0: all")
    num_choices: int = option(3, "how often every arm answers every question")
    arms: list[str] = field(
        default_factory=lambda: ["generate", "plain", "exact", DEFAULT_ARM, "exact@lookup"],
        metadata={"help": "as in docs/evaluate.md; generate_compiled needs a C++ compiler"},
    )
    context: list[int] = field(
        default_factory=lambda: [200],
        metadata={"help": "lengths of prompts at which rounds are profiled and forwards timed"},
    )
    step_repeats: int = option(20, "measurements of every single forward")
    accepted: list[int] = field(
        default_factory=list,
        metadata={
            "help": "drafts that each round accepts, in turn, whatever the rule says: engine time, "
            "no quality; default for a random target 0 1 2 3"
        },
    )

    def __post_init__(self):
        super().__post_init__()
        if self.step_repeats < 1:
            raise BadInput(f"--step_repeats must be at least 1, got {self.step_repeats}")
        if any(length < 2 for length in self.context):
            raise BadInput(f"--context must be at least 2, got {self.context}")
        if min(self.accepted, default=0) < 0:
            raise BadInput(f"--accepted takes counts of 0 or above, got {self.accepted}")
        self.context = sorted(set(self.context))
