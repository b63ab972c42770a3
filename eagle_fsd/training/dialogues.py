"""From drawn records to training dialogues: what is asked of the target, what is dropped, and why.

Draws are numbered, and what is random about one depends on its number, so that a broken run and an
unbroken one make the same dialogues. (Of two that the target begins with the same words, the one
whose turn ends first is kept.) Sampling itself is generate.py's business, files are journal.py's.
"""

import random
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator

from jinja2 import TemplateError

from eagle_fsd.config import BadInput
from eagle_fsd.models.chat import Message
from eagle_fsd.models.generate import Completion, Request
from eagle_fsd.training.contamination import Benchmarks
from eagle_fsd.training.data_options import DataOptions
from eagle_fsd.training.prompts import SELF, Draw
from eagle_fsd.training.template import ChatFormat

REFUSED = "template refuses it"  # the chat template raises: no system messages, say
TURN_TOKENS = 96  # a user turn of the target's own that does not end within these is thrown away
# A target that does not end its own turns would be asked for ever.
TURNS_TRIED, TURNS_KEPT = 128, 1 / 8  # after so many turns, the least share that must be usable


Row = dict[str, object]  # a finished dialogue as it is written


class DialogueMaker:
    """Asks for what is needed next, and turns what comes back into rows.

    Args:
        chat: the target's chat template.
        draws: candidates in order; those already done are left out by the caller.
        records: source -> its conversations (None: malformed).
        options: how.
        benchmarks: prompts that are dropped.
        end_ids: tokens that end an answer.
        seen: first user turns of dialogues that are kept already.
        may_begin: given the number of dialogues under way, whether one more may begin.
        keep: called with a finished dialogue's row.
        drop: called with a dropped candidate's number and the reason.
    """

    def __init__(
        self,
        chat: ChatFormat,
        draws: Iterable[Draw],
        records: dict[str, list[list[Message] | None]],
        options: DataOptions,
        benchmarks: Benchmarks,
        *,
        end_ids: frozenset[int],
        seen: set[str],
        may_begin: Callable[[int], bool],
        keep: Callable[[Row], None],
        drop: Callable[[int, str], None],
    ):
        self.chat = chat
        self.records = records
        self.options = options
        self.benchmarks = benchmarks
        self.end_ids = end_ids
        self.seen = seen
        self.may_begin = may_begin
        self.keep = keep
        self.drop = drop
        self._draws: Iterator[Draw] = iter(draws)
        self._asked = 0  # user turns that the target is writing
        self._running: dict[int, Generator[Request, Completion, Row | str]] = {}
        self._ready: deque[Request] = deque()
        self._user_prefix = chat.user_prefix() if SELF in records else None
        self._turns: Counter[str] = Counter()  # what became of the target's own, "" is well

    def next_request(self) -> Request | None:
        """The next thing to be sampled; None if nothing is to be sampled now."""
        while not self._ready and self.may_begin(self._asked + len(self._running)):
            draw = next(self._draws, None)
            if draw is None:
                break
            if draw.source == SELF:
                self._asked += 1
                prefix, ends = self._user_prefix
                seed = self._seed(draw, "turn")
                return Request(draw, prefix, TURN_TOKENS, 1.0, ends, seed)
            messages = self.records[draw.source][draw.record]
            self._begin(draw, messages or [], "" if messages else "malformed")
        return self._ready.popleft() if self._ready else None

    def receive(self, completion: Completion) -> None:
        """Take what was sampled for a request."""
        draw = completion.request.key
        if draw.number in self._running:
            return self._go_on(draw, completion)
        if not completion.finished and len(completion.tokens) < TURN_TOKENS:
            return  # the clock cut a user turn: more time asks for it again
        self._asked -= 1
        turn = self.chat.text(completion.tokens).strip()
        problem = "" if turn else "empty turn"
        if not completion.finished:
            problem = "unfinished turn"
        self._turns[problem] += 1
        self._check_turns()
        self._begin(draw, [{"role": "user", "content": turn}], problem)

    def _check_turns(self) -> None:
        """Refuse a target that cannot write user turns.

        Raises:
            BadInput: names what became of them.
        """
        tried = self._turns.total()
        if tried >= TURNS_TRIED and self._turns[""] < TURNS_KEPT * tried:
            found = ", ".join(f"{n} {problem}" for problem, n in self._turns.items() if problem)
            raise BadInput(
                f"source self yields too little: of {tried} user turns that the target began, "
                f"{self._turns['']} ended within {TURN_TOKENS} tokens ({found}); give prompts by "
                "other --sources"
            )

    def _problem(self, messages: list[Message]) -> str:
        if _first_turn(messages) in self.seen:
            return "duplicate"
        for message in messages:
            if message["role"] == "user" and (name := self.benchmarks.find(message["content"])):
                return f"in {name}"
        first = 2 if messages[0]["role"] == "system" else 1
        try:
            prompt = self.chat.prompt(messages[:first])
        except TemplateError:
            return REFUSED
        return "prompt too long" if len(prompt) > self.options.max_prompt_tokens else ""

    def _begin(self, draw: Draw, messages: list[Message], problem: str) -> None:
        """Go on from a candidate's user turns, unless there is a problem with them."""
        problem = problem or self._problem(messages)
        if problem:
            return self._end(draw, problem)
        self.seen.add(_first_turn(messages))
        if self.options.answers == "given" and draw.source != SELF:
            return self._end(draw, self._given(draw, messages))
        self._running[draw.number] = self._rewritten(draw, messages)
        self._go_on(draw, None)

    def _go_on(self, draw: Draw, completion: Completion | None) -> None:
        """Hand a dialogue what was sampled for it, and take its next request or its end."""
        try:
            self._ready.append(self._running[draw.number].send(completion))
        except StopIteration as end:
            del self._running[draw.number]
            self._end(draw, end.value)

    def _end(self, draw: Draw, outcome: Row | str) -> None:
        if isinstance(outcome, str):
            self.drop(draw.number, outcome)
        else:
            self.keep(outcome)

    def _given(self, draw: Draw, messages: list[Message]) -> Row | str:
        """A dialogue with the data's own answers, or why it is dropped."""
        if messages[-1]["role"] == "user":
            messages = messages[:-1]
        if not any(m["role"] == "assistant" for m in messages):
            return "no answer given"
        try:
            tokens = self.chat.given(messages)
        except TemplateError:
            return REFUSED
        if tokens is None or 1 not in tokens[1]:
            return "template differs"
        return self._row(draw, messages, *tokens, temperature=None, finished=True)

    def _rewritten(
        self, draw: Draw, messages: list[Message]
    ) -> Generator[Request, Completion, Row | str]:
        """A dialogue whose answers the target writes, turn by turn: yields what is to be sampled,
        is sent what was, and returns its row or why it is dropped."""
        seed = self._seed(draw, "temperature")
        temperature = random.Random(seed).choice(self.options.temperatures)
        said = [m for m in messages[:1] if m["role"] == "system"]
        ids: list[int] = []
        mask: list[int] = []
        for turn in [m for m in messages if m["role"] == "user"]:
            try:
                longer = (
                    self.chat.extend(ids, said, turn["content"])
                    if ids
                    else self.chat.prompt([*said, turn])
                )
            except TemplateError:
                return REFUSED
            if longer is None or len(longer) > self.options.max_prompt_tokens:
                break  # of the first turn it is known that it is short enough
            said.append(turn)
            completion = yield Request(
                draw,
                longer,
                self.options.max_new_tokens,
                temperature,
                self.end_ids,
                self._seed(draw, f"answer {len(said)}"),
            )
            # tokens that came before the answer were asked
            mask += [0] * (len(longer) - len(mask)) + [1] * len(completion.tokens)
            ids = longer + completion.tokens
            said.append({"role": "assistant", "content": self.chat.text(completion.tokens)})
            if not completion.finished:
                break
        if not said[-1]["content"].strip():
            return "empty answer"
        return self._row(
            draw, said, ids, mask, temperature=temperature, finished=completion.finished
        )

    def _row(
        self, draw: Draw, messages: list[Message], ids: list[int], mask: list[int], **how: object
    ) -> Row:
        return {
            "id": draw.number,
            "source": draw.source,
            "user": _first_turn(messages),
            "answers": sum(m["role"] == "assistant" for m in messages),
            "input_ids": ids,
            "loss_mask": mask,
            **how,
        }

    def _seed(self, draw: Draw, what: str) -> int:
        """The seed of a draw: by the run's seed, the draw's number, and what it is for."""
        return random.Random(f"{self.options.seed}/{draw.number}/{what}").getrandbits(62)


def _first_turn(messages: list[Message]) -> str:
    return next(m["content"] for m in messages if m["role"] == "user")
