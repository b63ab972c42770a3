"""Options of evaluate/speed.py; nothing heavy is imported here."""

from dataclasses import dataclass, field

from eagle_fsd.config import DEFAULT_ARM, BadInput
from eagle_fsd.models.model_options import option

# What a run may be continued with, although it differs.
EXTENDABLE = frozenset(
    ("output", "prompts", "arms", "repeats", "profile_prompts", "context")
    + ("reference_tokens_per_second", "hold_fuzzy_share")
)


@dataclass
class SpeedOptions:
    output: str = option("runs/speed", "folder of the run")
    prompts: int = option(16, "how many first turns, over all categories")
    question_file: str = option("", "question.jsonl in FastChat's format; empty: MT-Bench")
    arms: list[str] = field(
        default_factory=lambda: [
            *("generate", "generate_compiled", "plain", "exact", DEFAULT_ARM, "exact@lookup")
        ],
        metadata={
            "help": "plain, generate, generate_compiled, RULE[:VALUE][@DRAFTER[:TREE]], as in "
            "exact@eagle:7x3x4; a tree of auto is chosen by measurement"
        },
    )
    max_new_tokens: int = option(128, "budget of an answer")
    repeats: int = option(3, "how often every arm answers every prompt")
    profile_prompts: int = option(2, "first prompts that are profiled")
    context: list[int] = field(
        default_factory=lambda: [200],
        metadata={
            "help": "lengths of prompts that are profiled too, and at which forwards are timed"
        },
    )
    step_repeats: int = option(20, "measurements of every single forward")
    accepted: list[int] = field(
        default_factory=list,
        metadata={
            "help": "drafts that each round accepts, in turn, whatever the rule says: engine time, "
            "no quality; default for a random target 0 1 2 3"
        },
    )
    hold_fuzzy_share: float = option(0.01, "for auto trees: see evaluate/choose_tree.py")
    reference_tokens_per_second: list[str] = field(
        default_factory=list, metadata={"help": "NAME=TOKENS/S published elsewhere, shown beside"}
    )

    def __post_init__(self):
        for name in ("max_new_tokens", "repeats", "profile_prompts", "step_repeats"):
            if getattr(self, name) < 1:
                raise BadInput(f"--{name} must be at least 1, got {getattr(self, name)}")
        if any(length < 2 for length in self.context):
            raise BadInput(f"--context must be at least 2, got {self.context}")
        if min(self.accepted, default=0) < 0:
            raise BadInput(f"--accepted takes counts of 0 or above, got {self.accepted}")
        if self.profile_prompts > self.prompts:
            raise BadInput(
                f"--profile_prompts {self.profile_prompts} is more than --prompts {self.prompts}"
            )
        self.context = sorted(set(self.context))
        self.reference_speeds()

    def reference_speeds(self) -> dict[str, float]:
        """Name -> tokens/s."""
        speeds = {}
        for text in self.reference_tokens_per_second:
            name, _, number = text.rpartition("=")
            try:
                speeds[name] = float(number)
            except ValueError:
                speeds[name] = 0.0
            if not name or not 0 < speeds[name] < float("inf"):
                raise BadInput(
                    f"--reference_tokens_per_second takes NAME=TOKENS_PER_SECOND, got {text!r}"
                )
        return speeds
