"""Traces: where every token of an answer came from, with the tree of every round.

A trace is made by decoding a recorded answer again, off the clock, with its own seeds: the rounds
are then looked at one by one. It says whether the text came out the same, which in bfloat16 asks
for the same machine and number of threads.
"""

import torch

from eagle_fsd.api import Model
from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.acceptance import Acceptance
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.evaluation.answering import answer_prompt, json_number
from eagle_fsd.evaluation.arms import Arm


def trace_record(
    model: Model, arm: Arm, sampling: SamplingConfig, questions: list[str], record: dict
) -> dict:
    """Decode a record's answers again and note every round.

    Args:
        arm, sampling: as they were for the record.
        questions: the user's turns.
        record: of an arm that runs our loop.

    Returns:
        The JSON-able trace: question_id, choice, category, arm, and for each turn its
        prompt, whether the tokens are the record's, the token of prefill, and the rounds. A round
        has the tree's nodes (token, text, parent, -1 for the root, depth, and the token's
        probability after its parent under target and draft, by raw rows; null for the root and
        where the drafter has none), the path, and the emitted tokens: source (draft, fuzzy or
        target), divergence, both probabilities, regret (nats).
    """
    drafter = arm.build_drafter(model)
    messages, turns = [], []
    for question, answered in zip(questions, record["turns"], strict=True):
        messages.append({"role": "user", "content": question})
        rounds: list[dict] = []

        def watch(tree, logits_NV, accepted, rounds=rounds):
            rounds.append(_round(model, tree, logits_NV, accepted))

        stop = model.stop(len(answered["token_ids"]))
        prompt = model.prompt_ids(messages)
        how = (sampling, stop, answered["seed"])
        result, _ = answer_prompt(
            arm, model, prompt, *how, drafter=drafter, record="full", watch=watch
        )
        turns.append(
            {
                "prompt": question,
                "same_as_record": result.tokens == answered["token_ids"],
                "first": _token(model, result.tokens[0]),
                "rounds": rounds,
            }
        )
        messages.append({"role": "assistant", "content": answered["text"]})
    head = {key: record[key] for key in ("question_id", "category", "arm")}
    return head | {"choice": record.get("choice", 0), "turns": turns}


def _token(model: Model, token: int) -> dict:
    return {"token": token, "text": model.tokenizer.decode([token])}


def _round(model: Model, tree: DraftTree, logits_NV: torch.Tensor, accepted: Acceptance) -> dict:
    target_NV = torch.softmax(logits_NV.float(), dim=-1)
    draft_NV = None
    if tree.draft_logits_ER.shape[0]:
        node_N = torch.arange(tree.size, device=logits_NV.device)
        draft_NV = torch.softmax(tree.draft_logits(node_N, logits_NV.shape[1]).float(), dim=-1)
    row_N = tree.draft_row_N.tolist()

    def probabilities(node: int, token: int) -> dict:
        """Of a token after a node."""
        known = draft_NV is not None and row_N[node] >= 0
        return {
            "target_prob": round(target_NV[node, token].item(), 5),
            "draft_prob": round(draft_NV[node, token].item(), 5) if known else None,
        }

    nodes = []
    tables = [table.tolist() for table in (tree.token_N, tree.parent_N, tree.depth_N)]
    for node, (token, parent, depth) in enumerate(zip(*tables, strict=True)):
        place = {"parent": parent if node else -1, "depth": depth}
        none = {"target_prob": None, "draft_prob": None}
        found = probabilities(parent, token) if node else none
        nodes.append(_token(model, token) | place | found)
    emitted = []
    for place, (node, token) in enumerate(zip(accepted.path, accepted.tokens, strict=True)):
        ends = place == accepted.accepted_drafts
        source = "fuzzy" if accepted.fuzzy[place] else "target" if ends else "draft"
        emitted.append(
            _token(model, token)
            | {"source": source, "divergence": json_number(accepted.divergence[place])}
            | probabilities(node, token)
            | {"regret": json_number(accepted.regret[place])}
        )
    return {"nodes": nodes, "path": accepted.path, "emitted": emitted}
