"""The proof of a replay: the same questions really decoded, round by round."""

from collections.abc import Sequence

from eagle_fsd.config import TreeConfig, tree_name
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.evaluation.offline.texts import PlainText
from eagle_fsd.rules.fsd import Exact


def decode_text(
    drafter: EagleDrafter, text: PlainText, trees: Sequence[TreeConfig], stop: StopConfig
) -> dict:
    """Decode one question greedily by the exact rule with every tree.

    Returns:
        {"question_id", "trees": {name: accepted drafts of every round}, "same_text": {name: bool}}.
    """
    accepted, same = {}, {}
    config = DecodeConfig(Policy(Exact()), stop)
    for tree in trees:
        own = drafter.with_tree(tree)
        answer = decode(own.target, own, text.prompt, config)
        accepted[tree_name(tree)] = [len(r.tokens) - 1 for r in answer.rounds]
        same[tree_name(tree)] = answer.tokens == text.answer
    return {"question_id": text.question_id, "trees": accepted, "same_text": same}


def compare(decoded: Sequence[dict], replayed: Sequence[dict]) -> list[dict]:
    """One row a tree: questions, how many agree in every round, and both tokens per round.

    Args:
        decoded: from decode_text.
        replayed: records of the same questions, in the same order.
    """
    rows = []
    for name in decoded[0]["trees"] if decoded else []:
        real = [row["trees"][name] for row in decoded]
        said = [row["trees"][name]["accepted"] for row in replayed]
        rows.append(
            {
                "tree": name,
                "questions": len(real),
                "equal": sum(a == b for a, b in zip(real, said, strict=True)),
                "same_text": sum(row["same_text"][name] for row in decoded),
                "decoded_tokens_per_round": _tokens_per_round(real),
                "replayed_tokens_per_round": _tokens_per_round(said),
            }
        )
    return rows


def _tokens_per_round(questions: Sequence[list[int]]) -> float | None:
    rounds = sum(len(accepted) for accepted in questions)
    return (sum(map(sum, questions)) + rounds) / rounds if rounds else None
