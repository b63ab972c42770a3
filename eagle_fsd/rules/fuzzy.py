"""Acceptance rules and child choices: pure functions of a Visit, in two tables.

    exact      x ~ P_v; if x is a child go there, else emit x and stop           (lossless)
    fsd        as exact, but if x is no child and D(v) passes, take a drafted child
               (M. Holsman, TensorRT-LLM #10481, 2026)
    fsd-paper  if D(v) passes take a drafted child, else emit x and stop
               (Holsman et al., Findings of ACL 2025, arXiv 2502.20704)
    random     as exact, but if x is no child take a drafted child with probability r, whatever D:
               the control that a divergence has to beat at the same share of fuzzy tokens

D passes iff T > 0 and D <= T. All siblings share their parent's divergence; which one is taken is
the `child` choice. A new rule is a new function in RULES.

Axes: N nodes, M judged nodes.
"""

from collections.abc import Callable

import torch

from eagle_fsd.decoding.sampling import inverse_cdf, next_token_probs
from eagle_fsd.decoding.visit import Judge, Visit

# --- which child, once D passes: Visit -> (index, law over the nodes) ---------------------------


def most_probable_under_draft(visit: Visit) -> tuple[torch.Tensor, torch.Tensor]:
    """The child with the largest Q."""
    return _fixed(visit.draft_logits_N)


def most_probable_under_target(visit: Visit) -> tuple[torch.Tensor, torch.Tensor]:
    """The child with the largest P; by the raw target logit where P is 0 for all of them, as at
    temperature 0 unless one is the argmax."""
    logits_N = visit.logits_1V[0].float()[visit.judge.tree.token_N]
    possible_N = visit.is_child_N & (visit.prob_N > 0)
    value_N = torch.where(possible_N.any(), visit.prob_N.masked_fill(~possible_N, -1.0), logits_N)
    return _fixed(visit.among_children(value_N))


def deepest(visit: Visit) -> tuple[torch.Tensor, torch.Tensor]:
    """The child below which most drafts are expected to be accepted (expected_length)."""
    judge = visit.judge
    if judge.expected_length_N is None:
        judge.expected_length_N = expected_length(judge)
    return _fixed(visit.among_children(judge.expected_length_N))


def sampled(visit: Visit) -> tuple[torch.Tensor, torch.Tensor]:
    """A draw from the draft's raw distribution Q, renormalised over the children."""
    # rows without a child have no law; the walk never uses them
    law_N = torch.nan_to_num(torch.softmax(visit.draft_logits_N, dim=-1))
    return inverse_cdf(law_N[None], visit.uniform_3[1:2])[0], law_N


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


def choose(visit: Visit, needed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The child taken where D passes, and the law it is taken by, float32 [N].

    Where it is not needed the result is any; on a CPU it then costs nothing.
    """
    if needed.device.type == "cpu" and not needed:
        return visit.hit_child, visit.prob_N
    return CHILD_CHOICES[visit.judge.config.child](visit)


def expected_length(judge: Judge) -> torch.Tensor:
    """L(v), the expected drafts accepted below each node, float32 [N]; for child `deepest`.

    fsd:       L(v) = sum_c P_v(c) (1 + L(c)) + [D(v) passes] P_v(not in C) (1 + max_c L(c))
    random:    the same with r instead of [D(v) passes]
    fsd-paper: L(v) = [D(v) passes] (1 + max_c L(c))
    and 0 at a leaf. No draw enters, so that the choice biases no law.
    """
    tree = judge.tree
    parent_N, size = tree.parent_N, tree.size
    has_child_N = torch.zeros(size, dtype=torch.bool, device=parent_N.device)
    has_child_N[parent_N[1:]] = True
    # on a CPU only parents are judged; elsewhere their number would have to be read back
    on_cpu = parent_N.device.type == "cpu"
    node_M = has_child_N.nonzero()[:, 0] if on_cpu else judge.node_N
    take_N = torch.zeros(size, device=parent_N.device)
    if judge.config.rule == "random":
        take_N[node_M] = judge.rate(node_M)
    else:
        take_N[node_M] = judge.passes(node_M, judge.divergence(node_M)).float()
    take_N = torch.where(has_child_N, take_N, 0.0)

    token_MN = tree.token_N.expand(node_M.shape[0], size)
    prob_MC = next_token_probs(judge.target_logits_NV[node_M], judge.sampling).gather(1, token_MN)
    is_child_MN = (parent_N == node_M[:, None]) & judge.is_draft_N
    prob_N = torch.where(is_child_MN, prob_MC, 0.0).sum(0)  # of each draft, at its parent
    reward_N = torch.zeros_like(prob_N)
    for _ in range(tree.max_depth):
        below_N = torch.where(judge.is_draft_N, 1 + reward_N, 0.0)
        best_N = torch.zeros_like(prob_N).scatter_reduce_(0, parent_N, below_N, "amax")
        reward_N = take_N * best_N
        if not REJECTS_BY_DIVERGENCE[judge.config.rule]:
            # sum P(c)(1 + L(c)) + take P(not in C) best, so written that where a child is always
            # taken equal children stay exactly equal
            gain_N = below_N - (take_N * best_N)[parent_N]
            reward_N = reward_N.index_add(0, parent_N, prob_N * gain_N)
    return reward_N


# --- rules: Visit -> (go on?, to which child, TV of the emitted law) ----------------------------


def exact(visit: Visit) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The drawn token if it is a child. The tree is a function of the context: lossless."""
    return visit.hit, visit.hit_child, torch.zeros_like(visit.prob_N[0])


def fsd(visit: Visit) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The drawn token if it is a child, else a drafted child where D passes.

    Emitted law where D passes: P(c) + P(not in C) * choice(c); so TV = P(not in C).
    """
    fuzzy = visit.passes & visit.has_child
    choice, _ = choose(visit, fuzzy & ~visit.hit)
    tv = torch.where(fuzzy, (1 - visit.prob_N.sum()).clamp_min(0), 0.0)
    return visit.hit | fuzzy, torch.where(visit.hit, visit.hit_child, choice), tv


def fsd_paper(visit: Visit) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A drafted child where D passes, else the drawn token ends the round, child or not.

    Emitted law where D passes: choice(c); so TV = 1 - P(c) for a fixed choice.
    """
    fuzzy = visit.passes & visit.has_child
    choice, law_N = choose(visit, fuzzy)
    outside = (1 - visit.prob_N.sum()).clamp_min(0)
    tv = 0.5 * ((law_N - visit.prob_N).abs().sum() + outside)
    return fuzzy, choice, torch.where(fuzzy, tv, 0.0)


def random(visit: Visit) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The drawn token if it is a child, else with probability r a drafted child.

    r is the threshold of the settings. Emitted law: P(c) + r P(not in C) choice(c), and (1 - r) P
    of other tokens; so TV = r P(not in C).
    """
    rate = visit.judge.rate(visit.node_1)[0]
    fuzzy = (visit.uniform_3[2] < rate) & visit.has_child
    choice, _ = choose(visit, fuzzy & ~visit.hit)
    tv = torch.where(visit.has_child, rate * (1 - visit.prob_N.sum()).clamp_min(0), 0.0)
    return visit.hit | fuzzy, torch.where(visit.hit, visit.hit_child, choice), tv


Rule = Callable[[Visit], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
RULES: dict[str, Rule] = {"exact": exact, "fsd": fsd, "fsd-paper": fsd_paper, "random": random}
JUDGED_BY_DIVERGENCE = ("fsd", "fsd-paper")
# Whether a failed divergence ends the round even where the drawn token is a child.
REJECTS_BY_DIVERGENCE = {"exact": False, "fsd": False, "fsd-paper": True, "random": False}
