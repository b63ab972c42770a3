"""Arms as texts: their canonical form, defaults, and the guards that they have anyway."""

import itertools
import subprocess
import sys

import pytest
from commands import ROOT

from eagle_fsd.arm_names import names_in_source
from eagle_fsd.arms import parse_arm, parse_arms
from eagle_fsd.config import BadInput, SamplingConfig, parse_tree, tree_name
from eagle_fsd.plugin import OWN
from eagle_fsd.rules.fsd import Exact, Fsd
from eagle_fsd.rules.guards import Ends, NoRepeat

RULE_TEXTS = [f"fsd:{value}" for value in ("0", "0.3", "1e-05", "0.1234567890123", "1", "inf")]
RULE_TEXTS += ["fsd:0.3,child=draft", "fsd:0.3,child=draft,divergence=kl_target_draft"]
RULE_TEXTS += ["exact", "fsd-paper:0.3", "ratio:inf", "path:2", "random:0.2,child=sample"]
GUARD_TEXTS = ["", ",no_repeat=2", ",ends=1", ",no_repeat=10,ends=1"]
DRAFTER_TEXTS = ["", "@eagle:7x3x4", "@ngram:10", "@ngram:5,max_ngram=2", "@hybrid:7x3x4"]
DRAFTER_TEXTS += ["@eagle:12x6x4,keep=0.1,deepen=0.4", "@hybrid:12x6x4,keep=0.1"]
DRAFTER_TEXTS += ["@language_model", "@language_model:12x3x4,sample=1", "@eagle,sample=1"]


def test_canonical_texts_are_their_own_and_slugs_tell_them_apart():
    """parse(text).text == text and parse(arm.text) == arm, for all combinations."""
    parts = itertools.product(RULE_TEXTS, GUARD_TEXTS, DRAFTER_TEXTS)
    texts = ["plain", "generate", "generate_compiled", *("".join(part) for part in parts)]
    arms = parse_arms(texts)
    assert [arm.text for arm in arms] == texts
    for arm in arms:
        assert parse_arm(arm.text) == arm
        assert not set(arm.slug) & set(":,=@/ ") and arm.slug
    assert len({arm.slug for arm in arms}) == len(texts) > 200


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("fsd", "fsd:0.3"),
        ("fsd:3e-1,child=target,divergence=js", "fsd:0.3"),
        ("fsd:-0", "fsd:0"),
        ("fsd:0.3,divergence=tv,child=draft", "fsd:0.3,child=draft,divergence=tv"),
        ("exact@language_model:5x05x1", "exact@language_model"),
        ("exact@hybrid:07x3x4,recycle=0", "exact@hybrid:7x3x4"),
        ("exact@ngram,num_draft_tokens=5,max_ngram=3", "exact@ngram:5"),
        ("path:1.0,ends=1,no_repeat=02", "path:1,no_repeat=2,ends=1"),
    ],
)
def test_defaults_go_and_numbers_are_formatted(text, canonical):
    assert parse_arm(text).text == canonical
    assert parse_arm(text) == parse_arm(canonical)
    with pytest.raises(BadInput):  # the same arm twice
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
    assert [parse_arm(text).value for text in ("exact", "ratio:inf", "ratio:2")] == [None, None, 2]


def test_an_arm_that_names_the_tree_of_the_run_is_the_one_that_names_none():
    assert parse_arm("exact@hybrid:15x4x6", tree="15x4x6").text == "exact@hybrid"
    priced = "12x6x4,keep=0.1,deepen=0.4"
    assert parse_arm(f"exact@eagle:{priced}", tree=priced).text == "exact"
    assert parse_arm("exact@eagle:12x6x4", tree=priced).tree == "12x6x4"
    fine = parse_tree("12x6x4,keep=0.9999999999")
    assert parse_tree(tree_name(fine)) == fine
    assert parse_arm(f"exact@eagle:{priced}").tree == tree_name(parse_tree(priced)) == priced
    sampled = parse_arm("rejection@eagle:15x4x6,sample=1", tree="15x4x6")
    assert sampled.text == "rejection@eagle,sample=1"


@pytest.mark.parametrize(
    ("text", "guards"),
    [
        ("fsd:0.3@hybrid", (NoRepeat(3), Ends(1))),
        ("path:1@hybrid:7x3x4", (NoRepeat(3), Ends(1))),
        ("fsd:0.3,no_repeat=0,ends=0@hybrid", ()),
        ("fsd:0.3,no_repeat=2@hybrid", (NoRepeat(2), Ends(1))),
        *((text, ()) for text in ("exact@hybrid", "fsd:0.3", "fsd:0.3@ngram", "plain")),
    ],
)
def test_lossy_arms_on_hybrid_trees_have_guards_by_default(text, guards):
    """At every temperature, as far as the arm does not say otherwise."""
    for sampling in (SamplingConfig(), SamplingConfig(1.0)):
        parse_arm(text).check(sampling)
        assert parse_arm(text).policy(sampling).guards == guards


def test_names_in_source_are_those_of_the_tables():
    assert names_in_source("rules/__init__.py", "RULES") == [*OWN["rule"]]
    assert names_in_source("drafters/settings.py", "DRAFTERS") == [*OWN["drafter"]]


TYPED = """
import runpy, sys
for line in sys.stdin:
    sys.argv = line.split()
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        print(end.code)
    assert "torch" not in sys.modules
"""


@pytest.mark.processes
def test_a_misspelt_name_is_refused_before_torch_is_imported():
    """As are several arms in one text. Bug held down: each took ten seconds of imports."""
    lines = "mt_bench.py --arms plain fds:0.3\nspeed.py --arms exact,plain,fsd:0.3,ends=1@eagle\n"
    lines += "answer.py --prompt x --arm exact@ngrams:3\ncalibrate.py --arms generate:2"
    command, folder = [sys.executable, "-c", TYPED], ROOT / "evaluate"
    done = subprocess.run(command, input=lines, cwd=folder, capture_output=True, text=True)
    rule, several, drafter, alone = done.stdout.splitlines()
    assert not done.returncode, done.stderr
    assert "arm 'fds:0.3': unknown rule 'fds', did you mean fsd?" in rule
    assert "separated by spaces, as in: exact plain fsd:0.3,ends=1@eagle" in several
    assert "unknown drafter 'ngrams', did you mean ngram?" in drafter
    assert "arm 'generate:2': generate has no fields and no drafter" in alone
