"""Beam search in which every beam has a draft tree, and all trees are verified in one forward.

AtSpeed's strict rule (arXiv 2410.05165): a round goes down its trees level by level, as long as all
of the target's own K best continuations are drafted. At the first level where one is not, it ends
with exactly those K, so the answer is that of `generate(num_beams=K)`. What beam search saves by
drafts here, and what it does not: results/beam.

The beams have most of their text in common, which is committed as the loop's is. Behind that stands
one tree, whose first nodes are what the beams hold beside it; their cache rows are kept too.

Axes: B live beams, P nodes that are run and kept, N nodes of a round, V vocabulary, F features.
"""

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from numbers import Integral, Real
from os.path import commonprefix

import torch

from eagle_fsd.arms import PLAIN, parse_arm
from eagle_fsd.config import BadInput, SamplingConfig, check_between, check_least, check_numbers
from eagle_fsd.decoding.loop import StopConfig, check_request
from eagle_fsd.decoding.sampling import no_numbers
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import Drafter, DraftTree
from eagle_fsd.drafters.growing import GrowingDrafter
from eagle_fsd.drafters.settings import SampledTree
from eagle_fsd.messages import Message
from eagle_fsd.models.loaded import Model


@dataclass(frozen=True)
class BeamConfig:
    """As in transformers' GenerationConfig, but for `share`.

    Attributes:
        beams: K, `num_beams` there.
        length_penalty: a finished beam's score is its log-probability over length^length_penalty.
        early_stopping: True ends the search with the K-th finished beam; False once the best live
            one, were it finished now, would not be among the K best; "never" does so too, but for
            length penalties above 0 as if it could have the whole budget's length.
        share: of the K best continuations those that are not drafted are dropped where the others
            hold at least this share of the K's probability, and the round goes on with fewer
            beams, until its next level has K again. 1 drops none: exact beam search.
    """

    beams: int = 4
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    share: float = 1.0

    def __post_init__(self):
        check_numbers(self, beams=Integral, length_penalty=Real, share=Real)
        check_least(self, beams=1)
        check_between(0, 1, share=self.share)
        check_between(-16, 16, length_penalty=self.length_penalty)  # lengths to it are finite
        if not (isinstance(self.early_stopping, bool) or self.early_stopping == "never"):
            raise BadInput(
                f"early_stopping must be True, False or 'never', got {self.early_stopping!r:.200}"
            )


@dataclass
class BeamAnswer:
    """The best finished beam.

    Attributes:
        tokens: with its stop token, if it has one.
        score: its log-probability over length^length_penalty.
        logp: its log-probability, in nats, the sum over its tokens.
        rounds: forwards of the target after prefill.
        levels: how many tokens the live beams had when the search ended, which go on while a
            finished one may be beaten.
    """

    tokens: list[int]
    score: float
    logp: float
    rounds: int
    levels: int
    text: str = ""

    @property
    def forwards_per_token(self) -> float:
        """Forwards after prefill, by levels after the first, which prefill gives; without drafts
        1. NaN where there are none."""
        return self.rounds / (self.levels - 1) if self.levels > 1 else float("nan")


def check_beams(arm: str, sampling: SamplingConfig | None = None) -> None:
    """Refuse, before anything is loaded, arms and sampling that beam search has no meaning for."""
    chosen = parse_arm(arm)
    grown = isinstance(chosen.drafter, SampledTree) and not chosen.drafter.samples
    exact = chosen.kind == "exact" and not chosen.guards
    if chosen.text != PLAIN and not (exact and grown):
        raise BadInput(
            f"beam search gives the target's own best text, got arm {arm!r}: take plain, or exact "
            "with trees of a head or a draft model, which are not sampled"
        )
    if sampling and sampling.temperature > 0:
        raise BadInput(f"beam search does not sample, got temperature {sampling.temperature}")


def beam_search(
    model: Model,
    prompt: str | list[Message],
    *,
    beams: int = BeamConfig.beams,
    arm: str = PLAIN,
    max_new_tokens: int = StopConfig.max_new_tokens,
    length_penalty: float = BeamConfig.length_penalty,
    early_stopping: bool | str = BeamConfig.early_stopping,
    share: float = BeamConfig.share,
) -> BeamAnswer:
    """Answer a prompt by beam search; see BeamConfig.

    Args:
        prompt: a user turn, or messages with role and content.
        arm: "plain", without drafts, which takes less time on a CPU (results/beam); or "exact",
            with a tree or not, such as "exact@eagle:15x4x6" for 15 drafts a beam.

    BadInput: of other arms; of targets with recurrent layers; where the template has stop strings.

    Example:
        >>> model = eagle_fsd.load("smollm2")
        >>> answer = eagle_fsd.beam_search(model, "Why is the sky blue?", beams=4)
        >>> print(answer.text, answer.score, answer.forwards_per_token)
    """
    check_beams(arm)
    config = BeamConfig(beams, length_penalty, early_stopping, share)
    stop = model.stop(max_new_tokens)
    if stop.strings:
        raise BadInput(f"beam search ends at stop tokens alone, not at strings: {stop.strings!r}")
    drafter = parse_arm(arm).build_drafter(model)
    answer = search(model.target, drafter, model.prompt_ids(prompt), stop, config)
    answer.text = model.text(answer.tokens)
    return answer


@dataclass
class Scorer:
    """transformers' beam scorer (GenerationMixin._beam_search, 5.23), a level at a time.

    Attributes:
        beams, logp_B: the live ones, best first: their tokens, of one length, and their
            log-probabilities, float32.
        finished: (score, log-probability, tokens) of the K best, best first.
        over: nothing that is live could change what is returned.
    """

    config: BeamConfig
    stop: StopConfig
    beams: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    logp_B: torch.Tensor = field(default_factory=lambda: torch.zeros(1))
    finished: list[tuple[float, float, tuple[int, ...]]] = field(default_factory=list)
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
        if not math.isfinite(logp_C[0]):  # a NaN is ranked above all numbers
            raise no_numbers(f"after {self.length - 1} tokens of the beams")
        score_C = self._score(logp_C, self.length).tolist()
        live: list[tuple[int, int, tuple[int, ...]]] = []  # rank, parent, tokens
        for rank, place in enumerate(best.indices.tolist()):
            parent, token = divmod(place, logp_BV.shape[1])
            tokens = (*self.beams[parent], token)
            if token not in ends and self.length < budget:
                live.append((rank, parent, tokens))
            elif rank < K:
                self.finished.append((score_C[rank], logp_C[rank].item(), tokens))
        self.finished = sorted(self.finished, key=lambda one: -one[0])[:K]
        live = live[:K]
        self.beams = [tokens for *_, tokens in live]
        self.logp_B = logp_C[[rank for rank, *_ in live]]
        self.over = not live or (len(self.finished) == K and not self._can_improve())
        return [parent for _, parent, _ in live]

    def can_do_with(self, place_B: list[int]) -> bool:
        """Whether the other live beams may be dropped: see BeamConfig.share."""
        some = 0 < len(place_B) < len(self.beams) and self.config.share < 1
        return some and self.logp_B.softmax(0)[place_B].sum().item() >= self.config.share

    def keep(self, place_B: list[int]) -> None:
        """Drop the other live beams."""
        self.beams, self.logp_B = [self.beams[place] for place in place_B], self.logp_B[place_B]

    def _score(self, logp: torch.Tensor, length: int) -> torch.Tensor:
        return logp / length**self.config.length_penalty

    def _can_improve(self) -> bool:
        early, length = self.config.early_stopping, self.length
        if early == "never" and self.config.length_penalty > 0:
            length = self.stop.max_new_tokens
        best = self._score(self.logp_B[0], length).item()
        # one beam is greedy decoding, as in `generate`, which ends with its first stop token
        return early is not True and self.config.beams > 1 and best > self.finished[-1][0]


@torch.inference_mode()
def search(
    target: Target, drafter: Drafter, prompt: Sequence[int], stop: StopConfig, config: BeamConfig
) -> BeamAnswer:
    """The search itself, over token ids, with a GrowingDrafter or one that drafts nothing."""
    grows = isinstance(drafter, GrowingDrafter)
    assert drafter.max_nodes == 1 or (grows and not drafter.samples), drafter
    check_request(target, prompt, stop)
    if target.has_states:
        raise BadInput(
            "beam search keeps cache rows of several beams, which recurrent layers do not have: "
            "take a target of attention alone"
        )
    if max(2, 1 + len(stop.token_ids)) * config.beams > target.vocab_size:
        raise BadInput(
            f"{config.beams} beams ask for more continuations than the vocabulary of "
            f"{target.vocab_size} has: take fewer"
        )
    device, scorer, rounds = target.device, Scorer(config, stop), 0
    with target.turn(), closing(target):  # the answer is forgotten, also after an error
        target.start(len(prompt) + config.beams * (stop.max_new_tokens + drafter.max_nodes))
        # 1. Prefill gives the first level. All beams share the prompt's last token, which is run:
        #    it is the root. The kept nodes are token_P, parent_P and features_PF; at_B says behind
        #    which of them the last token of each live beam stands, which is not run.
        logits_V, features_LF = target.prefill(torch.tensor(prompt, device=device))
        target.cache.committed -= 1
        if grows:
            drafter.reset(len(prompt) + stop.max_new_tokens, prompt[0])
        if grows and len(prompt) > 1:
            drafter.observe(features_LF[:-1], prompt[1:])
        token_P, parent_P, features_PF = [prompt[-1]], [0], features_LF[-1:]
        at_B = scorer.step(logits_V[None])  # all 0
        while not scorer.over:
            # 2. The tree: the kept nodes, each beam's last token, and below that its drafts.
            P, B = len(token_P), len(at_B)
            tokens, parents = token_P + [beam[-1] for beam in scorer.beams], parent_P + at_B
            for end in range(P, P + B) if grows else ():
                path = _path(end, parents)
                behind = [tokens[node] for node in path[1:]]
                drafts = drafter.propose_behind(features_PF[path[:-1]], behind)
                shift = len(tokens) - 1
                tokens += drafts.token_N.tolist()[1:]
                parents += [shift + p if p else end for p in drafts.parent_N.tolist()[1:]]
            tree = DraftTree.from_parents(tokens, parents, device=device)
            logits_NV, features_NF = target.verify(tree, known=P)
            rounds += 1
            # 3. Level by level, as long as all of the next beams are drafted.
            node_of = {place: node for node, place in enumerate(zip(parents, tokens, strict=True))}
            node_B: list[int | None] = list(range(P, P + B))
            while None not in node_B:
                parent_B = scorer.step(logits_NV[[node - P for node in node_B]])
                at_B = [node_B[parent] for parent in parent_B]
                if scorer.over:
                    break
                last_B = [beam[-1] for beam in scorer.beams]
                node_B = [node_of.get(place) for place in zip(at_B, last_B, strict=True)]
                drafted = [place for place, node in enumerate(node_B) if node is not None]
                if scorer.can_do_with(drafted):
                    scorer.keep(drafted)
                    at_B, node_B = [[nodes[i] for i in drafted] for nodes in (at_B, node_B)]
            if scorer.over:
                break
            # 4. What all beams share is committed, but for its last node, the next root. That, and
            #    what only some of them have, are the kept nodes; all others are dropped.
            paths = [_path(node, parents) for node in at_B]
            shared = commonprefix(paths)
            kept = [shared[-1], *sorted({*sum(paths, [])} - {*shared})]
            node_A = torch.tensor([*shared[:-1], *kept], device=device)
            target.commit(node_A, uncommitted=len(kept))
            features_NF = torch.cat([features_PF, features_NF])
            if grows and len(shared) > 1:
                drafter.observe(features_NF[shared[:-1]], [tokens[node] for node in shared[1:]])
            place_of = {node: place for place, node in enumerate(kept)}
            token_P, features_PF = [tokens[node] for node in kept], features_NF[kept]
            parent_P = [0, *(place_of[parents[node]] for node in kept[1:])]
            at_B = [place_of[node] for node in at_B]
    score, logp, answer = scorer.finished[0]
    return BeamAnswer(list(answer), score, logp, rounds, scorer.length)


def _path(node: int, parents: list[int]) -> list[int]:
    """From the root to a node."""
    path = [node]
    while path[-1]:
        path.append(parents[path[-1]])
    return path[::-1]
