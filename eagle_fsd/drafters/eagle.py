"""The drafter that grows a dynamic tree a round with a draft head. Axes: see growing.py."""

import sys
from collections.abc import Callable
from itertools import pairwise

import torch
from tqdm import tqdm

from eagle_fsd.config import BadInput, TreeConfig, default_tree
from eagle_fsd.decoding.cache import TreeCache
from eagle_fsd.decoding.masks import additive_mask
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import Drafter, RootDrafter
from eagle_fsd.drafters.growing import GrowingDrafter
from eagle_fsd.engine import attention
from eagle_fsd.heads.checkpoint import same_numbers
from eagle_fsd.heads.draft_head import DraftHead
from eagle_fsd.versions import told_versions

TRIED = (0, 4, 5, 7)  # positions between which a head is tried, a piece at a time
CLOSE = 0.05  # parts of an output by which two computations of it may differ


def head_drafter(head: DraftHead | None, target: Target, tree: TreeConfig | None) -> Drafter:
    """The head, moved to the target, growing trees of that shape or of the default one; without a
    head one that drafts nothing."""
    if head is None:
        return RootDrafter()
    share_tables(head, target)
    head.to(target.device, target.dtype)
    drafter = EagleDrafter(head, target, tree or default_tree(target.device.type))
    check_steps(drafter, head)
    return drafter


@torch.no_grad()
def share_tables(head: DraftHead, target: Target) -> None:
    """Let a head read the target's embedding and, if it is of EAGLE-1/2, the target's lm_head in
    the place of its own where these are copies, as in most published files."""
    kept = []
    if head.embed_tokens is not None and head.config.hidden_size == target.hidden_size:
        own = head.embed_tokens
        pieces = torch.arange(target.vocab_size, device=own.weight.device).split(4096)
        if all(same_numbers(own(T), target.embed(T).to(own.weight.device)) for T in pieces):
            head.embed_tokens, head.config.own_embedding = None, False
        else:
            kept.append("embedding")
    if head.lm_head is not None and head.config.head_type == "eagle":
        weight_VD, own_RD = target.readout.lm_head.weight, head.lm_head.weight
        token_R = head.draft_token_R
        theirs_RD = weight_VD if token_R is None else weight_VD[token_R.to(weight_VD.device)]
        if same_numbers(own_RD, theirs_RD.to(own_RD.device)):
            head.lm_head, head.config.own_lm_head = None, False
        else:
            kept.append("lm_head")
    if kept:
        tqdm.write(
            f"eagle_fsd: the head's own {' and '.join(kept)} is read, which is not the target's: "
            "it was trained with the head, or the head is of another checkpoint",
            file=sys.stderr,
        )


@torch.inference_mode()
def check_steps(drafter: "EagleDrafter", head: DraftHead) -> None:
    """Refuse, by a BadInput, a head whose steps over a cache give other outputs here than the head
    itself in one forward without one, on random features: see engine/trial.py, of targets."""
    target, generator = drafter.target, torch.Generator().manual_seed(0)
    F = target.hidden_size * max(1, len(target.feature_layers))
    features_TF = torch.randn(TRIED[-1], F, generator=generator).to(target.device, head.dtype)
    place_T = torch.arange(TRIED[-1], device=target.device)
    token_T = place_T % target.vocab_size
    # 1. All positions at once.
    inputs = head.fuse(features_TF), drafter.embed(token_T), head.angles(place_T)
    whole_TD = head(*(whole[None] for whole in inputs))[0]
    # 2. Piece by piece, one of them a position alone.
    cache = drafter.new_cache(TRIED[-1])
    for start, end in pairwise(TRIED):
        own = slice(start, end)
        visible_TS = None
        if start > 0 and (end - start > 1 or target.engine.compiles):
            visible_TS = place_T[own, None] >= place_T[:end]
        hidden_TD = drafter.hidden(features_TF[own])
        placed = drafter.places(place_T[own]), place_T[own], visible_TS, place_T[:end], None
        hidden_TD, _ = drafter.step(cache, hidden_TD, token_T[own], *placed)
        cache.length = end
        # Drafts may be rounded, and in 16 bits a router may choose another expert for a position.
        far_T = (hidden_TD - whole_TD[own]).float().norm(dim=1)
        error = (far_T / whole_TD[own].float().norm(dim=1)).median()
        if error > CLOSE:  # that an output is no number is told by the round that meets it
            raise BadInput(
                "the draft head's steps over a cache are not those of one forward (relative error "
                f"{error:.2g}), so its drafts would be of no use: {told_versions()}"
            )


class EagleDrafter(GrowingDrafter):
    """Grows one tree a round with an EAGLE-1/2 or EAGLE-3 head.

    With n committed tokens (the root is the last) its rows are the pairs (f_0, t_1) ..
    (f_{n-2}, t_{n-1}).
    """

    def __init__(self, head: DraftHead, target: Target, tree: TreeConfig):
        layers = head.config.fused_layers(target.num_layers)
        reads = head.config.feature_size, head.dtype, layers
        gives = target.hidden_size, target.dtype, target.feature_layers
        assert reads == gives, f"channels, dtype and layers: the head reads {reads}, not {gives}"
        # A copy on shared weights: folded attention, the engine's layers. The head is left as is.
        self.head = attention.sharing_copy(head)
        self.head.config._attn_implementation = attention.NAME
        target.engine.for_drafts().exchange(self.head)
        self._query_groups = head.config.num_attention_heads // head.config.num_key_value_heads
        self.hidden, self.places = self.head.fuse, self.head.angles
        self.embed = target.embed if self.head.embed_tokens is None else self.head.embed_tokens
        self.readout = draft_readout(self.head, target)
        self.draft_token_R = head.draft_token_R
        super().__init__(target, tree)

    def new_cache(self, capacity: int) -> TreeCache:
        rows = self.target.engine.rows(capacity)
        return TreeCache(self.head.config.num_hidden_layers, rows)

    def step(self, cache, hidden_TD, token_T, place_T, row_T, visible_TS, position_S, read_M):
        mask, end = None, cache.length + token_T.shape[0]
        if visible_TS is not None:
            mask = additive_mask(visible_TS, self.target.dtype, self._query_groups)
            end = visible_TS.shape[1]
        cache.write(row_T, end)
        inputs = hidden_TD[None], self.embed(token_T)[None], place_T[None]
        hidden_TD = self.head(*inputs, cache=cache, mask=mask)[0]
        if read_M is not None:
            hidden_TD = hidden_TD.index_select(0, read_M)
        return hidden_TD, self.readout(hidden_TD)


def draft_readout(head: DraftHead, target: Target) -> Callable[[torch.Tensor], torch.Tensor]:
    """From a head's hidden states [N, D] to its raw logits [N, R] over its draft vocabulary, for
    which rows of the target's lm_head are copied once."""
    read = target.readout.of_tokens(head.draft_token_R) if head.lm_head is None else head.lm_head
    if type(head).normed is DraftHead.normed:  # which is the identity
        return read
    return lambda hidden_ND: read(head.normed(hidden_ND))
