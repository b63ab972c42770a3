"""lm-eval's answer cache (--use_cache), which knows a request but not who answered it."""

import json
from collections.abc import MutableMapping
from dataclasses import asdict

from eagle_fsd.config import BadInput
from eagle_fsd.tasks.harness.model_args import HarnessOptions

MARK = "eagle_fsd"  # a key of the cache; lm-eval's own keys are hashes
NOT_IN_ANSWERS = frozenset({"device", "engine", "batch_size"})


def claim_cache(cache: MutableMapping, options: HarnessOptions) -> None:
    """Mark a new cache with the options that its answers are made with.

    Raises:
        BadInput: the cache holds answers made with other options.
    """
    mine = {k: v for k, v in asdict(options).items() if k not in NOT_IN_ANSWERS}
    made_with = cache.get(MARK) if len(cache) else json.dumps(mine)
    if made_with != json.dumps(mine):
        raise BadInput(
            f"--use_cache holds answers made with {made_with or 'another model'}; asked for "
            f"is {json.dumps(mine)}: name another cache"
        )
    cache[MARK] = made_with


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
