"""From candidates to training dialogues: what is asked of the target, what is dropped, and why.

What is random about a candidate depends on its number, so that a broken run and an unbroken one
make the same dialogues. (Of two that the target begins with the same words, the one whose turn ends
first in a session is answered, and the other dropped.) Sampling itself is generate.py's business.
"""

import math
import random
import time
from collections import Counter, deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from jinja2 import TemplateError
from tqdm import tqdm

from eagle_fsd.config import BadInput
from eagle_fsd.models.generate import Request
from eagle_fsd.runs.folder import Run
from eagle_fsd.training.contamination import Benchmarks
from eagle_fsd.training.data_options import DataOptions
from eagle_fsd.training.prompts import ASSISTANT, SELF, SYSTEM, USER, Candidate, Conversation
from eagle_fsd.training.template import ChatFormat

TURN_TOKENS = 96  # a user turn of the target's own that does not end within these is thrown away
# A target that does not end its own turns would be asked for ever.
TURNS_TRIED, TURNS_KEPT = 128, 1 / 8  # after so many turns, the least share that must be usable

# Yields what the target is to say next, goes on when that has been said, and returns a row.
Making = Generator[Request, None, dict | None]


class Dropped(Exception):  # noqa: N818  (no error)
    """A candidate becomes no dialogue; the text says why."""


@dataclass
class DialogueMaker:
    """Makes candidates into dialogues while the limits allow, and records what becomes of them.

    Args:
        options: how many, and how.
        run: with what was made before; gets "dialogues" and "dropped".
        candidates: those of this process, without the ones that are done.
        chat: the target's chat template.
        benchmarks: prompts that are dropped.
        end_ids: tokens that end an answer.
    """

    options: DataOptions
    run: Run
    candidates: Iterator[Candidate]
    chat: ChatFormat
    benchmarks: Benchmarks
    end_ids: frozenset[int]

    def __post_init__(self):
        options = self.options
        rows = self.run.records["dialogues"].values()
        before = sum(sum(row["loss_mask"]) for row in rows)
        self._seen = {row["user"] for row in rows}
        self._began = time.monotonic() - max((row["seconds"] for row in rows), default=0.0)
        self._dialogues_left = (options.dialogues or math.inf) - len(rows)
        self._tokens_left = (options.answer_tokens or math.inf) - before
        self._dialogues = self._tokens = 0  # of this process and session
        self._own_turns: Counter[str] = Counter()  # what became of them; "" is well
        self._under_way: dict[Request, tuple[Candidate, Making]] = {}
        self._ready: deque[Request] = deque()
        self._bar = tqdm(
            desc="answer tokens",
            unit="tok",
            total=options.answer_tokens or None,
            initial=before,
            leave=False,
            miniters=0,
            disable=not self.run.processes.is_main,
        )

    def next_request(self) -> Request | None:
        """What the target is to say next; None if there is nothing now."""
        while not self._ready and self._may_begin():
            candidate = next(self.candidates, None)
            if candidate is None:
                break
            self._go_on(candidate, self._make(candidate))
        return self._ready.popleft() if self._ready else None

    def receive(self, request: Request) -> None:
        """Go on with what the target has said."""
        self._go_on(*self._under_way.pop(request))

    def out_of_time(self) -> bool:
        """Asked at every step, so what is under way is shown before anything is finished."""
        under_way = sum(len(request.tokens) for request in self._under_way)
        self._bar.set_postfix(dialogues=self._dialogues, under_way=under_way, refresh=False)
        self._bar.update(0)
        return 0 < 60 * self.options.minutes <= time.monotonic() - self._began

    def _may_begin(self) -> bool:
        """Whether one more dialogue may begin; those under way count with the average length, which
        is taken for the longest until some are known (the first to end are short)."""
        processes, under_way = self.run.processes, len(self._under_way)
        mean = (self._tokens + 20 * self.options.max_new_tokens) / (self._dialogues + 20)
        dialogues = (self._dialogues + under_way) * processes.count + processes.index
        tokens = (self._tokens + under_way * mean) * processes.count
        return dialogues < self._dialogues_left and tokens < self._tokens_left

    def _go_on(self, candidate: Candidate, making: Making) -> None:
        try:
            request = next(making)
        except StopIteration as end:
            if row := end.value:
                seconds = round(time.monotonic() - self._began, 1)
                self.run.add("dialogues", row | {"seconds": seconds})
                self._dialogues += 1
                self._tokens += sum(row["loss_mask"])
                self._bar.update(sum(row["loss_mask"]))
        except (Dropped, TemplateError) as error:
            # a template may refuse system messages, say
            reason = str(error) if isinstance(error, Dropped) else "template refuses it"
            self.run.add("dropped", {"id": candidate.number, "reason": reason})
        else:
            self._under_way[request] = candidate, making
            self._ready.append(request)

    def _make(self, candidate: Candidate) -> Making:
        """A candidate's dialogue; None if the clock cut it before it began, to be asked again."""
        conversation = candidate.conversation
        rng = random.Random(f"{self.options.seed}/{candidate.number}")
        if candidate.source == SELF:
            prefix, ends = self.chat.user_prefix()
            request = Request(prefix, TURN_TOKENS, 1.0, ends, seed=rng.getrandbits(62))
            yield request
            if not request.ended:
                return None
            conversation = [{"role": USER, "content": self._own_turn(request)}]
        if conversation is None:
            raise Dropped("malformed")
        turns = [message["content"] for message in conversation if message["role"] == USER]
        if turns[0] in self._seen:
            raise Dropped("duplicate")
        if name := next(filter(None, map(self.benchmarks.find, turns)), None):
            raise Dropped(f"in {name}")
        self._seen.add(turns[0])
        given = self.options.answers == "given" and candidate.source != SELF
        row = {"id": candidate.number, "source": candidate.source, "user": turns[0]}
        return row | (yield from self._answered(conversation, given, rng))

    def _own_turn(self, request: Request) -> str:
        """The text of a user turn that the target has written.

        Raises:
            BadInput: too few of them can be used.
        """
        turn = self.chat.text(request.tokens).strip()
        problem = "" if turn else "empty turn"
        if not request.finished:
            problem = "unfinished turn"
        self._own_turns[problem] += 1
        tried, well = self._own_turns.total(), self._own_turns[""]
        if tried >= TURNS_TRIED and well < TURNS_KEPT * tried:
            raise BadInput(
                f"source self yields too little: of {tried} user turns that the target began, "
                f"{well} said something and ended within {TURN_TOKENS} tokens; give prompts by "
                "other --sources"
            )
        if problem:
            raise Dropped(problem)
        return turn

    def _answered(self, conversation: Conversation, given: bool, rng: random.Random) -> Making:
        """The user's turns, each with the answer that is given or with the target's."""
        options = self.options
        said = [message for message in conversation if message["role"] == SYSTEM]
        turns = [message for message in conversation if message["role"] == USER]
        answers = [message for message in conversation if message["role"] == ASSISTANT]
        temperature = None if given else rng.choice(options.temperatures)
        ids: list[int] = []
        mask: list[int] = []
        reason = "no answer given"
        for turn, answer in zip(turns, answers if given else turns, strict=False):
            prompt = self.chat.prompt([*said, turn], ids)
            if prompt is None or len(prompt) > options.max_prompt_tokens:
                reason = "prompt too long"
                break
            said.append(turn)
            seed = rng.getrandbits(62)
            request = Request(prompt, options.max_new_tokens, temperature, self.end_ids, seed)
            if given:
                request.tokens = self.chat.answer([*said, answer])
            else:
                yield request
            ids = prompt + request.tokens
            mask += [0] * (len(prompt) - len(mask)) + [1] * len(request.tokens)
            said.append({"role": ASSISTANT, "content": self.chat.text(request.tokens)})
            if not request.finished:
                break
        if not ids:
            raise Dropped(reason)
        if not said[-1]["content"].strip():
            raise Dropped("empty answer")
        how = {"temperature": temperature, "finished": request.finished}
        return {"input_ids": ids, "loss_mask": mask} | how
