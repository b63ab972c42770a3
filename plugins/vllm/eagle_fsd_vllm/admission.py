"""A request's arm: `extra_args={"arm": "fsd:0.35,ends=1"}`, over HTTP `vllm_xargs`.

The words are those of eagle_fsd/arms.py. No arm, and a rule at the value at which it is exact, are
vLLM's own acceptance. What cannot be done here is refused when the request comes in, by name.
"""

import inspect

from vllm.sampling_params import SamplingParams

from eagle_fsd.arms import BY_TRANSFORMERS, PLAIN, Arm, parse_arm
from eagle_fsd.config import BadInput, SamplingConfig
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.drafters.settings import EagleSettings
from eagle_fsd.rules.fsd import Exact
from eagle_fsd.rules.guards import Ends, NoRepeat
from eagle_fsd.rules.price import PathRule
from eagle_fsd_vllm.chains import OF_DRAFT_ROWS

KEY = "arm"
LONGEST = 200  # characters of an arm: a refusal quotes it
SERVED = ("exact", "ratio", "relaxed", "path", "fsd")
SERVED_GUARDS = (Ends, NoRepeat)
LAW = "it draws the token from a distribution of its own, and vLLM draws it from the target's"
UNTESTED = "nobody has tested it there"
REFUSED = dict.fromkeys((PLAIN, *BY_TRANSFORMERS), "it has no drafts, and a server drafts for all")
REFUSED |= {
    "fsd-paper": "it may end a round at a draft that is the exact token, which vLLM accepts",
    "rejection": "it is for sampled drafts, and vLLM's own acceptance is just that: send no arm",
    "random": "it needs random numbers of its own, which belong to an answer",
}
WRAPPED = ("self", "logits", "input_batch", "draft_logits", "invalid_drafts")


def policy_of(params: SamplingParams) -> Policy | None:
    """How a request's drafts are accepted; None: as vLLM accepts them.

    Raises:
        BadInput: the arm's text is none, or it cannot be done in vLLM or with these settings.
    """
    text = (params.extra_args or {}).get(KEY)
    if text is None:
        return None
    if not isinstance(text, str) or len(text) > LONGEST:
        raise BadInput(
            f"{KEY} must be a text such as fsd:0.35,ends=1, of at most {LONGEST} characters; got "
            f"{text!r:.{LONGEST}}"
        )
    arm = _served(text)
    sampling = SamplingConfig(params.temperature, max(params.top_k, 0), params.top_p)
    arm.check(sampling)
    if type(arm.rule) is Exact or arm.value == type(arm.rule).lossless_at:
        return None
    policy = arm.policy(sampling)
    if sampling.temperature > 0:
        _check_warm(text, policy)
    if params.structured_outputs is not None:
        raise BadInput(f"arm {text!r} with structured outputs: {UNTESTED}; leave one of them out")
    if reads_draft_rows(policy):
        check_wrapped()
    return policy


def reads_draft_rows(policy: Policy) -> bool:
    return any(name in OF_DRAFT_ROWS for name in policy.columns)


def _served(text: str) -> Arm:
    """The arm, if it can be done in vLLM at all."""
    arm, names = parse_arm(text), ", ".join(SERVED)
    if arm.kind not in SERVED:
        why = REFUSED.get(arm.kind, UNTESTED)
        raise BadInput(f"arm {text!r}: vLLM cannot run {arm.kind}: {why}; send {names}")
    if arm.drafter != EagleSettings():
        raise BadInput(
            f"arm {text!r}: the drafter is the server's (--speculative-config), and it drafts a "
            "chain, no tree: leave @ and what follows out"
        )
    if any(type(guard) not in SERVED_GUARDS for guard in arm.guards):
        raise BadInput(
            f"arm {text!r}: of guards send ends and no_repeat only; nobody has tested others there"
        )
    return arm


def _check_warm(text: str, policy: Policy) -> None:
    """Refuse what has a meaning at temperature 0 only, or cannot be known before a draw."""
    above = f"arm {text!r} at temperature {policy.sampling.temperature:g}"
    if isinstance(policy.rule, PathRule):
        raise BadInput(f"{above}: {LAW}; send temperature 0")
    if any(isinstance(guard, Ends) for guard in policy.guards):
        raise BadInput(
            f"{above}: the guard ends asks for the exact token, which vLLM draws later; send "
            "temperature 0, or leave ends out"
        )


def check_wrapped() -> None:
    """Refuse rules that read the drafter's rows, if what processor.py wraps has changed."""
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

    names = tuple(inspect.signature(RejectionSampler.__call__).parameters)
    if names != WRAPPED:
        raise BadInput(
            f"fsd is not served: vLLM's RejectionSampler takes {', '.join(names)}, not "
            f"{', '.join(WRAPPED)} as in the versions tested; send ratio, relaxed or path"
        )
