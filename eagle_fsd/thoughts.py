"""What a reasoning target thinks before it answers, told from the answer by the marks around it.

A bench takes the thought's length down with an answer, since it alone knows the target's marks and
its prompt. All that reads answers takes it from there: scorers, judge, report.
"""

from collections.abc import Iterable

Marks = tuple[tuple[str, str], ...]  # (begin, end)

# as published targets write them
KNOWN_MARKS: Marks = (
    ("<think>", "</think>"),  # Qwen, DeepSeek and most others
    ("<thought>", "</thought>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),  # Magistral
    ("◁think▷", "◁/think▷"),  # Kimi
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A
    ("<|begin_of_thought|>", "<|end_of_thought|>"),  # OpenThinker
    ("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),  # gpt-oss
)


def thought_length(text: str, marks: Marks = KNOWN_MARKS, *, prompt: str | None = None) -> int:
    """The number of characters at the front of a text that are its thought, with its marks and the
    line breaks behind them; 0 without one, and all of them where the thought does not end.

    Args:
        prompt: the end of what stood before the text, where many templates write the begin mark.
            None: not known; a text with an end mark then began as thought.

    Example: of "<think>maybe 41</think> 42" it is 23.
    """
    for begin, end in marks:
        _, mark, answer = text.partition(end)
        opened = mark if prompt is None else prompt.rstrip().endswith(begin)
        if opened or text.lstrip().startswith((begin, end)):
            return len(text) - len(answer.lstrip("\n"))
    return 0


def thought_tokens(length: int, ends: Iterable[int]) -> int:
    """The number of tokens that a thought of so many characters has; see Model.text_ends."""
    return sum(end <= length for end in ends) if length else 0


def without_thought(text: str) -> str:
    """A text, of whatever model, behind its thought.

    Example: of "<think>maybe 41</think> 42" it is " 42".
    """
    return text[thought_length(text) :]


def answer_of(turn: dict) -> str:
    """The text of a recorded turn behind its thought; a turn of a bench has the thought's length if
    there is one."""
    return turn["text"][turn["thought"] :] if "thought" in turn else without_thought(turn["text"])
