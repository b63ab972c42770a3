"""Where a head's weights begin: at random, at the target's own layers, or at another head."""

import torch
from torch import nn

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.target import Target
from eagle_fsd.heads.models import DraftHead
from eagle_fsd.models.load import load_head


def first_weights(start: str, head: DraftHead, target: Target) -> str:
    """Give the head its first weights: "random", "target", or those of the head of that name;
    returns a line about it."""
    if start == "random":
        return "started at random"
    if start == "target":
        left = start_from_target(head, target)
    else:
        left = start_from_head(head, load_head(start, target.model.config))
    return f"started from {start}; at random: {', '.join(left) or 'nothing'}"


def start_from_head(head: DraftHead, other: DraftHead) -> list[str]:
    """Copy what has one name and one shape in both; returns the keys left as they were.

    The draft vocabulary is not copied; rows of an EAGLE-3 lm_head go by token, and its key is
    returned if some tokens of this head's vocabulary have no row there.

    Raises:
        BadInput: nothing fits.
    """
    theirs = other.state_dict()
    left = []
    with torch.no_grad():
        for key, tensor in head.state_dict().items():
            if key in ("d2t", "t2d"):
                continue
            if key not in theirs:
                left.append(key)
            elif key == "lm_head.weight" and theirs[key].shape[1] == tensor.shape[1]:
                if not _copy_token_rows(head, other):
                    left.append(key)
            elif theirs[key].shape == tensor.shape:
                tensor.copy_(theirs[key])
            else:
                left.append(key)
    if len(left) == len(list(head.parameters())):
        raise BadInput("the head to start from has no weight of this head's names and shapes")
    return left


def start_from_target(head: DraftHead, target: Target) -> list[str]:
    """Begin with the target's last decoder layer; returns the keys left as they were.

    An EAGLE-1/2 head works on features, which the final norm has scaled, so the layer is rewritten
    for them (`in_feature_space`), and fc begins as "hand the feature on". An EAGLE-3 head, which
    norms its own input and output, gets the layer with outputs of size 1, the target's final norm
    and the lm_head rows of its draft vocabulary.

    Raises:
        BadInput: the target's layers have other names than Llama's.
    """
    base = target.model.base_model
    if not hasattr(base, "layers") or not hasattr(base, "norm"):
        raise BadInput(
            f"cannot start from a target of type {target.model.config.model_type!r}: it has no "
            "`layers` and `norm`; start at random"
        )
    last, final_D = base.layers[-1], _factor(base.norm, target.hidden_size)
    size, feature_size = _sizes(target)
    theirs = {key: tensor.float().cpu() for key, tensor in last.state_dict().items()}
    # a norm may store its factor less 1, and Gemma's Llama-like one has a name of its own
    names = ("pre_feedforward_layernorm", "post_attention_layernorm")
    before_mlp = next((getattr(last, name) for name in names if hasattr(last, name)), None)
    if before_mlp is not None:
        theirs["post_attention_layernorm.weight"] = _factor(before_mlp, target.hidden_size)
    before_attention_D = _factor(last.input_layernorm, target.hidden_size)
    ones_D = torch.ones_like(final_D)
    theirs = in_feature_space(
        theirs,
        before_attention_D=ones_D if head.config.eagle3 else before_attention_D,
        final_D=ones_D if head.config.eagle3 else final_D,
        size=size,
        feature_size=1.0 if head.config.eagle3 else feature_size,
    )
    prefix = "midlayer." if head.config.eagle3 else "layers.0."
    skipped = "input_layernorm"  # the head's is over something else
    left = []
    with torch.no_grad():
        for key, tensor in head.state_dict().items():
            source = theirs.get(key.removeprefix(prefix)) if key.startswith(prefix) else None
            if source is not None and source.shape == tensor.shape and skipped not in key:
                tensor.copy_(source)
            elif key not in ("d2t", "t2d"):
                left.append(key)
        if head.config.eagle3:
            token_R = head.draft_token_R
            rows_VD = target.lm_head.weight.cpu()
            head.lm_head.weight.copy_(rows_VD if token_R is None else rows_VD[token_R])
            head.norm.weight.copy_(final_D)
            left = [key for key in left if key not in ("lm_head.weight", "norm.weight")]
        else:
            _hand_on_feature(head.fc)
            left = [key for key in left if not key.startswith("fc.")]
    return left


def in_feature_space(
    layer: dict[str, torch.Tensor],
    *,
    before_attention_D: torch.Tensor,
    final_D: torch.Tensor,
    size: float,
    feature_size: float,
) -> dict[str, torch.Tensor]:
    """A Llama layer over hidden states h, rewritten for features f = final * h / size.

    What its norms would have divided by is folded into the weights: q, k and v read f without a
    norm; the norm before the MLP sees f; what attention and MLP add comes out in f's units.

    Args:
        layer: its weights, by their keys within the layer.
        before_attention_D: factor of its input norm.
        final_D: factor of the final norm.
        size: root mean square of h where the final norm reads it.
        feature_size: root mean square of f.
    """
    tiny = 1e-3 * final_D.abs().max()
    divisor_D = torch.where(final_D.abs() < tiny, tiny, final_D)
    layer = dict(layer)
    for name in ("q", "k", "v"):
        layer[f"self_attn.{name}_proj.weight"] *= before_attention_D / divisor_D
    layer["post_attention_layernorm.weight"] = (
        layer["post_attention_layernorm.weight"] / divisor_D * feature_size
    )
    for key in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
        layer[key] = layer[key] * (final_D / size)[:, None]
    return layer


@torch.inference_mode()
def _sizes(target: Target) -> tuple[float, float]:
    """Root mean squares before and after the target's final norm, on a probe of its vocabulary."""
    seen = []
    norm = target.model.base_model.norm
    hook = norm.register_forward_hook(lambda _, inputs, output: seen.extend([inputs[0], output]))
    probe_L = torch.arange(64, device=target.embed_tokens.weight.device) * 97 % target.vocab_size
    try:
        target.model.base_model(input_ids=probe_L[None], use_cache=False)
    finally:
        hook.remove()
    # the first token's state is far larger than the others' in many models
    before, after = (t[0, 1:].float().pow(2).mean(-1).sqrt().median().item() for t in seen)
    return before, after


def _factor(norm: nn.Module, D: int) -> torch.Tensor:
    """What an RMS norm multiplies by, float32 [D]: its output for one large number everywhere."""
    weight = next(norm.parameters())
    return norm(weight.new_full((1, D), 1024.0))[0].float().cpu()


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
