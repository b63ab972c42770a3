"""One request, answered without drafts, losslessly and by two lossy rules: half a minute on a CPU.

    .venv/bin/python example.py

Fuzzy tokens, which the target would not have written, stand in [brackets]; a | ends a round.
"""

import time

import eagle_fsd
from eagle_fsd.timing import warn_of_busy_cpu

REQUEST = "What are the advantages and disadvantages of living in a city?"
ARMS = ["plain", "exact@hybrid", "fsd:0.3@hybrid", "path:0.9@hybrid"]

warn_of_busy_cpu()
model = eagle_fsd.load("smollm2")  # or a folder or hub id, and head=, a folder or hub id
print(REQUEST)
for arm in ARMS:
    eagle_fsd.generate(model, REQUEST, arm=arm, max_new_tokens=8)  # what is slow the first time
    began = time.perf_counter()
    answer = eagle_fsd.generate(model, REQUEST, arm=arm, max_new_tokens=128)
    seconds = time.perf_counter() - began
    print(f"\n{arm}: {answer.tokens_per_round:.2f} tokens a round,", end=" ")
    print(f"{sum(answer.fuzzy)} of {len(answer.tokens)} tokens are fuzzy, {seconds:.1f} seconds")
    print(answer.text if arm == "plain" else answer.marked())
