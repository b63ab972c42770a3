"""One question, answered without drafts, losslessly and by two lossy rules: half a minute on a CPU.

    .venv/bin/python example.py

Fuzzy tokens, which the target would not have written, stand in [brackets]; a | ends a round.
"""

import time

import eagle_fsd

QUESTION = "What is photosynthesis?"
ARMS = ["plain", "exact@hybrid", "fsd:0.3@hybrid", "path:0.9@hybrid"]

model = eagle_fsd.load("smollm2")  # or a folder or hub id, and head=, a folder or hub id
for arm in ARMS:
    eagle_fsd.generate(model, QUESTION, arm=arm, max_new_tokens=8)  # what is slow the first time
    began = time.perf_counter()
    answer = eagle_fsd.generate(model, QUESTION, arm=arm, max_new_tokens=128)
    speed = len(answer.tokens) / (time.perf_counter() - began)
    print(f"\n{arm}: {speed:.0f} tokens/s, {answer.tokens_per_round:.2f} tokens a round,", end=" ")
    print(f"{sum(answer.fuzzy)} of {len(answer.tokens)} tokens are fuzzy")
    print(answer.text if arm == "plain" else answer.marked())
