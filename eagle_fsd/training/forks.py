"""Forks: an answer of the target in which one drafted token was put in the place of its own, and
which the target then went on with alone.

    plain    It  takes  4  more  ,  so  12
    drafts           `- 5  `- to
    fork     It  takes  5  more  ,  so  13        harm 1: it comes to another number
    fork     It  takes  4  to  ..        12       harm 0

The plain answers are made in a batch. Exact decoding of them is then replayed (drafters/walk.py),
which shows at every place what was drafted, and some of the places at which the exact token was not
drafted are forked, by a drafted token or, for comparison, by one drawn from the plain answers. What
a rule could know of the fork is recorded (heads/harm_model.py), and so is what became of it.

Axes: N nodes, L tokens of a text, F features, V vocabulary, C drafts.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from tqdm import tqdm

from eagle_fsd.config import SamplingConfig
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
CHANCE_EVERY = 5  # of the forks of a text one in so many is by chance
NGRAM = 4  # tokens; for answers that come to nothing that can be compared

Outcome = Callable[[list[int]], object]  # what an answer's tokens come to; None: to nothing


@dataclass(frozen=True)
class Prompt:
    """A question to be answered.

    Attributes:
        outcome: what tells two answers to it apart; None: the text itself does.
        worth: whether an answer is to be forked; None: any that comes to something.
    """

    question_id: int | str
    category: str
    ids: list[int]
    outcome: Outcome | None
    worth: Callable[[list[int]], bool] | None = None


@dataclass
class ForkMiner:
    """Makes plain answers and their forks, and records both in `run`: "texts", and "forks", one a
    line with its SIGNALS, its place in the answer and its `harm`, 0 to 1.

    Attributes:
        drafter: with trees of a head, of TOKENS_BEYOND_END levels at most.
        stops: tokens that end an answer.
        forks: of each answer, at most.
    """

    target: Target
    drafter: Drafter
    stops: frozenset[int]
    run: Run
    max_new_tokens: int
    forks: int
    seed: int
    batch_size: int

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
        none of an answer that was cut off, comes to nothing or is not worth it. And the cache of
        its text, unless the target has states, which cannot be cut."""
        answer = text["answer_ids"]
        comes_to = prompt.outcome and prompt.outcome(answer)
        if prompt.outcome and (not text["finished"] or comes_to is None):
            return [], None
        if prompt.worth and not prompt.worth(answer):
            return [], None
        chosen = random.Random(f"{self.seed}/{prompt.question_id}")
        # behind its end anything may stand: no root reaches it
        plain = PlainText(prompt.ids, answer, answer[-1:] * TOKENS_BEYOND_END)
        cache = None if self.target.has_states else self.target.new_cache(len(plain.ids))
        found = list(self._candidates(plain, cache))
        if not text["finished"]:  # what follows is the outcome
            found = [(place, of) for place, of in found if place < len(answer) - NGRAM]
        found = sorted(chosen.sample(found, min(self.forks, len(found))), key=lambda f: f[0])
        rows = []
        for number, (place, drafted) in enumerate(found):
            token, values = chosen.choice(drafted)
            row = {"question_id": prompt.question_id, "category": prompt.category}
            row |= {"choice": number, "place": place}
            row |= {"exact": answer[place], "token": token, "kind": "draft"}
            row |= dict(zip(SIGNALS, values, strict=True))
            # of the drafts there the one that a rule takes which asks for the likeliest
            row["likeliest"] = row["regret"] == min(v[SIGNALS.index("regret")] for _, v in drafted)
            if number % CHANCE_EVERY == CHANCE_EVERY - 1:
                other = [t for t in chosen.sample(usual, min(64, len(usual))) if t != answer[place]]
                if other:
                    row |= {"kind": "chance", "token": other[0], "likeliest": False}
                    row |= {"regret": None}  # it would be the draft's
            rows.append(row)
        return rows, cache

    @torch.inference_mode()
    def _candidates(
        self, text: PlainText, cache: TreeCache | None
    ) -> Iterator[tuple[int, list[tuple[int, list[float]]]]]:
        """Every place of the answer at which other tokens than its own were drafted, and not its
        own: the place, and each drafted token with its SIGNALS."""
        hidden_LD, features_LF = text.states(self.target, cache)
        for root, tree, path in walk(self.drafter, text.ids, text.roots, features_LF, self.stops):
            first = root - len(text.prompt)  # the root's place in the answer
            node, place = path[-1], first + len(path)
            if place >= len(text.answer):
                return  # its end was drafted
            drafted = signals_below(
                self.target, tree, node, hidden_LD[root + len(path) - 1], answered=first + 1
            )
            if drafted:
                yield place, drafted


def signals_below(
    target: Target, tree: DraftTree, node: int, hidden_D: torch.Tensor, *, answered: int
) -> list[tuple[int, list[float]]]:
    """The drafts behind a node and their SIGNALS, of the target's state at the node alone."""
    child_C = (tree.parent_N == node).nonzero()[:, 0]
    child_C = child_C[child_C > 0]
    if not len(child_C):
        return []
    logits_V = target.logits(hidden_D[None])[0]
    token_C = tree.token_N[child_C]
    # only the node's own row is asked for
    row = slice(node, node + 1)
    rows = Rows(
        tree,
        logits_V.expand(tree.size, -1),
        row,
        torch.zeros_like(token_C),
        token_C,
        SamplingConfig(),
    )
    return list(zip(token_C.tolist(), signals(rows, answered).tolist(), strict=True))


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
