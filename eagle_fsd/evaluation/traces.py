"""Traces: where every token of an answer came from, with the tree of every round.

A trace is made by decoding a recorded answer again, off the clock, with its own seeds: the rounds
are then looked at one by one. It says whether the text came out the same, which in bfloat16 asks
for the same machine and number of threads.
"""

import torch

from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.columns import COLUMNS, Rows
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
        arm, drafter, sampling: as they were for the record.
        questions: the user's turns.
        record: of an arm that runs our loop.

    Returns:
        The JSON-able trace: question_id, choice, category, arm, and for each turn its
        prompt, whether the tokens are the record's, the token of prefill, and the rounds. A round
        has the tree's nodes (token, text, parent, -1 for the root, depth, and the token's
        probability after its parent under target and draft, by raw rows; null for the root and
        where the drafter has none), the path, and the emitted tokens: source (draft, fuzzy or
        target), divergence, both probabilities, regret (nats), and the target's most likely token
        there, which at temperature 0 is what the exact test emits.
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
        turns.append(
            {
                "prompt": question,
                "same_as_record": tokens == answered["token_ids"],
                "first": _token(model, tokens[0]),
                "rounds": rounds,
            }
        )
        messages.append({"role": "assistant", "content": answered["text"]})
    head = {key: record[key] for key in ("question_id", "category", "arm")}
    return head | {"choice": record.get("choice", 0), "turns": turns}


def _token(model: Model, token: int) -> dict:
    return {"token": token, "text": model.tokenizer.decode([token])}


def _round(model: Model, step: Round) -> dict:
    tree, logits_NV, accepted = step.tree, step.logits_NV, step.acceptance
    tokens, parents = tree.token_N.tolist(), tree.parent_N.tolist()
    best = logits_NV[accepted.path].argmax(-1).tolist()
    asked = torch.tensor(tokens + accepted.tokens + best, device=logits_NV.device)
    rows = Rows(
        target_MV=logits_NV.float(),
        draft_ER=tree.draft_logits_ER,
        draft_row_M=tree.draft_row_N,
        draft_token_R=tree.draft_token_R,
        token_MC=asked.expand(tree.size, -1),
        sampling=SamplingConfig(),
    )
    tables = {
        key: [[json_number(prob, 5) for prob in row] for row in COLUMNS[column](rows).tolist()]
        for key, column in {"target_prob": "raw_prob", "draft_prob": "draft_prob"}.items()
    }
    nodes = []
    for node, token in enumerate(tokens):
        place = {"parent": parents[node] if node else -1, "depth": int(tree.depth_N[node])}
        found = {key: table[parents[node]][node] if node else None for key, table in tables.items()}
        nodes.append(_token(model, token) | place | found)
    emitted = []
    for place, (node, token) in enumerate(zip(accepted.path, accepted.tokens, strict=True)):
        ends = place == accepted.accepted_drafts
        source = "fuzzy" if accepted.fuzzy[place] else "target" if ends else "draft"
        emitted.append(
            _token(model, token)
            | {"source": source, "divergence": json_number(accepted.divergence[place])}
            | {key: table[node][tree.size + place] for key, table in tables.items()}
            | {"regret": json_number(accepted.regret[place])}
            | {"best": _token(model, best[place])["text"]}
            | {"best_prob": tables["target_prob"][node][place - len(best)]}
        )
    return {"nodes": nodes, "path": accepted.path, "emitted": emitted}
