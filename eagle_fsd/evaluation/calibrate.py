"""The parameter that keeps to a stated cost, predicted from exact's own rounds, and then measured.

At every round of an exact answer each arm is asked what it would do with that tree: tokens, fuzzy
ones and their cost, in one decoding for any number of arms. The prediction is of single rounds: it
does not follow an arm into the text that it would have written. How far that carries is measured on
other questions, by decoding.

What is heavy is imported where it is used, since the options are read first.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tqdm import tqdm

from eagle_fsd.cli import ModelOptions, SamplingOptions, changeable, option
from eagle_fsd.config import BadInput, SamplingConfig, check_least
from eagle_fsd.runs.folder import Run

if TYPE_CHECKING:
    from eagle_fsd.decoding.acceptance import Acceptance, Policy
    from eagle_fsd.decoding.loop import DecodeConfig
    from eagle_fsd.decoding.tree import Drafter
    from eagle_fsd.evaluation.questions import Question
    from eagle_fsd.models.loaded import Model
    from eagle_fsd.stats import Interval

PREDICTED, MEASURED = "predicted", "measured"  # records/


@dataclass
class CalibrateOptions:
    cost: float = option(
        0.03,
        "The cost that is tolerated: the mean regret of a token in nats; above temperature 0 the "
        "mean total variation.",
        may_change=True,
    )
    arms: list[str] = option(
        [f"path:{price}" for price in (0.1, 0.2, 0.35, 0.5, 0.77, 1.25, 2.0)]
        + [f"ratio:{limit}" for limit in (0.25, 0.5, 1.0, 1.5, 2.0, 3.0)]
        + [f"fsd:{threshold}" for threshold in (0.1, 0.2, 0.3, 0.35, 0.4, 0.45)],
        "The arms to choose from; all must have the same drafter.",
        may_change=True,
    )
    question_file: str = option("", "A question.jsonl in FastChat's format. Empty: MT-Bench's.")
    questions: int | None = option(
        None,
        "The number of questions, of which the first turn is asked; every second one is kept for "
        "verifying. Not given: all, but 16 of MT-Bench.",
        may_change=True,
    )
    verify: int = option(
        1,
        "The number of arms that are verified: the chosen one, and others over the range.",
        may_change=True,
    )
    max_new_tokens: int = option(128, "The most tokens that an answer may have.")
    output: str = option("runs/calibrate", "The folder that the run is written to.")

    def __post_init__(self):
        check_least(self, "--", cost=0, verify=1, max_new_tokens=2)  # the first is prefill's
        if self.questions is not None and self.questions < 2:
            raise BadInput(
                f"--questions must be at least 2, got {self.questions}: half is held out"
            )
        if self.questions is None and not self.question_file:
            self.questions = 16


def counted(accepted: "Acceptance", sampling: SamplingConfig) -> Counter:
    """What a round adds to an arm's counts; its cost is regret, above temperature 0 TV."""
    cost = accepted.tv if sampling.temperature else accepted.regret
    sums = {"tokens": len(accepted.tokens), "fuzzy": sum(accepted.fuzzy), "cost": sum(cost)}
    return Counter({"rounds": 1} | sums)


def predict(
    model: "Model",
    drafter: "Drafter",
    policies: "Mapping[str, Policy]",
    prompt: Sequence[int],
    config: "DecodeConfig",
) -> dict[str, dict[str, float | None]]:
    """Counts of every arm over the rounds of one exact answer, each arm with its own memory."""
    from eagle_fsd.decoding.acceptance import accept
    from eagle_fsd.decoding.loop import answer_uniforms, decode_rounds

    counts = {name: Counter() for name in policies}
    policies = {name: policy.begin() for name, policy in policies.items()}
    answer: list[int] = []
    uniform_P3 = answer_uniforms(config.seed, config.stop.max_new_tokens + drafter.max_nodes)
    for step in decode_rounds(model.target, drafter, prompt, config):
        for name, policy in policies.items() if step.tree else ():
            accepted = accept(
                step.tree,
                step.logits_NV,
                uniform_P3[len(answer) : len(answer) + step.tree.max_depth + 1],
                policy=policy,
                stop_token_ids=frozenset(config.stop.token_ids),
                answer=answer,
            )
            counts[name].update(counted(accepted, policy.sampling))
        answer = answer + step.tokens
    return {name: stored(count) for name, count in counts.items()}


def measure(
    model: "Model", drafter: "Drafter", prompt: Sequence[int], config: "DecodeConfig"
) -> dict[str, float | None]:
    """Counts of an arm over its own answer."""
    from eagle_fsd.decoding.loop import decode

    count = Counter()
    for accepted in decode(model.target, drafter, prompt, config).rounds:
        count.update(counted(accepted, config.policy.sampling))
    return stored(count)


def stored(count: Counter) -> dict[str, float | None]:
    """Counts for a record; a cost that the rule does not know is None."""
    return {key: None if math.isnan(value) else value for key, value in count.items()}


def row_of(arm: str, records: Sequence[dict]) -> dict:
    """An arm's rates over questions, each with its interval."""
    from eagle_fsd.stats import rate_interval

    found = [Counter(record["arms"][arm]) for record in records if arm in record["arms"]]

    def rate(above: str, below: str) -> dict:
        rows = [(count[above], count[below]) for count in found]
        return rate_interval([[math.nan if n is None else n for n in row] for row in rows])

    rates = {"tokens_per_round": rate("tokens", "rounds"), "cost": rate("cost", "tokens")}
    return {"arm": arm, "questions": len(found)} | rates | {"fuzzy_share": rate("fuzzy", "tokens")}


def choose(rows: Sequence[dict], cost: float, verify: int) -> list[str]:
    """The arms to run for real: the one of most tokens a round at a cost within the tolerated one,
    of equals the cheapest, then others evenly over the range of costs. The first row is exact's,
    whose cost is 0; a rule that does not know its TV has none above temperature 0."""
    rows = [row for row in rows if row["cost"]["value"] is not None]
    held = [row for row in rows if row["cost"]["value"] <= cost]
    best = max(held, key=lambda row: (row["tokens_per_round"]["value"], -row["cost"]["value"]))
    others = [row["arm"] for row in sorted(rows[1:], key=lambda row: row["cost"]["value"])]
    others = [arm for arm in others if arm != best["arm"]]
    wanted = min(verify - 1, len(others))
    places = {round(i * (len(others) - 1) / max(1, wanted - 1)) for i in range(wanted)}
    return [best["arm"], *(others[place] for place in sorted(places))]


def warning(arm: str, measured: "Interval", tolerated: float) -> str | None:
    """The warning about a chosen arm that has cost more than is tolerated; None for one that has
    not, or whose cost is unknown."""
    from eagle_fsd.evaluation.tables import cell_text

    if measured["value"] is None or measured["value"] <= tolerated:
        return None
    beyond = measured["low"] is not None and measured["low"] > tolerated
    where = "all of the interval is above it" if beyond else "which may be chance"
    return (
        f"{arm} was measured at a cost of {cell_text(measured, '.4f')} a token, above the "
        f"{tolerated:g} that is tolerated ({where}): ask for a lower --cost, or predict from more "
        "--questions"
    )


class Calibration:
    """A run: every second question predicts, the others verify.

    Raises:
        BadInput: arms that do not share a drafter, fewer than two questions; see Run.
    """

    def __init__(
        self, options: CalibrateOptions, sampling: SamplingOptions, model_options: ModelOptions
    ):
        from eagle_fsd.arms import parse_arm, parse_arms
        from eagle_fsd.evaluation.questions import check_same_questions, read_questions, spread

        given = parse_arms(options.arms, tree=model_options.tree)
        if len({arm.drafter for arm in given}) != 1 or not given[0].drafts:
            raise BadInput("--arms of a calibration draft, all with one drafter: they share trees")
        at = given[0].text.partition("@")[2]
        self.exact = parse_arm(f"exact@{at}" if at else "exact")
        self.arms = {arm.text: arm for arm in (self.exact, *given)}
        self.options, self._sampling, self._model_options = options, sampling, model_options
        for arm in self.arms.values():
            arm.check(sampling.sampling())
            if sampling.temperature and any(guard.reads_exact_token for guard in arm.guards):
                raise BadInput(f"arm {arm.text!r}: above temperature 0 its TV is not known")
        questions = spread(read_questions(options.question_file), options.questions)
        if len(questions) < 2:
            raise BadInput("a calibration needs two questions: every second one is held out")
        self.halves = {PREDICTED: questions[::2], MEASURED: questions[1::2]}
        settings = {"command": "calibrate"} | asdict(options) | asdict(sampling)
        settings |= asdict(model_options) | model_options.digests()
        self.run = Run(options.output, settings, free=changeable(options, model_options))
        for records in self.run.records.values():
            check_same_questions(records.values(), questions, turns=1)

    @cached_property
    def _loaded(self) -> "tuple[Model, Drafter]":
        from eagle_fsd.evaluation.bench import check_lengths
        from eagle_fsd.evaluation.questions import cut

        model, budget = self._model_options.load([*self.arms.values()]), self.options.max_new_tokens
        questions = cut([question for half in self.halves.values() for question in half], 1)
        check_lengths(model, questions, budget, last=budget)
        drafter = self.exact.build_drafter(model)
        for arm in self.arms.values():
            arm.check(self._sampling.sampling(), drafter)
        self.run.begin_session()
        return model, drafter

    def rows(self, kind: str, names: Sequence[str]) -> list[dict]:
        """The arms' rates over one half of the questions; what is missing is made first."""
        found = self.run.records[kind]
        for question in tqdm(self.halves[kind], desc=kind):
            have = found.get((question.question_id, 0), {}).get("arms", {})
            if missing := [name for name in names if name not in have]:
                row = {"question_id": question.question_id}
                row |= {"turns": [{"prompt": question.turns[0]}]}
                made = self._count(kind, missing, question)
                self.run.add(kind, row | {"arms": have | made})
        records = [found[question.question_id, 0] for question in self.halves[kind]]
        return [row_of(name, records) for name in names]

    def _count(self, kind: str, names: Sequence[str], question: "Question") -> dict[str, dict]:
        from eagle_fsd.decoding.acceptance import Policy
        from eagle_fsd.decoding.loop import DecodeConfig
        from eagle_fsd.evaluation.bench import answer_seed
        from eagle_fsd.rules.fsd import Exact

        model, drafter = self._loaded
        sampling, prompt = self._sampling.sampling(), model.prompt_ids(question.turns[0])
        stop = model.stop(self.options.max_new_tokens)
        seed = answer_seed(self._sampling.seed, question.question_id, 0)
        policies = {name: self.arms[name].policy(sampling) for name in names}
        if kind == PREDICTED:
            config = DecodeConfig(Policy(Exact(), sampling), stop, seed)
            return predict(model, drafter, policies, prompt, config)
        return {
            name: measure(model, drafter, prompt, DecodeConfig(policy, stop, seed))
            for name, policy in policies.items()
        }


def run_calibration(
    options: CalibrateOptions, sampling: SamplingOptions, model_options: ModelOptions
) -> None:
    """Predict, choose, verify, and report."""
    from eagle_fsd.evaluation.tables import columns, markdown_table
    from eagle_fsd.runs.jsonl import write_file, write_json

    calibration = Calibration(options, sampling, model_options)
    rows = calibration.rows(PREDICTED, [*calibration.arms])
    if rows[0]["tokens_per_round"]["value"] is None:
        raise BadInput("every answer ends with its first token: nothing is drafted")
    tried = choose(rows, options.cost, options.verify)
    measured = calibration.rows(MEASURED, list(dict.fromkeys([calibration.exact.text, *tried])))
    by_arm = {row["arm"]: row for row in measured}
    for row in rows:
        for key in ("tokens_per_round", "cost"):
            row[f"measured_{key}"] = by_arm.get(row["arm"], {}).get(key)
    what = "total variation" if sampling.temperature else "regret in nats"
    best = next(row for row in rows if row["arm"] == tried[0])
    note = warning(tried[0], best["measured_cost"], options.cost)
    shown = (
        *columns(arm="s", tokens_per_round=".2f", cost=".4f", fuzzy_share=".4f"),
        ("measured tokens/round", "measured_tokens_per_round", ".2f"),
        ("measured cost", "measured_cost", ".4f"),
    )
    text = (
        f"{tried[0]}: {best['tokens_per_round']['value']:.2f} tokens a round are predicted at a "
        f"cost of {best['cost']['value']:.4f} a token, where {options.cost:g} is tolerated\n\n"
        + (f"Warning: {note}.\n\n" if note else "")
        + f"{markdown_table(rows, shown)}\n\n"
        f"The cost is a token's mean {what}. Predicted from the rounds of exact's answers to "
        f"{rows[0]['questions']} questions, measured on {measured[0]['questions']} others.\n"
    )
    folder = calibration.run.folder
    whole = {"chosen": tried[0], "warning": note, "rows": rows}
    whole |= {"options": calibration.run.settings}
    write_json(folder / "calibrate.json", whole | {"sessions": calibration.run.sessions})
    write_file(folder / "calibrate.md", text)
    print(f"\n{text}written to {folder}: calibrate.md, calibrate.json, records/")
