"""extras/rivals.py: its rules and guards as a command loads them, against the slow references."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator

import pytest
from commands import ROOT, registered
from reference_accept import (
    GREEDY,
    SAMPLINGS,
    WARM,
    assert_agrees,
    goes,
    outcome,
    probs,
    random_round,
)
from reference_rivals import SlowRivals

from eagle_fsd.arms import parse_arm
from eagle_fsd.config import BadInput, SamplingConfig
from eagle_fsd.decoding.acceptance import Policy, accept
from eagle_fsd.decoding.tree import RootDrafter
from eagle_fsd.decoding.verified import Guard, Rule
from eagle_fsd.rules.fsd import Exact, Fsd, FsdPaper, Random
from eagle_fsd.rules.price import PathRule
from eagle_fsd.rules.thresholds import Ratio

GREEDY_ONLY = ("asd", "fly")  # of all others temperatures above 0 only
GUARDED = ["known=0.05", "js=0.1,known=0.01"]


@pytest.fixture(scope="module", autouse=True)
def rivals() -> Iterator[None]:
    """Registered for the tests of this file."""
    with registered(ROOT / "extras" / "rivals.py"):
        yield


def rule(text: str) -> Rule:
    return parse_arm(text).rule


def guards(text: str) -> tuple[Guard, ...]:
    """Such as js=0.3,known=0.01."""
    return parse_arm(f"exact,{text}").guards if text else ()


# --- how probable each draft becomes --------------------------------------------------------------

VALUES = ("0", "0.01", "0.3", "inf")
COUPLED_TEXTS = [f"{name}:{value}" for name in ("cactus", "mentored") for value in VALUES]


@pytest.mark.parametrize("sampling", [s for s in SAMPLINGS if s.temperature > 0])
@pytest.mark.parametrize("text", COUPLED_TEXTS)
def test_coupled_rules_agree_with_the_reference(text, sampling):
    """Stop tokens are among the drafts of every second round."""
    for seed, guarded in itertools.product(range(5), ("", "known=0.05", "known=0.02,ends=1")):
        tree, *_ = round_ = random_round(50 + seed)
        stop = set(tree.token_N[tree.parent_N[1:]].tolist()[1::3]) if seed % 2 else set()
        assert_agrees(round_, rule(text), sampling, guards(guarded), stop, SlowRivals)


# --- mismatches that the tokens behind them must buy ----------------------------------------------


def slow_suffix(slow: SlowRivals, rule: Rule, spent: float) -> tuple[list[int], float]:
    """The path that fly or asd takes, and what has been spent then."""

    def hit(v: int) -> int | None:
        return slow.hit(v, slow.p[v].index(1.0))

    def run(v: int) -> int:
        return 0 if hit(v) is None else 1 + run(hit(v))

    path, bought = [0], 0
    while True:
        v = path[-1]
        if (child := hit(v)) is None:
            raw, cost = probs(slow.target[v]), {}
            for c in slow.options(v):
                cost[c] = slow.regret(v, slow.token[c])
                if slow.kind == "fly":
                    flat = -math.fsum(p * math.log(p) for p in raw) / math.log(len(raw))
                    able = flat > rule.entropy and run(c) >= rule.window
                else:
                    able = 0 < rule.regret >= cost[c] and spent + cost[c] <= rule.ledger
                    able = able and bought < rule.block and run(c) >= rule.suffix
                if not able:
                    del cost[c]
            if not cost:
                return path, spent
            child = max(cost, key=lambda c: (run(c), -cost[c]))
            bought, spent = bought + 1, spent + cost[child]
        path.append(child)


@pytest.mark.parametrize("guarded", ["", "known=0.02"])
def test_what_must_be_bought_agrees_with_the_reference(guarded):
    """Paths of fly and asd over an answer of rounds, whose ledger goes on from round to round."""
    fuzzy = Counter()
    texts = [f"fly:{window},entropy={gate}" for window in (0, 1, 2) for gate in (0, 0.5)]
    texts += [
        f"asd:{r},suffix={s},block={b},ledger={nats}"
        for r, s, b, nats in itertools.product((0.5, 3), (0, 1), (1, 9), (4, "inf"))
    ]
    for text in texts:
        policy = Policy(rule(text), GREEDY, guards(guarded))
        answer, spent = policy.begin(), 0.0
        for seed in range(20):
            round_ = random_round(seed)
            want, spent = slow_suffix(SlowRivals(*round_[:2], policy), policy.rule, spent)
            got = accept(*round_, policy=answer)
            assert got.path == want, text
            fuzzy[text[:3]] += sum(got.fuzzy)
    assert min(fuzzy["fly"], fuzzy["asd"]) > 10


# --- limits of all of them ------------------------------------------------------------------------

TIGHT = ["asd:0", "asd:9,ledger=0", "fly:99", "fly:0,entropy=1", "cactus:0", "mentored:0"]
LOOSE = ["asd:inf,suffix=0,block=99,ledger=inf", "fly:0,entropy=0", "cactus:inf", "mentored:inf"]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_tight_end_is_exact_and_the_loose_end_a_leaf(sampling):
    """Each rule goes with temperature 0 or with the others, and is refused elsewhere."""
    for text in TIGHT + LOOSE:
        greedy = text.partition(":")[0] in GREEDY_ONLY
        assert goes(rule(text), sampling) == (greedy == (sampling == GREEDY))
        if not goes(rule(text), sampling):
            continue
        for seed in range(10):
            tree, *rest = random_round(seed)
            if text in LOOSE:
                got = outcome((tree, *rest), rule(text), SamplingConfig(sampling.temperature))
                assert got.path[-1] not in tree.parent_N[1:], text
                continue
            want, got = (outcome((tree, *rest), r, sampling) for r in (Exact(), rule(text)))
            assert (got.path, got.tokens) == (want.path, want.tokens), text
            assert not any(got.fuzzy) and not any(tv > 0 for tv in got.tv), text


# --- guards ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("guarded", GUARDED)
@pytest.mark.parametrize("sampling", [*SAMPLINGS, SamplingConfig(0.0, 3, 0.9)])
def test_guarded_rules_agree_with_the_reference(guarded, sampling):
    """Of every kind of rule of the library. Beside the guard js a rule's own D is recorded."""
    rules = [Exact(), Ratio(1.5), Random(1.0), Fsd(0.3), Fsd(0.3, divergence="tv")]
    rules += [FsdPaper(0.3), rule("typical:0.09"), rule("random:0.3"), PathRule(1.0)]
    narrowed = 0
    for each, seed in itertools.product(rules, range(6)):
        if goes(each, sampling, guards(guarded)):
            round_ = random_round(50 + seed)
            got = assert_agrees(round_, each, sampling, guards(guarded), (), SlowRivals)
            narrowed += got.path != outcome(round_, each, sampling).path
    assert narrowed > 3


@pytest.mark.parametrize("text", ["first=12", "loop=2", "loop=3"])
def test_guards_by_the_answer_so_far_leave_out_what_they_say(text):
    """Of an accept-all; and they do leave some, but not all."""
    kept, free = 0, 0
    for seed, length in itertools.product(range(8), (7, 11, 12)):
        round_ = random_round(seed)
        answer = [3, 1, 4, 1, 5, 9, 2, 6, 7, 3, 1, 4][:length]
        got = outcome(round_, Random(1.0), GREEDY, guards(text), answer=answer)
        for depth, fuzzy in enumerate(got.fuzzy):
            if text == "first=12":
                allowed = length + depth >= 12
            else:  # the last two tokens stand before of 11, the last three of 12
                allowed = length == 7 or (length == 11 and text == "loop=3")
            assert allowed or not fuzzy
            kept += fuzzy
        free += sum(outcome(round_, Random(1.0), GREEDY).fuzzy)
    assert 0 < kept < free


def test_rules_refuse_what_would_bias_them():
    """Or has no meaning."""
    for text in ("cactus:-1", "mentored:-1", "asd:1,ledger=-1", "exact,known=2", "exact,js=1"):
        with pytest.raises(BadInput):
            parse_arm(text)
    with pytest.raises(BadInput, match="above temperature 0 would bias the text"):
        rule("asd").check(WARM, RootDrafter())
    with pytest.raises(BadInput, match="at temperature 0 this rule is exact"):
        rule("cactus").check(GREEDY, RootDrafter())
