"""FastChat's MT-Bench protocol: what a judge is asked about a run's answers, and how it is read.

Prompts come from FastChat's judge_prompts.jsonl. Their choice, filling and parsing are those of
fastchat/llm_judge/gen_judgment.py and common.py (fschat 0.2.36), which cannot be imported beside a
current openai package.
"""

import os
import re
from itertools import product
from pathlib import Path

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.questions import Question, read_questions
from eagle_fsd.models.assets import asset_dir
from eagle_fsd.runs.jsonl import read_json, read_records
from eagle_fsd.runs.provenance import digest
from eagle_fsd.tasks.task_scores import records_by_arm

# categories whose prompt shows a reference answer; FastChat's NEED_REF_CATS
REFERENCED = frozenset({"math", "reasoning", "coding", "arena-hard-200"})
# mode -> its prompts without and with a reference
PROMPTS = {"single": ("single-v1", "single-math-v1"), "pairwise": ("pair-v2", "pair-math-v1")}
PREFERENCES = {"[[A]]": "A", "[[B]]": "B", "[[C]]": "tie"}  # the first that occurs
TOP_RATING = 10  # of FastChat's scale


def read_requests(run_folder: Path, *, mode: str, baseline: str, question_file: str) -> list[dict]:
    """All requests about a run, question by question, so that a part of them compares the arms.

    A turn is judged where question and answers have it; second turns only of questions with
    exactly two, as FastChat does.

    Args:
        question_file: empty: the run's own.

    Returns:
        JSON-able: question_id, category, choice; turn, 1 or 2; arm; baseline, None where it is
        judged alone; game, 1, but a pair is asked twice, in game 2 with the baseline as assistant
        A; prompt, FastChat's name of it; messages; and a digest of all this, by which verdicts on
        other answers or prompts differ.

    """
    data = asset_dir("mt_bench")
    prompts = {row["name"]: row for _, row in read_records(data / "judge_prompts.jsonl")}
    by_gpt4 = {
        row["question_id"]: row["choices"][0]["turns"]
        for _, row in read_records(data / "reference_answer" / "gpt-4.jsonl")
    }
    # by text: another file may use the same ids
    references = {
        question.turns[0]: by_gpt4.get(question.question_id, [])
        for question in read_questions(data / "question.jsonl")
    }
    questions = read_questions(question_file or _own_questions(run_folder))
    records = records_by_arm(run_folder)
    needed = baseline if mode == "pairwise" else None
    if needed and needed not in records:
        raise BadInput(f"--baseline {needed}: no such arm; the run has {', '.join(records)}")
    answers = {
        (arm, row["question_id"], row.get("choice", 0)): [turn["text"] for turn in row["turns"]]
        for arm, rows in records.items()
        for row in rows
    }
    unknown = {place[1] for place in answers} - {question.question_id for question in questions}
    if unknown:
        raise BadInput(
            f"the question file lacks {', '.join(sorted(map(str, unknown))[:5])}, which the run "
            "answered: name the run's own with --question_file"
        )
    choices = sorted({choice for _, _, choice in answers})
    requests = []
    for question, arm, choice in product(questions, records, choices):
        places = [(name, question.question_id, choice) for name in (arm, needed or arm)]
        shown = [answers[place] for place in places if place in answers]
        if len(shown) < 2 or arm == needed:
            continue
        last = min(2 if len(question.turns) == 2 else 1, *map(len, shown))
        for turn, game in product(range(1, last + 1), (1, 2) if needed else (1,)):
            stem = PROMPTS[mode][question.category in REFERENCED]
            prompt = prompts[stem + ("-multi-turn" if turn == 2 else "")]
            first, second = shown if game == 1 else shown[::-1]
            reference = references.get(question.turns[0], question.reference)
            texts = {"question": question.turns, "ref_answer": reference}
            texts |= {"answer": first, "answer_a": first, "answer_b": second}
            user = _fill(prompt["prompt_template"], texts, question)
            messages = [("system", prompt["system_prompt"]), ("user", user)]
            # FastChat too leaves an empty system message out
            messages = [{"role": role, "content": text} for role, text in messages if text]
            request = {
                "question_id": question.question_id,
                "category": question.category,
                "choice": choice,
                "turn": turn,
                "arm": arm,
                "baseline": needed,
                "game": game,
                "prompt": prompt["name"],
                "messages": messages,
            }
            requests.append(request | {"digest": digest(request)})
    return requests


def _own_questions(run_folder: Path) -> str:
    """The question file that the run was made from; "": MT-Bench's."""
    path = run_folder / "run.json"
    (options,) = read_json(path, options=dict) if os.path.isfile(path) else [{}]
    return options.get("question_file", "")


def _fill(template: str, texts: dict[str, list[str]], question: Question) -> str:
    """The user message; a name is that of all turns' first text, NAME_2 of the second's."""
    values = {name: turns[0] for name, turns in texts.items() if turns}
    for name, turns in texts.items():
        values |= {f"{name}_{turn}": text for turn, text in enumerate(turns, start=1)}
    try:
        return template.format(**values)
    except KeyError as error:
        raise BadInput(
            f"question {question.question_id} ({question.category}) has no {error}: add `reference`"
            ", a right answer a turn, to the question file"
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
