"""The shape of a head to be trained, its options checked against the target."""

from transformers import PretrainedConfig

from eagle_fsd.heads.head_config import HeadConfig
from eagle_fsd.heads.shape import head_shape
from eagle_fsd.training.train_options import TrainOptions


def head_config_for(target_config: PretrainedConfig, options: TrainOptions) -> HeadConfig:
    """See head_shape.

    Raises:
        ValueError: a vocabulary that is none of the target's, or a target without the sizes needed.
    """
    for name in ("draft_vocab", "loss_vocab"):
        if getattr(options, name) >= target_config.vocab_size:
            raise ValueError(
                f"--{name} {getattr(options, name)} is not less than the target's vocabulary "
                f"{target_config.vocab_size}: leave it out to use all tokens"
            )
    return head_shape(target_config, head_type=options.head_type, draft_vocab=options.draft_vocab)
