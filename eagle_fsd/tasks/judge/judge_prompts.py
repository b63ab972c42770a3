"""FastChat's judge prompts: which one a question gets, its text, and the verdict in a reply.

The texts are read from FastChat's judge_prompts.jsonl. Names, filling and parsing are those of
fastchat/llm_judge/gen_judgment.py and common.py (fschat 0.2.36), which cannot be imported beside a
current openai package.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from eagle_fsd.runs.jsonl import read_lines

# categories whose prompt shows a reference answer; FastChat's NEED_REF_CATS
REFERENCED = frozenset({"math", "reasoning", "coding", "arena-hard-200"})
MULTI_TURN = "-multi-turn"
# mode -> its prompts without and with a reference
STEMS = {"single": ("single-v1", "single-math-v1"), "pairwise": ("pair-v2", "pair-math-v1")}
FORMATS = {"single": "[[rating]]", "pairwise": "[[A]]"}
SCALE = (0, 10)

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class JudgePrompt:
    name: str
    system: str
    template: str

    def fill(
        self,
        turn: int,
        questions: list[str],
        answers: dict[str, list[str]],
        reference: list[str] | None,
    ) -> str:
        """The user message that asks for a verdict on one turn, 1 or 2.

        Args:
            answers: "answer" (single) or "answer_a" and "answer_b" (pairwise) -> its turns.
            reference: the reference answer's turns, for prompts that show one.

        Raises:
            ValueError: the template asks for something else.
        """
        if turn == 1:
            values = {"question": questions[0]} | {k: turns[0] for k, turns in answers.items()}
        else:
            texts = {"question": questions} | answers
            values = {f"{k}_{i}": turns[i - 1] for k, turns in texts.items() for i in (1, 2)}
        if reference is not None:
            values |= {f"ref_answer_{i}": reference[i - 1] for i in range(1, turn + 1)}
        try:
            return self.template.format(**values)
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(
                f"judge prompt {self.name!r} cannot be filled ({error!r}); it may name "
                f"{', '.join(values)}"
            ) from error

    def messages(self, text: str) -> Messages:
        """The request; an empty system prompt is left out, as FastChat does."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": text}]


def read_prompts(path: str | Path, mode: str) -> dict[str, JudgePrompt]:
    """The four prompts of a mode, by name.

    Raises:
        ValueError: the file is missing or broken, lacks a prompt, or one asks for a verdict in
            another format than FastChat's.
    """
    rows = {row.get("name"): row for row in read_lines(Path(path))}
    prompts = {}
    for name in (stem + end for stem in STEMS[mode] for end in ("", MULTI_TURN)):
        row = rows.get(name, {})
        missing = [k for k in ("system_prompt", "prompt_template", "output_format") if k not in row]
        if missing:
            raise ValueError(f"{path}: judge prompt {name!r} lacks {', '.join(missing)}")
        if row["output_format"] != FORMATS[mode]:
            raise ValueError(
                f"{path}: judge prompt {name!r} has output_format {row['output_format']!r}, "
                f"{mode} judging reads {FORMATS[mode]!r}"
            )
        prompts[name] = JudgePrompt(name, row["system_prompt"], row["prompt_template"])
    return prompts


def prompt_name(mode: str, category: str, turn: int) -> str:
    """The prompt of a question's turn, 1 or 2."""
    plain, referenced = STEMS[mode]
    stem = referenced if category in REFERENCED else plain
    return stem + (MULTI_TURN if turn == 2 else "")


def parse_rating(judgment: str) -> float | None:
    """The score in a reply: its first [[7]], else its first [7], decimals allowed.

    None where there is none or it is off the scale (0 to 10): FastChat would count a [2023].
    """
    number = r"(\d+\.?\d*)"
    match = re.search(rf"\[\[{number}\]\]", judgment) or re.search(rf"\[{number}\]", judgment)
    if not match:
        return None
    score = float(match.group(1))
    return score if SCALE[0] <= score <= SCALE[1] else None


def parse_preference(judgment: str) -> str | None:
    """ "A", "B" or "tie": [[A]] anywhere goes before [[B]], that before [[C]]; None without any."""
    verdicts = {"[[A]]": "A", "[[B]]": "B", "[[C]]": "tie"}
    return next((verdict for mark, verdict in verdicts.items() if mark in judgment), None)


PARSERS = {"single": parse_rating, "pairwise": parse_preference}
