"""What a stored head is, whom it fits and what is wrong with it, for people to read.

Nothing of the target is needed but its config, and nothing is run."""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PretrainedConfig
from transformers.utils import CONFIG_NAME

from eagle_fsd.heads.files import StoredHead, stored_head
from eagle_fsd.heads.head_config import HeadConfig
from eagle_fsd.heads.initial_weights import spread
from eagle_fsd.heads.mtp_files import stored_tensors
from eagle_fsd.heads.mtp_head import ROUTER_BIAS, MtpHead

WRITERS = {
    "upstream": "SafeAILab/EAGLE, or this project",
    "specforge": "SpecForge, ModelOpt, AngelSlim",
    "speculators": "vllm-project/speculators",
}
NORMS = {
    "qk_norm": "of q and k",
    "norm_before_fc": "before fc",
    "fc_norm": "of each fused state",
    "norm_before_residual": "before the residual",
    "norm_output": "before the next step",
}


@dataclass(frozen=True)
class HeadCheck:
    """A page about a head: a label and a line each; and every fault, a sentence each."""

    lines: list[tuple[str, str]]
    wrong: list[str]

    def __str__(self) -> str:
        rows = [*self.lines, *(("wrong", fault) for fault in self.wrong or ["nothing found"])]
        return "\n".join(f"{label:<10}{text}" for label, text in rows)


def check_head(
    name: str | Path,
    target_config: PretrainedConfig,
    *,
    target: str,
    feature_layers: tuple[int, ...] = (),
) -> HeadCheck:
    """The page of a head for a target. BadInput: its config is no head's, or its weights cannot be
    read at all.

    Args:
        target: what the page calls the target.
        feature_layers: which hidden states the head reads, if not those that its config says.
    """
    stored = stored_head(name, target_config, must_fit=False, feature_layers=feature_layers)
    misfits = stored.config.misfits(target_config)
    lines = [("head", f"{name}: {_kind(stored)}"), *_shape(stored.config), *_weights(stored)]
    lines += _vocabulary(stored)
    given = bool(feature_layers)
    lines.append(("reads", _reads(stored.config, target_config.num_hidden_layers, given)))
    lines += [("assumed", note) for note in stored.notes]
    lines.append(("made for", _made_for(stored)))
    lines.append(("fits", f"{'not ' if misfits else ''}{target} ({_of(target_config)})"))
    return HeadCheck(lines, [*misfits, *stored.faults, *_contents(stored)])


def check_mtp(
    name: str | Path, head: MtpHead, target_config: PretrainedConfig, *, target: str
) -> HeadCheck:
    """The page of an MTP layer that was read, and so fits; of experts no matrix is judged.

    Args:
        name, target: what the page calls them.
    """
    config, tensors = head.config, stored_tensors(head)
    own = ("lm_head",) if config.own_lm_head else ()
    states = {"normed": "after its final norm", "raw": "before its final norm"}
    lines = [
        ("head", f"{name}: MTP of a checkpoint of type {config.target.model_type}, drafter mtp"),
        (
            "layers",
            f"1 of {config.hidden_size:,} channels, run at every level; "
            f"{config.num_attention_heads} attention heads",
        ),
        ("weights", _counted(tensors, own)),
        ("drafts", f"all {config.vocab_size:,} tokens"),
        ("reads", f"the target's last hidden state, {states[config.feature]}"),
        ("then", f"its own, {states[config.own]}"),
        ("fits", f"{target} ({_of(target_config)})"),
    ]
    experts = [key for key in tensors if ".experts." in key]
    if experts:
        lines.insert(3, ("experts", f"{len(experts)} tensors, which are not judged"))
    left = {key for key in tensors if key.endswith(ROUTER_BIAS)}.union(experts)  # 0 is a fair bias
    return HeadCheck(lines, [*_untrained({k: t for k, t in tensors.items() if k not in left})])


def _of(target_config: PretrainedConfig) -> str:
    return (
        f"{target_config.model_type}, {target_config.num_hidden_layers} layers of "
        f"{target_config.hidden_size:,} channels, {target_config.vocab_size:,} tokens"
    )


def _kind(stored: StoredHead) -> str:
    kind = "EAGLE-3" if stored.config.eagle3 else "EAGLE-1/2"
    return f"{kind} in the layout {stored.layout} ({WRITERS[stored.layout]})"


def _shape(config: HeadConfig) -> Iterator[tuple[str, str]]:
    C = config.head_dim or config.hidden_size // config.num_attention_heads
    yield (
        "layers",
        f"{config.num_hidden_layers} of {config.hidden_size:,} channels, inner size "
        f"{config.intermediate_size:,}; {config.num_attention_heads} attention heads of {C}, "
        f"{config.num_key_value_heads} for keys and values",
    )
    if norms := [text for key, text in NORMS.items() if getattr(config, key)]:
        yield "norms", f"besides the usual ones {', '.join(norms)}"
    rope = config.rope_parameters
    scaling = "" if rope["rope_type"] == "default" else f", scaled as {rope['rope_type']}"
    yield "positions", f"base {rope['rope_theta']:,.0f}{scaling}"


def _weights(stored: StoredHead) -> Iterator[tuple[str, str]]:
    config = stored.config
    own = {
        "embedding": config.own_embedding,
        "lm_head": config.eagle3 and config.own_lm_head,
    }
    yield "weights", _counted(stored.tensors, [name for name in own if own[name]])


def _counted(tensors: dict[str, torch.Tensor], own: Collection[str]) -> str:
    """How many parameters of which dtypes; which tables are the target's, those that are not
    `own`."""
    weights = [tensor for tensor in tensors.values() if tensor.is_floating_point()]
    dtypes = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in weights})
    shared = [name for name in ("embedding", "lm_head") if name not in own]
    return (
        f"{sum(tensor.numel() for tensor in weights):,} parameters in {len(weights)} tensors, "
        f"{' and '.join(dtypes)}; the target's {' and '.join(shared) or 'nothing'} besides"
    )


def _vocabulary(stored: StoredHead) -> Iterator[tuple[str, str]]:
    V, d2t = stored.config.vocab_size, stored.tensors.get("d2t")
    if d2t is None or stored.faults:
        R = stored.config.draft_vocab_size or V
        yield "drafts", f"{R:,} of {V:,} tokens" if R < V else f"all {V:,} tokens"
        return
    token_R = d2t + torch.arange(len(d2t))
    share = len(d2t) / V
    yield (
        "drafts",
        f"{len(d2t):,} of {V:,} tokens ({share:.2%}), by d2t from {token_R[0].item():,} to "
        f"{token_R[-1].item():,}",
    )


def _reads(config: HeadConfig, target_layers: int, given: bool) -> str:
    """The hidden states; what is known of how they are counted is a note."""
    layers = config.fused_layers(target_layers)
    if not layers:
        return "the target's last hidden state, after its norm"
    named = f"hidden states {', '.join(map(str, layers))} of a target with {target_layers} layers"
    if given:
        return f"{named}: as given"
    usual = HeadConfig(head_type="eagle3").fused_layers(target_layers)
    if not config.feature_layers:
        return f"{named}: config.json names none, and these are every publisher's default"
    if layers == usual:
        return f"{named}: named in config.json, and every publisher's default"
    return f"{named}: named in config.json"


def _made_for(stored: StoredHead) -> str:
    """What a target must be, and the one that config.json names."""
    config = stored.config
    text = f"hidden size {config.feature_size:,}, {config.vocab_size:,} tokens"
    if config.feature_layers:
        text += f", more than {max(config.feature_layers)} layers"
    values = json.loads((stored.folder / CONFIG_NAME).read_text())
    verifier = (values.get("speculators_config") or {}).get("verifier") or {}
    named = verifier.get("name_or_path")
    return f"{text}; config.json names {named}" if named else text


def _contents(stored: StoredHead) -> Iterator[str]:
    """What tensors of the right shape hold that training does not leave."""
    d2t, t2d = stored.tensors.get("d2t"), stored.tensors.get("t2d")
    if not stored.faults and d2t is not None and t2d is not None and t2d.any():
        token_R = d2t + torch.arange(len(d2t))
        if t2d.sum() != len(d2t) or not t2d[token_R].all():
            yield f"t2d marks {t2d.sum().item():,} tokens, and not those that d2t leads to"
    yield from _untrained(stored.tensors)


def _untrained(tensors: dict[str, torch.Tensor]) -> Iterator[str]:
    """Of the weights: what is one number throughout, or as it was drawn."""
    weights = {k: t for k, t in sorted(tensors.items()) if t.is_floating_point() and t.numel()}
    for key, tensor in weights.items():
        low, high = torch.stack(tensor.aminmax()).tolist()
        if low == high and (tensor.ndim > 1 or low != 1):
            yield f"{key} is {low:g} throughout"
    judged = {key: found for key, tensor in weights.items() if (found := spread(tensor))}
    drawn = {key: found for key, found in judged.items() if found.drawn}
    if len(drawn) == len(judged) > 1:
        z = max(max(abs(found.row_z), abs(found.column_z)) for found in drawn.values())
        yield (
            f"none of its {len(drawn)} matrices can be told from its initialisation: spread of "
            f"their rows and columns at most z {z:.1f}, largest singular values at most "
            f"{max(found.top for found in drawn.values()):.2f} of what independent draws have"
        )
        return
    for key, found in drawn.items():
        yield f"{key} cannot be told from its initialisation: {found}"
