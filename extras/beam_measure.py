"""Beam search against transformers' own: the same answers, forwards, and seconds of the processor.

    python extras/beam_measure.py runs/beam.jsonl
    python extras/beam_measure.py runs/beam.jsonl --table

Prompt by prompt, all ways one after the other. A throw-away.
"""

import json
import sys
import time
from collections import defaultdict
from pathlib import Path

import torch

import eagle_fsd
from eagle_fsd.evaluation.questions import read_questions, spread

PROMPTS, BUDGET = 12, 64
WIDE = "exact@eagle:15x4x6"
# beams, length penalty, (arm, share)
JOBS = [
    (4, 1.0, [("plain", 1.0), ("exact", 1.0), (WIDE, 1.0), ("exact", 0.9), ("exact", 0.7)]),
    (2, 1.0, [("plain", 1.0), ("exact", 1.0), (WIDE, 1.0), ("exact", 0.9), ("exact", 0.7)]),
    (2, 0.0, [("exact", 1.0)]),
    (2, 2.0, [("exact", 1.0)]),
]


def measure(path: Path) -> None:
    torch.set_num_threads(1)
    model = eagle_fsd.load("smollm2", dtype="float32", keep_stock=True)
    for question in spread(read_questions(""), PROMPTS):
        ids = torch.tensor([model.prompt_ids(question.turns[0])])
        for beams, penalty, arms in JOBS:
            began = time.process_time()
            theirs = model.target.model.generate(
                ids, num_beams=beams, max_new_tokens=BUDGET, length_penalty=penalty,
                do_sample=False, eos_token_id=list(model.ends.ids), pad_token_id=0,
                return_dict_in_generate=True, output_scores=True,
            )  # fmt: skip
            seconds = time.process_time() - began
            tokens = theirs.sequences[0, ids.shape[1] :].tolist()
            row = {"question": question.question_id, "beams": beams, "penalty": penalty}
            done = [row | {"arm": "generate", "seconds": seconds, "tokens": len(tokens)}]
            done[0]["stopped"] = tokens[-1] in model.ends.ids
            for arm, share in arms:
                began = time.process_time()
                ours = eagle_fsd.beam_search(
                    model, question.turns[0], beams=beams, arm=arm, share=share,
                    length_penalty=penalty, max_new_tokens=BUDGET,
                )  # fmt: skip
                seconds = time.process_time() - began
                done.append(
                    row | {"arm": arm, "share": share, "seconds": seconds, "logp": ours.logp,
                           "score": ours.score, "rounds": ours.rounds, "levels": ours.levels,
                           "tokens": len(ours.tokens), "same": ours.tokens == tokens,
                           "their score": theirs.sequences_scores[0].item()}
                )  # fmt: skip
            with path.open("a") as file:
                file.writelines(json.dumps(one) + "\n" for one in done)


def table(path: Path) -> None:
    rows = defaultdict(list)
    for row in map(json.loads, path.read_text().splitlines()):
        rows[row["beams"], row["penalty"], row["arm"], row.get("share", 1.0)].append(row)
    for key, found in rows.items():
        total = {name: sum(row.get(name, 0) for row in found) for name in found[0]
                 if name not in ("arm", "question")}  # fmt: skip
        plain = rows.get((*key[:2], "plain", 1.0), found)
        off = [a.get("logp", 0) - b.get("logp", 0) for a, b in zip(found, plain, strict=True)]
        score = [a.get("score", 0) - b.get("score", 0) for a, b in zip(found, plain, strict=True)]
        forwards = total.get("rounds", 0) / max(1, total.get("levels", 0) - len(found))
        print(
            *key, f"{len(found)} prompts; same {total.get('same', 0)}; "
            f"stopped {total.get('stopped', 0)}; forwards/token {forwards:.3f}; "
            f"CPU ms/token {1000 * total['seconds'] / total['tokens']:.0f}; logp - plain's mean "
            f"{sum(off) / len(off):+.3f} least {min(off):+.2f} most {max(off):+.2f}; "
            f"score - plain's {sum(score) / len(score):+.4f}",
        )  # fmt: skip


if __name__ == "__main__":
    (table if "--table" in sys.argv else measure)(Path(sys.argv[1]))
