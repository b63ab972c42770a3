"""What this library's own chain answers, for run_engine.py to compare with; in the library's own
environment.

    .venv/bin/python plugins/vllm/tests/own_texts.py OUTPUT.json [questions] [tokens] [arm ...]
"""

import json
import sys
from pathlib import Path

import eagle_fsd
from eagle_fsd.evaluation.questions import read_questions

ARMS = ("exact", "ratio:1", "relaxed:0.36", "path:0.6", "fsd:0.35", "fsd:0.35,no_repeat=3,ends=1")

if __name__ == "__main__":
    output, count, tokens, *arms = sys.argv[1:] + ["4", "32"][len(sys.argv) - 2 :]
    model = eagle_fsd.load(dtype="float32", tree="4x4x1", engine="stock")
    turns = [question.turns[0] for question in read_questions("")[: int(count)]]
    found = {"prompts": [model.prompt_ids(turn) for turn in turns], "answers": {}}
    for arm in arms or ARMS:
        settings = {"arm": f"{arm}@eagle:4x4x1", "max_new_tokens": int(tokens)}
        answers = [eagle_fsd.generate(model, turn, **settings) for turn in turns]
        found["answers"][arm] = [answer.tokens for answer in answers]
        print(arm, *(f"{answer.tokens_per_round:.2f}" for answer in answers), flush=True)
    Path(output).write_text(json.dumps(found))
