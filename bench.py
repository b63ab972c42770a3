"""Tokens a second of five arms on first turns of MT-Bench, taken in turns: a minute on a CPU.

    .venv/bin/python bench.py        # 8 questions; bench.py 16 asks 16

What evaluate/mt_bench.py does beside: intervals, quality, records, and going on after a kill.
"""

import sys
import time
from collections import Counter

import eagle_fsd
from eagle_fsd.cli import ended_by
from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.questions import read_questions, spread
from eagle_fsd.timing import warn_of_busy_cpu

ARMS = ["plain", "exact", "exact@hybrid", "fsd:0.3@hybrid", "path:0.9@hybrid"]
LINE = "{:16}" + "{:>16}" * len(ARMS)


def bench() -> None:
    questions, asked = read_questions(""), sys.argv[1] if sys.argv[1:] else "8"
    if not asked.isdecimal() or not 1 <= int(asked) <= len(questions):
        raise BadInput(f"give a number of questions from 1 to {len(questions)}, got {asked!r}")
    warn_of_busy_cpu()
    model = eagle_fsd.load("smollm2")
    seconds, tokens = Counter(), Counter()
    for arm in ARMS:  # what is slow the first time
        eagle_fsd.generate(model, questions[0].turns[0], arm=arm, max_new_tokens=8)
    print(LINE.format("tokens a second", *ARMS), flush=True)
    for question in spread(questions, int(asked)):
        speeds = []
        for arm in ARMS:
            began = time.perf_counter()
            answer = eagle_fsd.generate(model, question.turns[0], arm=arm, max_new_tokens=128)
            took = time.perf_counter() - began
            seconds[arm] += took
            tokens[arm] += len(answer.tokens)
            speeds.append(f"{len(answer.tokens) / took:.1f}")
        print(LINE.format(f"question {question.question_id}", *speeds), flush=True)
    rates = [tokens[arm] / seconds[arm] for arm in ARMS]
    print(LINE.format("together", *(f"{rate:.1f}" for rate in rates)))
    print(LINE.format("of plain", *(f"{rate / rates[0]:.2f}" for rate in rates)))


if __name__ == "__main__":
    ended_by(bench)
