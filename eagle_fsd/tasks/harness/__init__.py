"""lm-evaluation-harness drives a target with its drafts: the model "eagle_fsd" (lm-eval 0.4.13).

generate_until goes through the decoding loop under an acceptance rule, one answer at a time;
log-likelihoods are the target's own, whatever the rule. Tokens, stop strings and truncation follow
lm-eval's own model "hf", so that scores can be compared. evaluate/harness.py registers the model.

options.py       the fields of --model_args
requests.py      a request, and what its generation_kwargs ask for
cache.py         lm-eval's answer cache: whose answers it holds, what it cannot tell apart
likelihoods.py   log-likelihoods of continuations
tally.py         figures of the generated answers
model.py         what lm-eval calls
"""

from eagle_fsd.tasks.harness.adapter import NAME, FuzzyLM
from eagle_fsd.tasks.harness.lm_requests import read_generation
from eagle_fsd.tasks.harness.model_args import HarnessOptions

__all__ = ["NAME", "FuzzyLM", "HarnessOptions", "read_generation"]
