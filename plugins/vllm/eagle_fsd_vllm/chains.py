"""Chains of a batch: which drafts the rules of its requests take.

Each request has its own rule, guards and sampling. The columns of all of them are computed
together, a column only for the rows of requests that name it, and reach the host in one transfer,
however many requests there are; each chain is then a VerifiedTree, and its rule is called. This
file needs no vLLM.

A chain of three drafts a b c behind the root R, whose rule takes a and c where the target said
another token in the place of c:

    node                0  1  2  3
    token               R  a  b  c
    target row          0  1  2  3       row i is about the token AFTER node i
    draft number           0  1  2       number i is judged by row i
    the target's own    a  b  x  y       taken_drafts: [2]

Axes: M drafts, R rows of the batch's target logits, E rows of draft logits, V vocabulary.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch

from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.columns import DRAFTS, PLACES, Rows
from eagle_fsd.decoding.divergence import DIVERGENCES
from eagle_fsd.decoding.verified import UNIFORMS, Guard, VerifiedTree

# Logits that are judged at once, 64 MiB in float32, of which a divergence has 12 copies, and with
# top-p 17, before it ends. Larger batches are judged in parts.
MOST_LOGITS = 2**24
NO_TOKEN = -1
OF_DRAFT_ROWS = (*DIVERGENCES, "draft_logit", "draft_prob")  # columns that read the drafter's row


@dataclass(frozen=True)
class Possible(Guard):
    """Not a draft of logit -inf: an engine's own filters (a grammar, bad words) have removed it."""

    def allows(self, tree: VerifiedTree, child: int) -> bool:
        return tree.value("regret", child) < math.inf


@dataclass(frozen=True)
class Chain:
    """The drafts of one request in this step.

    Attributes:
        tokens: in their order, without the root; there is at least one.
        target_row: the row of the batch's target logits that is about the first draft; those of
            the drafts after it follow.
        draft_row: the same of the batch's draft logits; -1: they have no distribution.
        stop_token_ids, answer: see VerifiedTree.
    """

    policy: Policy
    tokens: Sequence[int]
    target_row: int
    draft_row: int = -1
    stop_token_ids: Collection[int] = field(default=(), repr=False)
    answer: Sequence[int] = ()


@torch.inference_mode()
def taken_drafts(
    chains: Sequence[Chain],
    target_logits_RV: torch.Tensor,
    draft_logits_EV: torch.Tensor | None = None,
) -> list[list[int]]:
    """Numbers of the drafts, from 0, that each chain's rule takes although the exact token is
    another. A step that forces these, and is exact elsewhere, emits what the rule emits.

    At temperature 0 they are those on the rule's path. Above it the exact tokens are not drawn yet:
    then they are all drafts that the rule would take in the place of any other token, wherever the
    path ends. Rules that remember, and rules whose steps depend on a draw, have no such answer
    (admission.py refuses them). The drafter is one over the whole vocabulary; a token that it
    cannot draft has logit -inf.
    """
    parts = _parts(chains, target_logits_RV.shape[-1])
    tables = [_table(part, target_logits_RV, draft_logits_EV) for part in parts]
    if not tables:
        return []
    numbers = torch.cat([table.flatten() for table in tables]).tolist()  # the one transfer
    taken: dict[int, list[int]] = {}
    begin = 0
    for part, table in zip(parts, tables, strict=True):
        end, width = begin + table.numel(), table.shape[1]
        for chain in part:
            rows = [numbers[i : i + len(chain.tokens)] for i in range(begin, end, width)]
            taken[id(chain)] = _taken(chain, rows)
            begin += len(chain.tokens)
        begin = end
    return [taken[id(chain)] for chain in chains]


def _parts(chains: Sequence[Chain], vocab_size: int) -> list[list[Chain]]:
    """Chains whose columns are computed together: of the same names, from the same filters."""
    groups: dict[tuple[tuple[str, ...], SamplingConfig], list[list[Chain]]] = defaultdict(list)
    room: dict[tuple, int] = {}
    for chain in chains:
        key = tuple(chain.policy.columns), chain.policy.sampling
        size = len(chain.tokens) * vocab_size
        if room.get(key, -1) < size:
            groups[key].append([])
            room[key] = MOST_LOGITS
        groups[key][-1].append(chain)
        room[key] -= size
    return [part for parts in groups.values() for part in parts]


def _table(
    chains: list[Chain], target_logits_RV: torch.Tensor, draft_logits_EV: torch.Tensor | None
) -> torch.Tensor:
    """The exact token, and the columns, of all drafts of the chains, float64 [1 + columns, M]."""
    device, policy = target_logits_RV.device, chains[0].policy
    drafts = [
        (token, chain.target_row + i, chain.draft_row + i if chain.draft_row >= 0 else -1)
        for chain in chains
        for i, token in enumerate(chain.tokens)
    ]
    token_M, row_M, draft_row_M = torch.tensor(drafts).T.contiguous().to(device, non_blocking=True)
    if draft_logits_EV is None:
        draft_logits_EV = target_logits_RV.new_empty(0, 0)
    place_M = torch.arange(len(drafts), device=device)  # a draft behind each place
    target_MV = target_logits_RV[row_M].float()
    rows = Rows(target_MV, place_M, token_M, policy.sampling, draft_logits_EV, draft_row_M)
    greedy = policy.sampling.temperature == 0
    exact_M = rows.argmax_M if greedy else torch.full_like(token_M, NO_TOKEN)
    # ids are exact in float64
    table = [exact_M, *((PLACES | DRAFTS)[name](rows) for name in policy.columns)]
    return torch.stack([value_M.double() for value_M in table])


def _taken(chain: Chain, table: list[list[float]]) -> list[int]:
    """Numbers of the drafts that its rule takes, by the rows of its table."""
    policy, count, (exact, *columns) = chain.policy, len(chain.tokens), table
    values = {
        name: dict(enumerate(column, start=name in DRAFTS))  # of the place, or of the draft after
        for name, column in zip(policy.columns, columns, strict=True)
    }
    tree = VerifiedTree(
        [NO_TOKEN, *chain.tokens],  # the root's is no rule's concern
        [0, *range(count)],
        {v: (int(token), 0.0) for v, token in enumerate(exact)},
        values,
        sampling=policy.sampling,
        # no step of these rules depends on a draw: there is one child at most to choose
        uniforms=[[0.0] * UNIFORMS] * (count + 1),
        guards=(*policy.guards, Possible()),
        stop_token_ids=chain.stop_token_ids,
        answer=chain.answer,
    )
    if tree.greedy:
        path = policy.rule.choose(tree)
        return [c - 1 for c in path[1:] if tree.tokens[c] != tree.exact(c - 1)[0]]
    return [v for v in range(count) if policy.rule.step(tree, v) is not None]
