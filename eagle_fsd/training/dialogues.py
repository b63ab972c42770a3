"""From candidates to training dialogues: what is asked of the target, what is dropped, and why.

What is random about a candidate depends on its number, so that a broken run and an unbroken one
make the same dialogues. (Of two that the target begins with the same words, the one whose turn ends
first in a session is answered, and the other dropped.) The batch stays full: a dialogue's next turn
waits for a place in it, and others begin where none waits. Sampling itself is generate.py's.
"""

import math
import random
import sys
import time
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import torch
from tqdm import tqdm

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.target import Target
from eagle_fsd.models.chat import control_tokens
from eagle_fsd.models.generate import Request, complete
from eagle_fsd.runs.folder import Run
from eagle_fsd.thoughts import answer_message, find_thought
from eagle_fsd.timing import held_gigabytes
from eagle_fsd.training.chat_format import ChatFormat
from eagle_fsd.training.features import TargetStates
from eagle_fsd.training.prompts import SELF, Benchmarks, Candidate, Conversation

PROMPT_TOKENS = 1024  # the most of a prompt, earlier turns included
TURN_TOKENS = 96  # a user turn of the target's own that does not end within these is thrown away
# of the first 128 of them an eighth must be usable: a target that does not end its own turns would
# be asked for ever
TURNS_TRIED, TURNS_KEPT = 128, 1 / 8
TOKENS_PLANNED = 32  # of each answer that is timed for a plan

# Yields what the target is to say next, goes on when that has been said, or when time has ended and
# it was not begun, and returns rows.
Making = Generator[Request, None, list[dict] | None]


class Dropped(Exception):  # noqa: N818  (no error)
    """A candidate becomes no dialogue; the text says why."""


@dataclass
class DialogueMaker:
    """Makes candidates into dialogues while the limits allow, and records what becomes of them."""

    run: Run  # with what was made before; gets "dialogues" and "dropped"
    candidates: Iterator[Candidate]  # those of this process, without the ones that are done
    chat: ChatFormat
    benchmarks: Benchmarks
    end_ids: frozenset[int]  # of an answer
    most_prompt_tokens: int  # earlier turns included
    states: TargetStates | None  # keeps the target's states of every dialogue
    # options of train/make_data.py
    temperatures: list[float]
    max_new_tokens: int
    seed: int
    dialogues: int
    answer_tokens: int
    minutes: float

    def __post_init__(self):
        rows = self.run.records["dialogues"].values()
        before = sum(sum(row["loss_mask"]) for row in rows)
        made = {row["id"] for row in rows}
        self._seen = {row["user"] for row in rows}
        self._began = time.monotonic() - max((row["seconds"] for row in rows), default=0.0)
        self._dialogues_left = (self.dialogues or math.inf) - len(made)
        self._tokens_left = (self.answer_tokens or math.inf) - before
        self._dialogues = self._tokens = 0  # of this process and session
        self._turns_tried = self._turns_kept = 0  # of the target's own
        # of each dialogue what the target says now or is to say, its number and the rest of it
        self._under_way: dict[Request, tuple[int, Making]] = {}
        self._next: deque[Request] = deque()  # of these, what was not asked for yet
        shown = self.run.processes.is_main
        if rows and shown:
            tqdm.write(
                f"goes on after {len(made)} dialogues with {before} answer tokens", file=sys.stderr
            )
        # what the nearest limit counts, so that the time left can be told: of answer tokens, of
        # dialogues, or of nothing where minutes end it
        self._counts_tokens = bool(self.answer_tokens) or not self.dialogues
        self._bar = tqdm(
            desc="making dialogues",
            unit="token" if self._counts_tokens else "dialogue",
            total=self.answer_tokens or self.dialogues or None,
            initial=before if self._counts_tokens else len(made),
            leave=False,
            miniters=0,
            disable=not shown,
        )
        self._before = before, len(made)

    def plan(self, target: Target, *, batch_size: int) -> str:
        """How much is left to do, for people, by what was made so far, or by a few answers that are
        not kept."""
        rows = [*self.run.records["dialogues"].values()]
        seconds = max((row["seconds"] for row in rows), default=0.0)
        tokens, count = self._before[0], self.run.processes.count
        if not seconds:
            prompt = self.chat.prompt([*self.chat.opening, {"role": "user", "content": "Hi"}])
            few = [
                Request(prompt, TOKENS_PLANNED, 1.0, seed=number) for number in range(batch_size)
            ]
            began, said = time.monotonic(), complete(target, few, batch_size=batch_size)
            tokens = count * sum(len(request.tokens) for request in said)
            seconds = time.monotonic() - began
        rate = tokens / seconds
        text = f"{len(rows)} dialogues with {self._before[0]} answer tokens are there; {rate:.0f}"
        text += f" tokens a second, {held_gigabytes(target.device):.3g} GB"
        if self.answer_tokens:
            left = max(0, self.answer_tokens - self._before[0])
            text += f"; the {left} to be made take {left / rate / 3600:.2g} hours"
        return text

    def make(self, target: Target, *, batch_size: int) -> None:
        """Dialogues, `batch_size` under way at a time, until the limits or the candidates end."""
        asked = self._asked()
        for request in complete(target, asked, batch_size=batch_size, stop=self._out_of_time):
            self._go_on(*self._under_way.pop(request))
        # where time ended, dialogues whose turn was not begun end with the answers that they have
        while self._under_way:
            self._go_on(*self._under_way.popitem()[1])

    def _asked(self) -> Iterator[Request | None]:
        """What the target is to say; None as long as that depends on dialogues under way."""
        count = self.run.processes.count
        while True:
            # 1. Dialogues that go on come before others that begin.
            if self._next:
                yield self._next.popleft()
                continue
            # 2. Another may begin where those under way do not reach a limit. They count with the
            # average length, that of the longest answer until some are known.
            begun = len(self._under_way)
            mean = (self._tokens + 20 * self.max_new_tokens) / (self._dialogues + 20)
            tokens = (self._tokens + begun * mean) * count
            dialogues = (self._dialogues + begun) * count + self.run.processes.index
            within = tokens < self._tokens_left and dialogues < self._dialogues_left
            # 3. It asks for its first turn, unless it is dropped; where none begins, some must end.
            if within and not self._out_of_time() and (found := next(self.candidates, None)):
                self._go_on(found[0], self._make(*found))
            else:
                yield None

    def _go_on(self, number: int, making: Making) -> None:
        """Ask for what a dialogue wants next; one that is made or dropped is recorded."""
        try:
            request = next(making)
            self._under_way[request] = number, making
            self._next.append(request)
        except StopIteration as end:
            if rows := end.value:
                seconds = round(time.monotonic() - self._began, 1)
                self.run.add("dialogues", *(row | {"seconds": seconds} for row in rows))
                self._dialogues += 1
                self._tokens += sum(sum(row["loss_mask"]) for row in rows)
        except Dropped as reason:
            self.run.add("dropped", {"id": number, "reason": str(reason)})

    def _out_of_time(self) -> bool:
        """Asked at every step, so what is under way is shown before anything is finished."""
        count, (tokens, dialogues) = self.run.processes.count, self._before
        under_way = sum(len(request.tokens) for request in self._under_way)
        tokens += count * (self._tokens + under_way)
        dialogues += count * self._dialogues
        shown = {"dialogues": dialogues} if self._counts_tokens else {"answer_tokens": tokens}
        self._bar.set_postfix(shown, refresh=False)
        # answers under way may go beyond the limit, where a bar would lose its end
        now = min(tokens if self._counts_tokens else dialogues, self._bar.total or math.inf)
        self._bar.update(max(0, now - self._bar.n))  # shown when the bar's interval is over
        return 0 < 60 * self.minutes <= time.monotonic() - self._began

    def _make(self, number: int, source: str, conversation: Conversation | str | None) -> Making:
        """A candidate's dialogue; None if the clock cut it before its first answer, to be asked
        again."""
        rng = random.Random(f"{self.seed}/{number}")
        if source == SELF:
            prefix, ends = self.chat.user_prefix()
            request = Request(prefix, TURN_TOKENS, 1.0, ends, seed=rng.getrandbits(62))
            yield request
            if not request.ended:
                return None
            conversation = [{"role": "user", "content": self._own_turn(request)}]
        if isinstance(conversation, str):
            raise Dropped(conversation)  # a malformed one
        first = next(m["content"] for m in conversation if m["role"] == "user")
        if first in self._seen:
            raise Dropped("duplicate")
        for message in conversation:
            self._refuse_benchmark(message["content"])
        self._seen.add(first)
        named = {"id": number, "source": source, "user": first}
        asked = [m["content"] for m in conversation if m["role"] != "assistant"]
        if spelt_out := control_tokens(self.chat.tokenizer, "\n".join(asked)):
            named["control_tokens"] = len(spelt_out)
        rows = yield from self._answered(conversation, rng)
        for row in rows or ():
            pieces = row.pop("states")
            if self.states is not None:
                self.states.keep(row["input_ids"], torch.cat(pieces))
        return rows and [named | {"part": part} | row for part, row in enumerate(rows)]

    def _refuse_benchmark(self, text: str) -> None:
        if name := self.benchmarks.find(text):
            raise Dropped(f"in {name}")

    def _said(self, request: Request) -> str:
        """The text of what was sampled, without its end token."""
        return self.chat.tokenizer.decode(request.tokens, skip_special_tokens=True)

    def _own_turn(self, request: Request) -> str:
        """The text of a user turn that the target has written."""
        turn = self._said(request).strip() if request.finished else ""
        self._turns_tried += 1
        self._turns_kept += bool(turn)
        tried, kept = self._turns_tried, self._turns_kept
        if tried >= TURNS_TRIED and kept < TURNS_KEPT * tried:
            raise BadInput(
                f"source self yields too little: of {tried} user turns that the target began "
                f"{kept} said something and ended within {TURN_TOKENS} tokens; give other --sources"
            )
        if not turn:
            raise Dropped("unfinished or empty turn")
        return turn

    def _answered(self, conversation: Conversation, rng: random.Random) -> Making:
        """The rows of the user's turns, each answered by the target until time ends, with its
        states; None if none was. There is one row, unless the template writes the past differently
        once it goes on (drops what was thought, say): what the target then sees begins another."""
        temperature = rng.choice(self.temperatures)
        said = [message for message in conversation if message["role"] == "system"]
        said = said or self.chat.opening
        ids: list[int] = []  # of the last row
        whole = True  # its text shows all of the last answer's tokens but the end
        rows: list[dict] = []
        spoken = ""  # the text of all answers
        for turn in [message for message in conversation if message["role"] == "user"]:
            # 1. What the target sees, and its answer.
            try:
                prompt = self.chat.prompt([*said, turn], ids if whole else ())
            # system messages, say; a template that takes none ends before
            except BadInput as error:
                raise Dropped("template refuses it") from error
            if len(prompt) > self.most_prompt_tokens:
                break
            seed, kept = rng.getrandbits(62), None if self.states is None else []
            request = Request(
                prompt, self.max_new_tokens, temperature, self.end_ids, seed, states=kept
            )
            yield request
            if not request.tokens:  # time ended before it was begun
                if not rows:
                    return None
                break
            # 2. The row goes on, or another begins.
            if not rows or prompt[: len(ids)] != ids:
                rows.append({"loss_mask": [], "temperature": temperature})
            ids, mask = prompt + request.tokens, rows[-1]["loss_mask"]
            mask += [0] * (len(prompt) - len(mask)) + [1] * len(request.tokens)
            rows[-1] |= {"input_ids": ids, "finished": request.finished, "states": kept}
            # 3. What is said by now.
            text = self._said(request)
            self._refuse_benchmark(text)
            whole = self.chat.tokenizer.decode(request.tokens[:-1]) == text
            thought = find_thought(self.chat.tokenizer, prompt, request.tokens, text)
            said += [turn, answer_message(text, thought)]
            spoken += text
            if not (request.finished and text.strip()):  # an empty answer ends a dialogue
                break
        if not rows:
            raise Dropped("prompt too long")
        if not spoken.strip():
            raise Dropped("empty answer")
        return rows
