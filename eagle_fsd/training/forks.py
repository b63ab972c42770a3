"""Forks: an answer of the target in which one drafted token was put in the place of its own, and
which the target then went on with alone.

    plain    It  takes  4  more  ,  so  12
    drafts           `- 5  `- to
    fork     It  takes  5  more  ,  so  13        harm 1: it comes to another number
    fork     It  takes  4  to  ..        12       harm 0

The plain answers are made in a batch. Exact decoding of them is then replayed (drafters/walk.py),
which shows at every place what was drafted. Some of the places at which rounds end, since the exact
token was not drafted, or some of all places are forked, by a drafted token or, for comparison, by
one drawn from the plain answers. What a rule could know of the fork is recorded
(heads/harm_model.py), and so is what became of it.

Axes: N nodes, L tokens of a text, F features, V vocabulary, C drafts.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import torch
from tqdm import tqdm

from eagle_fsd.config import BadInput, SamplingConfig
from eagle_fsd.decoding.cache import TreeCache
from eagle_fsd.decoding.columns import Rows
from eagle_fsd.decoding.drafter import Drafter
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.drafters.walk import TOKENS_BEYOND_END, PlainText, walk
from eagle_fsd.heads.harm_model import SIGNALS, signals
from eagle_fsd.models.generate import Request, complete
from eagle_fsd.runs.folder import Run

TOGETHER = 256  # questions; all of them are answered before any is forked
BY_CHANCE = 0.2  # share of the forks whose token is one by chance
NGRAM = 4  # tokens; for answers that come to nothing that can be compared

Outcome = Callable[[list[int]], object]  # what an answer's tokens come to; None: to nothing


@dataclass(frozen=True)
class Prompt:
    """A question to be answered.

    Attributes:
        outcome: what tells two answers to it apart; None: the text itself does.
    """

    question_id: int | str
    category: str
    ids: list[int]
    outcome: Outcome | None


@dataclass
class ForkMiner:
    """Makes plain answers and their forks, and records both in `run`: "texts", and "forks", one a
    line with its SIGNALS, its place in the answer and its `harm`, 0 to 1.

    Attributes:
        drafter: with trees of a head, of TOKENS_BEYOND_END levels at most.
        stops: tokens that end an answer.
        forks: of each answer, at most.
        everywhere: fork also where the exact token was drafted.
    """

    target: Target
    drafter: Drafter
    stops: frozenset[int]
    run: Run
    max_new_tokens: int
    forks: int
    seed: int
    batch_size: int
    everywhere: bool = False

    def mine(self, prompts: Sequence[Prompt]) -> None:
        """What is missing of these questions."""
        done = self.run.records["done"]
        with tqdm(total=len(prompts), desc="questions", smoothing=0) as bar:
            # by their places in the list, whatever is done: chance tokens are those of a part
            for first in range(0, len(prompts), TOGETHER):
                part = prompts[first : first + TOGETHER]
                missing = [p for p in part if (p.question_id, 0) not in done]
                bar.update(len(part) - len(missing))
                self._answer(part)
                self._fork(part, missing, bar)

    def _answer(self, prompts: Sequence[Prompt]) -> None:
        """Record their plain answers."""
        texts = self.run.records["texts"]
        for prompt in prompts:
            stored = texts.get((prompt.question_id, 0), {"prompt_ids": prompt.ids})
            if stored["prompt_ids"] != prompt.ids:
                raise BadInput(
                    f"{self.run.folder} answered another question {prompt.question_id!r}: name "
                    "another folder, or give the questions that it was begun with"
                )
        missing = [p for p in prompts if (p.question_id, 0) not in texts]
        requests = {
            Request(p.ids, self.max_new_tokens, stops=self.stops): p.question_id for p in missing
        }
        made = complete(self.target, requests, batch_size=self.batch_size)
        for request in tqdm(made, total=len(requests), desc="answers", leave=False):
            row = {"question_id": requests[request], "prompt_ids": request.prompt}
            row |= {"answer_ids": request.tokens, "finished": request.finished}
            self.run.add("texts", row)

    def _fork(self, part: Sequence[Prompt], missing: Sequence[Prompt], bar: tqdm) -> None:
        """Record the forks of the answers to the missing ones, and that these are done."""
        texts = {p.question_id: self.run.records["texts"][p.question_id, 0] for p in part}
        usual = [token for row in texts.values() for token in row["answer_ids"]]
        waiting: Counter = Counter()  # forks of a question that are not recorded
        wanted: dict[int | str, int] = {}
        origin: dict[Request, tuple[Prompt, dict]] = {}

        def finish(question_id: int | str) -> None:
            if not waiting[question_id]:
                self.run.add("done", {"question_id": question_id, "forks": wanted[question_id]})
                bar.update()

        def requests() -> Iterator[Request]:
            for prompt in missing:
                key, answer = prompt.question_id, texts[prompt.question_id]["answer_ids"]
                rows, cache = self._places(prompt, texts[key], usual)
                wanted[key] = len(rows)
                rows = [
                    row for row in rows if (key, row["choice"]) not in self.run.records["forks"]
                ]
                waiting[key] = len(rows)
                finish(key)
                for row in rows:
                    begun = [*prompt.ids, *answer[: row["place"]], row["token"]]
                    room = self.max_new_tokens - row["place"] - 1
                    if row["token"] in self.stops or not room:  # it ends there
                        record(prompt, row, [])
                        continue
                    request = Request(begun, room, stops=self.stops, begun=cache)
                    origin[request] = prompt, row
                    yield request

        def record(prompt: Prompt, row: dict, further: list[int]) -> None:
            answer, place = texts[prompt.question_id]["answer_ids"], row["place"]
            tokens = [*answer[:place], row["token"], *further]
            row |= {"tokens": further, "harm": harm(prompt, answer, tokens, place)}
            self.run.add("forks", row)
            waiting[prompt.question_id] -= 1
            finish(prompt.question_id)

        ended = complete(self.target, requests(), batch_size=self.batch_size)
        for request in tqdm(ended, desc="forks", leave=False):
            record(*origin.pop(request), request.tokens)

    def _places(
        self, prompt: Prompt, text: dict, usual: Sequence[int]
    ) -> tuple[list[dict], TreeCache | None]:
        """The forks to be made of an answer, by a random draw that depends on its question alone;
        none of an answer that was cut off or comes to nothing. And the cache of its text, unless
        the target has states, which cannot be cut."""
        answer = text["answer_ids"]
        comes_to = prompt.outcome and prompt.outcome(answer)
        if prompt.outcome and (not text["finished"] or comes_to is None):
            return [], None
        chosen = random.Random(f"{self.seed}/{prompt.question_id}")
        # behind its end anything may stand: no root reaches it
        plain = PlainText(prompt.ids, answer, answer[-1:] * TOKENS_BEYOND_END)
        cache = None if self.target.has_states else self.target.new_cache(len(plain.ids))
        found = list(self._candidates(plain, cache))
        if not text["finished"]:  # what follows is the outcome
            found = [place for place in found if place.number < len(answer) - NGRAM]
        found = chosen.sample(found, min(self.forks, len(found)))
        rows = []
        for number, place in enumerate(sorted(found, key=lambda place: place.number)):
            token, values = chosen.choice(place.drafted)
            exact = answer[place.number]
            row = {"question_id": prompt.question_id, "category": prompt.category}
            row |= {"choice": number, "place": place.number, "exact_drafted": place.exact_drafted}
            row |= {"exact": exact, "token": token, "kind": "draft"}
            row |= dict(zip(SIGNALS, values, strict=True))
            if chosen.random() < BY_CHANCE:
                other = [t for t in chosen.sample(usual, min(64, len(usual))) if t != exact]
                if other:
                    row |= {"kind": "chance", "token": other[0]}
                    row |= {"regret": None}  # it would be the draft's
            rows.append(row)
        return rows, cache

    @torch.inference_mode()
    def _candidates(self, text: PlainText, cache: TreeCache | None) -> "Iterator[Place]":
        """Every place of the answer at which other tokens than its own were drafted: those at which
        rounds end, and if `everywhere` the others too."""
        hidden_LD, features_LF = text.states(self.target, cache)
        for root, tree, path in walk(self.drafter, text.ids, text.roots, features_LF, self.stops):
            first = root - len(text.prompt) + 1  # the place of the round's first token
            end = min(len(path), len(text.answer) - first)  # behind it the answer has ended
            begin = 0 if self.everywhere else len(path) - 1
            below = signals_below(
                self.target, tree, path[begin:end], hidden_LD[root + begin :], answered=first
            )
            for depth, drafted in enumerate(below, start=begin):
                place = first + depth
                others = [(t, values) for t, values in drafted if t != text.answer[place]]
                if others:
                    yield Place(place, depth + 1 < len(path), others)


@dataclass(frozen=True)
class Place:
    """A place of an answer.

    Attributes:
        number: how many of the answer's tokens come before.
        exact_drafted: its own token was drafted too.
        drafted: each other token that was, with its SIGNALS.
    """

    number: int
    exact_drafted: bool
    drafted: list[tuple[int, list[float]]]


def signals_below(
    target: Target, tree: DraftTree, nodes: list[int], hidden_LD: torch.Tensor, *, answered: int
) -> list[list[tuple[int, list[float]]]]:
    """Of each of the nodes, the drafts behind it and their SIGNALS, where these are finite.

    Args:
        hidden_LD: the target's states at the nodes, in their order; what follows is not read.
    """
    parents = tree.parent_N.tolist()
    below = [[c for c in range(1, tree.size) if parents[c] == node] for node in nodes]
    child_C = torch.tensor(list(chain(*below)), dtype=torch.int64, device=tree.token_N.device)
    if not len(child_C):
        return [[] for _ in nodes]
    logits_MV = target.logits(hidden_LD[: len(nodes)])
    logits_NV = logits_MV.new_zeros(tree.size, logits_MV.shape[1])
    node_M = torch.tensor(nodes, device=logits_NV.device)
    logits_NV[node_M] = logits_MV
    row_C = torch.tensor([m for m, of in enumerate(below) for _ in of], device=node_M.device)
    token_C = tree.token_N[child_C]
    rows = Rows(tree, logits_NV, node_M, row_C, token_C, SamplingConfig())
    found = zip(token_C.tolist(), signals(rows, answered).tolist(), strict=True)
    each = [[*islice(found, len(of))] for of in below]
    # of what has no probability at all nothing can be learnt
    return [[(t, v) for t, v in drafted if all(map(math.isfinite, v))] for drafted in each]


def harm(prompt: Prompt, plain: list[int], fork: list[int], place: int) -> float:
    """1 where the fork comes to another end than the plain answer, else 0. Of answers that come to
    nothing: the share of the plain answer's n-grams behind the place that the fork lacks."""
    if prompt.outcome:
        return float(prompt.outcome(fork) != prompt.outcome(plain))
    later = ngrams(plain[place + 1 :])
    return 1 - sum((later & ngrams(fork[place + 1 :])).values()) / max(1, sum(later.values()))


def ngrams(tokens: Sequence[int]) -> Counter:
    """Of NGRAM tokens, or the whole where it is shorter."""
    return Counter(tuple(tokens[i : i + NGRAM]) for i in range(max(1, len(tokens) - NGRAM + 1)))
