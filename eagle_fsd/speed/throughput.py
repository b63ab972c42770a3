"""The timed pass: one answer without a clock inside, as a row."""

from dataclasses import asdict

from eagle_fsd.config import tree_name
from eagle_fsd.evaluation.arms import Arm, turn_record
from eagle_fsd.speed.timed_arms import Contest, Prompt


def timed_answer(contest: Contest, arm: Arm, prompt: Prompt) -> dict:
    """Answer a prompt; the seconds cover prefill and decoding.

    Returns:
        A record as evaluation/metrics.py reads it, with the arm's tree (None where it has none of
        EAGLE-2's). What the target says of the text is found out afterwards, outside the time.
    """
    result, seconds = contest.answer(arm, prompt)
    tree = getattr(contest.drafter(arm), "tree_config", None)
    return {
        "question_id": prompt.question_id,
        "category": prompt.category,
        "arm": arm.name,
        "accept": asdict(arm.accept) if arm.accept else None,
        "tree": None if tree is None else tree_name(tree),
        "tree_label": arm.tree_label,
        "turns": [turn_record(contest.model, prompt.ids, result, seconds)],
    }
