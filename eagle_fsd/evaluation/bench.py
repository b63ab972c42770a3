"""Arms answer the same questions, interleaved, into one folder that a killed run goes on with.

Every question is answered by every arm, all turns; the next turn continues the arm's own answer.
With a launcher the questions are shared out over its processes: each answer has a seed of its own,
so the answers are those of one process, but their times are not to be compared.
"""

import sys
import time
import uuid
from dataclasses import asdict, dataclass, replace

from tqdm import tqdm

from eagle_fsd.config import BadInput, SamplingConfig
from eagle_fsd.decoding.drafter import Drafter
from eagle_fsd.evaluation.answering import answer_prompt, turn_record
from eagle_fsd.evaluation.arms import BY_TRANSFORMERS, Arm, parse_arms
from eagle_fsd.evaluation.bench_options import BenchOptions
from eagle_fsd.evaluation.questions import (
    Question,
    answer_seed,
    check_same_questions,
    fastchat_answers,
    question_digests,
    spread,
)
from eagle_fsd.evaluation.traces import trace_record
from eagle_fsd.models.loaded import Model
from eagle_fsd.models.model_options import ModelOptions, SamplingOptions
from eagle_fsd.runs.folder import Run, answer_key
from eagle_fsd.runs.jsonl import append_lines, read_lines, write_lines
from eagle_fsd.runs.processes import Processes
from eagle_fsd.speed.quiet import check_timing_alone

# What a run may be continued with, although it differs.
EXTENDABLE = frozenset(
    {
        "questions",
        "generate_questions",
        "arms",
        "num_choices",
        "traces",
        "output",
        "published_tau",
        "quality_only",
    }
)
# fastchat/llm_judge/common.py, temperature_config; other categories are asked at 0.7
CATEGORY_TEMPERATURES = {
    "writing": 0.7,
    "roleplay": 0.7,
    "extraction": 0.0,
    "math": 0.0,
    "coding": 0.0,
    "reasoning": 0.0,
    "stem": 0.1,
    "humanities": 0.1,
    "arena-hard-200": 0.0,
}
OTHER_CATEGORIES = 0.7


@dataclass(frozen=True)
class Job:
    """One answer to be made."""

    question: Question
    arm: Arm
    choice: int

    @property
    def key(self) -> tuple[int | str, int]:
        return self.question.question_id, self.choice


class Bench:
    """A run of arms over questions.

    Args:
        name: of the question set, for the progress bar.
        command: that makes the run; a folder is of one command.
        questions: those chosen.
        extendable: further settings that a run may be continued with.

    Attributes:
        arms: as the options name them.
        run: the folder.

    Raises:
        BadInput: see Run and parse_arms; arms that cannot sample as asked; no such number of
            questions.
    """

    def __init__(
        self,
        name: str,
        command: str,
        questions: list[Question],
        options: BenchOptions,
        sampling: SamplingOptions,
        model_options: ModelOptions,
        *,
        extendable: frozenset[str] = frozenset(),
    ):
        arms = parse_arms(options.arms)
        if options.generate_questions == 0:
            arms = [arm for arm in arms if arm.runs_our_loop]
            if not arms:
                raise BadInput("--generate_questions 0 leaves no arm to answer: give one of ours")
        self.name, self.arms, self.questions = name, arms, questions
        self.options, self._sampling_options = options, sampling
        self.model_options = model_options
        for question in questions:
            for arm in arms:
                arm.check(self._sampling(question))
        for arm in arms:
            arm.check_tree()
        self._by_generate = _ids(questions, options.generate_questions, "generate_questions")
        self._traced = _ids(questions, options.traces, "traces")
        self.processes = Processes.launched(cpu=model_options.device == "cpu")
        every = [asdict(part) for part in (options, sampling, model_options)]
        self.run = Run(
            options.output,
            {"command": command} | {key: value for part in every for key, value in part.items()},
            free=EXTENDABLE | extendable,
            processes=self.processes,
        )
        for records in self.run.records.values():
            check_same_questions(records.values(), questions)
        self._model: Model | None = None
        self._drafters: dict[str, Drafter] = {}

    def answer_all(self) -> None:
        """Answer what is not yet answered, then trace what is not yet traced."""
        jobs = [job for job in self._jobs() if job.key not in self.run.records[job.arm.slug]]
        if jobs:
            self._answer(jobs)
        self.run.finish()
        if self.processes.is_main:
            self._write_answers()
            self._trace()

    def _jobs(self) -> list[Job]:
        """All answers, in order: by question, and rotated, so that no arm always goes first."""
        jobs = []
        for number, question in enumerate(self.questions):
            turn = number % len(self.arms)
            for arm in self.arms[turn:] + self.arms[:turn]:
                if arm.text in BY_TRANSFORMERS and question.question_id not in self._by_generate:
                    continue
                jobs += [Job(question, arm, choice) for choice in range(self.options.num_choices)]
        return jobs

    def _answer(self, jobs: list[Job]) -> None:
        mine = self._share(jobs)
        timed = self.processes.count == 1 and not self.options.quality_only
        warnings = check_timing_alone(self.model_options.device) if timed else []
        for warning in warnings:
            print(f"warning: {warning}", file=sys.stderr)
        self.run.begin_session(timed=timed, warnings=warnings)
        if not mine:
            return
        model = self.model()
        first = self.questions[0]
        warm_up = model.prompt_ids(first.turns[0])
        stop = model.stop(min(8, self.options.max_new_tokens))
        for arm in self.arms:  # through the same call
            self._answer_prompt(arm, model, warm_up, self._sampling(first), stop, seed=0)
        bar = tqdm(
            total=len(mine), unit="answer", desc=self.name, disable=not self.processes.is_main
        )
        for job in mine:
            bar.set_postfix_str(f"question {job.question.question_id}, {job.arm.text}")
            self.run.add(job.arm.slug, self._record(model, job))
            bar.update()
        bar.close()

    def _share(self, jobs: list[Job]) -> list[Job]:
        """This process's questions, each with all its arms."""
        ids = list(dict.fromkeys(job.question.question_id for job in jobs))
        mine = set(ids[self.processes.index :: self.processes.count])
        return [job for job in jobs if job.question.question_id in mine]

    def model(self) -> Model:
        """Loaded at first use."""
        if self._model is None:
            options = self.model_options
            options = replace(options, device=self.processes.device(options.device))
            self._model = options.load(
                drafts=any(arm.drafts and arm.drafter.needs_head for arm in self.arms),
                keep_stock=any(not arm.runs_our_loop for arm in self.arms),
            )
            check_lengths(self._model, self.questions, self.options.max_new_tokens)
        return self._model

    def _sampling(self, question: Question) -> SamplingConfig:
        """How a question is answered: at FastChat's temperature of its category, if asked for."""
        sampling = self._sampling_options.sampling()
        if not self.options.category_temperatures:
            return sampling
        temperature = CATEGORY_TEMPERATURES.get(question.category, OTHER_CATEGORIES)
        return replace(sampling, temperature=temperature)

    def _answer_prompt(self, arm: Arm, model: Model, *how, seed: int):
        if arm.text not in self._drafters:
            self._drafters[arm.text] = arm.build_drafter(model)
        record = "full" if self.options.quality_only else "lean"
        drafter = self._drafters[arm.text]
        return answer_prompt(arm, model, *how, seed, drafter=drafter, record=record)

    def _record(self, model: Model, job: Job) -> dict:
        """All turns of a question by one arm."""
        question, arm = job.question, job.arm
        sampling = self._sampling(question)
        messages, turns = [], []
        for number, text in enumerate(question.turns):
            messages.append({"role": "user", "content": text})
            prompt = model.prompt_ids(messages)
            # where the target's positions end before the budget does, the same for every arm
            room = model.target.max_positions - len(prompt)
            stop = model.stop(min(self.options.max_new_tokens, room))
            seed = self._sampling_options.seed
            seed = answer_seed(seed, question.question_id, number, job.choice)
            result, seconds = self._answer_prompt(arm, model, prompt, sampling, stop, seed=seed)
            turns.append(
                {"prompt": text, "seed": seed, **turn_record(model, prompt, result, seconds)}
            )
            messages.append({"role": "assistant", "content": turns[-1]["text"]})
        needs_head = arm.drafts and arm.drafter.needs_head
        return {
            "question_id": question.question_id,
            "choice": job.choice,
            "question": question_digests(question),
            "category": question.category,
            "arm": arm.text,
            **asdict(sampling),
            "tree": (arm.tree or self.model_options.tree) if needs_head else None,
            "answer_id": uuid.uuid4().hex,
            "tstamp": time.time(),
            "turns": turns,
        }

    def _write_answers(self) -> None:
        """Beside the records, the same answers as FastChat keeps them."""
        folder = self.run.folder / "answers"
        folder.mkdir(exist_ok=True)
        for name, records in self.run.records.items():
            write_lines(folder / f"{name}.jsonl", fastchat_answers(list(records.values())))

    def _trace(self) -> None:
        """Keep the rounds of the traced questions' first choices, of arms that run our loop."""
        folder = self.run.folder / "traces"
        todo = []
        for arm in self.arms:
            if not arm.runs_our_loop or not self._traced:
                continue
            folder.mkdir(exist_ok=True)
            path = folder / f"{arm.slug}.jsonl"
            rows = read_lines(path, repair=True) if path.is_file() else []
            known = {answer_key(row) for row in rows}
            todo += [
                (path, arm, question)
                for question in self.questions
                if question.question_id in self._traced and (question.question_id, 0) not in known
            ]
        for path, arm, question in tqdm(todo, unit="answer", desc="traces", disable=not todo):
            record = self.run.records[arm.slug][question.question_id, 0]
            sampling = self._sampling(question)
            append_lines(path, [trace_record(self.model(), arm, sampling, question.turns, record)])

    def records(self) -> dict[str, list[dict]]:
        """The records of this run's arms, questions and choices, by arm."""
        asked = {question.question_id for question in self.questions}
        return {
            arm.text: [
                record
                for (question, choice), record in self.run.records[arm.slug].items()
                if question in asked and choice < self.options.num_choices
            ]
            for arm in self.arms
        }


def check_lengths(model: Model, questions: list[Question], max_new_tokens: int) -> None:
    """Refuse before any answer is made what could leave no room for the last one."""
    for question in questions:
        messages = []
        for text in question.turns:
            messages += [{"role": "user", "content": text}, {"role": "assistant", "content": ""}]
        prompts = len(model.prompt_ids(messages[:-1]))
        longest = prompts + max_new_tokens * (len(question.turns) - 1)
        if longest >= model.target.max_positions:
            raise BadInput(
                f"the last prompt of question {question.question_id} may reach {longest} tokens, "
                f"the target has {model.target.max_positions} positions: lower --max_new_tokens"
            )


def _ids(questions: list[Question], count: int | None, name: str) -> set[int | str]:
    """Ids of `count` questions over all categories; None: of all."""
    if count is None:
        count = len(questions)
    if not 0 <= count <= len(questions):
        raise BadInput(f"--{name} must be in 0..{len(questions)}, got {count}")
    return {q.question_id for q in spread(questions, count)} if count else set()
