"""Calibrate: which parameter of a rule keeps to a stated cost on your prompts, and what it brings.

    python evaluate/calibrate.py --question_file mine.jsonl --cost 0.03
    python evaluate/calibrate.py --arms path:{0.2,0.5,0.77,1.25}@hybrid

Every question is answered once, by exact; at every round each arm is asked what it would do, which
predicts its tokens a round, its tokens a second, its fuzzy share and its cost. The arm of most
tokens a round within the tolerated cost is chosen (of equals the cheapest). What it does on texts
of its own shows mt_bench.py. A killed run continues where it was: run the same command again. Arms,
questions and the cost may change.
"""

from dataclasses import dataclass

from eagle_fsd.cli import run_command
from eagle_fsd.config import BadInput, check_least
from eagle_fsd.options import ModelOptions, QuestionOptions, SamplingOptions, option


@dataclass
class CalibrateOptions(QuestionOptions):
    cost: float = option(0.03, may_change=True)
    """The cost that is tolerated: the mean regret of a token in nats; above temperature 0 the mean
    total variation."""
    arms: list[str] = option(
        [f"path:{price}" for price in (0.1, 0.2, 0.35, 0.5, 0.77, 1.25, 2.0)]
        + [f"ratio:{limit}" for limit in (0.25, 0.5, 1.0, 1.5, 2.0, 3.0)]
        + [f"fsd:{threshold}" for threshold in (0.1, 0.2, 0.3, 0.35, 0.4, 0.45)],
        may_change=True,
    )
    """The arms to choose from; all must have the same drafter."""

    def __post_init__(self):
        check_least(self, "--", cost=0, max_new_tokens=2)  # the first is prefill's


def run_calibration(
    options: CalibrateOptions, sampling_options: SamplingOptions, model_options: ModelOptions
) -> None:
    from tqdm import tqdm

    from eagle_fsd.arms import parse_arms
    from eagle_fsd.decoding.loop import DecodeConfig
    from eagle_fsd.evaluation.bench import answer_seed, check_lengths
    from eagle_fsd.evaluation.calibrate import arm_rows, predict, report
    from eagle_fsd.evaluation.questions import asked, check_same_questions, cut
    from eagle_fsd.rules.fsd import Exact
    from eagle_fsd.runs.folder import Run

    # 1. Arms, which share the trees of one drafter, and questions.
    arms = parse_arms(options.arms, tree=model_options.tree)
    for arm in arms:
        if not arm.drafts:
            raise BadInput(f"--arms of a calibration draft: leave out {arm.text!r}, which does not")
        if arm.drafter != arms[0].drafter:
            raise BadInput(
                "--arms of a calibration share the trees of one drafter, and "
                f"{arm.text!r} has others than {arms[0].text!r}: give the same behind every @"
            )
    exact = arms[0].with_rule(Exact())
    arms = list(dict.fromkeys([exact, *arms]))
    sampling = sampling_options.sampling()
    for arm in arms:
        arm.check(sampling)
    questions = cut(asked(options, of_mt_bench=16), 1)
    further = {"command": "calibrate"} | model_options.digests()
    run = Run.of(options, sampling_options, model_options, further=further, name="calibrate")
    check_same_questions(run.records["predicted"].values(), questions, turns=1)

    # 2. Counts of every arm over one exact answer a question; what is there is not made again.
    predicted = run.records["predicted"]
    names = {arm.text for arm in arms}
    counted = {key for (key, _), row in predicted.items() if names <= row["arms"].keys()}
    if unanswered := [q for q in questions if q.question_id not in counted]:
        model, budget = model_options.load(arms, date=run.date), options.max_new_tokens
        check_lengths(model, questions, budget, last=budget)
        drafter = exact.build_drafter(model)
        for arm in arms:
            arm.check(sampling, drafter)
        policies = {arm.text: arm.policy(sampling) for arm in arms}
        run.begin_session()
        # the first question twice: its first answer, a short one, is a warm-up
        for number, question in enumerate(tqdm([unanswered[0], *unanswered], desc="predicted")):
            stop = model.stop(budget if number else min(8, budget))
            seed = answer_seed(sampling_options.seed, question.question_id, 0)
            config = DecodeConfig(exact.policy(sampling), stop, seed)
            prompt = model.prompt_ids(question.messages())
            counts = predict(model.target, drafter, policies, prompt, config)
            row = question.named() | {"turns": [{"prompt": question.turns[0]}]}
            if number:
                run.add("predicted", row | {"arms": counts})

    # 3. The figures of every arm over all questions.
    by_question = [predicted[question.question_id, 0]["arms"] for question in questions]
    rows = arm_rows([{arm.text: row[arm.text] for arm in arms} for row in by_question], exact.text)
    if rows[0]["tokens_per_round"]["value"] is None:
        raise BadInput("every answer ends with its first token: nothing is drafted")
    report(run, rows, options.cost)


if __name__ == "__main__":
    run_command(run_calibration, [CalibrateOptions, SamplingOptions, ModelOptions])
