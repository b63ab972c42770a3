"""A request of lm-evaluation-harness, and what its generation_kwargs ask for."""

from dataclasses import dataclass

from lm_eval.models.utils import normalize_gen_kwargs

from eagle_fsd.config import BadInput, SamplingConfig
from eagle_fsd.decoding.loop import StopConfig

GENERATION_KEYS = ("until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p")


@dataclass(frozen=True)
class Request:
    """One prompt and how to answer it.

    Attributes:
        prompt: token ids, truncated from the left to leave room for the budget.
        sampling, stop: from the task's generation_kwargs.
    """

    prompt: list[int]
    sampling: SamplingConfig
    stop: StopConfig


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
