"""MT-Bench: plain decoding against EAGLE-2 against FSD in EAGLE-2, interleaved in one process.

    python evaluate/mt_bench.py                                  # embedded target, 8 questions
    python evaluate/mt_bench.py --questions 80 --thresholds 0.1 0.2 0.3 --output runs/mt_bench_80

Every question is answered by every arm, both turns; the second turn continues the arm's own first
answer. In the output folder: records/ARM.jsonl (tokens, times, rounds), answers/ARM.jsonl (in
FastChat's answer format, for its judge), run.json, summary.json, summary.md, summary.png. A killed
run continues where it was: run the same command again. More questions, arms or thresholds may be
added.
"""

import sys
import time
import uuid
import zlib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tqdm import tqdm
from transformers import HfArgumentParser

from eagle_fsd.api import Model
from eagle_fsd.arms import BASELINES, Arm, turn_record
from eagle_fsd.assets import mt_bench_dir
from eagle_fsd.decode import StopConfig
from eagle_fsd.jsonl import write_json
from eagle_fsd.options import DecodeOptions, ModelOptions, option
from eagle_fsd.plots import plot_speed_against_regret
from eagle_fsd.questions import Question, read_questions, spread
from eagle_fsd.runs import Run
from eagle_fsd.summary import summarize, tables

# What a run may be continued with, although it differs.
EXTENDABLE = frozenset({"questions", "arms", "thresholds", "output", "published_tau"})


@dataclass
class BenchOptions:
    output: str = option("runs/mt_bench", "folder of the run")
    questions: int | None = option(None, "how many, over all categories; default 8 on CPU, or all")
    turns: int = option(0, "turns of each question; 0: all")
    question_file: str = option("", "question.jsonl in FastChat's format; empty: MT-Bench")
    arms: list[str] = field(
        default_factory=lambda: ["generate", "plain", "exact", "fsd"],
        metadata={"help": "of generate, plain, exact, fsd, fsd-paper"},
    )
    thresholds: list[float] = field(
        default_factory=lambda: [0.2, 0.4], metadata={"help": "T of the fsd and fsd-paper arms"}
    )
    max_new_tokens: int = option(128, "budget of an answer")
    published_tau: float = option(0.0, "tokens_per_round from a paper, printed beside; 0: none")

    def __post_init__(self):
        StopConfig(self.max_new_tokens)  # its own check
        if self.turns < 0:
            raise ValueError(f"--turns must be 0 (all) or above, got {self.turns}")

    def build_arms(self, decoding: DecodeOptions) -> list[Arm]:
        """The arms, checked; every rule gets an arm per threshold."""
        built: list[Arm] = []
        for name in dict.fromkeys(self.arms):
            if name in BASELINES:
                built.append(Arm(name))
                continue
            thresholds = [0.0] if name == "exact" else self.thresholds
            built += [Arm.with_rule(decoding.accept(name, t)) for t in dict.fromkeys(thresholds)]
        return built


def answer_question(
    model: Model, arm: Arm, question: Question, max_new_tokens: int, decoding: DecodeOptions
) -> dict:
    """All turns of a question by one arm, as a record."""
    messages, turns = [], []
    for number, text in enumerate(question.turns):
        messages.append({"role": "user", "content": text})
        prompt = model.prompt_ids(messages)
        # where the target's positions end before the budget does, the same for every arm
        budget = min(max_new_tokens, model.target.max_positions - len(prompt))
        # one seed a prompt, the same for every arm
        seed = zlib.crc32(f"{decoding.seed}/{question.question_id}/{number}".encode())
        result, seconds = arm.answer(model, prompt, decoding.sampling(), model.stop(budget), seed)
        turns.append({"seed": seed, **turn_record(model, prompt, result, seconds)})
        messages.append({"role": "assistant", "content": turns[-1]["text"]})
    return {
        "question_id": question.question_id,
        "category": question.category,
        "arm": arm.name,
        "accept": asdict(arm.accept) if arm.accept else None,
        "answer_id": uuid.uuid4().hex,
        "tstamp": time.time(),
        "turns": turns,
    }


def run_bench(options: BenchOptions, decoding: DecodeOptions, model_options: ModelOptions) -> None:
    arms = options.build_arms(decoding)
    model_options.tree()
    questions = read_questions(options.question_file or mt_bench_dir() / "question.jsonl")
    usual = min(8, len(questions)) if model_options.device == "cpu" else len(questions)
    questions = spread(questions, usual if options.questions is None else options.questions)
    if options.turns:
        questions = [replace(q, turns=q.turns[: options.turns]) for q in questions]
    run = Run(
        options.output,
        asdict(options) | asdict(decoding) | asdict(model_options),
        extendable=EXTENDABLE,
    )
    for arm in arms:
        run.open_arm(arm.name)

    todo = [
        (question, arm)
        for number, question in enumerate(questions)
        # rotated, so that no arm always runs first
        for arm in arms[number % len(arms) :] + arms[: number % len(arms)]
        if question.question_id not in run.records[arm.name]
    ]
    if todo:
        model = model_options.load(
            drafts=any(arm.accept for arm in arms),
            keep_stock=any(arm.name == "generate" for arm in arms),
        )
        check_lengths(model, questions, options.max_new_tokens)
        for arm in arms:  # warm-up through the same call
            stop = model.stop(min(8, options.max_new_tokens))
            prompt = model.prompt_ids(questions[0].turns[0])
            arm.answer(model, prompt, decoding.sampling(), stop, seed=0)
        total = len(questions) * len(arms)
        bar = tqdm(total=total, initial=total - len(todo), unit="answer", desc="MT-Bench")
        for question, arm in todo:
            bar.set_postfix_str(f"question {question.question_id}, {arm.name}")
            run.add(
                arm.name, answer_question(model, arm, question, options.max_new_tokens, decoding)
            )
            bar.update()
        bar.close()
    report(run, arms, questions, options)


def check_lengths(model: Model, questions: list[Question], max_new_tokens: int) -> None:
    """Refuse before any answer is made what could leave no room for the last one."""
    for question in questions:
        messages = []
        for text in question.turns:
            messages += [{"role": "user", "content": text}, {"role": "assistant", "content": ""}]
        prompts = len(model.prompt_ids(messages[:-1]))
        longest = prompts + max_new_tokens * (len(question.turns) - 1)
        if longest >= model.target.max_positions:
            raise ValueError(
                f"the last prompt of question {question.question_id} may reach {longest} tokens, "
                f"the target has {model.target.max_positions} positions: lower --max_new_tokens"
            )


def report(run: Run, arms: list[Arm], questions: list[Question], options: BenchOptions) -> None:
    """The table, as text, JSON and picture."""
    asked = {question.question_id for question in questions}
    records = {
        arm.name: [row for key, row in run.records[arm.name].items() if key in asked]
        for arm in arms
    }
    rows = summarize(records)
    origin, mixed = run.origin(records)
    settings = run.settings
    title = (
        f"{Path(options.question_file).name or 'MT-Bench'}, {len(questions)} questions, "
        f"{settings['target']} in {settings['dtype']}, {settings['num_draft_tokens']} drafts, "
        f"temperature {settings['temperature']:g}, {options.max_new_tokens} new tokens; {origin}"
    )
    text = f"{title}\n\n{tables(rows)}\n"
    if mixed:
        text += f"\n{mixed} questions were answered in more than one session: their arms were not "
        text += "timed side by side\n"
    tau = options.published_tau or None
    if tau:
        text += (
            f"\nPublished tokens_per_round of exact: {tau} (from the paper, not measured here)\n"
        )
    write_json(
        run.folder / "summary.json",
        {
            "title": title,
            "options": settings,
            "sessions": run.sessions,
            "questions_in_several_sessions": mixed,
            "rows": rows,
            "published_tau_not_measured_here": tau,
        },
    )
    (run.folder / "summary.md").write_text(text)
    written = ["summary.md", "summary.json", "records/", "answers/"]
    if "plain" in records:
        plot_speed_against_regret(rows, run.folder / "summary.png", title=title)
        written.insert(2, "summary.png")
    print(f"\n{text}\nwritten to {run.folder}: {', '.join(written)}")


def main(arguments: list[str] | None = None) -> None:
    parser = HfArgumentParser([BenchOptions, DecodeOptions, ModelOptions])
    try:
        run_bench(*parser.parse_args_into_dataclasses(arguments))
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
