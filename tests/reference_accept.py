"""Slow, obvious versions of divergence, sampling and acceptance, and random trees to try them on.

Plain Python floats (float64), recursive, a token at a time, not written from eagle_fsd, of which
only the settings (rules, guards, sampling) and DraftTree are used; but for `outcome`, which is
what is tried. Those of extras/rivals.py are in extras/tests/reference_rivals.py.
"""

import functools
import math
import random
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import pytest
import scipy.special
import torch

from eagle_fsd.config import BadInput, SamplingConfig
from eagle_fsd.decoding.acceptance import Acceptance, Policy, accept
from eagle_fsd.decoding.tree import DraftTree, RootDrafter
from eagle_fsd.decoding.verified import Guard, Rule
from eagle_fsd.rules import RULES
from eagle_fsd.rules.guards import GUARDS
from eagle_fsd.rules.thresholds import RELAXED_TOP

GREEDY, FILTERED, WARM = SamplingConfig(), SamplingConfig(0.7, 7, 0.9), SamplingConfig(1.0)
SAMPLINGS = (GREEDY, FILTERED, WARM)
# those of the tables that are written out here; a further entry is tested by its own tests
REFERENCE_DIVERGENCES = ("kl_target_draft", "kl_draft_target", "js", "tv", "js_reference")

# --- divergences of two rows of logits ----------------------------------------------------------


def probs(logits: list[float]) -> list[float]:
    top = max(logits)
    weights = [math.exp(logit - top) for logit in logits]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def kl(p: list[float], other: list[float]) -> float:
    """sum p ln(p / other); a term with p = 0 is 0, one with p > 0 and other = 0 is infinite."""
    pairs = zip(p, other, strict=True)
    return math.fsum(a * math.log(a / b) if b else math.inf for a, b in pairs if a)


def slow_divergence(name: str, target_logits: list[float], draft_logits: list[float]) -> float:
    if any(math.isnan(logit) for logit in [*target_logits, *draft_logits]):
        return math.nan
    target, draft = probs(target_logits), probs(draft_logits)
    if name == "tv":
        return 0.5 * math.fsum(abs(a - b) for a, b in zip(target, draft, strict=True))
    mean = [(a + b) / 2 for a, b in zip(target, draft, strict=True)]
    pairs = {
        "kl_target_draft": [(target, draft)],
        "kl_draft_target": [(draft, target)],
        "js": [(target, mean), (draft, mean)],
        "js_reference": [(mean, target), (mean, draft)],
    }[name]
    return math.fsum(kl(p, other) for p, other in pairs) / len(pairs)


# --- sampling -----------------------------------------------------------------------------------


def slow_filter(logits: list[float], sampling: SamplingConfig) -> list[float]:
    """Temperature, then top-k, then the smallest most probable set with probability top_p."""
    logits = [logit / sampling.temperature for logit in logits]
    order = sorted(range(len(logits)), key=lambda token: -logits[token])
    if sampling.top_k:
        order = order[: sampling.top_k]
    prob = probs([logits[token] for token in order])
    if sampling.top_p < 1:
        order = [t for i, t in enumerate(order) if i == 0 or math.fsum(prob[:i]) < sampling.top_p]
    return [logit if token in order else -math.inf for token, logit in enumerate(logits)]


def slow_p(logits: list[float], sampling: SamplingConfig) -> list[float]:
    """P: the target's next-token distribution."""
    if sampling.temperature == 0:
        best = logits.index(max(logits))
        return [float(token == best) for token in range(len(logits))]
    return probs(slow_filter(logits, sampling))


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
    """Every rule over one tree, by recursion from a node to its children, is one question, `step`:
    where x is drawn at v, how likely is the exact step kept, and which children are taken else?
    """

    def __init__(
        self,
        tree: DraftTree,
        logits_NV: torch.Tensor,
        policy: Policy,
        stop: Collection[int] = (),
        answer: Sequence[int] = (),
    ):
        self.stop, self.answer = stop, list(answer)
        self.rule, self.sampling = policy.rule, policy.sampling
        self.kind = next(name for name, kind in RULES.items() if type(self.rule) is kind)
        self.coupled = self.kind == "path"  # the token is drawn from `new`, above temperature 0
        names = {kind: name for name, kind in GUARDS.items()}
        self.guards = {names[type(guard)]: guard for guard in policy.guards}
        self.token = tree.token_N.tolist()
        self.parent = parent = tree.parent_N.tolist()
        nodes = range(len(parent))
        self.children = [
            [c for c in nodes[1:] if parent[c] == v and (v == 0 or self.token[v] not in stop)]
            for v in nodes
        ]
        self.target = logits_NV.double().tolist()
        rows = tree.draft_logits_ER.double().tolist()
        self.draft = [rows[row] if row >= 0 else None for row in tree.draft_row_N.tolist()]
        self.p = [slow_p(logits, self.sampling) for logits in self.target]
        for name in ("divergence", "options", "value", "log_z", "new", "tv"):
            setattr(self, name, functools.cache(getattr(self, name)))  # or it takes minutes

    # --- what is known of a node ---

    def divergence(self, v: int) -> float:
        """D by the rule's settings, NaN if it reads none."""
        name = getattr(self.rule, "divergence", None)
        if self.draft[v] is None or name is None:
            return math.nan
        return slow_divergence(name, self.target[v], self.draft[v])

    def passes(self, v: int, limit: float) -> bool:
        return limit > 0 and self.divergence(v) <= limit

    def regret(self, v: int, token: int) -> float:
        return max(self.target[v]) - self.target[v][token]

    def hit(self, v: int, token: int) -> int | None:
        return next((c for c in self.children[v] if self.token[c] == token), None)

    def options(self, v: int) -> list[int]:
        """Children that top-k, top-p and the guards of the library leave."""
        warm = replace(self.sampling, temperature=self.sampling.temperature or 1.0)
        kept = probs(self.target[v])  # temperature alone removes nothing
        if warm.top_k or warm.top_p < 1:
            kept = slow_filter(self.target[v], warm)
        return [
            c
            for c in self.children[v]
            if kept[self.token[c]] > -math.inf
            and not self.keeps(self.token[c])
            and not self.repeats(c)
        ]

    def keeps(self, token: int) -> bool:
        return "ends" in self.guards and token in self.stop

    def repeats(self, c: int) -> bool:
        """The guard no_repeat: the n tokens up to c have stood in the answer before."""
        if "no_repeat" not in self.guards:
            return False
        drafts, n = [], self.guards["no_repeat"].tokens
        while c:
            drafts, c = [self.token[c], *drafts], self.parent[c]
        text = "".join(chr(token) for token in self.answer + drafts)
        return len(text) >= n and text[-n:] in text[:-1]

    def fuzzy_chance(self, v: int) -> float:
        """How likely one of the options is taken where x has no child."""
        if self.kind in ("fsd", "fsd-paper"):
            return float(self.passes(v, self.rule.threshold))
        return self.rule.rate

    def choice(self, v: int, options: list[int]) -> dict[int, float]:
        """The distribution over the options by which one is taken."""
        if self.rule.child == "sample":
            weight = probs([self.draft[v][self.token[c]] for c in options])
            return dict(zip(options, weight, strict=True))
        if self.rule.child == "draft":
            return {max(options, key=lambda c: self.draft[v][self.token[c]]): 1.0}
        # by P; by the raw logit where P does not tell them apart
        key = [(self.p[v][self.token[c]], self.target[v][self.token[c]]) for c in options]
        return {options[key.index(max(key))]: 1.0}

    # --- the rule path ---

    def value(self, v: int) -> float:
        """V(v) at temperature 0."""
        return max([0.0, *self.gains(v).values()])

    def gains(self, v: int) -> dict[int, float]:
        """1 + V(c) - cost(c) / b of all steps allowed at v; x's child first."""
        x = self.p[v].index(1.0)
        hit = self.hit(v, x)
        if self.keeps(x):
            return {} if hit is None else {hit: 0.0}
        found = {} if hit is None else {hit: 1 + self.value(hit)}
        for c in self.options(v):
            cost = self.regret(v, self.token[c]) / self.rule.price
            found.setdefault(c, 1 + self.value(c) - cost)
        return found

    def log_z(self, v: int) -> float:
        """log z(v) at temperature tau > 0; b / tau is a token's worth."""
        rest = math.fsum(p for token, p in enumerate(self.p[v]) if not self.keeps(token))
        weights = self.weights(v).items()
        total = math.fsum(w for token, w in weights if not self.keeps(token))
        return rest * math.log(total / rest) if rest else 0.0

    def weights(self, v: int) -> dict[int, float]:
        """P of every token, times e^(b / tau) z of what is behind it where it is an option."""
        worth = self.rule.price / self.sampling.temperature
        weights = dict(enumerate(self.p[v]))
        for c in self.options(v):
            weights[self.token[c]] *= math.exp(worth + self.log_z(c))
        return weights

    def new(self, v: int) -> list[float]:
        """The distribution of the token that `path` emits at v, tau > 0."""
        if not self.children[v] or self.rule.price == 0:
            return self.p[v]
        free = {token: w for token, w in self.weights(v).items() if not self.keeps(token)}
        rest, total = math.fsum(self.p[v][token] for token in free), math.fsum(free.values())
        return [rest * free[t] / total if t in free else p for t, p in enumerate(self.p[v])]

    # --- rivals ---

    def admits(self, v: int, token: int) -> bool:
        rule, raw = self.rule, probs(self.target[v])
        if self.kind == "ratio":
            return 0 < rule.limit >= self.regret(v, token)
        if self.kind == "typical":
            flat = math.exp(math.fsum(p * math.log(p) for p in raw if p))
            return raw[token] > min(rule.epsilon, rule.epsilon**0.5 * flat)
        place = sorted(raw, reverse=True).index(raw[token])
        return place < RELAXED_TOP and raw[token] >= max(raw) - rule.delta and rule.delta > 0

    # --- a step, and what follows from it ---

    def step(self, v: int, x: int) -> tuple[float, dict[int, float]]:
        """How likely the exact step is kept where x is drawn at v, and the children else taken."""
        hit, options = self.hit(v, x), [] if self.keeps(x) else self.options(v)
        if self.kind == "exact" or not self.children[v]:
            return 1.0, {}
        if self.kind == "fsd-paper":
            options = [c for c in self.children[v] if c in options or c == hit]
            taken = bool(options) and self.passes(v, self.rule.threshold)
            return (0.0, self.choice(v, options)) if taken else (1.0, {})
        if self.coupled and self.sampling.temperature > 0:
            new, old = self.new(v), self.p[v]
            tokens = {c: self.token[c] for c in self.children[v]}
            excess = {c: max(0.0, new[token] - old[token]) for c, token in tokens.items()}
            total = math.fsum(excess.values())
            kept = min(1.0, new[x] / old[x])
            return kept, {c: p / total for c, p in excess.items()} if total else {}
        if self.kind == "path" and self.rule.price > 0:
            gains = self.gains(v)
            best = max(gains, key=gains.get, default=None)
            return (1.0, {}) if best in (hit, None) or gains[best] <= 0 else (0.0, {best: 1.0})
        if hit is not None or not options or self.coupled:
            return 1.0, {}
        if self.kind in ("ratio", "typical", "relaxed"):
            cost = [self.regret(v, self.token[c]) for c in options]
            best = options[cost.index(min(cost))]
            return (0.0, {best: 1.0}) if self.admits(v, self.token[best]) else (1.0, {})
        return 1 - self.fuzzy_chance(v), self.choice(v, options)

    def kept_child(self, v: int, x: int) -> int | None:
        """Where the exact step leads; in fsd-paper the draw ends the round, child or not."""
        return None if self.kind == "fsd-paper" else self.hit(v, x)

    def moves(self, v: int) -> list[tuple[float, int, int | None]]:
        """All that can happen at v: (probability, emitted token, node walked to or None)."""
        moves = []
        for x, p in enumerate(self.p[v]):
            if p:
                kept, others = self.step(v, x)
                moves.append((p * kept, x, self.kept_child(v, x)))
                moves += [
                    (p * (1 - kept) * q, self.token[c], c) for c, q in others.items() if kept < 1
                ]
        return moves

    def tv(self, v: int) -> float:
        """1/2 sum |emitted distribution - P|, with the emitted distribution written out."""
        emitted = defaultdict(float)
        for p, token, _ in self.moves(v):
            emitted[token] += p
        return 0.5 * math.fsum(abs(emitted[token] - p) for token, p in enumerate(self.p[v]))

    def round_distribution(self, v: int = 0) -> dict[tuple[int, ...], float]:
        """Of all tokens that a round emits from v on."""
        found = defaultdict(float)
        for p, token, child in self.moves(v):
            rest = self.round_distribution(child) if child else {(): 1.0}
            for tokens, q in rest.items():
                found[(token, *tokens)] += p * q
        return {tokens: p for tokens, p in found.items() if p > 0}

    def walk(self, uniforms: list[list[float]], v: int = 0) -> list[Step]:
        x = slow_draw(self.p[v], uniforms[0][0])
        kept, others = self.step(v, x)
        # one says "keep below", the others "take below": the same chance, another half of it
        keep = uniforms[0][2] < kept if self.coupled else uniforms[0][2] >= 1 - kept
        go = self.kept_child(v, x)
        if not keep:
            go = list(others)[slow_draw(list(others.values()), uniforms[0][1])]
        token = x if go is None else self.token[go]
        divergence = self.divergence(v) if self.children[v] else math.nan
        step = Step(v, token, token != x, divergence, self.tv(v), self.regret(v, token))
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
    tree = DraftTree(
        torch.tensor(tokens), torch.tensor(parents), draft_row_N, draft_EV, max_depth=depth
    )
    return tree, logits_NV, torch.rand(depth + 1, 3, generator=generator)


# --- a round of ours, beside theirs -------------------------------------------------------------


def outcome(
    round_: tuple, rule: Rule, sampling=GREEDY, guards: tuple[Guard, ...] = (), **rest
) -> Acceptance:
    """The round as the first of an answer."""
    return accept(*round_, policy=Policy(rule, sampling, guards).begin(), **rest)


def goes(rule: Rule, sampling: SamplingConfig, guards: tuple[Guard, ...] = ()) -> bool:
    """Whether the rule takes the sampling and the guards, on drafts that are sampled."""
    drafter = RootDrafter()
    drafter.samples = True
    try:
        Policy(rule, sampling, guards).check(drafter)
    except BadInput:
        return False
    return True


def assert_agrees(
    round_: tuple,
    rule: Rule,
    sampling: SamplingConfig,
    guards=(),
    stop=(),
    slow_kind=SlowAccept,
    answer=(),
) -> Acceptance:
    """The outcome is the reference's: path, tokens, fuzzy flags, and what each token costs."""
    tree, logits_NV, uniform_S3 = round_
    got = outcome(round_, rule, sampling, guards, stop_token_ids=stop, answer=answer)
    slow = slow_kind(tree, logits_NV, Policy(rule, sampling, guards), stop, answer)
    want = slow.walk(uniform_S3.tolist())
    assert got.path == [step.node for step in want], rule
    assert got.tokens == [step.token for step in want], rule
    assert got.fuzzy == [step.fuzzy for step in want], rule
    for name in ("divergence", "tv", "regret"):
        values = [getattr(step, name) for step in want]
        values = pytest.approx(values, rel=1e-4, abs=4e-6, nan_ok=True)
        assert getattr(got, name) == values, (name, rule)
    return got


def chi_square_p(count: dict, expected: dict) -> float:
    """P-value of the counts, given every outcome's probability; rare outcomes are pooled."""
    impossible = {key: n for key, n in count.items() if n and expected.get(key, 0) < 1e-12}
    assert not impossible, f"drawn though their probability is 0: {impossible}"
    assert math.isclose(math.fsum(expected.values()), 1, abs_tol=1e-5)
    draws = sum(count.values())
    cells = [(count.get(key, 0), p * draws) for key, p in expected.items() if p * draws >= 5]
    rare = (draws - sum(n for n, _ in cells), draws - math.fsum(e for _, e in cells))
    cells += [rare] if rare[1] >= 5 else []
    x = math.fsum((n - mean) ** 2 / mean for n, mean in cells)
    return scipy.special.chdtrc(len(cells) - 1, x)
