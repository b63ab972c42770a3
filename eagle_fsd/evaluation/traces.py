"""Where every token of an answer came from, with the tree of every round, for the report's page.

A trace is taken down while its answer is decoded, since a round's logits are good until the next;
answering.answer_prompt holds its clock meanwhile. An answer that is there already gets none.

traces/ARM.jsonl has a row a question: question_id, choice, category, arm, and its turns, each with
its prompt, first (the token of prefill), and rounds (trace_round).
"""

import torch

from eagle_fsd.arms import Arm
from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.answer import Round
from eagle_fsd.decoding.columns import PLACES, Rows, draft_prob, raw_prob
from eagle_fsd.decoding.divergence import DIVERGENCES
from eagle_fsd.evaluation.answering import json_number
from eagle_fsd.models.loaded import Model


def traced_token(model: Model, token: int) -> dict:
    return {"token": token, "text": model.tokenizer.decode([token])}


class TurnTrace:
    """A turn's steps as they arise, in `taken`: {first, rounds}."""

    def __init__(self, model: Model, arm: Arm):
        self._model, self._arm, self.taken = model, arm, {}

    def take(self, step: Round) -> None:
        if step.acceptance is None:
            self.taken = {"first": traced_token(self._model, step.tokens[0]), "rounds": []}
        else:
            self.taken["rounds"].append(trace_round(self._model, self._arm, step))


def trace_round(model: Model, arm: Arm, step: Round) -> dict:
    """What a round drafted and emitted, JSON-able; tokens that were trimmed are not in it.

    Returns:
        nodes: of the tree: token, text, parent (-1 for the root), and the token's probability after
            its parent under target and draft, by raw rows; null for the root and where the drafter
            has none.
        path: the accepted nodes whose tokens were emitted, the root first.
        emitted: token, text, source (draft, fuzzy or target), the place's divergence by which it
            was judged, both probabilities, regret (nats), and the target's most likely token there,
            which at temperature 0 is what the exact test emits.
    """
    tree, accepted, count = step.tree, step.acceptance, len(step.tokens)
    path = accepted.path[:count]
    best = step.logits_NV[path].argmax(-1).tolist()
    tokens, parents = tree.token_N.tolist(), tree.parent_N.tolist()
    # looked at are the drafts, behind their parents, then what was and what could have been emitted
    row_C, token_C = torch.tensor(
        [parents + path + path, tokens + step.tokens + best], device=step.logits_NV.device
    )
    drafter = tree.draft_logits_ER, tree.draft_row_N, tree.draft_token_R
    rows = Rows(step.logits_NV.float(), row_C, token_C, SamplingConfig(), *drafter)
    target, draft = raw_prob(rows).tolist(), draft_prob(rows).tolist()
    # the D that the rule reads, or that it might have read
    columns = [*arm.rule.columns, "js"]
    divergence = PLACES[next(name for name in columns if name in DIVERGENCES)](rows).tolist()

    def probs(place: int) -> dict:
        pair = json_number(target[place], 5), json_number(draft[place], 5)
        return dict(zip(("target_prob", "draft_prob"), pair, strict=True))

    nodes = [{"parent": -1, "target_prob": None, "draft_prob": None}]
    nodes += [{"parent": parents[n]} | probs(n) for n in range(1, tree.size)]
    emitted = []
    for place, (node, token) in enumerate(zip(path, step.tokens, strict=True)):
        ends = place == accepted.accepted_drafts
        judged = {
            "source": "fuzzy" if accepted.fuzzy[place] else "target" if ends else "draft",
            "divergence": json_number(divergence[node]) if node in parents[1:] else None,
            "regret": json_number(accepted.regret[place]),
            "best": traced_token(model, best[place])["text"],
            "best_prob": probs(tree.size + count + place)["target_prob"],
        }
        emitted.append(traced_token(model, token) | probs(tree.size + place) | judged)
    nodes = [traced_token(model, token) | node for token, node in zip(tokens, nodes, strict=True)]
    return {"nodes": nodes, "path": accepted.path[: count + 1], "emitted": emitted}
