"""What a model's trees have yielded, and a line where that is nothing."""

import sys
from dataclasses import dataclass

from tqdm import tqdm

# A model is told to be of no use from so many rounds on, at so many tokens a round and below. Of
# random weights it is 1.0 with real vocabularies, of light heads 1.5 and more.
LEAST_ROUNDS, IDLE_YIELD = 32, 1.05


@dataclass
class TreeYield:
    """What the rounds of a model's trees have emitted so far, in all answers and shapes of trees; a
    line tells once where that is hardly more than the target emits alone."""

    rounds: int = 0
    tokens: int = 0
    told: bool = False

    def tell(self, model: str) -> None:
        if self.told or self.rounds < LEAST_ROUNDS or self.tokens > IDLE_YIELD * self.rounds:
            return
        self.told = True
        tqdm.write(
            f"eagle_fsd: {self.tokens / self.rounds:.2f} tokens a round in the first {self.rounds} "
            f"rounds: hardly a draft of {model} is taken. Was it trained, and with this target? "
            "train/convert_head.py --check looks at heads",
            file=sys.stderr,
        )
