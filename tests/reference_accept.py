"""Slow, obvious versions of divergence, sampling and acceptance, and random trees to try them on.

Plain Python floats (float64), recursive, a token at a time, written from DESIGN section 5 and not
from eagle_fsd. Of eagle_fsd only the settings and DraftTree are used.
"""

import math
import random
from collections import defaultdict
from dataclasses import dataclass

import torch

from eagle_fsd.config import AcceptConfig, SamplingConfig
from eagle_fsd.decoding.tree import DraftTree

# --- divergences of two rows of logits ----------------------------------------------------------


def log_probs(logits: list[float]) -> list[float]:
    top = max(logits)
    total = math.fsum(math.exp(logit - top) for logit in logits)
    return [logit - top - math.log(total) for logit in logits]


def kl(logp: list[float], other_logp: list[float]) -> float:
    """sum p ln(p / other); a term with p = 0 is 0, one with p > 0 and other = 0 is infinite."""
    if any(a > -math.inf and b == -math.inf for a, b in zip(logp, other_logp, strict=True)):
        return math.inf
    pairs = zip(logp, other_logp, strict=True)
    return math.fsum(math.exp(a) * (a - b) for a, b in pairs if a > -math.inf)


def mean(logp: list[float], other_logp: list[float]) -> list[float]:
    def one(a: float, b: float) -> float:
        top = max(a, b)
        if top == -math.inf:
            return top
        return top + math.log((math.exp(a - top) + math.exp(b - top)) / 2)

    return [one(a, b) for a, b in zip(logp, other_logp, strict=True)]


def slow_divergence(name: str, target_logits: list[float], draft_logits: list[float]) -> float:
    if any(math.isnan(logit) for logit in [*target_logits, *draft_logits]):
        return math.nan
    target, draft = log_probs(target_logits), log_probs(draft_logits)
    if name == "kl_target_draft":
        return kl(target, draft)
    if name == "kl_draft_target":
        return kl(draft, target)
    if name == "tv":
        gaps = (abs(math.exp(a) - math.exp(b)) for a, b in zip(target, draft, strict=True))
        return 0.5 * math.fsum(gaps)
    middle = mean(target, draft)
    if name == "js":
        return 0.5 * (kl(target, middle) + kl(draft, middle))
    assert name == "js_reference"
    return 0.5 * (kl(middle, target) + kl(middle, draft))


# --- sampling -----------------------------------------------------------------------------------


def slow_filter(logits: list[float], sampling: SamplingConfig) -> list[float]:
    """Temperature, then top-k, then the smallest most probable set with probability top_p."""
    logits = [logit / sampling.temperature for logit in logits]
    order = sorted(range(len(logits)), key=lambda token: -logits[token])
    if sampling.top_k:
        order = order[: sampling.top_k]
    prob = [math.exp(value) for value in log_probs([logits[token] for token in order])]
    if sampling.top_p < 1:
        order = [t for i, t in enumerate(order) if i == 0 or math.fsum(prob[:i]) < sampling.top_p]
    return [logit if token in order else -math.inf for token, logit in enumerate(logits)]


def slow_law(logits: list[float], sampling: SamplingConfig) -> list[float]:
    """P: the target's next-token distribution."""
    if sampling.temperature == 0:
        best = logits.index(max(logits))
        return [float(token == best) for token in range(len(logits))]
    return [math.exp(value) for value in log_probs(slow_filter(logits, sampling))]


def slow_draw(weights: list[float], uniform: float) -> int:
    point, total = uniform * math.fsum(weights), 0.0
    for index, weight in enumerate(weights):
        total += weight
        if weight > 0 and total > point:
            return index
    raise AssertionError(f"nothing drawn from {weights} at {uniform}")


# --- acceptance ---------------------------------------------------------------------------------


@dataclass
class Step:
    """What happens at one visited node; the same words as Acceptance."""

    node: int
    token: int
    fuzzy: bool
    divergence: float
    tv: float
    regret: float


class SlowAccept:
    """DESIGN section 5 over one tree, by recursion from a node to its children."""

    def __init__(
        self,
        tree: DraftTree,
        target_logits_NV: torch.Tensor,
        *,
        config: AcceptConfig,
        sampling: SamplingConfig,
        threshold: float | list[float] | None = None,
    ):
        threshold = config.threshold if threshold is None else threshold
        self.config, self.sampling = config, sampling
        self.token = tree.token_N.tolist()
        parent = tree.parent_N.tolist()
        nodes = range(len(parent))
        self.children = [[c for c in nodes if c > 0 and parent[c] == v] for v in nodes]
        self.threshold = threshold if isinstance(threshold, list) else [threshold] * len(parent)
        self.target = target_logits_NV.double().tolist()
        rows = tree.draft_logits_ER.double().tolist()
        self.draft = [rows[row] if row >= 0 else None for row in tree.draft_row_N.tolist()]
        self.law = [slow_law(logits, sampling) for logits in self.target]

    def divergence(self, v: int) -> float:
        rows = [self.target[v], self.draft[v]]
        if self.config.logits == "processed":
            rows = [slow_filter(row, self.sampling) for row in rows]
        return slow_divergence(self.config.divergence, *rows)

    def passes(self, v: int) -> float:
        """How likely the divergence, or chance for rule random, lets a child be taken.

        Only asked at nodes with children: where there are none there is nothing to take.
        """
        if not self.children[v] or self.config.rule == "exact":
            return 0.0
        if self.config.rule == "random":
            return min(self.threshold[v], 1.0)
        return float(self.threshold[v] > 0 and self.divergence(v) <= self.threshold[v])

    def outside(self, v: int) -> float:
        """P_v(not in C(v))."""
        tokens = {self.token[c] for c in self.children[v]}
        return math.fsum(p for token, p in enumerate(self.law[v]) if token not in tokens)

    def length(self, v: int) -> float:
        """L(v), the expected accepted drafts below v if the best child is taken; no draw in it."""
        if not self.children[v]:
            return 0.0
        below = {c: 1 + self.length(c) for c in self.children[v]}
        passes, best = self.passes(v), max(below.values())
        if self.config.rule == "fsd-paper":
            return best * passes  # the drawn token counts for nothing there
        drawn = math.fsum(self.law[v][self.token[c]] * below[c] for c in below)
        return drawn + self.outside(v) * best * passes

    def choice(self, v: int) -> dict[int, float]:
        """The law over the children by which one is taken once D passes."""
        children, choose = self.children[v], self.config.child
        if choose == "sample":
            weight = [
                math.exp(x) for x in log_probs([self.draft[v][self.token[c]] for c in children])
            ]
            return dict(zip(children, weight, strict=True))
        if choose == "draft":
            return {max(children, key=lambda c: self.draft[v][self.token[c]]): 1.0}
        if choose == "target":  # by P; by the raw logit where P does not tell them apart
            return {max(children, key=lambda c: (self.law[v][self.token[c]], self.raw(v, c))): 1.0}
        assert choose == "deepest"
        length = [self.length(c) for c in children]
        equal = [c for c, value in zip(children, length, strict=True) if value > max(length) - 1e-9]
        return {equal[0]: 1.0}  # the first of equals

    def raw(self, v: int, child: int) -> float:
        return self.target[v][self.token[child]]

    def moves(self, v: int) -> list[tuple[float, int, int | None]]:
        """All that can happen at v: (probability, emitted token, node walked to or None)."""
        child_of = {self.token[c]: c for c in self.children[v]}
        drawn = [(p, token, child_of.get(token)) for token, p in enumerate(self.law[v])]
        passes = self.passes(v)
        if not passes:
            if self.config.rule == "fsd-paper":  # the draw ends the round, child or not
                return [(p, token, None) for p, token, _ in drawn]
            return drawn
        hits = [] if self.config.rule == "fsd-paper" else [move for move in drawn if move[2]]
        rest = 1.0 if self.config.rule == "fsd-paper" else self.outside(v)
        misses = [(p * (1 - passes), token, None) for p, token, child in drawn if not child]
        taken = [(rest * passes * p, self.token[c], c) for c, p in self.choice(v).items()]
        return hits + taken + (misses if passes < 1 else [])

    def tv(self, v: int) -> float:
        """1/2 sum |emitted law - P|, with the emitted law written out."""
        emitted = defaultdict(float)
        for p, token, _ in self.moves(v):
            emitted[token] += p
        return 0.5 * math.fsum(abs(emitted[token] - p) for token, p in enumerate(self.law[v]))

    def round_law(self, v: int = 0) -> dict[tuple[int, ...], float]:
        """The law of all tokens that a round emits from v on."""
        law = defaultdict(float)
        for p, token, child in self.moves(v):
            rest = self.round_law(child) if child else {(): 1.0}
            for tokens, q in rest.items():
                law[(token, *tokens)] += p * q
        return law

    def walk(self, uniforms: list[list[float]], v: int = 0) -> list[Step]:
        rule = self.config.rule
        drawn = slow_draw(self.law[v], uniforms[0][0])
        hit = [c for c in self.children[v] if self.token[c] == drawn]
        go = hit[0] if hit and rule != "fsd-paper" else None
        taken = uniforms[0][2] < self.passes(v) if rule == "random" else self.passes(v)
        if go is None and taken:
            law = self.choice(v)
            go = list(law)[slow_draw(list(law.values()), uniforms[0][1])]
        token = drawn if go is None else self.token[go]
        judged = self.children[v] and rule in ("fsd", "fsd-paper")
        step = Step(
            node=v,
            token=token,
            fuzzy=token != drawn,
            divergence=self.divergence(v) if judged else math.nan,
            tv=self.tv(v),
            regret=max(self.target[v]) - self.target[v][token],
        )
        return [step] if go is None else [step, *self.walk(uniforms[1:], go)]


# --- material -----------------------------------------------------------------------------------


def random_round(
    seed: int, *, depth: int = 4, vocab: int = 11, ties: bool = False
) -> tuple[DraftTree, torch.Tensor, torch.Tensor]:
    """A random tree in level order, the target's logits [N, V] and the uniforms [depth + 1, 3].

    Siblings have distinct tokens; all parents and some leaves have a draft row, in shuffled order,
    and a row more belongs to a candidate that was not kept. Draft rows are near the target's at
    some nodes and far at others. `ties` rounds all logits, so that many are equal.
    """
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    parents, tokens, level = [0], [rng.randrange(vocab)], [0]
    for _ in range(depth):
        chosen = sorted(rng.choices(level, k=rng.choice([1, 2, 3, 5])))
        level = list(range(len(parents), len(parents) + len(chosen)))
        parents += chosen
        for parent in sorted(set(chosen)):
            tokens += rng.sample(range(vocab), chosen.count(parent))
    size = len(parents)
    expanded = [v for v in range(size) if v in parents[1:] or rng.random() < 0.3]
    rng.shuffle(expanded)
    draft_row_N = torch.full((size,), -1)
    draft_row_N[expanded] = torch.arange(len(expanded))
    logits_NV = 2 * torch.randn(size, vocab, generator=generator)
    noise_EV = torch.randn(len(expanded) + 1, vocab, generator=generator)
    noise_EV *= 3 * torch.rand(len(expanded) + 1, 1, generator=generator) ** 2
    draft_EV = logits_NV[[*expanded, 0]] + noise_EV
    if ties:
        logits_NV, draft_EV = (logits_NV / 2).round(), (draft_EV / 2).round()
    tree = DraftTree.from_tensors(
        torch.tensor(tokens), torch.tensor(parents), draft_row_N, draft_EV, max_depth=depth
    )
    return tree, logits_NV, torch.rand(depth + 1, 3, generator=generator)


def chi_square_p(count: dict, law: dict) -> float:
    """P-value of the counts under the law; outcomes expected fewer than 5 times are pooled."""
    impossible = {outcome: n for outcome, n in count.items() if n and law.get(outcome, 0) < 1e-12}
    assert not impossible, f"drawn though their probability is 0: {impossible}"
    assert math.isclose(math.fsum(law.values()), 1, abs_tol=1e-5)
    draws = sum(count.values())
    cells = [(count.get(outcome, 0), p * draws) for outcome, p in law.items() if p * draws >= 5]
    rare = (draws - sum(n for n, _ in cells), draws - math.fsum(e for _, e in cells))
    cells += [rare] if rare[1] >= 5 else []
    x = math.fsum((n - expected) ** 2 / expected for n, expected in cells)
    half = torch.tensor([(len(cells) - 1) / 2, x / 2], dtype=torch.float64)
    return torch.special.gammaincc(half[0], half[1]).item()
