"""What --model_args of lm-evaluation-harness may hold, checked before weights load."""

import math
from dataclasses import dataclass, fields

from eagle_fsd.config import AcceptConfig, BadInput
from eagle_fsd.decoding.loop import StopConfig
from eagle_fsd.evaluation.arms import Arm
from eagle_fsd.models.load import load_target_config
from eagle_fsd.models.model_options import DecodeOptions, ModelOptions, option

NO_HEAD = "none"


@dataclass
class HarnessOptions(ModelOptions):
    """The fields of --model_args."""

    rule: str = option("", "plain, or a name in RULES; empty: fsd, and plain with head=none")
    divergence: str = option(AcceptConfig.divergence, "see AcceptConfig")
    threshold: float = option(AcceptConfig.threshold, "T of the rule")
    logits: str = option(AcceptConfig.logits, "see AcceptConfig")
    child: str = option(AcceptConfig.child, "see AcceptConfig")
    max_length: int | None = option(None, "longest sequence; default: the target's positions")
    max_gen_toks: int = option(256, "budget of an answer whose task names none")
    seed: int = option(0, "of all sampling")
    batch_size: str = option("1", "1 or auto, which is 1")

    def __post_init__(self):
        super().__post_init__()
        without_head = self.head.lower() == NO_HEAD
        self.rule = self.rule or ("plain" if without_head else AcceptConfig.rule)
        if without_head and self.rule != "plain":
            raise BadInput(f"rule={self.rule} needs a head: name one, or give rule=plain")
        if self.batch_size != "1" and not self.batch_size.startswith("auto"):
            raise BadInput(
                f"batch_size {self.batch_size}: eagle_fsd answers one at a time; give 1 or auto"
            )
        StopConfig(self.max_gen_toks)  # its own check
        self.tree()
        self.arm()
        positions = getattr(load_target_config(self.target), "max_position_embeddings", None)
        longest = positions or math.inf
        if self.max_length is not None and not 2 <= self.max_length <= longest:
            raise BadInput(f"max_length must be in 2..{longest} here, got {self.max_length}")

    @classmethod
    def read(cls, arguments: dict[str, object]) -> "HarnessOptions":
        """From what lm-eval made of --model_args.

        Raises:
            BadInput: an unknown key, or a value of another type or out of range.
        """
        types = {field.name: field.type for field in fields(cls)}
        unknown = [name for name in arguments if name not in types]
        if unknown:
            raise BadInput(f"unknown model_args {', '.join(unknown)}; known: {', '.join(types)}")
        return cls(**{name: _typed(name, arguments[name], types[name]) for name in arguments})

    def arm(self) -> Arm:
        """How to answer. What greedy tasks cannot have is refused when their requests come."""
        if self.rule == "plain":
            return Arm("plain")
        decoding = DecodeOptions(self.divergence, self.logits, self.child, temperature=1.0)
        return Arm.with_rule(decoding.accept(self.rule, self.threshold))


def _typed(name: str, value: object, kind: type) -> object:
    """lm-eval reads numbers and None wherever it can; texts are what they were."""
    if kind is str:
        return str(value)
    if isinstance(value, bool) or not isinstance(value, int | kind):
        wanted = getattr(kind, "__name__", kind)
        raise BadInput(f"{name}={value!r} in model_args must be {wanted}")
    return value
