"""Arms answer the same questions, interleaved, into one folder that a killed run goes on with.

Every question is answered by every arm, all turns; the next turn continues the arm's own answer.
With a launcher the questions are shared out over its processes, and with --batch several answers
are made together: each has a seed of its own, so they are those that one process makes one by one,
but their times are not to be compared (evaluation/batches.py says when a text may differ).

records/ARM.jsonl   tokens, times and rounds (runs/folder.py), and the trees of chosen answers
answers/ARM.jsonl   the same answers in FastChat's format, all choices of a question in a line
"""

import time
import uuid
import zlib
from collections import Counter
from dataclasses import asdict, replace
from functools import cached_property, partial
from statistics import fmean

from tqdm import tqdm

from eagle_fsd.arm_names import COMPILED
from eagle_fsd.arms import Arm, parse_arms
from eagle_fsd.config import BadInput
from eagle_fsd.decoding.tree import Drafter
from eagle_fsd.engine.trial import shares_forwards
from eagle_fsd.evaluation.answering import TurnTrace, answer_prompt, turn_record
from eagle_fsd.evaluation.batches import Batch
from eagle_fsd.evaluation.questions import Question, check_same_questions, fastchat_answers, spread
from eagle_fsd.models.loaded import Model
from eagle_fsd.options import BenchOptions, ModelOptions, SamplingOptions
from eagle_fsd.runs.folder import Run
from eagle_fsd.runs.jsonl import write_lines
from eagle_fsd.runs.processes import Processes
from eagle_fsd.thoughts import answer_message, thought_tokens
from eagle_fsd.timing import check_timing_alone, held_gigabytes, rotated

Job = tuple[Question, Arm, int]  # an answer to be made; the number is the choice's


class Bench:
    """A run of arms over the questions of a set called `name`. Where the options name no folder, it
    is named after run_name, or else after the command."""

    def __init__(
        self,
        name: str,
        command: str,
        questions: list[Question],
        options: BenchOptions,
        sampling: SamplingOptions,
        model_options: ModelOptions,
        *,
        run_name: str = "",
    ):
        self.arms = parse_arms(options.arms, tree=model_options.tree)
        self.name, self.questions = name, questions
        self.options, self.model_options = options, model_options
        self._sampling, self._seed = sampling.sampling(), sampling.seed
        for arm in self.arms:
            arm.check(self._sampling)
        self._batch: Batch | None = None
        self._traced = []  # questions
        if options.traces:
            self._traced = spread(questions, options.traces, option="--traces")
        self.processes = Processes.launched(model_options.device)
        self._timed = self.processes.count == 1 and not options.quality_only
        if options.batch > 1 and self._timed:
            raise BadInput(
                f"--batch {options.batch} makes answers together, whose seconds say nothing of an "
                "arm: add --quality_only, or leave it out where speeds are measured"
            )
        self.run = Run.of(
            *(options, sampling, model_options),
            further={"command": command} | model_options.digests(),
            name=run_name or command,
            processes=self.processes,
        )
        for records in self.run.records.values():
            check_same_questions(records.values(), questions)

    def jobs(self) -> list[Job]:
        """The answers that are not there yet."""
        return [
            (question, arm, choice)
            for number, question in enumerate(self.questions)
            for arm in rotated(self.arms, number)
            for choice in range(self.options.num_choices)
            if (question.question_id, choice) not in self.run.records[arm.slug]
        ]

    def plan(self) -> str:
        """How much is left to do, for people: answers, hours by what an answer of each arm has
        taken so far, or takes now, and the memory that models and answers hold then."""
        left, seconds = self.jobs(), {}
        counts = Counter(arm.text for _, arm, _ in left)
        shared = {each["session"] for each in self.run.sessions if each.get("batch", 1) > 1}
        for arm in self.arms:
            before = [
                sum(turn["seconds"] for turn in record["turns"])
                for record in self.run.records[arm.slug].values()
                if record["session"] not in shared  # in whose seconds others were answered
            ]
            if not before and counts[arm.text]:
                job = next(job for job in left if job[1] == arm)
                made = self._answered(*job, budget=self.options.max_new_tokens)
                before = [sum(turn["seconds"] for turn in made["turns"])]
            seconds[arm.text] = fmean(before) if before else 0.0
        hours = sum(seconds[name] * count for name, count in counts.items()) / 3600
        hours /= self.processes.count
        there = len(self.questions) * len(self.arms) * self.options.num_choices - len(left)
        text = f"{self.name}: answers to be made: {len(left)}, already there: {there}"
        if left:
            text += f"; {hours:.2g} hours, and {held_gigabytes(self.model.target.device):.3g} GB"
        slowest = sorted(counts, key=lambda name: -seconds[name])
        each = ", ".join(f"{name} {seconds[name]:.1f}" for name in slowest)
        return text + (f"\nseconds of an answer: {each}" if left else "")

    def answer_all(self) -> None:
        if jobs := self.jobs():
            self._answer(jobs)
        self.run.finish()
        if self.processes.is_main:
            for name, records in self.run.records.items():
                path = self.run.folder / "answers" / f"{name}.jsonl"
                write_lines(path, fastchat_answers(list(records.values())))

    def _answer(self, jobs: list[Job]) -> None:
        processes = self.processes
        warnings = check_timing_alone(self.model_options.device) if self._timed else []
        # this process's questions, each with all its arms
        ids = list(dict.fromkeys(question.question_id for question, *_ in jobs))
        mine = ids[processes.index :: processes.count]
        jobs = [job for job in jobs if job[0].question_id in mine]
        if jobs:
            _ = self._drafters  # what is refused in loading leaves no settings behind
        batch = self._batch.size if self._batch else 1
        self.run.begin_session(timed=self._timed, warnings=warnings, batch=batch)
        if not jobs:
            return
        longest = max((question.turns[0] for question in self.questions), key=len)
        first, budget = replace(self.questions[0], turns=[longest]), self.options.max_new_tokens
        for arm in self.arms:  # warm-up, through the same calls; what is compiled is for a budget
            self._answered(first, arm, 0, budget=budget if arm.text == COMPILED else min(8, budget))
        if batch > 1:  # those of an arm side by side: in a forward all are padded to the most nodes
            group = {question_id: number // batch for number, question_id in enumerate(mine)}
            jobs.sort(key=lambda job: (group[job[0].question_id], self.arms.index(job[1])))
        calls = [partial(self._answered, *job, budget=budget) for job in jobs]
        made = self._batch.run(calls) if self._batch else enumerate(call() for call in calls)
        hidden = not processes.is_main
        bar = tqdm(made, self.name, len(jobs), unit="answer", disable=hidden)
        for number, record in bar:
            self.run.add(jobs[number][1].slug, record)
            bar.set_postfix_str(record["arm"], refresh=False)
        if self._batch and (alone := len(self._batch.alone)):
            tqdm.write(
                f"--batch: of {len(jobs)} answers {alone} needed more rows than are reserved for "
                "the longest question, and were made alone"
            )

    @cached_property
    def model(self) -> Model:
        device = self.processes.device(self.model_options.device)
        model = replace(self.model_options, device=device).load(
            self.arms,
            date=self.run.date,
            keep_stock=any(not arm.runs_our_loop for arm in self.arms),
        )
        self._longest = check_lengths(model, self.questions, self.options.max_new_tokens)
        if self.options.batch > 1:
            trial = Batch(model, 2)  # of its own: a batch keeps the few rows of its first forward
            if shares_forwards(trial.model.target, trial.run):
                self._batch = Batch(model, self.options.batch)
            else:
                tqdm.write("--batch: this target runs one text at a time, so answers are alone")
        return self._batch.model if self._batch else model

    @cached_property
    def _drafters(self) -> dict[str, Drafter]:
        drafters = {arm.text: arm.build_drafter(self.model) for arm in self.arms}
        for arm in self.arms:
            arm.check(self._sampling, drafters[arm.text])
        if self._batch:
            # beyond the text a round of the target has its tree, and one of a head more
            spare = [max(each.max_nodes, each.spare_rows) for each in drafters.values()]
            self._batch.reserve(self._longest + max(spare))
        return drafters

    def _answered(self, question: Question, arm: Arm, choice: int, *, budget: int) -> dict:
        model, answers, turns = self.model, [], []
        # transformers' own loop has no trees
        traced = choice == 0 and arm.runs_our_loop and question in self._traced
        for number, text in enumerate(question.turns):
            prompt = model.prompt_ids(question.messages(answers))
            # where the models' positions end before the budget does, the same for every arm
            stop = model.stop(min(budget, model.max_positions - len(prompt)))
            seed = answer_seed(self._seed, question.question_id, number, choice)
            trace = TurnTrace(model, arm) if traced else None
            if self._batch:
                self._batch.next_turn()
            result, seconds = answer_prompt(
                *(arm, model, prompt, self._sampling, stop, seed),
                drafter=self._drafters[arm.text],
                watch=trace.take if trace else None,
            )
            thought = model.find_thought(prompt, result.tokens)
            ends = model.text_ends(result.tokens)
            turn = turn_record(model, prompt, result, seconds, ends, thought=thought.length)
            if trace:
                turn["trace"] = {"thought": thought_tokens(thought.length, ends)} | trace.taken
            turns.append({"prompt": text, "seed": seed} | turn)
            answers.append(answer_message(turn["text"], thought))
        return {
            **question.named(),
            "choice": choice,
            "arm": arm.text,
            **asdict(self._sampling),
            "tree": arm.tree or (self.model_options.tree if arm.drafter.needs_head else None),
            "answer_id": uuid.uuid4().hex,
            "tstamp": time.time(),
            "turns": turns,
        }

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


def answer_seed(seed: int, question_id: int | str, turn: int, choice: int = 0) -> int:
    """One seed an answer, the same for every arm and whichever process makes it."""
    place = f"{seed}/{question_id}/{turn}" + (f"/{choice}" if choice else "")
    return zlib.crc32(place.encode())


def check_lengths(
    model: Model, questions: list[Question], max_new_tokens: int, *, last: int = 1
) -> int:
    """Refuse before any answer is made what could leave less room than `last` for the last one.
    Returns how many positions the longest conversation may take."""
    most_taken = 0
    for question in questions:
        answers = [{"role": "assistant", "content": ""}] * (len(question.turns) - 1)
        alone = len(model.prompt_ids(question.messages(answers)))
        most = model.max_positions
        if alone >= most:
            raise BadInput(
                f"question {question.question_id!r} alone takes {alone} tokens, the models have "
                f"{most} positions: shorten or leave out the question"
            )
        longest = alone + max_new_tokens * len(answers)
        if longest + last > most:
            after = f" and take {last} after it" if last > 1 else ""
            raise BadInput(
                f"the last prompt of question {question.question_id!r} may reach {longest} tokens"
                f"{after}, the models have {most} positions: lower --max_new_tokens"
            )
        most_taken = max(most_taken, min(longest + max_new_tokens, most))
    return most_taken
