"""From a round's logits to what a rule sees of it (verified.py): in one transfer to the host.

Axes: N nodes, M nodes whose rows are looked at, C drafts, V vocabulary, S depths.
"""

from collections.abc import Collection, Sequence

import torch

from eagle_fsd.decoding.columns import DRAFTS, PLACES, Rows
from eagle_fsd.decoding.policy import Policy
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.decoding.verified import VerifiedTree


def tabulate(
    tree: DraftTree,
    target_logits_NV: torch.Tensor,
    uniform_S3: torch.Tensor,
    policy: Policy,
    *,
    stop_token_ids: Collection[int] = (),
    answer: Sequence[int] = (),
) -> VerifiedTree:
    """A tree and the target's raw logits, row i of the token AFTER node i, as a rule sees them. A
    column about places has a value at nodes with drafts, one about drafts at all but the root.
    Rows of uniform_S3 are on the CPU; those beyond max_depth belong to later tokens. For the other
    arguments see VerifiedTree."""
    sampling, N, device = policy.sampling, tree.size, tree.token_N.device
    uniform_S3 = uniform_S3[: tree.max_depth + 1]
    uniform_N3 = None
    if sampling.temperature > 0:
        uniform_N3 = uniform_S3.to(device, non_blocking=True)[tree.depth_N]

    def look_at(
        node_M: torch.Tensor, parent_C: torch.Tensor, token_C: torch.Tensor
    ) -> tuple[Rows, torch.Tensor, torch.Tensor]:
        """The rows of these nodes, ascending, with the drafts behind them; the tokens that the
        exact test emits there, and their regret."""
        target_MV = target_logits_NV
        if len(node_M) < N:
            target_MV = target_logits_NV.index_select(0, node_M)
        rows = Rows(
            target_MV.float(),
            torch.searchsorted(node_M, parent_C),
            token_C,
            sampling,
            tree.draft_logits_ER,
            tree.draft_row_N.index_select(0, node_M),
            tree.draft_token_R,
            tree.max_children,
        )
        if sampling.temperature == 0:  # the largest logit is the token's own
            return rows, rows.argmax_M, rows.best_M - rows.best_M
        token_M = policy.rule.draw_exact(rows, uniform_N3[node_M])
        return rows, token_M, rows.best_M - rows.target_MV.gather(1, token_M[:, None])[:, 0]

    # 1. Which rows: on a CPU those with drafts behind them, a third to a half of all. On another
    #    device all, since it would have to be waited for to know which have drafts.
    parent_C, token_C = tree.parent_N[1:], tree.token_N[1:]
    node_M = torch.arange(N, device=device)
    if device.type == "cpu" and N > 1:
        node_M = parent_C.unique()
    # 2. Their exact tokens and columns, which reach the host in one transfer. Ids are exact in
    #    float64.
    rows, exact_M, regret_M = look_at(node_M, parent_C, token_C)
    table = [tree.token_N, tree.parent_N, node_M, exact_M, regret_M]
    table += [(PLACES | DRAFTS)[name](rows) for name in policy.columns]
    numbers = torch.cat([part.double() for part in table]).cpu()
    parts = numbers.split([len(part) for part in table])
    # 3. By node: a place's number by the place, a draft's by the draft.
    token, parent, node, exact_token = [part.long().tolist() for part in parts[:4]]
    exact = dict(zip(node, zip(exact_token, parts[4].tolist(), strict=True), strict=True))
    values = {}
    for name, part in zip(policy.columns, parts[5:], strict=True):
        of_places = name in PLACES
        values[name] = dict(zip(node if of_places else range(1, N), part.tolist(), strict=True))

    def draw_leaf(v: int) -> tuple[int, float]:
        """A leaf's token is drawn when the path ends there."""
        _, exact_1, regret_1 = look_at(torch.tensor([v], device=device), parent_C[:0], token_C[:0])
        return exact_1.item(), regret_1.item()

    return VerifiedTree(
        token,
        parent,
        exact,
        values,
        sampling=sampling,
        draw_leaf=draw_leaf,
        uniforms=uniform_S3.tolist(),
        guards=[guard.allows for guard in policy.guards],
        stop_token_ids=stop_token_ids,
        answer=answer,
    )
