"""FastChat's MT-Bench protocol: what a judge is asked about a run's answers, and how it is read.

Prompts come from FastChat's judge_prompts.jsonl. Their choice, filling and parsing are those of
fastchat/llm_judge/gen_judgment.py and common.py (fschat 0.2.36), which cannot be imported beside a
current openai package. Nothing is asked here.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.questions import Question, fastchat_answers, read_questions
from eagle_fsd.models.assets import mt_bench_dir
from eagle_fsd.runs.jsonl import read_lines, read_records

# categories whose prompt shows a reference answer; FastChat's NEED_REF_CATS
REFERENCED = frozenset({"math", "reasoning", "coding", "arena-hard-200"})
# mode -> its prompts without and with a reference, and the verdict that they ask for
PROMPTS = {
    "single": ("single-v1", "single-math-v1", "[[rating]]"),
    "pairwise": ("pair-v2", "pair-math-v1", "[[A]]"),
}
PREFERENCES = {"[[A]]": "A", "[[B]]": "B", "[[C]]": "tie"}  # the first that occurs
TOP_RATING = 10

Answers = dict[tuple[int | str, int], list[str]]  # (question_id, choice) -> turns


@dataclass(frozen=True)
class JudgeRequest:
    """One question to the judge: about one turn of an answer, alone or beside the baseline's.

    Attributes:
        choice: which of several sampled answers, from 0.
        turn: 1 or 2.
        baseline: the arm that `arm` is compared with; None: judged alone.
        game: 1; a pair is asked twice, in game 2 with the baseline as assistant A.
        prompt: FastChat's name of it.
        messages: an empty system message is left out, as FastChat does.
    """

    question_id: int | str
    category: str
    choice: int
    turn: int
    arm: str
    baseline: str | None
    game: int
    prompt: str
    messages: list[dict[str, str]]

    @property
    def digest(self) -> str:
        """A digest of all of it, so that a verdict on another answer or prompt is told apart."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]


def read_requests(
    run_folder: Path,
    *,
    mode: str,
    baseline: str,
    arms: list[str],
    question_file: str,
    prompt_file: str,
    reference_file: str,
) -> list[JudgeRequest]:
    """All requests about a run.

    Args:
        arms: those that are to be judged; empty: all.
        question_file, prompt_file, reference_file: empty: the run's own, and FastChat's.

    Raises:
        BadInput: what is named does not exist, does not fit together, or leaves nothing to judge.
    """
    answers = read_answers(run_folder)
    pairwise = mode == "pairwise"
    # judged alone, arms have a score without a baseline too
    needed = [baseline] if pairwise or baseline != "plain" else []
    for option, names in (("--arms", arms), ("--baseline", needed)):
        unknown = [name for name in names if name not in answers]
        if unknown:
            raise BadInput(
                f"{option} {', '.join(unknown)}: no such arm; the run has {', '.join(answers)}"
            )
    data = mt_bench_dir()
    requests = make_requests(
        mode,
        read_prompts(Path(prompt_file or data / "judge_prompts.jsonl"), mode),
        read_questions(question_file or _own_questions(run_folder) or data / "question.jsonl"),
        _by_choice(_rows(reference_file or data / "reference_answer" / "gpt-4.jsonl")),
        answers,
        baseline if pairwise else None,
    )
    found = {request.arm for request in requests}
    lonely = [arm for arm in arms or answers if arm not in found | {baseline}]
    if lonely or not found.intersection(arms or found):
        raise BadInput(
            f"{', '.join(lonely) or 'no other arm'} shares an answered question and choice with "
            f"{baseline}: nothing to compare"
        )
    return requests


def _own_questions(run_folder: Path) -> str:
    """The question file that the run was made from; "" for MT-Bench's."""
    path = run_folder / "run.json"
    try:
        return json.loads(path.read_text())["options"].get("question_file", "")
    except FileNotFoundError:
        return ""
    except (ValueError, KeyError) as error:
        raise BadInput(f"{path} is damaged ({error!r})") from error


def read_prompts(path: Path, mode: str) -> dict[str, dict]:
    """The four prompts of a mode, by name.

    Raises:
        BadInput: the file is missing or broken, or lacks a prompt whose verdict we can read.
    """
    rows = {row.get("name"): row for row in _rows(path)}
    *stems, verdict = PROMPTS[mode]
    prompts = {name: rows.get(name, {}) for s in stems for name in (s, f"{s}-multi-turn")}
    for name, row in prompts.items():
        if row.get("output_format") != verdict or not {"system_prompt", "prompt_template"} <= set(
            row
        ):
            raise BadInput(
                f"{path} has no judge prompt {name!r} with system_prompt, prompt_template and "
                f"output_format {verdict}: give FastChat's, or one of its form, with --prompt_file"
            )
    return prompts


def read_answers(run_folder: Path) -> dict[str, Answers]:
    """Every arm's answers: of RUN/records, which are ahead of its answers while a run is made and
    after a kill; of RUN/answers where FastChat made them. A torn last line is told and skipped.

    Raises:
        BadInput: there is none, or a file is broken.
    """
    kinds = ("answers", "records")
    paths = {path.stem: path for k in kinds for path in sorted((run_folder / k).glob("*.jsonl"))}
    answers: dict[str, Answers] = {}
    for path in paths.values():
        if path.parent.name == "records":
            rows = read_lines(path, keys=("question_id", "answer_id", "arm", "tstamp", "turns"))
            rows = fastchat_answers(rows)
        else:
            rows = read_lines(path, keys=("question_id", "choices"))
        if rows:
            answers[rows[0].get("model_id", path.stem)] = _by_choice(rows)
    if not answers:
        raise BadInput(
            f"{run_folder} holds no answer in records/ARM.jsonl or answers/ARM.jsonl: run "
            "evaluate/mt_bench.py first"
        )
    return answers


def _rows(path: str | Path) -> list[dict]:
    return [row for _, row in read_records(path)]


def _by_choice(rows: list[dict]) -> Answers:
    """Answers from rows in FastChat's model_answer format."""
    return {
        (row["question_id"], choice.get("index", place)): choice["turns"]
        for row in rows
        for place, choice in enumerate(row["choices"])
    }


def make_requests(
    mode: str,
    prompts: dict[str, dict],
    questions: list[Question],
    references: Answers,
    answers: dict[str, Answers],
    baseline: str | None,
) -> list[JudgeRequest]:
    """All requests, question by question, so that a part of them compares the arms too.

    A turn is judged where question and answers have it; second turns only of questions with
    exactly two, as FastChat does.

    Args:
        baseline: None judges each answer alone.

    Raises:
        BadInput: an answered question is not among the questions or lacks its reference, or a
            prompt cannot be filled.
    """
    strange = {key[0] for of_arm in answers.values() for key in of_arm}
    strange -= {question.question_id for question in questions}
    if strange:
        raise BadInput(
            f"the question file lacks {', '.join(sorted(map(str, strange))[:5])}, which the run "
            "answered: name the run's own with --question_file"
        )
    requests = []
    choices = sorted({choice for of_arm in answers.values() for _, choice in of_arm})
    for question, arm, choice in product(questions, answers, choices):
        mine = answers[arm].get((question.question_id, choice))
        theirs = answers[baseline].get((question.question_id, choice)) if baseline else None
        if mine is None or arm == baseline or (baseline and theirs is None):
            continue
        games = [{"answer": mine}]
        if theirs is not None:
            games = [
                {"answer_a": mine, "answer_b": theirs},
                {"answer_a": theirs, "answer_b": mine},
            ]
        answered = min(map(len, games[0].values()))
        turns = range(1, min(2 if len(question.turns) == 2 else 1, answered) + 1)
        for turn, (game, shown) in product(turns, enumerate(games, start=1)):
            stem = PROMPTS[mode][question.category in REFERENCED]
            prompt = prompts[stem + ("-multi-turn" if turn == 2 else "")]
            texts = {"system": prompt["system_prompt"]}
            texts["user"] = _fill(prompt, turn, question, shown, references)
            messages = [{"role": role, "content": text} for role, text in texts.items() if text]
            place = question.question_id, question.category, choice, turn, arm, baseline, game
            requests.append(JudgeRequest(*place, prompt["name"], messages))
    return requests


def _fill(
    prompt: dict, turn: int, question: Question, shown: dict[str, list[str]], references: Answers
) -> str:
    """The user message: of the second turn both turns are shown."""
    texts = {"question": question.turns} | shown
    if turn == 1:
        values = {name: turns[0] for name, turns in texts.items()}
    else:
        values = {f"{name}_{i}": turns[i - 1] for name, turns in texts.items() for i in (1, 2)}
    if question.category in REFERENCED:
        reference = references.get((question.question_id, 0), [])
        if len(reference) < turn:
            raise BadInput(
                f"question {question.question_id} ({question.category}) has no reference answer to "
                f"turn {turn}: name a file that holds one with --reference_file"
            )
        values |= {f"ref_answer_{i}": reference[i - 1] for i in range(1, turn + 1)}
    try:
        return prompt["prompt_template"].format(**values)
    except (KeyError, IndexError, ValueError) as error:
        raise BadInput(
            f"judge prompt {prompt['name']!r} cannot be filled ({error!r}); it may name "
            f"{', '.join(values)}"
        ) from error


def parse_verdict(reply: str, *, pairwise: bool) -> float | str | None:
    """What a reply says; None if it holds no verdict.

    Alone: its first [[7]], else its first [7], decimals allowed; None also off the scale of 0 to
    10, where FastChat would count a [2023]. Pairwise: "A", "B" or "tie".
    """
    if pairwise:
        return next((said for mark, said in PREFERENCES.items() if mark in reply), None)
    number = r"(\d+\.?\d*)"
    found = re.search(rf"\[\[{number}\]\]", reply) or re.search(rf"\[{number}\]", reply)
    rating = float(found.group(1)) if found else None
    return None if rating is None or rating > TOP_RATING else rating
