"""What is set for lm-evaluation-harness, checked: --model_args, generation_kwargs, --use_cache."""

import json
import math
from collections.abc import MutableMapping
from dataclasses import asdict, dataclass, fields

from lm_eval.models.utils import normalize_gen_kwargs

from eagle_fsd.config import DEFAULT_ARM, BadInput, SamplingConfig
from eagle_fsd.decoding.loop import StopConfig
from eagle_fsd.evaluation.arms import parse_arm
from eagle_fsd.models.load import load_target_config
from eagle_fsd.models.model_options import ModelOptions, option

GENERATION_KEYS = ("until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p")
CACHE_MARK = "eagle_fsd"  # a key of lm-eval's answer cache, whose own keys are hashes
NOT_IN_ANSWERS = frozenset({"device", "batch_size"})


@dataclass
class HarnessOptions(ModelOptions):
    """The fields of --model_args.

    lm-eval splits --model_args at commas, so what is no field here is taken as a further field of
    the arm: arm=fsd:0.3,child=target,target=smollm2 is the arm fsd:0.3,child=target. As JSON,
    {"arm": "fsd:0.3,child=target"}, the arm is one text.
    """

    arm: str = option(DEFAULT_ARM, "rule[:value][,field=value][@drafter[:tree]]; plain: no drafts")
    max_length: int | None = option(None, "longest sequence; default: the target's positions")
    max_gen_toks: int = option(256, "budget of an answer whose task names none")
    seed: int = option(0, "of all sampling")
    batch_size: str = option("1", "1 or auto, which is 1")

    def __post_init__(self):
        super().__post_init__()
        arm = parse_arm(self.arm)
        self.arm = arm.text
        arm.check_answers()
        if self.batch_size != "1" and not self.batch_size.startswith("auto"):
            raise BadInput(
                f"batch_size {self.batch_size}: eagle_fsd answers one at a time; give 1 or auto"
            )
        StopConfig(self.max_gen_toks)  # its own check
        positions = getattr(load_target_config(self.target), "max_position_embeddings", None)
        longest = positions or math.inf
        if self.max_length is not None and not 2 <= self.max_length <= longest:
            raise BadInput(f"max_length must be in 2..{longest} here, got {self.max_length}")

    @classmethod
    def read(cls, arguments: dict[str, object]) -> "HarnessOptions":
        """From what lm-eval made of --model_args.

        Raises:
            BadInput: a key that is neither a field here nor one of the arm, or a value of another
                type or out of range.
        """
        types = {field.name: field.type for field in fields(cls)}
        given = {
            name: _typed(name, arguments[name], types[name]) for name in arguments & types.keys()
        }
        further = [name for name in arguments if name not in types]
        if further:
            parts = [given.get("arm", DEFAULT_ARM), *(f"{k}={arguments[k]}" for k in further)]
            given["arm"] = ",".join(parts)
            try:
                parse_arm(given["arm"])
            except BadInput as error:
                raise BadInput(
                    f"model_args {', '.join(further)}: no options ({', '.join(types)}), so they "
                    f"are fields of the arm: {error}"
                ) from error
        return cls(**given)


def _typed(name: str, value: object, kind: type) -> object:
    """lm-eval reads numbers and None wherever it can; texts are what they were."""
    if kind is str:
        return str(value)
    if isinstance(value, bool) or not isinstance(value, int | kind):
        wanted = getattr(kind, "__name__", kind)
        raise BadInput(f"{name}={value!r} in model_args must be {wanted}")
    return value


def read_generation(
    gen_kwargs: dict[str, object], max_gen_toks: int
) -> tuple[SamplingConfig, int, tuple[str, ...]]:
    """What a task's generation_kwargs ask for: the sampling, the budget, the stop strings.

    As in lm-eval: greedy unless do_sample or a temperature is given, and greedy with
    do_sample=False. top_k and top_p are off unless given.

    Raises:
        BadInput: a setting that is out of range or that decoding here does not have.
    """
    try:
        settings = dict(normalize_gen_kwargs(gen_kwargs, max_gen_toks))
        temperature = float(settings.get("temperature", 0.0)) if settings["do_sample"] else 0.0
        top_k, top_p = int(settings.get("top_k", 0)), float(settings.get("top_p", 1.0))
    except (TypeError, ValueError) as error:
        raise BadInput(f"generation_kwargs {gen_kwargs} cannot be read: {error}") from error
    if settings.get("num_beams", 1) == 1:
        settings.pop("num_beams", None)
    unknown = [name for name in settings if name not in GENERATION_KEYS]
    if unknown:
        raise BadInput(
            f"generation_kwargs {', '.join(f'{name}={settings[name]}' for name in unknown)} cannot "
            f"be had with eagle_fsd; known: {', '.join(GENERATION_KEYS)}"
        )
    until = tuple(string for string in settings["until"] if string)
    return SamplingConfig(temperature, top_k, top_p), settings["max_gen_toks"], until


def claim_cache(cache: MutableMapping, options: HarnessOptions, weights: list[str]) -> None:
    """Mark a new cache, which knows a request but not who answered it, with the options and the
    weights that its answers are made with.

    Args:
        weights: digests of the target's and the head's.

    Raises:
        BadInput: the cache holds answers made with others.
    """
    mine = {k: v for k, v in asdict(options).items() if k not in NOT_IN_ANSWERS}
    asked = json.dumps(mine | {"weights": weights})
    made_with = cache.get(CACHE_MARK) if len(cache) else asked
    if made_with != asked:
        raise BadInput(
            f"--use_cache holds answers made with {made_with or 'another model'}; asked for "
            f"is {asked}: name another cache"
        )
    cache[CACHE_MARK] = made_with


def check_cacheable(gen_kwargs: dict[str, object], repeats: int) -> None:
    """The cache knows sampling by do_sample alone (CachingLM in lm-eval 0.4.13).

    Raises:
        BadInput: it would give all repeats of a sampled request one text.
    """
    temperature = float(gen_kwargs.get("temperature") or 0.0)
    if repeats > 1 and temperature > 0 and gen_kwargs.get("do_sample") is None:
        raise BadInput(
            f"--use_cache with temperature={temperature:g} and no do_sample would give all "
            f"{repeats} repeats of a request one text: add do_sample=true to --gen_kwargs"
        )
