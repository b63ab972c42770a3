"""What the processor and its server refuse: arms, settings, other versions of vLLM. Run as
test_verification.py is."""

import functools
import inspect
import re
import types
from pathlib import Path

import pytest
from batches import Step, asking, config
from eagle_fsd_vllm import check_version
from eagle_fsd_vllm.processor import FuzzyAcceptance, wrap_verification
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

from eagle_fsd.plugin import load_plugin

RIVALS = Path(__file__).resolve().parents[3] / "extras/rivals.py"
REFUSALS = {
    "nonsense:1": "unknown rule 'nonsense'; known: exact, fsd",
    "fsd:-1": "threshold must be 0 or above, got -1.0",
    "fsd:0.3,child=sample": "child 'sample' needs temperature > 0",
    "fsd:0.3@eagle:15x4x6": "the drafter is the server's",
    "path:0.6@hybrid": "the drafter is the server's",
    "fsd-paper:0.3": "vLLM cannot run fsd-paper: it may end a round",
    "cactus:0.1": "vLLM cannot run cactus: nobody has tested it there",
    "asd:0.5": "vLLM cannot run asd: nobody has tested it there",
    "hold:0.03": "unknown rule 'hold'",
    "random:0.1": "vLLM cannot run random: it needs random numbers",
    "rejection": "vLLM cannot run rejection: it is for sampled drafts",
    "typical": "vLLM cannot run typical: nobody has tested it there",
    "plain": "vLLM cannot run plain: it has no drafts, and a server drafts for all",
    "generate": "vLLM cannot run generate: it has no drafts",
    "ratio:1,known=0.1": "of guards send ends and no_repeat only",
    "fsd:0.3," + "x" * 100_000: "of at most 200 characters; got 'fsd:0.3,xxx",
}


@pytest.mark.parametrize("arm", REFUSALS, ids=lambda arm: arm[:30])
def test_bad_arms_are_refused_at_admission(arm):
    """Also rules and guards that somebody has added to the library's own."""
    load_plugin(str(RIVALS))
    with pytest.raises(ValueError, match=re.escape(REFUSALS[arm])) as refused:
        FuzzyAcceptance.validate_params(asking(arm))
    assert len(str(refused.value)) < 400


def test_what_has_a_meaning_at_temperature_0_only_is_refused_above():
    for arm, why in {
        "path:0.6": "send temperature 0",
        "fsd:0.3,ends=1": "leave ends out",
    }.items():
        FuzzyAcceptance.validate_params(asking(arm))
        with pytest.raises(ValueError, match=why):
            FuzzyAcceptance.validate_params(asking(arm, 0.7))
    for arm in (0.3, True, [], {}, ["fsd:0.3"], b"fsd:0.3"):
        with pytest.raises(ValueError, match="arm must be a text"):
            FuzzyAcceptance.validate_params(asking(arm))


def test_a_changed_signature_refuses_fsd_alone(monkeypatch):
    """What is wrapped is called as ever, and wrapped once, where another plug-in has wrapped it
    too (it was left alone then, and fsd never passed); another signature is left alone."""

    vllms = inspect.unwrap(RejectionSampler.__call__)

    @functools.wraps(vllms)
    def theirs(*args, **options):
        return calls.append(processor.draft_logits)

    calls, processor = [], FuzzyAcceptance(config(), Step.draw(0).states())
    for call in (vllms, theirs):
        monkeypatch.setattr(RejectionSampler, "__call__", call)
        wrap_verification()
        once = RejectionSampler.__call__
        wrap_verification()
        assert RejectionSampler.__call__ is once and once.__wrapped__ is call
    sampler = types.SimpleNamespace(sampler=types.SimpleNamespace(logits_processors=[processor]))
    once(sampler, None, None, "drafts")
    assert calls == ["drafts"] and processor.draft_logits is None

    def other(self, logits, batch, draft_logits):
        raise AssertionError

    monkeypatch.setattr(RejectionSampler, "__call__", other)
    wrap_verification()
    assert RejectionSampler.__call__ is other
    FuzzyAcceptance.validate_params(asking("ratio:1"))
    with pytest.raises(ValueError, match="RejectionSampler takes self, logits, batch, draft_log"):
        FuzzyAcceptance.validate_params(asking("fsd:0.3"))


def test_servers_that_were_not_tested_are_refused(monkeypatch):
    for further in ({"rejection_sample_method": "fly"}, {"enable_adaptive_verification": True}):
        with pytest.raises(ValueError, match="standard verification only"):
            FuzzyAcceptance(config(**further), Step.draw(0).states())
    with pytest.raises(ValueError, match="drafts nothing"):
        FuzzyAcceptance(types.SimpleNamespace(speculative_config=None), Step.draw(0).states())
    monkeypatch.setattr("vllm.__version__", "0.34.1")
    with pytest.raises(RuntimeError, match="this is 0.34.1: install one of those, or set"):
        check_version()
    monkeypatch.setenv("EAGLE_FSD_ANY_VLLM", "1")
    check_version()
