"""Traces: where every token of an answer came from, with the tree of every round.

A trace is made by decoding a recorded answer again, off the clock, with its own seeds. It says
whether the text came out the same, which in bfloat16 asks for the same machine and threads.
"""

import torch

from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.columns import Rows, draft_prob, raw_prob
from eagle_fsd.decoding.drafter import Drafter
from eagle_fsd.decoding.loop import DecodeConfig, Round, decode_rounds
from eagle_fsd.evaluation.answering import json_number
from eagle_fsd.evaluation.arms import Arm
from eagle_fsd.models.loaded import Model


def trace_record(
    model: Model,
    arm: Arm,
    drafter: Drafter,
    sampling: SamplingConfig,
    questions: list[str],
    record: dict,
) -> dict:
    """Decode a record's answers again and note every round.

    Args:
        arm, drafter, sampling: as they were for the record; the arm runs our loop.
        questions: the user's turns.

    Returns:
        The JSON-able trace: question_id, choice, category, arm, and for each turn its
        prompt, whether the tokens are the record's, the token of prefill, and the rounds. A round
        has the tree's nodes (token, text, parent, -1 for the root, and the token's probability
        after its parent under target and draft, by raw rows; null for the root and where the
        drafter has none), the path, and the emitted tokens: source (draft, fuzzy or target),
        divergence, both probabilities, regret (nats), and the target's most likely token there,
        which at temperature 0 is what the exact test emits.
    """
    messages, turns = [], []
    for question, answered in zip(questions, record["turns"], strict=True):
        messages.append({"role": "user", "content": question})
        stop = model.stop(len(answered["token_ids"]))
        config = DecodeConfig(arm.policy(sampling, "full"), stop, answered["seed"])
        tokens, rounds = [], []
        for step in decode_rounds(model.target, drafter, model.prompt_ids(messages), config):
            tokens += step.tokens
            if step.acceptance is not None:
                rounds.append(_round(model, step))
        same = tokens == answered["token_ids"]
        turn = {"prompt": question, "same_as_record": same, "first": _token(model, tokens[0])}
        turns.append(turn | {"rounds": rounds})
        messages.append({"role": "assistant", "content": answered["text"]})
    head = {key: record[key] for key in ("question_id", "choice", "category", "arm")}
    return head | {"turns": turns}


def _token(model: Model, token: int) -> dict:
    return {"token": token, "text": model.tokenizer.decode([token])}


def _round(model: Model, step: Round) -> dict:
    tree, logits_NV, accepted = step.tree, step.logits_NV, step.acceptance
    tokens, parents = tree.token_N.tolist(), tree.parent_N.tolist()
    best = logits_NV[accepted.path].argmax(-1).tolist()
    asked = torch.tensor(tokens + accepted.tokens + best, device=logits_NV.device)
    rows = Rows(tree, logits_NV, slice(None), asked, SamplingConfig())
    target, draft = raw_prob(rows).tolist(), draft_prob(rows).tolist()

    def probs(node: int, place: int) -> dict:
        """Of the token asked at that place, after the node."""
        pair = json_number(target[node][place], 5), json_number(draft[node][place], 5)
        return dict(zip(("target_prob", "draft_prob"), pair, strict=True))

    nodes = [{"parent": -1, "target_prob": None, "draft_prob": None}]
    nodes += [{"parent": parents[n]} | probs(parents[n], n) for n in range(1, tree.size)]
    emitted = []
    for place, (node, token) in enumerate(zip(accepted.path, accepted.tokens, strict=True)):
        ends = place == accepted.accepted_drafts
        found = {
            "source": "fuzzy" if accepted.fuzzy[place] else "target" if ends else "draft",
            "divergence": json_number(accepted.divergence[place]),
            "regret": json_number(accepted.regret[place]),
            "best": _token(model, best[place])["text"],
            "best_prob": probs(node, place - len(best))["target_prob"],
        }
        emitted.append(_token(model, token) | probs(node, tree.size + place) | found)
    nodes = [_token(model, token) | node for token, node in zip(tokens, nodes, strict=True)]
    return {"nodes": nodes, "path": accepted.path, "emitted": emitted}
