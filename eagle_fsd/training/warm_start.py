"""Where a head's weights begin: at random, at the target's own layers, or at another head."""

import torch
from torch import nn

from eagle_fsd.drafters.heads import DraftHead
from eagle_fsd.target import Target


def start_from_head(head: DraftHead, other: DraftHead) -> list[str]:
    """Copy what has one name and one shape in both; returns the keys left as they were.

    The draft vocabulary is not copied; rows of an EAGLE-3 lm_head go by token, and its key is
    returned if some tokens of this head's vocabulary have no row there.

    Raises:
        ValueError: nothing fits.
    """
    theirs = other.state_dict()
    left = []
    with torch.no_grad():
        for key, tensor in head.state_dict().items():
            if key in ("d2t", "t2d") or key not in theirs:
                left.append(key)
            elif key == "lm_head.weight" and theirs[key].shape[1] == tensor.shape[1]:
                if not _copy_token_rows(head, other):
                    left.append(key)
            elif theirs[key].shape == tensor.shape:
                tensor.copy_(theirs[key])
            else:
                left.append(key)
    if len(left) == len(head.state_dict()):
        raise ValueError("the head to start from has no weight of this head's names and shapes")
    return left


def start_from_target(head: DraftHead, target: Target) -> list[str]:
    """Copy from the target's last decoder layer what fits; returns the keys left as they were.

    fc of an EAGLE-1/2 head begins as "hand the feature on". An EAGLE-3 head gets the target's final
    norm and the lm_head rows of its draft vocabulary.

    Raises:
        ValueError: the target's layers have other names than Llama's.
    """
    layers = getattr(target.model.base_model, "layers", None)
    if layers is None:
        raise ValueError(
            f"cannot start from a target of type {target.model.config.model_type!r}: it has no "
            "`layers`; start at random"
        )
    theirs = layers[-1].state_dict()
    # a norm may store its factor less 1, and Gemma's Llama-like one has a name of its own
    before_mlp = getattr(layers[-1], "pre_feedforward_layernorm", None)
    before_mlp = before_mlp or getattr(layers[-1], "post_attention_layernorm", None)
    if before_mlp is not None:
        theirs["post_attention_layernorm.weight"] = _factor(before_mlp, target.hidden_size)
    prefix = "midlayer." if head.config.eagle3 else "layers.0."
    skipped = "input_layernorm"  # the head's is over something else
    left = []
    with torch.no_grad():
        for key, tensor in head.state_dict().items():
            source = theirs.get(key.removeprefix(prefix)) if key.startswith(prefix) else None
            if source is not None and source.shape == tensor.shape and skipped not in key:
                tensor.copy_(source)
            else:
                left.append(key)
        if head.config.eagle3:
            token_R = head.draft_token_R
            rows_VD = target.lm_head.weight.cpu()
            head.lm_head.weight.copy_(rows_VD if token_R is None else rows_VD[token_R])
            head.norm.weight.copy_(_factor(target.model.base_model.norm, target.hidden_size))
            left = [key for key in left if key not in ("lm_head.weight", "norm.weight")]
        else:
            _hand_on_feature(head.fc)
            left = [key for key in left if not key.startswith("fc.")]
    return left


def _factor(norm: nn.Module, D: int) -> torch.Tensor:
    """What an RMS norm multiplies by, float32 [D]: its output for one large number everywhere."""
    weight = next(norm.parameters())
    return norm(weight.new_full((1, D), 1024.0))[0].float()


def _copy_token_rows(head: DraftHead, other: DraftHead) -> bool:
    """The other's lm_head rows of the tokens that both draft; whether those are all of ours."""
    to, of = (
        torch.arange(h.config.vocab_size) if h.draft_token_R is None else h.draft_token_R.cpu()
        for h in (head, other)
    )
    row_V = torch.full((head.config.vocab_size,), -1)
    row_V[of] = torch.arange(of.shape[0])
    row_R = row_V[to]
    shared_R = row_R >= 0
    head.lm_head.weight[shared_R] = other.lm_head.weight[row_R[shared_R]].to(head.lm_head.weight)
    return bool(shared_R.all())


def _hand_on_feature(fc: nn.Linear) -> None:
    D = fc.out_features
    fc.weight[:, :D].mul_(0.1)
    fc.weight[:, D:].copy_(torch.eye(D))
    if fc.bias is not None:
        fc.bias.zero_()
