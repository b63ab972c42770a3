"""Beam search in which every beam has a draft tree, and all trees are verified in one forward.

    .venv/bin/python extras/beam.py --prompt "Why is the sky blue?" --beams 4 --arm exact

AtSpeed's strict rule (arXiv 2410.05165): a round goes down its trees level by level, as long as all
of the target's own K best continuations are drafted. At the first level where one is not, it ends
with exactly those K, so the answer is that of transformers' `generate(num_beams=K)`. What it saves:
results/beam/README.md.

What all beams share is committed as the loop's text is. Behind it stands one tree of all that they
do not share, which is run again in every round, with their drafts.

Axes: B live beams, C the best continuations, L tokens run, N nodes of a round, V vocabulary,
F features.
"""

from dataclasses import dataclass, field
from os.path import commonprefix

import torch

from eagle_fsd.arms import parse_arm
from eagle_fsd.cli import run_command
from eagle_fsd.config import BadInput, check_least
from eagle_fsd.decoding.loop import StopConfig, check_request
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import Drafter, DraftTree
from eagle_fsd.options import ModelOptions


@dataclass(frozen=True)
class BeamConfig:
    """As in transformers' GenerationConfig.

    Attributes:
        beams: K, `num_beams` there.
        length_penalty: a finished beam's score is its log-probability over length^length_penalty.
        early_stopping: True ends the search with the K-th finished beam; False once the best live
            one, were it finished now, would not be among the K best; "never" does so too, but for
            length penalties above 0 as if it could have the whole budget's length.
    """

    beams: int = 4
    length_penalty: float = 1.0
    early_stopping: bool | str = False

    def __post_init__(self):
        check_least(self, beams=1)


@dataclass
class BeamAnswer:
    """The best finished beam.

    Attributes:
        tokens: with its stop token, if it has one.
        score: its log-probability, in nats, over length^length_penalty.
        rounds: forwards of the target after prefill.
        levels: how many tokens the live beams had when the search ended, which go on while a
            finished one may be beaten. Without drafts there are levels - 1 rounds.
    """

    tokens: list[int]
    score: float
    rounds: int
    levels: int


@dataclass
class Scorer:
    """transformers' beam scorer (GenerationMixin._beam_search, 5.23), a level at a time.

    Attributes:
        beams, logp_B: the live ones, best first: their tokens, of one length, and their
            log-probabilities, float32.
        finished: (score, tokens) of the K best, best first.
        over: nothing that is live could change what is returned.
    """

    config: BeamConfig
    stop: StopConfig
    beams: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    logp_B: torch.Tensor = field(default_factory=lambda: torch.zeros(1))
    finished: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)
    length: int = 0
    over: bool = False

    def step(self, logits_BV: torch.Tensor) -> list[int]:
        """From the logits behind every live beam to the next level's, of which the parents are
        returned."""
        K, ends, budget = self.config.beams, self.stop.token_ids, self.stop.max_new_tokens
        logp_BV = torch.log_softmax(logits_BV, dim=-1, dtype=torch.float32)
        logp_BV = logp_BV + self.logp_B.to(logp_BV.device)[:, None]
        # so many that K live ones are among them
        best = logp_BV.flatten().topk(max(2, 1 + len(ends)) * K)
        logp_C, self.length = best.values.cpu(), self.length + 1
        score_C = self._score(logp_C, self.length).tolist()
        live: list[tuple[int, int, tuple[int, ...]]] = []  # rank, parent, tokens
        for rank, place in enumerate(best.indices.tolist()):
            parent, token = divmod(place, logp_BV.shape[1])
            tokens = (*self.beams[parent], token)
            if token not in ends and self.length < budget:
                live.append((rank, parent, tokens))
            elif rank < K:
                self.finished.append((score_C[rank], tokens))
        self.finished = sorted(self.finished, key=lambda one: -one[0])[:K]
        live = live[:K]
        self.beams = [tokens for *_, tokens in live]
        self.logp_B = logp_C[[rank for rank, *_ in live]]
        self.over = not live or (len(self.finished) == K and not self._can_improve())
        return [parent for _, parent, _ in live]

    def _score(self, logp: torch.Tensor, length: int) -> torch.Tensor:
        return logp / length**self.config.length_penalty

    def _can_improve(self) -> bool:
        early, length = self.config.early_stopping, self.length
        if early == "never" and self.config.length_penalty > 0:
            length = self.stop.max_new_tokens
        best = self._score(self.logp_B[0], length).item()
        # one beam is greedy decoding, as in `generate`, which ends with its first stop token
        return early is not True and self.config.beams > 1 and best > self.finished[-1][0]


class Nodes:
    """The nodes of a round, parents first, no two of one token below the same parent."""

    def __init__(self, root: int):
        self.tokens, self.parents = [root], [0]
        self.node_of: dict[tuple[int, int], int] = {}  # by parent and token

    def below(self, parent: int, token: int) -> int:
        """The node of a token below a parent."""
        if (parent, token) not in self.node_of:
            self.node_of[parent, token] = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(parent)
        return self.node_of[parent, token]

    def path(self, node: int) -> list[int]:
        """From the root to a node."""
        return [*(self.path(self.parents[node]) if node else []), node]


@torch.inference_mode()
def search(
    target: Target, drafter: Drafter, prompt: list[int], stop: StopConfig, config: BeamConfig
) -> BeamAnswer:
    """The search itself, over token ids, with a drafter that drafts the same below the same text:
    a head's, a draft model's, or one that drafts nothing."""
    check_request(target, prompt, stop)
    if target.has_states:
        raise BadInput(
            "beam search runs nodes of several beams again, which layers with states cannot: take "
            "a target of attention alone"
        )
    scorer, rounds, device = Scorer(config, stop), 0, target.device
    capacity = len(prompt) + stop.max_new_tokens
    cache = target.begin(len(prompt) + config.beams * (stop.max_new_tokens + drafter.max_nodes))
    # 1. Prefill gives the first level. The prompt's last token, which all beams share, is the root
    #    of the first tree, so it is taken back. Of each beam: the features of its tokens that were
    #    run, and the nodes of the last tree that they are.
    logits_V, features_LF = target.prefill(cache, torch.tensor(prompt, device=device))
    cache.committed = committed = len(prompt) - 1
    scorer.step(logits_V[None])
    features_B = [features_LF] * len(scorer.beams)
    while not scorer.over:
        # 2. The tree: the tokens behind the committed ones, those that beams share once, and below
        #    each beam's last token its drafts. end_B are the nodes of these last tokens.
        texts, end_B = [[*prompt, *beam] for beam in scorer.beams], []
        nodes = Nodes(texts[0][committed])
        for text in texts:
            end_B.append(0)
            for token in text[committed + 1 :]:
                end_B[-1] = nodes.below(end_B[-1], token)
        for text, features_LF, end in zip(texts, features_B, end_B, strict=True):
            own = drafter.begin(capacity, text[0])
            own.observe(features_LF, text[1:])
            drafts, placed = own.propose(), [end]
            rows = drafts.token_N[1:].tolist(), drafts.parent_N[1:].tolist()
            for token, parent in zip(*rows, strict=True):
                placed.append(nodes.below(placed[parent], token))
        tree = DraftTree.from_parents(nodes.tokens, nodes.parents, device=device)
        logits_NV, features_NF = target.verify(cache, tree)
        rounds += 1
        # 3. Level by level, as long as all of the next beams are drafted.
        node_B: list[int | None] = end_B
        while None not in node_B and not scorer.over:
            parent_B = scorer.step(logits_NV[node_B])
            end_B = [node_B[parent] for parent in parent_B]
            last_B = [beam[-1] for beam in scorer.beams]
            node_B = [nodes.node_of.get(place) for place in zip(end_B, last_B, strict=True)]
        if scorer.over:
            break
        # 4. What all beams share is committed, but for its last token, the next root.
        paths = [nodes.path(node) for node in end_B]
        features_B = [torch.cat([features_B[0][:committed], features_NF[p]]) for p in paths]
        shared = len(commonprefix([[*prompt, *beam] for beam in scorer.beams])) - 1 - committed
        target.commit(cache, torch.tensor(paths[0][:shared], dtype=torch.long, device=device))
        committed += shared
    score, answer = scorer.finished[0]
    return BeamAnswer(list(answer), score, rounds, scorer.length)


@dataclass
class BeamOptions:
    prompt: str = "Why is the sky blue?"
    """The user's message."""
    arm: str = "plain"
    """plain drafts nothing; exact, or exact@eagle:15x4x6, drafts."""
    beams: int = 4
    """The number of beams, num_beams of `generate`."""
    max_new_tokens: int = 256
    """The most tokens that the answer may have."""


def run(options: BeamOptions, model_options: ModelOptions) -> None:
    config, arm = BeamConfig(options.beams), parse_arm(options.arm)
    if arm.kind not in ("plain", "exact") or arm.guards:
        raise BadInput(f"beam search gives the target's own best text: no arm {arm.text!r}")
    model = model_options.load([arm])
    drafter = arm.build_drafter(model)
    prompt, stop = model.prompt_ids(options.prompt), model.stop(options.max_new_tokens)
    found = search(model.target, drafter, prompt, stop, config)
    print(model.text(found.tokens))
    print(f"[{len(found.tokens)} tokens, score {found.score:.3f}, {found.rounds} rounds]")


def main() -> None:
    run_command(run, [BeamOptions, ModelOptions])


if __name__ == "__main__":
    main()
