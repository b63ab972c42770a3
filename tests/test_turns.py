"""Answers on one model, in turn and in threads: each is what it is alone, since all that a target
and a drafter know of an answer is that answer's own."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import zip_longest

import pytest
from answers import TREES
from tiny import EAGER, FAMILIES, prompt_tokens, random_model, tiny_head
from tiny_recurrent import hybrid_target

from eagle_fsd.arms import parse_arm
from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.answer import Round
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode_rounds
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import RootDrafter
from eagle_fsd.drafters.eagle import head_drafter
from eagle_fsd.engine.select import ENGINES
from eagle_fsd.models.loaded import Model

ARMS = ("fsd:0.4", "exact@ngram", "exact@hybrid,recycle=4", "exact@language_model:5x3x4")
LENGTHS, BUDGET = (5, 20, 33), 24


def loaded(engine: str) -> Model:
    target = Target(random_model(FAMILIES["llama"](), seed=3), engine=ENGINES[engine]())
    drafter = head_drafter(tiny_head(target), target, TREES[1])
    return Model(target, None, drafter, draft_model=target.first_layers(2))


def recurrent(engine: str) -> Model:
    return Model(hybrid_target("qwen3_5_text", engine=engine), None, RootDrafter())


def rounds_of(model: Model, arm: str, length: int, temperature: float):
    """The rounds of an answer, as they come: tokens and accepted paths."""
    chosen, sampling = parse_arm(arm), SamplingConfig(temperature)
    config = DecodeConfig(chosen.policy(sampling), StopConfig(BUDGET), seed=length)
    prompt, drafter = prompt_tokens(length, seed=length), chosen.build_drafter(model)
    for one in decode_rounds(model.target, drafter, prompt, config):
        yield shown(one)


def shown(one: Round) -> str:
    return repr((one.tokens, one.finish, one.acceptance))  # in which NaN equals itself


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("engine", EAGER)
@pytest.mark.parametrize(
    ("make", "arm"), [*((loaded, arm) for arm in ARMS), (recurrent, "exact@ngram")]
)
def test_answers_under_way_leave_each_other_alone(
    make: Callable[[str], Model], arm: str, engine: str, temperature: float
):
    """Three of a model, round by round in turn and then a thread each. In between one is closed
    half-way, and one ends by an exception. Bug held down: a second answer ended the first."""
    model = make(engine)

    def answer(length: int) -> list[str]:
        return list(rounds_of(model, arm, length, temperature))

    alone = {length: answer(length) for length in LENGTHS}
    assert len({*map(tuple, alone.values())}) == len(LENGTHS)

    closed, failed = (rounds_of(model, arm, length, temperature) for length in (9, 11))
    next(closed), next(closed), next(failed)
    under_way = [rounds_of(model, arm, length, temperature) for length in LENGTHS]
    together: list[list[str]] = [[] for _ in LENGTHS]
    for number, rounds in enumerate(zip_longest(*under_way)):
        if number == 1:
            closed.close()
        if number == 2:
            with suppress(ZeroDivisionError):
                failed.throw(ZeroDivisionError)
        for own, one in zip(together, rounds, strict=True):
            own += [] if one is None else [one]
    assert together == [*alone.values()]

    with ThreadPoolExecutor(len(LENGTHS)) as pool:
        assert list(pool.map(answer, LENGTHS * 2)) == [*alone.values()] * 2
