"""Which signal at a fuzzy token tells that it does harm: results.md#which-signal-tells-harm.

    python docs/harm_signals.py runs/harm_humaneval:pass@1 runs/harm_ifeval:prompt_strict

Of runs on questions that plain solves, in several choices of arms with `fuzzy=1`, scored, taken are
the different answers with one fuzzy token. Harm is a lost score (area under the ROC curve, 0.5: the
signal tells nothing), and a less probable rest of the answer (Spearman's rank correlation of the
signal with the rest's mean log p, sign turned). Intervals: questions left out in turn.
"""

import math
import sys
from pathlib import Path

import numpy as np
import torch
from scipy.stats import rankdata, spearmanr
from scipy.stats import t as student

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pooled_scores import scored, scores_of  # noqa: E402

from eagle_fsd.api import load  # noqa: E402
from eagle_fsd.config import BadInput  # noqa: E402
from eagle_fsd.evaluation.report.read_runs import read_run  # noqa: E402
from eagle_fsd.runs.command import ended_by  # noqa: E402

# each larger where the token is more suspect
SIGNALS = ("js", "regret", "top1 - p", "1 - p", "entropy", "-top1", "-margin", "-place")


def signals(model, record: dict) -> tuple[dict[str, float], float] | None:
    """Of an answer's only fuzzy token, and the mean log p of what follows it; None: it has not one,
    or nothing follows."""
    turn = record["turns"][0]
    flags, js = ([x for r in turn["rounds"] for x in r[of]] for of in ("fuzzy", "divergence"))
    fuzzy = [place for place, flag in enumerate(flags, 1) if flag]  # 0 is prefill's
    answer = turn["token_ids"]
    if len(fuzzy) != 1 or fuzzy[0] + 1 >= len(answer):
        return None
    (place,), prompt = fuzzy, model.prompt_ids(turn["prompt"])
    ids = torch.tensor([prompt + answer])
    with torch.inference_mode():
        hidden = model.target.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        logp_AV = model.target.logits(hidden[0, len(prompt) - 1 : -1]).float().log_softmax(-1)
    row, token = logp_AV[place], answer[place]
    best, second = row.exp().topk(2).values.tolist()
    rest = logp_AV[place + 1 :].gather(1, ids[0, len(prompt) + place + 1 :, None]).mean().item()
    found = [math.nan if js[place - 1] is None else js[place - 1], (row.max() - row[token]).item()]
    p = row[token].exp().item()
    found += [best - p, 1 - p, -(row.exp() * row).sum().item(), -best]
    return dict(zip(SIGNALS, [*found, second - best, -place], strict=True)), rest


def area(signal: np.ndarray, failed: np.ndarray) -> float:
    """Chance that a harmful token has more of the signal than a harmless one, ties halved."""
    kept = np.isfinite(signal)
    signal, failed = signal[kept], failed[kept]
    bad, good = failed.sum(), (~failed).sum()
    if not bad or not good:
        return math.nan
    return (rankdata(signal)[failed].sum() - bad * (bad + 1) / 2) / (bad * good)


def correlation(signal: np.ndarray, rest: np.ndarray) -> float:
    kept = np.isfinite(signal)
    return spearmanr(signal[kept], -rest[kept]).statistic


def jackknife(of, signal: np.ndarray, label: np.ndarray, group: np.ndarray) -> str:
    names = np.unique(group)
    without = np.array([of(signal[group != one], label[group != one]) for one in names])
    margin = student.ppf(0.975, len(names) - 1) * math.sqrt((len(names) - 1) * np.nanvar(without))
    value = of(signal, label)
    return f"{value:.2f} [{value - margin:.2f}, {value + margin:.2f}]"


def table(runs: list[str]) -> None:
    parts, rows, groups, without = [scored(run) for run in runs], [], [], []
    if not parts:
        raise BadInput("no run is given: FOLDER:SCORE of each, such as runs/humaneval:pass@1")
    model = load("smollm2", dtype="float32")
    for folder, score in parts:
        seen = set()
        for arm, records in read_run(folder).records.items():
            lost = {
                (row["question_id"], row["choice"]): value < 1
                for row, value in scores_of(folder, arm, score)
            }
            for record in records:
                answer = str(record["question_id"]), *record["turns"][0]["token_ids"]
                if answer in seen:
                    continue
                seen.add(answer)
                failed = lost[record["question_id"], record["choice"]]
                if found := signals(model, record):
                    rows.append((*found, failed))
                    groups.append(answer[0])
                elif not any(flag for r in record["turns"][0]["rounds"] for flag in r["fuzzy"]):
                    without.append(failed)
    if not rows:
        raise BadInput("no answer has exactly one fuzzy token: run random:0.05,fuzzy=1")
    failed, rest = np.array([r[2] for r in rows]), np.array([r[1] for r in rows])
    group = np.array(groups)
    print(f"{len(rows)} answers to {len(np.unique(group))} questions, {failed.sum()} failed;")
    print(f"without a fuzzy token {sum(without)} of {len(without)}\n")
    print("| signal | area under the ROC curve, failed | failed below / above its median |", end="")
    print(" rank correlation, rest less probable |\n|---|---|---|---|")
    for name in SIGNALS:
        signal = np.array([r[0][name] for r in rows])
        above, below = signal > np.nanmedian(signal), signal <= np.nanmedian(signal)
        halves = " / ".join(f"{failed[half].sum()} of {half.sum()}" for half in (below, above))
        told, rest_told = (
            jackknife(area, signal, failed, group),
            jackknife(correlation, signal, rest, group),
        )
        print(f"| {name} | {told} | {halves} | {rest_told} |")


if __name__ == "__main__":
    ended_by(lambda: table(sys.argv[1:]))
