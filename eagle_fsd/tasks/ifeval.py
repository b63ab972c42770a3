"""IFEval (Zhou et al. 2023, arXiv 2311.07911): which of a prompt's instructions an answer follows.

The checkers are those of the package if-verifiable. Two of them cut text with nltk's English model,
three guess its language, one may draw a letter; all are made to give the same result every time.
"""

import functools

from eagle_fsd.evaluation.questions import Question
from eagle_fsd.models.assets import nltk_data_dir

INSTRUCTIONS = ("instruction_id_list", "kwargs")
LETTERS = "keywords:letter_frequency"


def follow(answer: str, question: Question) -> dict[str, float]:
    """Prompt-level (all instructions followed) and instruction-level (share of them) accuracy.

    `strict` takes the answer as it is, `loose` the best of it without its first line, its last
    line and its asterisks. The mean of the instruction-level scores over questions weighs every
    prompt alike; the paper's weighs every instruction alike.

    Raises:
        KeyError, TypeError: an unknown instruction, or arguments that do not fit it.
    """
    evaluate, registry = _checkers()
    names, arguments = (question.extra[key] for key in INSTRUCTIONS)
    registry = {name: registry[name] for name in names}  # it would skip an unknown one
    _, scores = evaluate(answer, names, arguments, question.turns[0], registry)
    return {
        "prompt_strict": scores.binary_strict,
        "prompt_loose": scores.binary_loose,
        "instruction_strict": scores.partial_strict,
        "instruction_loose": scores.partial_loose,
    }


@functools.cache
def _checkers():
    """The package's evaluate function, and its registry: instruction -> class of checker."""
    import langdetect
    import nltk
    from if_verifiable.common import evaluate_instructions
    from if_verifiable.ifeval import INSTRUCTION_DICT

    langdetect.DetectorFactory.seed = 0
    nltk.data.path.append(str(nltk_data_dir()))

    class CharacterFrequency(INSTRUCTION_DICT[LETTERS]):
        """Counts the character that was asked for; the published checker (if-verifiable 0.1.2,
        and the paper's) counts a letter drawn at random where that is no letter, as in "4 #"."""

        def build_description(self, *, letter: str, let_frequency: int, let_relation: str) -> str:
            description = super().build_description(
                letter=letter, let_frequency=let_frequency, let_relation=let_relation
            )
            self._letter = letter.strip().lower()
            return description

    return evaluate_instructions, INSTRUCTION_DICT | {LETTERS: CharacterFrequency}
