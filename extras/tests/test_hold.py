"""extras/hold.py, as a command loads it: a rule of a plug-in that remembers an answer's rounds."""

from collections.abc import Iterator

import pytest
import torch
from commands import ROOT, registered
from reference_accept import GREEDY, WARM, goes, outcome, random_round

from eagle_fsd.arms import parse_arm
from eagle_fsd.config import BadInput
from eagle_fsd.decoding.acceptance import Policy, accept
from eagle_fsd.rules import RULES
from eagle_fsd.rules.guards import Ends, NoRepeat
from eagle_fsd.rules.price import PathRule


@pytest.fixture(scope="module", autouse=True)
def hold() -> Iterator[None]:
    """Registered for the tests of this file."""
    with registered(ROOT / "extras" / "hold.py"):
        yield


@pytest.mark.parametrize("guards", [(), (NoRepeat(3), Ends(1))], ids=str)
@pytest.mark.parametrize("sampling", [GREEDY, WARM])
def test_the_dial_holds_what_it_says(sampling, guards):
    """Over an answer of many rounds, at two targets: regret a token, above temperature 0 TV; and
    every round is that of path at the rule's price."""
    for target in (0.05, 0.4):
        policy = Policy(RULES["hold"](target), sampling, guards).begin()
        cost, tokens, prices = 0.0, 0, set()
        for seed in range(100):
            round_ = random_round(seed % 50)
            round_ = (*round_[:2], torch.rand(9, 3, generator=torch.Generator().manual_seed(seed)))
            got = accept(*round_, policy=policy, stop_token_ids={4})
            price = policy.rule.price
            want = outcome(round_, PathRule(price), sampling, guards, stop_token_ids={4})
            assert repr(got) == repr(want)
            prices.add(price)
            cost += sum(got.tv) if sampling.temperature else sum(got.regret)
            tokens += len(got.tokens)
        assert len(prices) > 3
        off = (target * tokens - cost) / (target * 32)  # the tokens that it remembers
        assert -99 < off < 1.5, f"{cost / tokens}, {target} was to be held"


def test_what_it_takes():
    """0 is exact. Bug held down: hold:1e308 ended in an OverflowError."""
    rule = RULES["hold"]()
    assert all(goes(rule, sampling, (NoRepeat(3), Ends(1))) for sampling in (GREEDY, WARM))
    for text in ("hold:-1", "hold:1e308", "hold:nan"):
        with pytest.raises(BadInput, match="target must be from 0 to 100"):
            parse_arm(text)
    for seed in range(10):
        round_ = random_round(seed)
        got = outcome(round_, RULES["hold"](0.0), GREEDY)
        assert got.tokens == outcome(round_, parse_arm("exact").rule, GREEDY).tokens
