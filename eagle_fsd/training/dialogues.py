"""From drawn records to training dialogues: what is asked of the target, what is dropped, and why.

Candidates are numbered, and judged in the order of their numbers whatever finishes first, so that
the same dialogues are kept whether a run was broken or not. Sampling itself is generate.py's
business, files are journal.py's.
"""

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from jinja2 import TemplateError

from eagle_fsd.config import BadInput
from eagle_fsd.models.chat import Message
from eagle_fsd.training.contamination import Benchmarks
from eagle_fsd.training.generate import Completion, Request
from eagle_fsd.training.prompts import SELF, Draw
from eagle_fsd.training.template import ChatFormat

REFUSED = "template refuses it"  # the chat template raises: no system messages, say
TURN_TOKENS = 96  # a user turn of the target's own that does not end within these is thrown away
# A target that does not end its own turns would be asked for ever.
TURNS_TRIED, TURNS_KEPT = 128, 1 / 8  # after so many turns, the least share that must be usable


@dataclass(frozen=True)
class AnswerRecipe:
    """How dialogues are made; see make_data.py's options of the same names."""

    answers: str = "rewritten"
    temperatures: tuple[float, ...] = (0.0, 0.0, 0.7, 1.0)
    max_new_tokens: int = 400
    max_prompt_tokens: int = 1024
    seed: int = 0


@dataclass
class _Candidate:
    """A drawn record on its way; `messages` is None until its own user turn is there."""

    draw: Draw
    messages: list[Message] | None = None
    problem: str = ""  # why it is dropped; known before its turn to be judged


@dataclass
class _Dialogue:
    """A conversation whose answers are being written."""

    draw: Draw
    temperature: float
    open_turns: deque[str]  # user turns not asked yet
    said: list[Message]
    mask: list[int] = field(default_factory=list)  # of the tokens so far


class DialogueMaker:
    """Asks for what is needed next, and turns what comes back into rows.

    Args:
        chat: the target's chat template.
        draws: candidates in order; those already done are left out by the caller.
        records: source -> its conversations (None: malformed).
        recipe: how.
        benchmarks: prompts that are dropped.
        end_ids: tokens that end an answer.
        seen: first user turns of dialogues that are kept already.
        may_begin: given the number of dialogues under way, whether one more may begin.
        keep: called with a finished dialogue's row and its features.
        drop: called with a dropped candidate's number and the reason.
    """

    def __init__(
        self,
        chat: ChatFormat,
        draws: Iterable[Draw],
        records: dict[str, list[list[Message] | None]],
        recipe: AnswerRecipe,
        benchmarks: Benchmarks,
        *,
        end_ids: frozenset[int],
        seen: set[str],
        may_begin: Callable[[int], bool],
        keep: Callable[[dict, torch.Tensor | None], None],
        drop: Callable[[int, str], None],
    ):
        self.chat = chat
        self.records = records
        self.recipe = recipe
        self.benchmarks = benchmarks
        self.end_ids = end_ids
        self.seen = seen
        self.may_begin = may_begin
        self.keep = keep
        self.drop = drop
        self._draws: Iterator[Draw] = iter(draws)
        self._waiting: deque[_Candidate] = deque()  # in order, until all before are judged
        self._running: dict[int, _Dialogue] = {}
        self._ready: deque[Request] = deque()
        self._user_prefix = chat.user_prefix() if SELF in records else None
        self._turns: Counter[str] = Counter()  # what became of the target's own, "" is well

    def next_request(self) -> Request | None:
        """The next thing to be sampled; None if nothing is to be sampled now."""
        while not self._ready and self.may_begin(len(self._waiting) + len(self._running)):
            draw = next(self._draws, None)
            if draw is None:
                break
            if draw.source == SELF:
                self._waiting.append(_Candidate(draw))
                prefix, ends = self._user_prefix
                seed = self._seed(draw, "turn")
                return Request(("turn", draw.number), prefix, TURN_TOKENS, 1.0, ends, seed)
            messages = self.records[draw.source][draw.record]
            problem = "" if messages else "malformed"
            self._waiting.append(_Candidate(draw, messages or [], problem))
            self._judge()
        return self._ready.popleft() if self._ready else None

    def receive(self, completion: Completion) -> None:
        """Take what was sampled for a request."""
        kind, number = completion.request.key
        if kind == "turn":
            candidate = next(c for c in self._waiting if c.draw.number == number)
            turn = self.chat.text(completion.tokens).strip()
            candidate.messages = [{"role": "user", "content": turn}]
            if not completion.finished:
                candidate.problem = "unfinished turn"
            elif not turn:
                candidate.problem = "empty turn"
            self._turns[candidate.problem] += 1
            self._check_turns()
            self._judge()
        else:
            self._receive_answer(self._running[number], completion)

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

    def _judge(self) -> None:
        """Accept or drop the candidates at the front that are known."""
        while self._waiting and self._waiting[0].messages is not None:
            candidate = self._waiting.popleft()
            problem = candidate.problem or self._problem(candidate)
            if problem:
                self.drop(candidate.draw.number, problem)
            else:
                self.seen.add(_first_turn(candidate.messages))
                self._begin(candidate)

    def _problem(self, candidate: _Candidate) -> str:
        messages = candidate.messages
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
        return "prompt too long" if len(prompt) > self.recipe.max_prompt_tokens else ""

    def _begin(self, candidate: _Candidate) -> None:
        draw, messages = candidate.draw, candidate.messages
        if self.recipe.answers == "given" and draw.source != SELF:
            return self._keep_given(draw, messages)
        turns = deque(m["content"] for m in messages if m["role"] == "user")
        said = [m for m in messages[:1] if m["role"] == "system"]
        said.append({"role": "user", "content": turns.popleft()})
        temperature = random.Random(self._seed(draw, "temperature")).choice(
            self.recipe.temperatures
        )
        dialogue = _Dialogue(draw, temperature, turns, said)
        self._running[draw.number] = dialogue
        self._ask(dialogue, self.chat.prompt(said))

    def _keep_given(self, draw: Draw, messages: list[Message]) -> None:
        if messages[-1]["role"] == "user":
            messages = messages[:-1]
        if not any(m["role"] == "assistant" for m in messages):
            return self.drop(draw.number, "no answer given")
        try:
            tokens = self.chat.given(messages)
        except TemplateError:
            return self.drop(draw.number, REFUSED)
        if tokens is None or 1 not in tokens[1]:
            return self.drop(draw.number, "template differs")
        row = self._row(draw, messages, *tokens)
        self.keep({**row, "temperature": None, "finished": True}, None)

    def _ask(self, dialogue: _Dialogue, ids: list[int]) -> None:
        """Request the next answer; tokens that came before it were asked, not answered."""
        dialogue.mask += [0] * (len(ids) - len(dialogue.mask))
        number = dialogue.draw.number
        self._ready.append(
            Request(
                ("answer", number),
                ids,
                self.recipe.max_new_tokens,
                dialogue.temperature,
                self.end_ids,
                self._seed(dialogue.draw, f"answer {len(dialogue.said)}"),
            )
        )

    def _receive_answer(self, dialogue: _Dialogue, completion: Completion) -> None:
        ids = completion.request.ids + completion.tokens
        answer = self.chat.text(completion.tokens)
        dialogue.mask += [1] * len(completion.tokens)
        dialogue.said.append({"role": "assistant", "content": answer})
        if completion.finished and dialogue.open_turns:
            turn = dialogue.open_turns.popleft()
            try:
                longer = self.chat.extend(ids, dialogue.said, turn)
            except TemplateError:
                del self._running[dialogue.draw.number]
                return self.drop(dialogue.draw.number, REFUSED)
            if longer is not None and len(longer) <= self.recipe.max_prompt_tokens:
                dialogue.said.append({"role": "user", "content": turn})
                return self._ask(dialogue, longer)
        del self._running[dialogue.draw.number]
        if not answer.strip():
            return self.drop(dialogue.draw.number, "empty answer")
        row = self._row(dialogue.draw, dialogue.said, ids, dialogue.mask)
        row |= {"temperature": dialogue.temperature, "finished": completion.finished}
        self.keep(row, completion.features_LD)

    def _row(
        self, draw: Draw, messages: list[Message], ids: list[int], mask: list[int]
    ) -> dict[str, object]:
        return {
            "id": draw.number,
            "source": draw.source,
            "user": _first_turn(messages),
            "answers": sum(m["role"] == "assistant" for m in messages),
            "input_ids": ids,
            "loss_mask": mask,
        }

    def _seed(self, draw: Draw, what: str) -> int:
        """Of a draw's randomness: by the run's seed, the draw's number, and what it is for."""
        return random.Random(f"{self.recipe.seed}/{draw.number}/{what}").getrandbits(62)


def _first_turn(messages: list[Message]) -> str:
    return next(m["content"] for m in messages if m["role"] == "user")
