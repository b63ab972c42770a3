"""Options of evaluate/calibrate.py; nothing heavy is imported here."""

from dataclasses import dataclass

from eagle_fsd.cli import RunOptions, option
from eagle_fsd.config import BadInput, check_least


@dataclass
class CalibrateOptions(RunOptions):
    cost: float = option(0.03, "regret a token, nats, that is tolerated; above temperature 0: TV")
    arms: list[str] = option(
        [f"path:{price}" for price in (0.1, 0.2, 0.35, 0.5, 0.77, 1.25, 2.0)]
        + [f"ratio:{limit}" for limit in (0.25, 0.5, 1.0, 1.5, 2.0, 3.0)]
        + [f"fsd:{threshold}" for threshold in (0.1, 0.2, 0.3, 0.35, 0.4, 0.45)],
        "what there is to choose from, of one drafter",
    )
    question_file: str = option("", "question.jsonl in FastChat's format; empty: MT-Bench")
    questions: int | None = option(
        None, "how many first turns, every second one for verifying; default: all, 16 of MT-Bench"
    )
    verify: int = option(1, "arms that are run for real: the chosen one, and others over the range")
    max_new_tokens: int = option(128, "budget of an answer")
    output: str = option("runs/calibrate", "folder of the run")

    def __post_init__(self):
        check_least(self, "--", cost=0, verify=1, max_new_tokens=2)  # the first is prefill's
        if self.questions is not None and self.questions < 2:
            raise BadInput(
                f"--questions must be at least 2, got {self.questions}: half is held out"
            )
        if self.questions is None and not self.question_file:
            self.questions = 16
