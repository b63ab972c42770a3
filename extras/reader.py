"""What a model that no acceptance rule sees says of the answers of runs.

    python extras/reader.py runs/mt_bench_80 [runs/more ...] --output runs/reader

Regret is measured under the target, and a rule such as `path` chooses what has least of it; so
whether its answers are better is asked of a base model of another family (extras/gemma.py). It
reads every answer as plain text behind the dialogue before it, the second answer behind the arm's
own first one, and gives its log-probability: a character, since models differ in their tokens. That
an answer ends is not scored. A higher number means a more usual text, not a truer or a better one:
an arm's can lie above plain's.

A text that loops is likely under any model. So beside the whole answer's number stands that of what
is new in it, without the tokens of 4-grams that stood before in the answer; and the repetition.

The first run holds the `plain` that the arms of all runs are compared with, question by question;
of each run those questions count that all its arms have answered. What was read is kept in the
output folder: the same command goes on, with a run that has grown too. Each run gets its scores as
a judge's, in its folder judge/, so that its report page has them.
"""

import argparse
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np
from gemma import NAME, NOTICE, gemma_folder, read_dialogue
from rule_front import REGRET, TV, Cost, at_equal_gain
from rule_front import REPETITION as REPETITION_COST
from scipy.stats import spearmanr
from tqdm import tqdm

from eagle_fsd.arms import PLAIN, parse_arm
from eagle_fsd.cli import ended_by
from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.curves import GAIN
from eagle_fsd.evaluation.metrics import Questions, shared_questions
from eagle_fsd.evaluation.record_numbers import Record, RecordNumber, answers, of_turns, repeated
from eagle_fsd.evaluation.run_data import RunData, read_run
from eagle_fsd.evaluation.tables import Column, columns, markdown_table
from eagle_fsd.models.load import load_target, training_dtype
from eagle_fsd.plugin import load_plugin
from eagle_fsd.runs.folder import lock_folder
from eagle_fsd.runs.jsonl import append_lines, read_lines, write_file, write_json
from eagle_fsd.runs.provenance import digest
from eagle_fsd.stats import interval, rate_interval
from eagle_fsd.tasks.task_scores import compare_scores, write_scores

NOTES = (
    f"Read by {NAME}. {NOTICE}. logp/character: log-probability in nats over characters, and of "
    "what is new in the answers; repetition: share of an answer's 4-grams that stood before in it; "
    "gain: tokens/round over exact with the same drafter. Differences are of rates over all "
    "questions, in brackets with 95 % intervals, paired. Correlations: Spearman's, over lossy "
    "arms, of a cost with the logp/character that was lost to plain, with the p of no correlation. "
    "At the same gain: lines of arms that differ in their rule's value only, read between two arms "
    "as extras/rule_front.py does."
)
GAINS = (1.1, 1.15, 1.2, 1.3)
LEAST = 50  # characters of a turn that is scored by itself


def read_answers(records: Iterable[Record], model: str, kept: Path, *, dtype: str) -> None:
    """Put into every turn what the model says of it, as turn["reader"]. Dialogues are kept by their
    text, and read once where arms have made the same."""
    rows = read_lines(kept, repair=True) if kept.exists() else []
    known = {row["dialogue"]: row["turns"] for row in rows}
    by_text: dict[str, list[Record]] = {}
    for record in records:
        by_text.setdefault(digest(_pieces(record)), []).append(record)
    if unread := [key for key in by_text if key not in known]:
        target, tokenizer = load_target(model, dtype=dtype)
        for key in tqdm(unread, "reading", unit="dialogue"):
            known[key] = read_dialogue(target.model, tokenizer, _pieces(by_text[key][0]))
            append_lines(kept, [{"dialogue": key, "turns": known[key]}])
    for key, same in by_text.items():
        for record in same:
            for turn, said in zip(record["turns"], known[key], strict=True):
                turn["reader"] = said


def _pieces(record: Record) -> list[tuple[str, str]]:
    return [(turn["prompt"], turn["text"]) for turn in record["turns"]]


def turn_scores(run: RunData) -> list[dict]:
    """What task_scores.compare_scores takes: of every turn, the score of what is new in it, then
    that of all; none of a turn with less than LEAST characters of it, whose rate says little."""
    kinds = {f"new logp/character, {NAME}": "new_", f"logp/character, {NAME}": ""}
    found = []
    for score, kind in kinds.items():
        for record in run.all_records:
            for number, turn in enumerate(record["turns"], 1):
                said = turn["reader"]
                if (characters := said[f"{kind}characters"]) >= LEAST:
                    row = {"score": score, "arm": record["arm"], "turn": number}
                    row["question_id"] = record["question_id"]
                    found.append(row | {"value": said[f"{kind}logp"] / characters})
    return found


# --- the comparison -------------------------------------------------------------------------------


def _said(key: str) -> RecordNumber:
    return of_turns(lambda turn: turn["reader"][key])


LOGP, NEW, REPETITION = "logp_per_character", "new_logp_per_character", "repetition"
MEASURED = {  # numerator and denominator of a question
    LOGP: (_said("logp"), _said("characters")),
    NEW: (_said("new_logp"), _said("new_characters")),
    REPETITION: (repeated, answers),
}


def rates(records: Iterable[Record], name: str) -> list[tuple[float, float]]:
    above, below = MEASURED[name]
    return [(above(record), below(record)) for record in records]


COSTS = (
    REGRET,
    TV,
    *(
        Cost(name, f"{title} - plain", "+.3f", True, partial(rates, name=name))
        for name, title in ((LOGP, "logp/character"), (NEW, "new logp/character"))
    ),
    REPETITION_COST,
)


def less_plain(mine: Questions, plain: Questions) -> dict:
    """NAME_minus_plain by MEASURED: of the rates over all questions that both have answered, since
    a question may have next to nothing that is new. Their intervals are paired."""

    def asked(record: Record) -> list[str]:
        return [turn["prompt"] for turn in record["turns"]]

    both = [q for q in mine if q in plain and asked(mine[q]) == asked(plain[q])]
    if not both:
        raise BadInput("two of the runs have no question in common: name others")
    row = {"questions": len(both)}
    for name in MEASURED:
        sides = [rates([side[q] for q in both], name) for side in (mine, plain)]
        part_Q22 = np.array(sides, dtype=np.float64).swapaxes(0, 1)
        row[f"{name}_minus_plain"] = interval(part_Q22, gap_of_rates)
    # no interval of it is known that holds (evaluation/metrics.py)
    row[f"{REPETITION}_minus_plain"] = row[f"{REPETITION}_minus_plain"]["value"]
    return row


def gap_of_rates(sums_X22: np.ndarray) -> np.ndarray:
    """One side's rate less the other's, from the sums of numerators and denominators."""
    mine_X, other_X = np.moveaxis(sums_X22[..., 0] / sums_X22[..., 1], -1, 0)
    return mine_X - other_X


def compare_arms(runs: list[RunData], answered: list[dict[str, Questions]]) -> list[dict]:
    """A row for every arm of every run, with its difference to the first run's plain."""
    if PLAIN not in answered[0]:
        raise BadInput(f"{runs[0].name} has no arm plain: name first the run that has it")
    rows = []
    for run, shared in zip(runs, answered, strict=True):
        for made in run.rows:
            mine = shared[made["arm"]]
            row = {"run": Path(run.name).name, "arm": made["arm"], "gain": made[GAIN]["value"]}
            # under another target it is another measure
            same = run.target == runs[0].target
            row |= {cost.key: made[cost.key]["value"] if same else None for cost in (REGRET, TV)}
            row[LOGP] = rate_interval(rates(mine.values(), LOGP))
            row[REPETITION] = made[REPETITION]["value"]
            rows.append(row | less_plain(mine, answered[0][PLAIN]))
    return rows


def correlate(lossy: list[dict]) -> list[dict]:
    """Spearman's rank correlation, over arms, of regret and of TV with the log-probability that was
    lost to plain: of all drafters' together, and of each drafter's; of three arms at least."""
    groups: dict[str, list[dict]] = {}
    for row in lossy:
        for group in ("all", parse_arm(row["arm"]).drafted):
            groups.setdefault(group, []).append(row)
    found = []
    for group, rows in groups.items():
        if len(rows) < 3:
            continue
        for cost in (REGRET, TV):
            row = {"drafter": group, "arms": len(rows), "of": cost.title}
            for name in (LOGP, NEW):
                lost = [-row[f"{name}_minus_plain"]["value"] for row in rows]
                test = spearmanr([row[cost.key] for row in rows], lost)
                row[name], row[f"{name}_p"] = float(test.statistic), float(test.pvalue)
            found.append(row)
    return found


def _gaps() -> list[Column]:
    forms = {LOGP: "+.4f", NEW: "+.4f", REPETITION: "+.3f"}
    return columns(**{f"{name}_minus_plain": form for name, form in forms.items()})


def compare(folders: list[Path], output: Path, plugin: str) -> None:
    """Read what is unread, then write and print the tables."""
    if plugin:
        load_plugin(plugin)
    runs, dtype = [read_run(folder) for folder in folders], training_dtype("cpu")
    with lock_folder(output):
        records = [record for run in runs for record in run.all_records]
        read_answers(records, str(gemma_folder()), output / f"{NAME}-{dtype}.jsonl", dtype=dtype)
        for run, folder in zip(runs, folders, strict=True):
            rows = compare_scores(turn_scores(run))
            write_scores(folder / "judge" / NAME / "single", rows, f"Read by {NAME}. {NOTICE}.")
        answered = [shared_questions(run.records) for run in runs]
        rows = compare_arms(runs, answered)
        lossy = [row for row in rows[: len(answered[0])] if row[TV.key] and row["gain"]]
        found = {"arms": rows, "correlations": correlate(lossy), "at_equal_gain": []}
        if any(parse_arm(row["arm"]).kind == "path" for row in lossy):
            found["at_equal_gain"] = at_equal_gain(runs[0], COSTS, "path", GAINS)
        write_json(
            output / "reader.json", {"reader": NAME, "dtype": dtype, "notice": NOTICE} | found
        )
        tables = {
            "Arms": columns(run="s", arm="s", questions="d", gain=".2f")
            + columns(
                regret_per_token=".4f", tv_per_token=".4f", **{LOGP: ".4f", REPETITION: ".3f"}
            )
            + _gaps(),
            "Correlations": columns(drafter="s", arms="d", of="s")
            + columns(**{LOGP: "+.2f", f"{LOGP}_p": ".3f", NEW: "+.2f", f"{NEW}_p": ".3f"}),
            "At the same gain": [
                ("line", "line", "s"),
                ("gain", GAIN, ".2f"),
                ("value", "value", ".3g"),
            ]
            + [(cost.title, cost.key, cost.form) for cost in COSTS]
            + [(f"{cost.title}, less path's", f"{cost.key}_minus", "+.3f") for cost in COSTS],
        }
        text = f"{NOTES}\n\n"
        for shown, (title, form) in zip(found.values(), tables.items(), strict=True):
            text += f"## {title}\n\n{markdown_table(shown, form)}\n\n" if shown else ""
        write_file(output / "reader.md", text)
    print(text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, help="Runs of evaluate/mt_bench.py.")
    parser.add_argument("--output", type=Path, default=Path("runs/reader"), help="A folder.")
    parser.add_argument("--plugin", default="", help="The one that runs were made with, if any.")
    options = parser.parse_args()
    ended_by(lambda: compare(**vars(options)))
