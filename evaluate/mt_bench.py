"""MT-Bench: plain decoding against EAGLE-2 against FSD in EAGLE-2, interleaved in one process.

    python evaluate/mt_bench.py                                  # embedded target, 8 questions
    python evaluate/mt_bench.py --questions 80 --thresholds 0.1 0.2 0.3 --output runs/mt_bench_80

Every question is answered by every arm, both turns; the second turn continues the arm's own first
answer. In the output folder: records/ARM.jsonl (tokens, times, rounds), answers/ARM.jsonl (in
FastChat's answer format, for its judge), run.json, summary.json, summary.md, summary.png. A killed
run continues where it was: run the same command again. More questions, arms or thresholds may be
added.
"""

import json
import os
import sys
import time
import uuid
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tqdm import tqdm
from transformers import HfArgumentParser

from eagle_fsd.api import Model
from eagle_fsd.arms import BASELINES, Arm, turn_record
from eagle_fsd.assets import mt_bench_dir
from eagle_fsd.config import AcceptConfig, SamplingConfig
from eagle_fsd.decode import StopConfig
from eagle_fsd.jsonl import append_line, read_lines, write_lines
from eagle_fsd.options import ModelOptions, option
from eagle_fsd.plots import plot_speed_against_regret
from eagle_fsd.provenance import describe_run
from eagle_fsd.questions import Question, read_questions, spread
from eagle_fsd.summary import summarize, tables

# What a run may be continued with, although it differs.
EXTENDABLE = {"questions", "arms", "thresholds", "output", "published_tau"}


@dataclass
class BenchOptions:
    output: str = option("runs/mt_bench", "folder of the run")
    questions: int = option(0, "how many, spread over the categories; 0: 8 on CPU, all on CUDA")
    turns: int = option(0, "turns of each question; 0: all")
    question_file: str = option("", "question.jsonl in FastChat's format; empty: MT-Bench")
    arms: list[str] = field(
        default_factory=lambda: ["generate", "plain", "exact", "fsd"],
        metadata={"help": "of generate, plain, exact, fsd, fsd-paper"},
    )
    thresholds: list[float] = field(
        default_factory=lambda: [0.2, 0.4], metadata={"help": "T of the fsd and fsd-paper arms"}
    )
    divergence: str = option("js", "kl_target_draft, kl_draft_target, js, tv or js_reference")
    logits: str = option("raw", "divergence of raw rows, or processed by the sampling filters")
    child: str = option("draft", "which child when D passes: draft, target, deepest or sample")
    temperature: float = option(0.0, "0 is greedy")
    top_k: int = option(0, "0: off")
    top_p: float = option(1.0, "1: off")
    max_new_tokens: int = option(128, "budget of an answer")
    seed: int = option(0, "of all sampling")
    published_tau: float = option(0.0, "tokens_per_round from a paper, printed beside; 0: none")

    def build_arms(self) -> list[Arm]:
        """The arms, checked; every rule gets an arm per threshold."""
        built: list[Arm] = []
        for name in dict.fromkeys(self.arms):
            if name in BASELINES:
                built.append(Arm(name))
                continue
            thresholds = [0.0] if name == "exact" else self.thresholds
            for threshold in dict.fromkeys(thresholds):
                accept = AcceptConfig(name, self.divergence, threshold, self.logits, self.child)
                accept.check_with(self.sampling())
                built.append(Arm.with_rule(accept))
        return built

    def sampling(self) -> SamplingConfig:
        return SamplingConfig(self.temperature, self.top_k, self.top_p)


class Run:
    """The run's folder: records are the truth, everything else is made from them."""

    def __init__(self, folder: str, settings: dict):
        self.folder = Path(folder)
        try:
            for name in ("records", "answers"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"cannot write to --output {folder} ({error})") from error
        if not os.access(self.folder / "records", os.W_OK):
            raise ValueError(f"cannot write to --output {folder}")
        self._check_settings(settings)
        self.records: dict[str, dict] = {}

    def _check_settings(self, settings: dict) -> None:
        path = self.folder / "run.json"
        if path.is_file():
            before = json.loads(path.read_text())["options"]
            changed = {
                key: (before.get(key), value)
                for key, value in settings.items()
                if key not in EXTENDABLE and before.get(key) != value
            }
            if changed:
                raise ValueError(
                    f"{self.folder} holds a run with other settings (there, here): {changed}; "
                    "name another --output"
                )
        path.write_text(json.dumps(describe_run(settings, settings["device"]), indent=2) + "\n")

    def open_arm(self, arm: Arm) -> None:
        """Read what the arm has answered, and bring its answer file in line with it."""
        path = self.folder / "records" / f"{arm.name}.jsonl"
        rows = read_lines(path, repair=True) if path.is_file() else []
        self.records[arm.name] = {row["question_id"]: row for row in rows}
        if rows:
            write_lines(self.folder / "answers" / f"{arm.name}.jsonl", map(fastchat_answer, rows))

    def add(self, arm: Arm, record: dict) -> None:
        append_line(self.folder / "records" / f"{arm.name}.jsonl", record)
        append_line(self.folder / "answers" / f"{arm.name}.jsonl", fastchat_answer(record))
        self.records[arm.name][record["question_id"]] = record


def fastchat_answer(record: dict) -> dict:
    """FastChat's model_answer row (fastchat/llm_judge/gen_model_answer.py)."""
    return {
        "question_id": record["question_id"],
        "answer_id": record["answer_id"],
        "model_id": record["arm"],
        "choices": [{"index": 0, "turns": [turn["text"] for turn in record["turns"]]}],
        "tstamp": record["tstamp"],
    }


def answer_question(
    model: Model,
    arm: Arm,
    question: Question,
    sampling: SamplingConfig,
    stop: StopConfig,
    seed: int,
) -> dict:
    """All turns of a question by one arm, as a record."""
    messages, turns = [], []
    for text in question.turns:
        messages.append({"role": "user", "content": text})
        prompt = model.prompt_ids(messages)
        result, seconds = arm.answer(model, prompt, sampling, stop, seed)
        turns.append(turn_record(model, prompt, result, seconds))
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


def run_bench(options: BenchOptions, model_options: ModelOptions) -> None:
    arms = options.build_arms()
    sampling = options.sampling()
    StopConfig(options.max_new_tokens)  # its own check, before any weights
    model_options.tree()
    questions = read_questions(options.question_file or mt_bench_dir() / "question.jsonl")
    count = options.questions or (8 if model_options.device == "cpu" else len(questions))
    questions = spread(questions, min(count, len(questions)) if not options.questions else count)
    if options.turns:
        questions = [replace(q, turns=q.turns[: options.turns]) for q in questions]
    run = Run(options.output, asdict(options) | asdict(model_options))
    for arm in arms:
        run.open_arm(arm)

    todo = [
        (question, arm)
        for number, question in enumerate(questions)
        # rotated, so that no arm always runs first
        for arm in arms[number % len(arms) :] + arms[: number % len(arms)]
        if question.question_id not in run.records[arm.name]
    ]
    if todo:
        model = model_options.load()
        stop = StopConfig(options.max_new_tokens, model.stop_token_ids)
        check_lengths(model, questions, stop)
        for arm in arms:  # warm-up through the same call
            warm = StopConfig(min(8, options.max_new_tokens), model.stop_token_ids)
            arm.answer(model, model.prompt_ids(questions[0].turns[0]), sampling, warm, options.seed)
        total = len(questions) * len(arms)
        bar = tqdm(total=total, initial=total - len(todo), unit="answer", desc="MT-Bench")
        for question, arm in todo:
            bar.set_postfix_str(f"question {question.question_id}, {arm.name}")
            run.add(arm, answer_question(model, arm, question, sampling, stop, options.seed))
            bar.update()
        bar.close()
    report(run, arms, questions, options)


def check_lengths(model: Model, questions: list[Question], stop: StopConfig) -> None:
    """Refuse before any answer is made, not in the middle: the longest a question can get."""
    for question in questions:
        answers = stop.max_new_tokens * (len(question.turns) - 1)
        messages = []
        for text in question.turns:
            messages += [{"role": "user", "content": text}, {"role": "assistant", "content": ""}]
        length = len(model.prompt_ids(messages[:-1])) + answers
        if length + stop.max_new_tokens > model.target.max_positions:
            raise ValueError(
                f"question {question.question_id} may reach {length + stop.max_new_tokens} tokens, "
                f"beyond the target's {model.target.max_positions} positions: lower "
                "--max_new_tokens or leave it out"
            )


def report(run: Run, arms: list[Arm], questions: list[Question], options: BenchOptions) -> None:
    """The table, as text, JSON and picture."""
    asked = {question.question_id for question in questions}
    records = {
        arm.name: [row for key, row in run.records[arm.name].items() if key in asked]
        for arm in arms
    }
    rows = summarize(records)
    described = json.loads((run.folder / "run.json").read_text())
    tau = options.published_tau or None
    summary = {"run": described, "rows": rows, "published_tau_not_measured_here": tau}
    (run.folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    settings = described["options"]
    title = (
        f"MT-Bench, {len(questions)} questions, {settings['target']} in {settings['dtype']}, "
        f"{settings['num_draft_tokens']} drafts, temperature {options.temperature:g}, "
        f"{options.max_new_tokens} new tokens; {described['device']}; commit {described['commit']}"
    )
    text = f"{title}\n\n{tables(rows)}\n"
    if tau:
        text += (
            f"\nPublished tokens_per_round of exact: {tau} (from the paper, not measured here)\n"
        )
    (run.folder / "summary.md").write_text(text)
    if "plain" in records:
        plot_speed_against_regret(rows, run.folder / "summary.png", title=title)
    print(f"\n{text}\nwritten to {run.folder}: summary.md, summary.json, summary.png, answers/")


def main(arguments: list[str] | None = None) -> None:
    parser = HfArgumentParser([BenchOptions, ModelOptions])
    try:
        run_bench(*parser.parse_args_into_dataclasses(arguments))
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
