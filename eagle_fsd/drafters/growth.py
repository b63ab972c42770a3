"""A head's trees at every position of a text at once; EagleDrafter is the reference.

Greedy exact decoding emits the target's own text whatever the head, and a tree accepts as many
drafts as the text's own next tokens lie in it (pool.py). Real decoding visits only some of these
roots: from a root that accepts a drafts it jumps a + 1 tokens ahead.

Axes: L tokens of the text, B roots, K branch_top_k, J frontier nodes (1 at the root, then K),
S levels, E ancestors, M rows run together, R draft vocabulary, D hidden size.
"""

from collections.abc import Iterator

import torch

from eagle_fsd.config import TreeConfig
from eagle_fsd.decoding.cache import TreeCache
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.drafters.pool import Growth

ROOTS_AT_ONCE = 64  # bounds the rows of trees in the cache
READOUT_ROWS = 128  # bounds the logits in memory: 25 MB for 49,152 tokens
CHAIN_ROWS = 16  # levels of a chain of the text's own tokens that always fit the cache


class HeadOnText:
    """A head that has run once over a whole text, ready to draft below any of its tokens.

    The root of index r follows the pairs (f_0, t_1) .. (f_{r-1}, t_r), which are rows 0 .. r-1 of
    the cache; all roots share them, and a mask says how many of them each may see. Nodes at level d
    stand at position r - 1 + d.

    Args:
        drafter: has checked that head and target fit; its own tree and cache are not used.
        ids_L: the text, int64 [L].
        feature_LF: the target's features of it.
        tree: the largest shape that will be grown.
    """

    def __init__(
        self, drafter: EagleDrafter, ids_L: torch.Tensor, feature_LF: torch.Tensor, tree: TreeConfig
    ):
        self.drafter = drafter
        self.head, self.target = drafter.head, drafter.target
        self.ids_L = ids_L
        self.stable = ids_L.shape[0] - 1
        layers = self.head.config.num_hidden_layers
        nodes = ROOTS_AT_ONCE * max(tree.num_expanded, CHAIN_ROWS)
        self._cache = TreeCache(layers, self.stable + nodes)
        hidden_LD = self.head(
            self.head.fuse(feature_LF)[None, :-1],
            self.target.embed(ids_L[1:])[None],
            torch.arange(self.stable, device=ids_L.device),
            cache=self._cache,
        )[0]
        self.root_hidden_LD = torch.cat([hidden_LD[:1], hidden_LD])  # row r is root r's; 0 is none

    def forget_trees(self) -> None:
        self._cache.length = self.stable

    def run_rows(
        self,
        hidden_MD: torch.Tensor,
        token_M: torch.Tensor,
        root_M: torch.Tensor,
        level: int,
        ancestor_ME: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run nodes of one level, of any roots: the head's output [M, D], their cache rows [M].

        Args:
            hidden_MD: what the head predicted at each node's parent.
            root_M: index of each node's root in the text.
            level: 1 is right below the root.
            ancestor_ME: cache rows of each node's ancestors below the root.
        """
        M, before = token_M.shape[0], self._cache.length
        own_M = torch.arange(before, before + M, device=token_M.device)
        mask_MN = hidden_MD.new_full((M, before + M), torch.finfo(hidden_MD.dtype).min)
        mask_MN[:, : self.stable].masked_fill_(
            torch.arange(self.stable, device=token_M.device) < root_M[:, None], 0.0
        )
        mask_MN.scatter_(1, torch.cat([ancestor_ME, own_M[:, None]], dim=1), 0.0)
        output_MD = self.head(
            hidden_MD[None],
            self.target.embed(token_M)[None],
            root_M + level - 1,
            cache=self._cache,
            mask=mask_MN[None, None],
        )[0]
        return output_MD, own_M

    def top(self, hidden_MD: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and target ids of the `count` best drafts after each row, [M, K]."""
        logp, index = [], []
        for hidden_CD in hidden_MD.split(READOUT_ROWS):
            logits_CR = self.drafter.readout(hidden_CD)
            best = torch.log_softmax(logits_CR, dim=-1, dtype=torch.float32).topk(count, dim=-1)
            logp.append(best.values)
            index.append(best.indices)
        token_MK = torch.cat(index)
        if self.drafter.draft_token_R is not None:
            token_MK = self.drafter.draft_token_R[token_MK]
        return torch.cat(logp), token_MK

    def chain(self, root_B: torch.Tensor, levels: int) -> Iterator[torch.Tensor]:
        """The head's output [B, D] at the root, and at the text's own next tokens below it."""
        self.forget_trees()
        hidden_BD = self.root_hidden_LD[root_B]
        ancestor_BE = root_B.new_zeros(root_B.shape[0], 0)
        yield hidden_BD
        for level in range(1, levels):
            token_B = self.ids_L[root_B + level]
            hidden_BD, row_B = self.run_rows(hidden_BD, token_B, root_B, level, ancestor_BE)
            ancestor_BE = torch.cat([ancestor_BE, row_B[:, None]], dim=1)
            yield hidden_BD
        self.forget_trees()


@torch.inference_mode()
def grow(text: HeadOnText, root_B: torch.Tensor, tree: TreeConfig) -> Growth:
    """Grow a tree below every root, level by level in lock-step.

    Args:
        root_B: indices of the roots; tree_depth tokens must follow each.
        tree: branch_top_k, and the most levels and drafts that the growth will be asked about.
    """
    growth = Growth.empty(root_B.shape[0], tree, root_B.device)
    for part, root_b in zip(growth.split(ROOTS_AT_ONCE), root_B.split(ROOTS_AT_ONCE), strict=True):
        text.forget_trees()
        _grow(text, root_b, tree, part)
    text.forget_trees()
    return growth


def _grow(text: HeadOnText, root_B: torch.Tensor, tree: TreeConfig, growth: Growth) -> None:
    B, K, S = root_B.shape[0], tree.branch_top_k, tree.tree_depth
    hidden_BJD = text.root_hidden_LD[root_B][:, None]
    logp_BK, token_BK = text.top(hidden_BJD[:, 0], K)
    score_BJK, token_BJK = logp_BK[:, None], token_BK[:, None]
    ancestor_BJE = root_B.new_zeros(B, 1, 0)
    for level in range(1, S + 1):
        growth.add_level(level, score_BJK, token_BJK, text.ids_L[root_B + level])
        if level == S:
            return
        best_BK, run_BK = growth.frontier(level, tree)
        if not run_BK.any():
            return
        score_BK = score_BJK.flatten(1).gather(1, best_BK)
        token_BK = token_BJK.flatten(1).gather(1, best_BK)
        parent_BK = best_BK // K
        hidden_BJD = _pick(hidden_BJD, parent_BK)
        ancestor_BJE = _pick(ancestor_BJE, parent_BK)
        # only nodes that may matter are run; the children of others stay out of the pool
        output_MD, row_M = text.run_rows(
            hidden_BJD[run_BK],
            token_BK[run_BK],
            root_B[:, None].expand(B, K)[run_BK],
            level,
            ancestor_BJE[run_BK],
        )
        logp_MK, token_MK = text.top(output_MD, K)
        hidden_BJD = _spread(output_MD, run_BK, 0.0)
        ancestor_BJE = torch.cat([ancestor_BJE, _spread(row_M[:, None], run_BK, 0)], dim=2)
        score_BJK = score_BK[:, :, None] + _spread(logp_MK, run_BK, -torch.inf)
        token_BJK = _spread(token_MK, run_BK, -1)


def _pick(value_BJX: torch.Tensor, index_BK: torch.Tensor) -> torch.Tensor:
    """Rows of every root's own table, [B, K, X]."""
    return value_BJX.gather(1, index_BK[..., None].expand(-1, -1, value_BJX.shape[2]))


def _spread(value_MX: torch.Tensor, where_BK: torch.Tensor, fill: float) -> torch.Tensor:
    """Back from the rows that were run to all frontier nodes, [B, K, X]."""
    full = value_MX.new_full((*where_BK.shape, value_MX.shape[1]), fill)
    full[where_BK] = value_MX
    return full
