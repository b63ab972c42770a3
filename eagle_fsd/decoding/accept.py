"""Acceptance: which path of a draft tree is kept, and which token follows it.

One walk from the root serves all rules (rules.py). At a visited node v, x ~ P_v is what the exact
test would emit, and D(v) is the divergence of the target's and the draft's rows (visit.py); a rule
says whether the walk goes on, and to which child. The walk visits at most max_depth + 1 nodes and
uses tensor operations only, so on an accelerator nothing is read back before the one transfer at
its end; on a CPU it stops early.

Axes: N nodes, V vocabulary, S steps of the walk (max_depth + 1).
"""

from dataclasses import dataclass

import torch

from eagle_fsd.config import AcceptConfig, SamplingConfig
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.decoding.visit import Judge, Visit
from eagle_fsd.rules.fuzzy import RULES


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


def uniforms(max_depth: int, generator: torch.Generator) -> torch.Tensor:
    """The random numbers of one round, float32 [max_depth + 1, 3]: one row per visited node.

    Column 0 draws x ~ P_v, column 1 the child of `sample`, column 2 decides for rule `random`.
    Every rule takes the same block, used or not, so that rules and thresholds can be compared draw
    by draw.
    """
    return torch.rand(max_depth + 1, 3, generator=generator, device=generator.device)


@torch.inference_mode()
def accept(
    tree: DraftTree,
    target_logits_NV: torch.Tensor,
    uniform_S3: torch.Tensor,
    *,
    config: AcceptConfig,
    sampling: SamplingConfig,
    threshold: float | torch.Tensor | None = None,
) -> Acceptance:
    """Walk the tree by a rule.

    Args:
        tree: the draft tree.
        target_logits_NV: the target's raw logits; row i is about the token AFTER node i.
        uniform_S3: from `uniforms`, at least max_depth + 1 rows.
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
        visit = Visit(judge, node, uniform_S3[step])
        go_on, child, tv = rule(visit)
        child_token = tree.token_N.index_select(0, child.reshape(1))[0]
        token = torch.where(go_on, child_token, visit.drawn)
        logits_V = visit.logits_1V[0]
        regret = logits_V.max().float() - logits_V.index_select(0, token[None])[0].float()
        row = (alive, node, token, token != visit.drawn, visit.judged, tv, regret)
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
