"""Arms as texts: their canonical form, defaults, aliases, and what is refused."""

import itertools
from dataclasses import fields

import pytest

from eagle_fsd.arms import parse_arm, parse_arms
from eagle_fsd.config import BadInput, SamplingConfig
from eagle_fsd.decoding.divergence import ALIASES
from eagle_fsd.rules import RULES
from eagle_fsd.rules.fsd import Exact, Fsd
from eagle_fsd.rules.guards import GUARDS, Ends, NoRepeat

VALUES = ["0", "0.3", "1e-05", "0.1234567890123", "1"]
RULE_TEXTS = ["exact", "accept-all", "accept-all:draft", "fsd:inf", "ratio:inf", "random:0.05"]
RULE_TEXTS += [f"{rule}:{value}" for rule in ("fsd", "fsd-paper", "ratio") for value in VALUES]
RULE_TEXTS += ["fsd:0.3,child=draft", "fsd:0.3,child=draft,divergence=kl_target_draft"]
RULE_TEXTS += ["path:2", "hold:0.03,by=ratio", "random:0.2,child=sample"]
GUARD_TEXTS = ["", ",no_repeat=2", ",no_repeat=10,ends=1", ",ends=0"]
DRAFTER_TEXTS = ["", "@eagle:7x3x4", "@ngram:10", "@ngram:5,max_ngram=2", "@hybrid:7x3x4"]
DRAFTER_TEXTS += ["@language_model", "@language_model:12x3x4,sample=1", "@eagle,sample=1"]


def test_canonical_texts_are_their_own_and_slugs_tell_them_apart():
    """parse(text).text == text and parse(arm.text) == arm, for all combinations."""
    texts = ["plain", "generate", "generate_compiled"]
    parts = itertools.product(RULE_TEXTS, GUARD_TEXTS, DRAFTER_TEXTS)
    texts += ["".join(part) for part in parts]
    arms = parse_arms(texts)
    assert [arm.text for arm in arms] == texts
    for arm in arms:
        assert parse_arm(arm.text) == arm
        assert not set(arm.slug) & set(":,=@/ ") and arm.slug
    assert len({arm.slug for arm in arms}) == len(texts) > 250
    for name, kind in RULES.items():  # every rule, and no field of one is a guard's name
        assert parse_arm(name).text.split(":")[0] == name
        assert not GUARDS.keys() & {field.name for field in fields(kind)}


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("fsd", "fsd:0.3"),
        ("fsd:0.30", "fsd:0.3"),
        ("fsd:3e-1,child=target,divergence=js", "fsd:0.3"),
        ("fsd:-0", "fsd:0"),
        ("fsd:infinity", "fsd:inf"),
        ("fsd:0.3,divergence=tv,child=draft", "fsd:0.3,child=draft,divergence=tv"),
        ("hold:0.03,by=path", "hold:0.03"),
        ("exact@eagle", "exact"),
        ("exact@eagle:007x3x4", "exact@eagle:7x3x4"),
        ("exact@ngram", "exact@ngram:15"),
        ("exact@language_model:5x05x1", "exact@language_model"),
        ("rejection@eagle:007x3x4,sample=1", "rejection@eagle:7x3x4,sample=1"),
        ("exact@hybrid:07x3x4,max_ngram=3", "exact@hybrid:7x3x4"),
        ("exact@ngram,num_draft_tokens=5,max_ngram=3", "exact@ngram:5"),
        ("path:1,ends=1,no_repeat=02", "path:1,no_repeat=2,ends=1"),
        *((f"fsd:1,divergence={alias}", f"fsd:1,divergence={n}") for alias, n in ALIASES.items()),
    ],
)
def test_defaults_go_numbers_are_formatted_and_aliases_resolved(text, canonical):
    assert parse_arm(text).text == canonical
    assert parse_arm(text) == parse_arm(canonical)
    with pytest.raises(BadInput, match="are the same"):
        parse_arms(["plain", canonical, text])


def test_what_an_arm_is_made_of():
    """Rule, guards and drafter, and what tables ask of it."""
    arm = parse_arm("fsd:0.4,child=draft,ends=1,no_repeat=2@eagle:7x3x4")
    assert arm.rule == Fsd(0.4, "draft") and arm.guards == (NoRepeat(2), Ends(1))
    assert (arm.kind, arm.value, arm.tree, arm.drafts) == ("fsd", 0.4, "7x3x4", True)
    assert arm.line == "fsd,child=draft,no_repeat=2,ends=1@eagle:7x3x4"
    assert arm.slug == "fsd_0.4_child-draft_no_repeat-2_ends-1__eagle_7x3x4"
    plain, generate = parse_arms(["plain", "generate"])
    assert plain.runs_our_loop and plain.rule == Exact() and not plain.drafts
    assert not generate.runs_our_loop and generate.value is None and generate.line == "generate"
    no_number = ("exact", "accept-all", "typical:inf", "ratio:inf")
    assert [parse_arm(text).value for text in (*no_number, "ratio:2")] == [None] * 4 + [2]


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("fsd:T=0.3", "fsd:0.3"),
        ("fsd:threshold=0.3,child=target", "fsd:0.3"),
        ("fsd:child=target", "fsd,child=target"),
        ("fsd:0.3@eagle:tree=7x3x4", "eagle:7x3x4"),
        ("exact@hybrid:max_ngram=2", "hybrid,max_ngram=2"),
    ],
)
def test_a_value_that_is_named_is_answered_by_the_text_that_works(text, offered):
    with pytest.raises(BadInput, match=f"write {offered}$"):
        parse_arm(text)
    assert parse_arm(offered if "@" not in text else f"exact@{offered}")


def test_arms_of_a_run():
    """One that names the run's own tree is the one that names none."""
    assert parse_arm("exact@eagle:15x4x6", tree="15x4x6").text == "exact"
    assert parse_arm("exact@hybrid:15x4x6", tree="15x4x6").text == "exact@hybrid"
    assert parse_arm("exact@eagle:7x3x4", tree="15x4x6").text == "exact@eagle:7x3x4"
    sampled = parse_arm("rejection@eagle:15x4x6,sample=1", tree="15x4x6")
    assert sampled.text == "rejection@eagle,sample=1"
    with pytest.raises(BadInput, match="no arm is given"):
        parse_arms([])


def test_lossy_arms_on_hybrid_trees_have_guards_by_default():
    """At temperature 0 alone, and only as far as the arm does not say otherwise."""
    greedy, warm = SamplingConfig(), SamplingConfig(1.0)

    def guards(text: str, sampling: SamplingConfig = greedy) -> tuple:
        return parse_arm(text).policy(sampling).guards

    assert guards("fsd:0.3@hybrid") == guards("path:1@hybrid:7x3x4") == (NoRepeat(3), Ends(1))
    assert guards("fsd:0.3,no_repeat=0,ends=0@hybrid") == ()
    assert guards("fsd:0.3,no_repeat=2@hybrid") == (NoRepeat(2), Ends(1))
    for text in ("exact@hybrid", "fsd:0.3", "fsd:0.3@ngram", "path:1,no_repeat=0", "plain"):
        assert guards(text) == ()
    assert guards("fsd:0.3@hybrid", warm) == () == guards("path:1@hybrid", warm)
    assert guards("fsd:0.3,no_repeat=3@hybrid", warm) == (NoRepeat(3),)


def test_an_arm_that_states_its_default_guards_is_another_text():
    """Of one policy at temperature 0."""
    stated, unstated = parse_arms(["fsd:1,no_repeat=3,ends=1@hybrid", "fsd:1@hybrid"])
    assert stated.text != unstated.text
    assert stated.policy(SamplingConfig()) == unstated.policy(SamplingConfig())
