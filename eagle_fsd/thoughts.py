"""What a reasoning target thinks before it answers, told from the answer by the marks around it.

A bench, which alone knows the target's marks and its prompt, records the thought's length; scorers,
judge and report read it there.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from eagle_fsd.messages import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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
PROMPT_END = 32  # tokens at a prompt's end that may hold a mark and white space


def thought_length(text: str, marks: Marks = KNOWN_MARKS, *, prompt: str | None = None) -> int:
    """The number of characters at the front of a text that are its thought, with its marks and the
    line breaks behind them; 0 without one, and all of them where the thought does not end.

    `prompt` is the end of what stood before the text, where many templates write the begin mark;
    if it is None, a text with an end mark began as thought. Of "<think>maybe 41</think> 42" it is
    23.
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
    """A text, of whatever model, behind its thought."""
    return text[thought_length(text) :]


def answer_of(turn: dict) -> str:
    """The text of a recorded turn behind its thought; a turn of a bench has the thought's length if
    there is one."""
    return turn["text"][turn["thought"] :] if "thought" in turn else without_thought(turn["text"])


class Thought(NamedTuple):
    """What of an answer's text is thought."""

    length: int  # characters at its front
    shown: bool  # its marks are there; special tokens are not


def thought_marks(tokenizer: "PreTrainedTokenizerBase") -> Marks:
    """The marks around a target's thoughts that its chat template or its added tokens name; none of
    most targets."""
    tokens = {token.content for token in tokenizer.added_tokens_decoder.values()}
    template = str(tokenizer.chat_template or "")
    return tuple(pair for pair in KNOWN_MARKS if pair[1] in template or pair[1] in tokens)


def find_thought(
    tokenizer: "PreTrainedTokenizerBase",
    prompt: Sequence[int],
    token_ids: Sequence[int],
    text: str,
    marks: Marks = (),
) -> Thought:
    """The thought of an answer to a prompt, whose text lacks special tokens; by the marks that are
    given, else those of thought_marks, else all that are known."""
    marks = marks or thought_marks(tokenizer) or KNOWN_MARKS
    whole = tokenizer.decode(token_ids)
    length = thought_length(whole, marks, prompt=tokenizer.decode(prompt[-PROMPT_END:]))
    if whole[:length] == text[:length]:
        return Thought(length, True)
    # the text lacks special tokens: as much of it as the thought's tokens say
    counts = range(1, len(token_ids) + 1)
    place = bisect_left(counts, length, key=lambda n: len(tokenizer.decode(token_ids[:n])))
    count = counts[place]
    before = tokenizer.decode(token_ids[:count], skip_special_tokens=True)
    return Thought(min(len(before), len(text)), False)


def answer_message(text: str, thought: Thought) -> Message:
    """An answer as the next prompt's history has it: whole, for the template to leave out what was
    thought; thought and answer apart where the text does not show the marks."""
    if thought.shown:
        return {"role": "assistant", "content": text}
    apart = {"content": text[thought.length :], "reasoning_content": text[: thought.length]}
    return {"role": "assistant"} | apart
