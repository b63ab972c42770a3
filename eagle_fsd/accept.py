"""Acceptance: which path of a draft tree is kept, and which token follows it.

One walk from the root serves all rules. At a visited node v, x ~ P_v is what the exact test would
emit; D(v) is the divergence of the target's and the draft's rows; a rule says whether the walk goes
on, and to which child. A rule is a pure function of a Visit, so a new one is a new entry in RULES.

    exact      x ~ P_v; if x is a child go there, else emit x and stop           (lossless)
    fsd        as exact, but if x is no child and D(v) passes, take a drafted child
               (M. Holsman, TensorRT-LLM #10481, 2026)
    fsd-paper  if D(v) passes take a drafted child, else emit x and stop
               (Holsman et al., Findings of ACL 2025, arXiv 2502.20704)

D passes iff T > 0 and D <= T. All siblings share their parent's divergence; which one is taken is
the `child` choice. The walk visits at most max_depth + 1 nodes and uses tensor operations only, so
on an accelerator nothing is read back before the one transfer at its end; on a CPU it stops early.

Axes: N nodes, V vocabulary, S steps of the walk (max_depth + 1), E expanded nodes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

from eagle_fsd.config import AcceptConfig, SamplingConfig
from eagle_fsd.divergence import DIVERGENCES
from eagle_fsd.sample import draw_and_score, filter_logits, inverse_cdf, token_probs
from eagle_fsd.tree import DraftTree


@dataclass(frozen=True)
class Acceptance:
    """The outcome of a round. Entry i of every list is about the token emitted after path[i].

    Attributes:
        path: node indices, the root first; accepted drafts = len(path) - 1.
        tokens: emitted tokens, the accepted drafts and then the next token; as long as `path`.
        fuzzy: the token is not the one that the exact test would have emitted with the same draw.
        divergence: D at path[i]; NaN where it was not judged.
        tv: 1/2 sum |emitted law - P| at path[i]; 0 at nodes without children.
        regret: log P(argmax) - log P(token) of the raw target distribution, nats.
    """

    path: list[int]
    tokens: list[int]
    fuzzy: list[bool]
    divergence: list[float]
    tv: list[float]
    regret: list[float]

    @property
    def accepted_drafts(self) -> int:
        return len(self.path) - 1


class Judge:
    """What all visits of one round share: the tree, the target's logits, the settings."""

    def __init__(
        self,
        tree: DraftTree,
        target_logits_NV: torch.Tensor,
        *,
        config: AcceptConfig,
        sampling: SamplingConfig,
        threshold: float | torch.Tensor,
    ):
        self.tree = tree
        self.target_logits_NV = target_logits_NV
        self.config = config
        self.sampling = sampling
        device = target_logits_NV.device
        if not isinstance(threshold, torch.Tensor):  # filled on the device: no copy from the host
            threshold = torch.full((), threshold, dtype=torch.float32, device=device)
        self.threshold_N = threshold.expand(tree.size)
        self.node_N = torch.arange(tree.size, device=device)
        self.is_draft_N = self.node_N > 0

    def divergence(self, node_M: torch.Tensor) -> torch.Tensor:
        """D at the given nodes, float32 [M]; NaN where the drafter has no distribution."""
        row_M = self.tree.draft_row_N[node_M]
        if self.tree.draft_logits_EV.shape[0] == 0:
            return torch.full(row_M.shape, math.nan, device=row_M.device)
        target_MV = self.target_logits_NV[node_M]
        draft_MV = self.tree.draft_logits_EV[row_M.clamp_min(0)]
        if self.config.logits == "processed":
            target_MV = filter_logits(target_MV, self.sampling)
            draft_MV = filter_logits(draft_MV, self.sampling)
        value_M = DIVERGENCES[self.config.divergence](target_MV, draft_MV)
        return value_M.masked_fill(row_M < 0, math.nan)

    def passes(self, node_M: torch.Tensor, divergence_M: torch.Tensor) -> torch.Tensor:
        """T > 0 and D <= T, bool [M]; NaN never passes."""
        threshold_M = self.threshold_N[node_M]
        return (threshold_M > 0) & (divergence_M <= threshold_M)

    @cached_property
    def expected_length_N(self) -> torch.Tensor:
        """L(v), the expected drafts accepted below each node, float32 [N]; for child `deepest`.

        fsd:       L(v) = sum_c P_v(c) (1 + L(c)) + [D(v) passes] P_v(not in C) (1 + max_c L(c))
        fsd-paper: L(v) = [D(v) passes] (1 + max_c L(c))
        and 0 at a leaf. No draw enters, so that the choice biases no law.
        """
        tree = self.tree
        parent_N, size = tree.parent_N, tree.size
        has_child_N = torch.zeros(size, dtype=torch.bool, device=parent_N.device)
        has_child_N[parent_N[1:]] = True
        # on a CPU only parents are judged; elsewhere their number would have to be read back
        on_cpu = parent_N.device.type == "cpu"
        node_M = has_child_N.nonzero()[:, 0] if on_cpu else self.node_N
        passes_N = torch.zeros_like(has_child_N)
        passes_N[node_M] = self.passes(node_M, self.divergence(node_M))
        passes_N &= has_child_N

        prob_MC = token_probs(
            self.target_logits_NV[node_M],
            tree.token_N.expand(node_M.shape[0], size),
            self.sampling,
        )
        is_child_MN = (parent_N == node_M[:, None]) & self.is_draft_N
        prob_N = torch.where(is_child_MN, prob_MC, 0.0).sum(0)  # of each draft, at its parent
        reward_N = torch.zeros_like(prob_N)
        for _ in range(tree.max_depth):
            below_N = torch.where(self.is_draft_N, 1 + reward_N, 0.0)
            best_N = torch.zeros_like(prob_N).scatter_reduce_(0, parent_N, below_N, "amax")
            if self.config.rule == "fsd-paper":
                reward_N = torch.where(passes_N, best_N, 0.0)
                continue
            # where D passes, sum P(c)(1 + L(c)) + P(not in C) best = best - sum P(c)(best - 1 -
            # L(c)): the same, and equal children stay exactly equal
            gain_N = torch.where(passes_N[parent_N], below_N - best_N[parent_N], below_N)
            on_children_N = torch.zeros_like(prob_N).index_add_(0, parent_N, prob_N * gain_N)
            reward_N = torch.where(passes_N, best_N + on_children_N, on_children_N)
        return reward_N


class Visit:
    """One node of the walk; what a rule may ask. Scalars are 0-d tensors, nothing is read back.

    Attributes:
        drawn: x ~ P_v, what the exact test would emit.
        is_child_N: the node's children, bool [N].
        prob_N: P_v of every child's token, 0 for other nodes, float32 [N].
        hit: x is among the children.
        hit_child: which one (any index where it is not).
    """

    def __init__(self, judge: Judge, node: torch.Tensor, uniform_2: torch.Tensor):
        tree = judge.tree
        self.judge = judge
        self.node_1 = node.reshape(1)
        self.uniform_2 = uniform_2
        self.logits_1V = judge.target_logits_NV.index_select(0, self.node_1)
        self.is_child_N = (tree.parent_N == node) & judge.is_draft_N
        self.has_child = self.is_child_N.any()
        drawn_1, prob_1N = draw_and_score(
            self.logits_1V, uniform_2[:1], tree.token_N[None], judge.sampling
        )
        self.drawn = drawn_1[0]
        self.prob_N = torch.where(self.is_child_N, prob_1N[0], 0.0)
        hit_N = self.is_child_N & (tree.token_N == self.drawn)
        self.hit = hit_N.any()
        self.hit_child = hit_N.int().argmax()

    @cached_property
    def divergence(self) -> torch.Tensor:
        """D(v), float32; NaN at a node without children."""
        device = self.is_child_N.device
        if device.type == "cpu" and not self.has_child:
            return torch.tensor(math.nan)
        value = self.judge.divergence(self.node_1)[0]
        return torch.where(self.has_child, value, math.nan)

    @cached_property
    def passes(self) -> torch.Tensor:
        return self.judge.passes(self.node_1, self.divergence[None])[0]

    @cached_property
    def draft_logits_N(self) -> torch.Tensor:
        """The draft's raw logit of every child's token, float32 [N]; -inf for other nodes."""
        tree = self.judge.tree
        if tree.draft_logits_EV.shape[0] == 0:
            return self.among_children(torch.zeros_like(self.prob_N))
        row_1 = tree.draft_row_N[self.node_1].clamp_min(0)
        row_V = tree.draft_logits_EV.index_select(0, row_1)[0].float()
        return self.among_children(row_V[tree.token_N])

    def among_children(self, value_N: torch.Tensor) -> torch.Tensor:
        """The value at children, -inf elsewhere; a child's own -inf becomes finite."""
        lowest = torch.finfo(value_N.dtype).min
        return torch.where(self.is_child_N, value_N.clamp_min(lowest), -math.inf)

    def choice(self, needed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The child taken where D passes, and the law it is taken by, float32 [N].

        Where it is not needed the result is any; on a CPU it then costs nothing.
        """
        if needed.device.type == "cpu" and not needed:
            return self.hit_child, self.prob_N
        return CHILD_CHOICES[self.judge.config.child](self)


# --- which child, once D passes: Visit -> (index, law over the nodes) ---------------------------


def most_probable_under_draft(visit: Visit) -> tuple[torch.Tensor, torch.Tensor]:
    """The child with the largest Q."""
    return _fixed(visit.draft_logits_N)


def most_probable_under_target(visit: Visit) -> tuple[torch.Tensor, torch.Tensor]:
    """The child with the largest P, by the raw target logit where P is 0 for all (filtered away, or
    one-hot elsewhere at temperature 0)."""
    logits_N = visit.logits_1V[0].float()[visit.judge.tree.token_N]
    possible_N = visit.is_child_N & (visit.prob_N > 0)
    value_N = torch.where(possible_N.any(), visit.prob_N.masked_fill(~possible_N, -1.0), logits_N)
    return _fixed(visit.among_children(value_N))


def deepest(visit: Visit) -> tuple[torch.Tensor, torch.Tensor]:
    """The child below which most drafts are expected to be accepted (Judge.expected_length_N)."""
    return _fixed(visit.among_children(visit.judge.expected_length_N))


def sampled(visit: Visit) -> tuple[torch.Tensor, torch.Tensor]:
    """A draw from the draft's raw distribution Q, renormalised over the children."""
    # rows without a child have no law; the walk never uses them
    law_N = torch.nan_to_num(torch.softmax(visit.draft_logits_N, dim=-1))
    return inverse_cdf(law_N[None], visit.uniform_2[1:])[0], law_N


def _fixed(value_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    index = value_N.argmax()  # the first of equals, which the draft prefers
    node_N = torch.arange(value_N.shape[0], device=value_N.device)
    return index, (node_N == index).float()


ChildChoice = Callable[[Visit], tuple[torch.Tensor, torch.Tensor]]
CHILD_CHOICES: dict[str, ChildChoice] = {
    "draft": most_probable_under_draft,
    "target": most_probable_under_target,
    "deepest": deepest,
    "sample": sampled,
}


# --- rules: Visit -> (go on?, to which child, TV of the emitted law) ----------------------------


def exact(visit: Visit) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The drawn token if it is a child. The tree is a function of the context: lossless."""
    return visit.hit, visit.hit_child, torch.zeros_like(visit.prob_N[0])


def fsd(visit: Visit) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The drawn token if it is a child, else a drafted child where D passes.

    Emitted law where D passes: P(c) + P(not in C) * choice(c); so TV = P(not in C).
    """
    fuzzy = visit.passes & visit.has_child
    choice, _ = visit.choice(fuzzy & ~visit.hit)
    tv = torch.where(fuzzy, (1 - visit.prob_N.sum()).clamp_min(0), 0.0)
    return visit.hit | fuzzy, torch.where(visit.hit, visit.hit_child, choice), tv


def fsd_paper(visit: Visit) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A drafted child where D passes, else the drawn token ends the round, child or not.

    Emitted law where D passes: choice(c); so TV = 1 - P(c) for a fixed choice.
    """
    fuzzy = visit.passes & visit.has_child
    choice, law_N = visit.choice(fuzzy)
    outside = (1 - visit.prob_N.sum()).clamp_min(0)
    tv = 0.5 * ((law_N - visit.prob_N).abs().sum() + outside)
    return fuzzy, choice, torch.where(fuzzy, tv, 0.0)


Rule = Callable[[Visit], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
RULES: dict[str, Rule] = {"exact": exact, "fsd": fsd, "fsd-paper": fsd_paper}


def uniforms(max_depth: int, generator: torch.Generator) -> torch.Tensor:
    """The random numbers of one round, float32 [max_depth + 1, 2]: one row per visited node.

    Column 0 draws x ~ P_v, column 1 the child of `sample`. Every rule takes the same block, used or
    not, so that rules and thresholds can be compared draw by draw.
    """
    return torch.rand(max_depth + 1, 2, generator=generator, device=generator.device)


@torch.inference_mode()
def accept(
    tree: DraftTree,
    target_logits_NV: torch.Tensor,
    uniform_S2: torch.Tensor,
    *,
    config: AcceptConfig,
    sampling: SamplingConfig,
    threshold: float | torch.Tensor | None = None,
) -> Acceptance:
    """Walk the tree by a rule.

    Args:
        tree: the draft tree.
        target_logits_NV: the target's raw logits; row i is about the token AFTER node i.
        uniform_S2: from `uniforms`, at least max_depth + 1 rows.
        config: rule, divergence, threshold, logits, child.
        sampling: how P comes from the target's logits.
        threshold: replaces config.threshold; may be a tensor over nodes, [N].
    """
    threshold = config.threshold if threshold is None else threshold
    judge = Judge(tree, target_logits_NV, config=config, sampling=sampling, threshold=threshold)
    rule = RULES[config.rule]
    device = target_logits_NV.device
    node = torch.zeros((), dtype=torch.int64, device=device)
    alive = torch.ones((), dtype=torch.bool, device=device)
    steps = []
    for step in range(tree.max_depth + 1):
        visit = Visit(judge, node, uniform_S2[step])
        go_on, child, tv = rule(visit)
        child_token = tree.token_N.index_select(0, child.reshape(1))[0]
        token = torch.where(go_on, child_token, visit.drawn)
        logits_V = visit.logits_1V[0]
        regret = logits_V.max().float() - logits_V.index_select(0, token[None])[0].float()
        judged = visit.__dict__.get("divergence")  # None where no rule asked for it
        divergence = torch.full_like(tv, math.nan) if judged is None else judged
        row = (alive, node, token, token != visit.drawn, divergence, tv, regret)
        steps.append(torch.stack([value.double() for value in row]))
        alive = alive & go_on
        node = torch.where(go_on, child, node)
        if device.type == "cpu" and not alive:
            break
    # the round's one transfer to the host; ids are exact in float64
    rows = [row for row in torch.stack(steps).tolist() if row[0]]
    return Acceptance(
        path=[int(row[1]) for row in rows],
        tokens=[int(row[2]) for row in rows],
        fuzzy=[bool(row[3]) for row in rows],
        divergence=[row[4] for row in rows],
        tv=[row[5] for row in rows],
        regret=[row[6] for row in rows],
    )
