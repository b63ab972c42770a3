"""How good a head is on held-out answers: by drafted level, and in tokens per round."""

import copy
from collections.abc import Iterable, Sequence

import torch

from eagle_fsd.config import TreeConfig
from eagle_fsd.decoding.target import Target
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.drafters.growth import HeadOnText, grow
from eagle_fsd.drafters.pool import visited_roots
from eagle_fsd.heads.models import DraftHead, draft_readout
from eagle_fsd.training.data import Batches, Dialogue, HeadBatch
from eagle_fsd.training.unroll import unroll


def validate(
    head: DraftHead,
    batches: Batches,
    target: Target,
    *,
    depth: int,
    replayed: int,
    trees: dict[str, TreeConfig],
    half: bool,
) -> dict:
    """Accuracy by level over all held-out dialogues, tokens per round over the first few.

    Args:
        depth: levels.
        replayed: dialogues whose tokens per round are found.
        trees: name -> shape.
        half: accuracy in bfloat16, as it was trained.
    """
    head.to(target.device)  # the target may be elsewhere than the training
    loaded = (batch.to(target.device) for batch in batches.validation())
    with torch.autocast(target.device.type, torch.bfloat16, enabled=half):
        result = accuracy_by_depth(head, loaded, target, depth=depth)
    chosen = batches.held_out[:replayed]
    dialogues = [batches.dialogues[i] for i in chosen]
    features = [batches.features(i) for i in chosen]
    as_decoded = copy.deepcopy(head).to(target.device, target.dtype)
    result["tokens_per_round"] = {
        name: expected_tokens_per_round(as_decoded, target, dialogues, features, tree)
        for name, tree in trees.items()
        if chosen
    }
    return result


@torch.no_grad()
def accuracy_by_depth(
    head: DraftHead,
    batches: Iterable[HeadBatch],
    target: Target,
    *,
    depth: int,
    top: int = 8,
) -> dict[str, list[float]]:
    """Share of answer positions at which the head finds the target's most probable token.

    At level s the last s - 1 features are the head's own, while all tokens are the text's, whether
    the head would have drafted them or not. The target's whole vocabulary counts; no tree.

    Returns:
        {"top1": [level 1, ...], f"top{top}": [...], "positions": [...]}.
    """
    readout, draft_token_R = draft_readout(head, target), head.draft_token_R
    hits = torch.zeros(2, depth, dtype=torch.float64)
    count = torch.zeros(depth, dtype=torch.float64)
    for batch in batches:
        embedding_BTD = target.embed(batch.next_token_BT)
        hidden_SBTD = unroll(head, batch.feature_BTD, embedding_BTD, steps=depth)
        for s in range(depth):
            mask_BT = batch.mask_BT.clone()
            mask_BT[:, :s] = False
            # a level's root must lie where drafting happens: at or behind the answer's start
            mask_BT[:, s:] &= batch.mask_BT[:, : max(0, mask_BT.shape[1] - s)]
            rows = zip(
                batch.target_feature_BTD[mask_BT].split(512),
                hidden_SBTD[s][mask_BT].split(512),
                strict=True,
            )
            for target_MD, hidden_MD in rows:
                wanted_M = target.logits(target_MD.to(target.dtype)).argmax(-1)
                if head.lm_head is None:  # the rows are the target's
                    hidden_MD = hidden_MD.to(target.dtype)
                best_MK = readout(hidden_MD).topk(top, dim=-1).indices
                if draft_token_R is not None:
                    best_MK = draft_token_R[best_MK]
                hit_MK = best_MK == wanted_M[:, None]
                hits[0, s] += hit_MK[:, 0].sum().item()
                hits[1, s] += hit_MK.sum().item()
                count[s] += hit_MK.shape[0]
    share = (hits / count.clamp_min(1)).tolist()
    return {"top1": share[0], f"top{top}": share[1], "positions": count.tolist()}


@torch.no_grad()
def expected_tokens_per_round(
    head: DraftHead,
    target: Target,
    dialogues: Sequence[Dialogue],
    features: Sequence[torch.Tensor],
    tree: TreeConfig,
) -> float | None:
    """Tokens a round that exact decoding of these answers would have had, by replay.

    For answers that the target wrote greedily this is what decoding them gives; drawn at a
    temperature, it is what drawing them again would have given. None if no answer is long enough.

    Args:
        head: of the target's dtype, as it will be decoded with.
        dialogues: answers as the target wrote them.
        features: the head's features of each, [L, F].
        tree: the tree's shape.
    """
    drafter = EagleDrafter(head, target, tree)
    tokens = rounds = 0
    for dialogue, feature_LF in zip(dialogues, features, strict=True):
        ids_L = torch.tensor(dialogue.ids, device=target.device)
        feature_LF = feature_LF.to(target.device, target.dtype)
        text = HeadOnText(drafter, ids_L, feature_LF, tree)
        for first, end in answer_spans(dialogue):
            # from each root on, as many tokens as the tree is deep must be the answer's
            root_B = torch.arange(first, max(first, end - tree.tree_depth), device=ids_L.device)
            if len(root_B):
                accepted_B = grow(text, root_B, tree).accepted(tree)
                visited = visited_roots(accepted_B)
                rounds += len(visited)
                tokens += sum(1 + int(accepted_B[place]) for place in visited)
    return tokens / rounds if rounds else None


def answer_spans(dialogue: Dialogue) -> list[tuple[int, int]]:
    """[first, end) of every run of tokens that the assistant wrote.

    Example: mask 0 1 1 0 0 1 has the spans (1, 3) and (5, 6).
    """
    spans, first = [], None
    for place, own in enumerate([*dialogue.mask, False]):
        if own and first is None:
            first = place
        elif not own and first is not None:
            spans.append((first, place))
            first = None
    return spans
