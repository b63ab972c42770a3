"""What is to be judged: a run's answers, each alone or each against the baseline's.

Answers and references are rows of FastChat's model_answer format. A turn is judged where question
and answer have it; second turns only of questions with exactly two, as FastChat does.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from eagle_fsd.evaluation.questions import Question
from eagle_fsd.runs.folder import fastchat_answers
from eagle_fsd.runs.jsonl import read_lines, whole_lines
from eagle_fsd.tasks.judge.judge_prompts import REFERENCED, JudgePrompt, Messages, prompt_name

Key = tuple[int | str, int, str, str | None, int]
Answers = dict[tuple[int | str, int], list[str]]  # (question_id, choice) -> turns
RECORD_KEYS = ("question_id", "answer_id", "arm", "tstamp", "turns")


@dataclass(frozen=True)
class Match:
    """One verdict that is wanted.

    Attributes:
        choice: which of several sampled answers, from 0.
        baseline: the arm it is compared with; None: judged alone.
        turn: 1 or 2.
        texts: the user message of every request it takes: one alone; two compared, first with the
            arm as assistant A, then with the baseline.
    """

    question_id: int | str
    choice: int
    arm: str
    baseline: str | None
    turn: int
    prompt: JudgePrompt
    texts: tuple[str, ...]

    @property
    def key(self) -> Key:
        return self.question_id, self.choice, self.arm, self.baseline, self.turn

    def messages(self, game: int) -> Messages:
        return self.prompt.messages(self.texts[game])


def judgment_folder(run_folder: Path) -> Path:
    return run_folder / "model_judgment"


def arms_with_answers(run_folder: Path) -> list[str]:
    """Names of the arms below RUN/records or RUN/answers.

    Raises:
        ValueError: there is none.
    """
    places = [run_folder / name for name in ("records", "answers")]
    arms = sorted({path.stem for place in places for path in place.glob("*.jsonl")})
    if not arms:
        raise ValueError(
            f"{run_folder} holds no records/ARM.jsonl or answers/ARM.jsonl: run "
            "evaluate/mt_bench.py first"
        )
    return arms


def choose_arms(known: list[str], arms: list[str], baseline: str | None) -> list[str]:
    """The arms to be judged: those named, else all; never the baseline, which is None when alone.

    Raises:
        ValueError: an arm or the baseline is not known, or no arm is left.
    """
    for option, names in (("--arms", arms), ("--baseline", [baseline] if baseline else [])):
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ValueError(
                f"{option} {', '.join(unknown)}: no such arm; the run has {', '.join(known)}"
            )
    chosen = [arm for arm in dict.fromkeys(arms or known) if arm != baseline]
    if not chosen:
        raise ValueError(f"no arm is left to compare with {baseline}; the run has only that")
    return chosen


def read_arm(run_folder: Path, arm: str) -> Answers:
    """An arm's turns by question and choice: of its records, which are ahead of its answers while
    a run is made and after a kill; of its answers where FastChat made them.

    A torn last record is skipped with a warning.

    Raises:
        ValueError: see read_answers; a record is broken.
    """
    path = run_folder / "records" / f"{arm}.jsonl"
    if not path.is_file():
        return read_answers(run_folder / "answers" / f"{arm}.jsonl")
    warnings: list[str] = []
    rows = fastchat_answers(whole_lines(path, RECORD_KEYS, warnings))
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return _by_choice(rows, path)


def read_answers(path: Path) -> Answers:
    """Turns by question and choice.

    Raises:
        ValueError: the file is missing, empty or no model_answer file, or a choice occurs twice.
    """
    return _by_choice(read_lines(path), path)


def _by_choice(rows: list[dict], path: Path) -> Answers:
    answers: Answers = {}
    for row in rows:
        try:
            choices = [
                (row["question_id"], choice.get("index", place), choice["turns"])
                for place, choice in enumerate(row["choices"])
            ]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: {row!r:.120} is no row of model answers") from error
        for question_id, index, turns in choices:
            if (question_id, index) in answers:
                raise ValueError(f"{path}: question {question_id}, choice {index} occurs twice")
            answers[question_id, index] = turns
    if not answers:
        raise ValueError(f"{path} holds no answer yet")
    return answers


def make_matches(
    mode: str,
    prompts: dict[str, JudgePrompt],
    questions: list[Question],
    references: Answers,
    answers: dict[str, Answers],
    baseline: str | None,
) -> list[Match]:
    """All matches, question by question, so that a part of them compares the arms too.

    Args:
        prompts: from read_prompts of the mode.
        answers: arm -> its answers; with a baseline also that arm's.

    Raises:
        ValueError: an answered question is not among the questions or lacks its reference, or an
            arm shares no answered question with the baseline.
    """
    by_id = {question.question_id: question for question in questions}
    for arm, rows in answers.items():
        strange = sorted({str(key) for key, _ in rows if key not in by_id})
        if strange:
            raise ValueError(
                f"{arm} answered question {', '.join(strange[:5])}, which the question file has "
                "not: name the run's own with --question_file"
            )
    matches = []
    for question in questions:
        for arm, rows in answers.items():
            for choice in sorted(choice for key, choice in rows if key == question.question_id):
                place = question.question_id, choice
                if arm == baseline or (baseline and place not in answers[baseline]):
                    continue
                theirs = answers[baseline][place] if baseline else None
                for turn in _turns(question, rows[place], theirs):
                    prompt = prompts[prompt_name(mode, question.category, turn)]
                    reference = _reference(question, references, turn)
                    texts = tuple(
                        prompt.fill(turn, question.turns, shown, reference)
                        for shown in _shown(rows[place], theirs)
                    )
                    matches.append(Match(*place, arm, baseline, turn, prompt, texts))
    lonely = [arm for arm in answers if arm not in {baseline, *(match.arm for match in matches)}]
    if lonely:
        raise ValueError(
            f"{', '.join(lonely)} shares no answered question and choice with {baseline}: "
            "nothing to compare"
        )
    return matches


def _turns(question: Question, mine: list[str], theirs: list[str] | None) -> range:
    answered = min(len(turns) for turns in (mine, theirs) if turns is not None)
    return range(1, min(2 if len(question.turns) == 2 else 1, answered) + 1)


def _shown(mine: list[str], theirs: list[str] | None) -> list[dict[str, list[str]]]:
    if theirs is None:
        return [{"answer": mine}]
    return [{"answer_a": mine, "answer_b": theirs}, {"answer_a": theirs, "answer_b": mine}]


def _reference(question: Question, references: Answers, turn: int) -> list[str] | None:
    if question.category not in REFERENCED:
        return None
    reference = references.get((question.question_id, 0), [])
    if len(reference) < turn:
        raise ValueError(
            f"question {question.question_id} ({question.category}) has no reference answer to "
            f"turn {turn}: name a file that holds one with --reference_file"
        )
    return reference
