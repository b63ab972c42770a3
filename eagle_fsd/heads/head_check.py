"""What a stored head is, whom it fits and what is wrong with it, for people to read.

Nothing of the target is needed but its config, and nothing is run: whether a head was trained shows
in its tokens a round, which evaluate/answer.py prints."""

from pathlib import Path

from transformers import PretrainedConfig

from eagle_fsd.heads.files import stored_head
from eagle_fsd.heads.mtp_head import MtpHead


def check_head(
    name: str | Path,
    target_config: PretrainedConfig,
    *,
    feature_layers: tuple[int, ...] = (),
) -> tuple[dict[str, str], list[str]]:
    """The page of a head for a target, a line by its label; and what is wrong, a sentence each.

    Args:
        feature_layers: which hidden states the head reads, if not those that its config says.

    Raises:
        BadInput: its config is no head's, or its weights cannot be read at all.
    """
    stored = stored_head(name, target_config, must_fit=False, feature_layers=feature_layers)
    config = stored.config
    weights = [tensor for tensor in stored.tensors.values() if tensor.is_floating_point()]
    drafted, tokens = config.draft_vocab_size or config.vocab_size, config.vocab_size
    if layers := config.fused_layers(target_config.num_hidden_layers):
        reads = f"hidden states {', '.join(map(str, layers))}"
        if not config.feature_layers:
            reads += ": config.json names none, and these are every publisher's default"
    else:
        reads = "the last hidden state, after its norm"
    page = {
        "head": f"{'EAGLE-3' if config.eagle3 else 'EAGLE-1/2'} in the layout {stored.layout}",
        "layers": f"{config.num_hidden_layers} of {config.hidden_size:,} channels",
        "weights": f"{sum(tensor.numel() for tensor in weights):,} numbers in {len(weights)} "
        "tensors",
        "drafts": f"{drafted:,} of {tokens:,} tokens",
        "reads": reads,
        "made for": f"targets of {config.feature_size:,} channels and {tokens:,} tokens",
        "assumed": "; ".join(stored.notes) or "nothing",
    }
    return page, [*config.misfits(target_config), *stored.faults]


def check_mtp(head: MtpHead) -> dict[str, str]:
    """The page of an MTP layer that was read, and so fits and has every number."""
    config = head.config
    states = {"normed": "after its final norm", "raw": "before its final norm"}
    return {
        "head": f"MTP of a checkpoint of type {config.target.model_type}",
        "layers": f"1 of {config.hidden_size:,} channels",
        "weights": f"{sum(p.numel() for p in head.parameters()):,} numbers",
        "drafts": f"all {config.vocab_size:,} tokens",
        "reads": f"the target's last hidden state, {states[config.feature]}; then its own, "
        f"{states[config.own]}",
    }
