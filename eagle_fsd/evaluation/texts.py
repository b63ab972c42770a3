"""The target's own greedy texts, stored once, and what heads say along them (replay.py).

Their folder is a run's (runs/folder.py): records/texts.jsonl has a question a line, its prompt and
the greedy tokens whatever the stop tokens. A text for a budget is cut from them when it is read, so
a store made for 128 tokens also serves 64. Features are not stored: one forward a question gives
them back, equal to those of step-by-step decoding up to float32 rounding.

Axes: L tokens of a text, B roots, C of them judged at once, S levels, V vocabulary, R draft
vocabulary, D hidden size, F features.
"""

import math
from collections import Counter
from dataclasses import dataclass

import torch
from tqdm import tqdm

from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.divergence import divergence
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import Drafter, RootDrafter
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.drafters.walk import walk
from eagle_fsd.heads.draft_head import unroll
from eagle_fsd.models.generate import Request, complete, rescore
from eagle_fsd.rules.fsd import Exact
from eagle_fsd.runs.folder import Run

BATCH = 16  # questions decoded together; a killed run loses at most these
JUDGED = 32  # positions whose rows over the whole vocabulary are compared at once

Prompts = dict[int | str, list[int]]  # by question id
# Tokens kept beyond an answer's end: a round's accepted drafts are counted before trimming, so the
# last rounds look past it. The deepest tree that can be walked has as many levels.
TOKENS_BEYOND_END = 16


@dataclass(frozen=True)
class PlainText:
    """A prompt, the plain greedy answer to it, trimmed as the loop does, and TOKENS_BEYOND_END
    further greedy tokens."""

    prompt: list[int]
    answer: list[int]
    beyond: list[int]
    stop_token_ids: tuple[int, ...] = ()  # that end an answer

    @property
    def ids(self) -> list[int]:
        return [*self.prompt, *self.answer, *self.beyond]

    @property
    def roots(self) -> range:
        """Indices into `ids` of every token that may be a round's root: all of the answer but the
        last. The first is the one that prefill yields.

        Example, prompt a b, answer c d e, beyond f ..:  ids a b c d e f ..   roots 2 3
        """
        return range(len(self.prompt), len(self.prompt) + len(self.answer) - 1)

    @torch.inference_mode()
    def states(self, target: Target) -> tuple[torch.Tensor, torch.Tensor]:
        """The target run over it: hidden states after the final norm [L, D], features [L, F]."""
        ids_L = torch.tensor(self.ids, device=target.device)
        hidden_1LD, features_1LF = target.forward(ids_L[None])
        return hidden_1LD[0], features_1LF[0]

    @torch.inference_mode()
    def rounds(self, drafter: Drafter, features_LF: torch.Tensor) -> list[int]:
        """Tokens of every round in which exact decoding emits the answer, before trimming."""
        return list(walk(drafter, self.ids, self.roots, features_LF, self.stop_token_ids))


def cut(prompt: list[int], greedy: list[int], stop: StopConfig) -> PlainText | None:
    """None if more greedy tokens are needed."""
    answer, finish = stop.trim([], greedy)
    beyond = greedy[len(answer) :][:TOKENS_BEYOND_END]
    if finish is None or len(beyond) < TOKENS_BEYOND_END:
        return None
    return PlainText(prompt, answer, beyond, stop.token_ids)


def plain_texts(
    run: Run, target: Target, prompts: Prompts, stop: StopConfig
) -> dict[int | str, PlainText]:
    """The texts of the prompts for a budget; those that the store, `run`, does not hold yet are
    made. Its settings are what the texts depend on: target, dtype, template."""

    def stored(key: int | str) -> PlainText | None:
        row = run.records["texts"].get((key, 0))
        known = row and row["prompt_ids"] == prompts[key]
        return cut(prompts[key], row["greedy_ids"], stop) if known else None

    count = stop.max_new_tokens + TOKENS_BEYOND_END
    missing = {Request(p, count): key for key, p in prompts.items() if stored(key) is None}
    if missing:
        run.begin_session()
    # Made in batches, many times faster than one by one. Each text is then run alone in one
    # forward; where a token is not the argmax there (a tie that the batch resolved otherwise), it
    # is decoded by the one loop instead.
    one_by_one = DecodeConfig(Policy(Exact()), StopConfig(count))
    by_length = sorted(missing, key=lambda request: len(request.prompt))
    made = complete(target, by_length, batch_size=BATCH) if missing else ()
    for request in tqdm(made, total=len(missing), desc="texts", disable=not missing):
        tokens = request.tokens
        if rescore(target, request.prompt, tokens)[0] < 1:
            tokens = decode(target, RootDrafter(), request.prompt, one_by_one).tokens
        row = {"question_id": missing[request], "prompt_ids": request.prompt, "greedy_ids": tokens}
        run.add("texts", row)
    return {key: stored(key) for key in prompts}


@torch.inference_mode()
def judge_levels(
    drafter: EagleDrafter,
    text: PlainText,
    hidden_LD: torch.Tensor,
    features_LF: torch.Tensor,
    *,
    levels: int,
) -> list[dict]:
    """What head and target say after every token of the answer, by drafted level along the text:
    positions, those whose next token is the answer's; top1 and top8 (the text's token is the
    draft's best, among its best 8); js (a sum). Level 1 drafts from true features only."""
    target, draft_token_R = drafter.target, drafter.draft_token_R
    ids_L = torch.tensor(text.ids, device=target.device)
    embedding_LD = drafter.embed(ids_L[1:])
    drafted_S1LD = unroll(drafter.head, features_LF[None, :-1], embedding_LD[None], steps=levels)
    counts = [Counter() for _ in range(levels)]
    place_B = torch.tensor(text.roots, dtype=torch.int64, device=target.device)
    for place_C in place_B.split(JUDGED):
        target_CV = target.readout(hidden_LD[place_C]).float()
        label_C = ids_L[place_C + 1]
        for level, drafted_LD in enumerate(drafted_S1LD[:, 0]):
            draft_CV = drafter.readout(drafted_LD[place_C - 1]).float()
            if draft_token_R is not None:  # -inf for tokens that cannot be drafted
                nowhere_CV = torch.full_like(target_CV, -math.inf)
                draft_CV = nowhere_CV.index_copy_(1, draft_token_R, draft_CV)
            own_C1 = draft_CV.gather(1, label_C[:, None])
            rank_C = (draft_CV > own_C1).sum(1).masked_fill(own_C1[:, 0] == -math.inf, 8)
            has_root_C = place_C >= text.roots.start + level
            values = {"positions": has_root_C, "top1": rank_C < 1, "top8": rank_C < 8}
            values["js"] = divergence("js", target_CV, draft_CV)
            for name, value_C in values.items():
                counts[level][name] += value_C[has_root_C].sum().item()
    return counts
