"""Fuzzy Speculative Decoding in EAGLE-2.

The commands in evaluate/ and train/ are no part of this package: clone its repository for them.
There, scripts/setup.sh makes the environment that they run in.

Words, as used everywhere here (other projects disagree with each other on several; with examples:
docs/glossary.md):

root             the last committed token, drawn by the target and not yet in its cache; node 0 of
                 every tree. The other nodes are drafts.
accepted path    the root and the drafts that a round accepts below it. `path` alone is the name of
                 a rule, or any way down a tree.
next token       what the target (or the rule) emits after the accepted path.
round            propose + verify + accept + commit.
accepted_drafts  drafts accepted in a round, without the next token.
tokens_per_round accepted_drafts + 1 (the literature's tau): counted before trimming at a stop or
                 the budget, without the token that prefill yields.
fuzzy token      an emitted token that the exact test would not have emitted; fuzzy_share is their
                 share of the tokens of all rounds.
regret           log P(argmax) - log P(token) under the target, raw, in nats: what a token costs.
gain             tokens_per_round over those of exact with the same drafter.
arm              a way to answer, as a text: rule, drafter, their settings (arms.py).
"""

from importlib import import_module

from eagle_fsd.config import BadInput, SamplingConfig, TreeConfig

LAZY = dict.fromkeys(["Answer", "Model", "generate", "load", "stream"], "api")
LAZY |= {
    "custom_generate": "transformers_generate",
    "embedded_target": "models.assets",
}
__all__ = ["BadInput", "SamplingConfig", "TreeConfig", *LAZY]


def __dir__() -> list[str]:
    """Also what is not imported yet, for those who look or complete."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    """What LAZY names, and its file, once it is asked for: torch and transformers take seconds to
    import, and a command that only shows its options needs neither."""
    if name in LAZY:
        return getattr(import_module(f"eagle_fsd.{LAZY[name]}"), name)
    raise AttributeError(f"module 'eagle_fsd' has no attribute {name!r}")
