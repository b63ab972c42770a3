"""IFEval (Zhou et al. 2023, arXiv 2311.07911): which of a prompt's instructions an answer follows.

The checkers are those of the package if-verifiable. Two of them cut text with nltk's English model,
three guess its language, one may draw a letter; all are made to give the same result every time.
"""

import functools

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.questions import Question
from eagle_fsd.models.assets import nltk_data_dir

LETTERS = "keywords:letter_frequency"


def follow(answer: str, question: Question) -> dict[str, float]:
    """Prompt-level (all instructions followed) and instruction-level (share of them) accuracy.

    `strict` takes the answer as it is, `loose` the best of it without its first line, its last
    line and its asterisks. The mean of the instruction-level scores over questions weighs every
    prompt alike; the paper's weighs every instruction alike.
    """
    evaluate, registry = _checkers()
    instructions = question.extra["instruction_id_list"], question.extra["kwargs"]
    _, scores = evaluate(answer, *instructions, question.turns[0], registry)
    return {
        "prompt_strict": scores.binary_strict,
        "prompt_loose": scores.binary_loose,
        "instruction_strict": scores.partial_strict,
        "instruction_loose": scores.partial_loose,
    }


def check_instructions(question: Question) -> None:
    """Raises BadInput where a question's instructions are missing, unknown or do not fit."""
    try:
        names, arguments = question.extra["instruction_id_list"], question.extra["kwargs"]
        registry = _checkers()[1]
        for name, values in zip(names, arguments, strict=True):
            given = {key: value for key, value in values.items() if value is not None}
            registry[name](name).build_description(**given)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"question {question.question_id!r}: the scorer ifeval, for --task ifeval:PATH, needs "
            "instruction_id_list and as many kwargs, of instructions that if-verifiable has a "
            f"checker for ({error!r:.200})"
        ) from error


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
