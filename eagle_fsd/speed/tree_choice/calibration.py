"""What tuning decodes and how long it measures.

The prompts are written here, of several kinds. None is from MT-Bench or another test set, so that
nothing is tuned on what it is measured by.
"""

from dataclasses import dataclass

from eagle_fsd.config import BadInput

PROMPTS = (
    "Explain to a twelve-year-old why the moon seems to change its shape during a month.",
    "List eight things to check before a long bicycle trip, with half a sentence on each.",
    "Write a Python function that counts how often each word occurs in a text file, ignoring "
    "case, and prints the ten most frequent words.",
    "A shop sells pens at 3 for 2 euros and notebooks at 4 euros each. How much do 12 pens and "
    "5 notebooks cost together? Show the steps.",
    "Tell a short story about a lighthouse keeper who finds a letter in a bottle.",
    "Rewrite this more politely: You sent me the wrong parts again. I want my money back today, "
    "and I will never buy anything from you again.",
    "Compare trains and buses for travel between two cities. Which would you choose, and why?",
)


@dataclass(frozen=True)
class TuningConfig:
    """How tuning measures; the defaults take about a minute on two CPU cores.

    Attributes:
        prompts: user turns that are decoded for the acceptance statistics.
        max_new_tokens: budget of each answer.
        repeats: measurements of every cost, interleaved; their median counts.
        context: committed tokens before the first measured verification; it grows while measuring.
        seed: of the sampling.
    """

    prompts: tuple[str, ...] = PROMPTS
    max_new_tokens: int = 64
    repeats: int = 7
    context: int = 200
    seed: int = 0

    def __post_init__(self):
        if not self.prompts:
            raise BadInput("tuning needs at least one prompt")
        for name in ("max_new_tokens", "repeats", "context"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} of tuning must be at least 1, got {getattr(self, name)}")
