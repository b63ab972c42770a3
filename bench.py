"""Tokens a second of five arms on first turns of MT-Bench, taken in turns: a minute on a CPU.

    .venv/bin/python bench.py        # 8 questions; bench.py 16 asks 16

What evaluate/mt_bench.py does beside: intervals, quality, records, and going on after a kill.
"""

import sys
import time
from collections import Counter

import eagle_fsd
from eagle_fsd.evaluation.questions import read_questions, spread

ARMS = ["plain", "exact", "exact@hybrid", "fsd:0.3@hybrid", "path:0.9@hybrid"]

questions, asked = read_questions(""), sys.argv[1] if sys.argv[1:] else "8"
if not asked.isdecimal() or not 1 <= int(asked) <= len(questions):
    sys.exit(f"error: give a number of questions from 1 to {len(questions)}, got {asked!r}")
questions = spread(questions, int(asked))
model = eagle_fsd.load("smollm2")
seconds, tokens = Counter(), Counter()
for number, question in enumerate([questions[0], *questions]):  # the first also warms up
    for arm in ARMS:
        began = time.perf_counter()
        answer = eagle_fsd.generate(model, question.turns[0], arm=arm, max_new_tokens=128)
        if number:
            seconds[arm] += time.perf_counter() - began
            tokens[arm] += len(answer.tokens)
plain = tokens["plain"] / seconds["plain"]
for arm in ARMS:
    speed = tokens[arm] / seconds[arm]
    print(f"{arm:16} {speed:6.1f} tokens/s, {speed / plain:.2f} of plain")
