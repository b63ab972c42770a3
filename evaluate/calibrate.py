"""Calibrate: which parameter of a rule keeps to a stated cost on your prompts, and what it brings.

    python evaluate/calibrate.py --question_file mine.jsonl --cost 0.03
    python evaluate/calibrate.py --arms path:{0.2,0.5,0.77,1.25}@hybrid

Every question is answered once, by exact; at every round each arm is asked what it would do, which
predicts its tokens per round, its fuzzy share and its cost. The arm of most tokens per round within
the tolerated cost is chosen (of equals the cheapest). What it does on texts of its own is measured
by the command that is printed last. A killed run continues where it was: run the same command
again. Arms, questions and the cost may change.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

from eagle_fsd.cli import run_command, shown_command
from eagle_fsd.config import BadInput, check_least
from eagle_fsd.options import (
    ModelOptions,
    QuestionOptions,
    SamplingOptions,
    changeable,
    option,
)


@dataclass
class CalibrateOptions(QuestionOptions):
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

    def __post_init__(self):
        check_least(self, "--", cost=0, max_new_tokens=2)  # the first is prefill's
        if self.questions is None and not self.question_file:
            self.questions = 16


def run_calibration(
    options: CalibrateOptions, sampling_options: SamplingOptions, model_options: ModelOptions
) -> None:
    from tqdm import tqdm

    from eagle_fsd.arms import parse_arm, parse_arms
    from eagle_fsd.decoding.loop import DecodeConfig
    from eagle_fsd.evaluation.bench import answer_seed, check_lengths
    from eagle_fsd.evaluation.calibrate import arm_rows, choose, predict
    from eagle_fsd.evaluation.questions import check_same_questions, cut, read_questions, spread
    from eagle_fsd.evaluation.tables import columns, markdown_table
    from eagle_fsd.runs.folder import Run
    from eagle_fsd.runs.jsonl import write_file, write_json

    # 1. Arms, which share the trees of one drafter, and questions.
    arms = parse_arms(options.arms, tree=model_options.tree)
    if len({arm.drafter for arm in arms}) != 1 or not arms[0].drafts:
        raise BadInput("--arms of a calibration draft, all with one drafter: they share trees")
    _, at, drafter_text = arms[0].text.partition("@")
    exact = parse_arm(f"exact{at}{drafter_text}")
    arms = list(dict.fromkeys([exact, *arms]))
    sampling = sampling_options.sampling()
    for arm in arms:
        arm.check(sampling)
    questions = cut(spread(read_questions(options.question_file), options.questions), 1)
    settings = {"command": "calibrate"} | asdict(options) | asdict(sampling_options)
    settings |= asdict(model_options) | model_options.digests()
    free = changeable(options, model_options) | {"device"}
    forms = {"predicted": {"question_id": None, "turns": {"prompt": str}, "arms": dict}}
    run = Run(options.output, settings, name="calibrate", free=free, forms=forms)
    check_same_questions(run.records["predicted"].values(), questions, turns=1)

    # 2. Counts of every arm over one exact answer a question; what is there is not made again.
    predicted = run.records["predicted"]

    def lacking(question) -> list:
        there = predicted.get((question.question_id, 0), {}).get("arms", {})
        return [arm for arm in arms if arm.text not in there]

    if unanswered := [question for question in questions if lacking(question)]:
        model, budget = model_options.load(arms), options.max_new_tokens
        check_lengths(model, questions, budget, last=budget)
        drafter = exact.build_drafter(model)
        for arm in arms:
            arm.check(sampling, drafter)
        run.begin_session()
        for question in tqdm(unanswered, desc="predicted"):
            seed = answer_seed(sampling_options.seed, question.question_id, 0)
            counts = predict(
                model.target,
                drafter,
                {arm.text: arm.policy(sampling) for arm in lacking(question)},
                model.prompt_ids(question.turns[0]),
                DecodeConfig(exact.policy(sampling), model.stop(budget), seed),
            )
            there = predicted.get((question.question_id, 0), {}).get("arms", {})
            row = {"question_id": question.question_id, "turns": [{"prompt": question.turns[0]}]}
            run.add("predicted", row | {"arms": there | counts})

    # 3. The table, the arm that is chosen, and what to run next.
    by_question = [predicted[question.question_id, 0]["arms"] for question in questions]
    rows = arm_rows([{arm.text: row[arm.text] for arm in arms} for row in by_question], exact.text)
    if rows[0]["tokens_per_round"]["value"] is None:
        raise BadInput("every answer ends with its first token: nothing is drafted")
    best = choose(rows, options.cost)
    shown = columns(arm="s", tokens_per_round=".2f")
    shown += [("over exact", "gain", ".2f"), *columns(cost=".4f", fuzzy_share=".4f")]
    meaning = (
        "how far the distribution of a token is from the target's, as total variation from 0 to 1"
        if sampling.temperature
        else "how much less probable a token is than the target's favourite, as regret in nats"
    )
    arms = dict.fromkeys(["plain", exact.text, best["arm"]])
    command = benchmark(options, sampling_options, model_options, arms)
    text = (
        f"{best['arm']}: {best['tokens_per_round']['value']:.2f} tokens a round, "
        f"{best['gain']['value']:.2f} times exact's, are predicted at a cost of "
        f"{best['cost']['value']:.4f} a token, where {options.cost:g} is tolerated\n\n"
        f"{markdown_table(rows, shown)}\n\n"
        f"The cost is a token's mean: {meaning}.\n"
        f"Predicted from the rounds of exact's answers to {len(questions)} questions. What the arm "
        f"does on its own texts shows\n\n    {command}\n"
    )
    whole = {"chosen": best["arm"], "rows": rows, "options": run.settings}
    write_json(run.folder / "calibrate.json", whole | {"sessions": run.sessions})
    write_file(run.folder / "calibrate.md", text)
    print(f"\nwritten to {run.folder}: calibrate.md, calibrate.json, records/\n\n{text}")


def benchmark(
    options: CalibrateOptions,
    sampling_options: SamplingOptions,
    model_options: ModelOptions,
    arms: Iterable[str],
) -> str:
    """The command that measures the arms with the same models on the same questions."""
    words = ["--turns", 1, "--max_new_tokens", options.max_new_tokens]
    if options.output:
        words += ["--output", f"{options.output}_bench"]
    for name in ("question_file", "questions"):
        if value := getattr(options, name):
            words += [f"--{name}", value]
    for group in (sampling_options, model_options):
        for field in fields(group):
            if (value := getattr(group, field.name)) != field.default:
                words += [f"--{field.name}", value]
    return shown_command("mt_bench.py", *words, "--arms", *arms)


def main(arguments: list[str] | None = None) -> None:
    run_command(run_calibration, [CalibrateOptions, SamplingOptions, ModelOptions], arguments)


if __name__ == "__main__":
    main()
