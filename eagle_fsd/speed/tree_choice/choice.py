"""The tree with the most expected tokens a second, and why.

    tokens/s = E[tokens_per_round] / (propose + verify + accept + commit)

Plain decoding is one token a round of verify at width 1, accept and commit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from eagle_fsd.config import TreeConfig
from eagle_fsd.speed.tree_choice.costs import AcceptCosts, Costs, at

BUSY = 0.25  # spread of the cost measurements from which the text says so


@dataclass(frozen=True)
class Candidate:
    """What is expected of a tree. Costs are milliseconds a round.

    Attributes:
        tree: its shape.
        tokens_per_round: the next token included.
        propose, verify, accept, commit: milliseconds.
        speedup: tokens a second over those of plain decoding.
    """

    tree: TreeConfig
    tokens_per_round: float
    propose: float
    verify: float
    accept: float
    commit: float
    speedup: float

    @property
    def ms_per_round(self) -> float:
        return self.propose + self.verify + self.accept + self.commit


@dataclass(frozen=True)
class TreeChoice:
    """The chosen tree.

    Attributes:
        tree: its shape.
        tokens_per_round: expected, the next token included.
        ms_per_round: expected milliseconds of a round.
        speedup: expected tokens a second over those of plain decoding; at most 1 where no tree
            pays.
        plain_ms: milliseconds of a token of plain decoding.
        table: all candidates, the fastest first.
        text: the choice in a few lines.
    """

    tree: TreeConfig
    tokens_per_round: float
    ms_per_round: float
    speedup: float
    plain_ms: float
    table: tuple[Candidate, ...]
    text: str


def plain_ms(costs: Costs, accept: AcceptCosts) -> float:
    """Milliseconds of a token of plain decoding."""
    return at(costs.verify, 1) + accept.plain + at(costs.commit, 0)


def candidate(
    tree: TreeConfig,
    tokens_per_round: float,
    costs: Costs,
    accept: AcceptCosts,
    *,
    walks_to_the_end: bool,
) -> Candidate:
    """What is expected of a tree.

    Args:
        walks_to_the_end: the rule walks tree_depth steps whatever is accepted, as on an
            accelerator; on a CPU it stops with the path.
    """
    accepted = tokens_per_round - 1
    parts = (
        costs.propose(tree),
        at(costs.verify, 1 + tree.num_draft_tokens),
        at(accept.by_drafts, tree.tree_depth if walks_to_the_end else accepted),
        at(costs.commit, accepted),
    )
    speedup = tokens_per_round * plain_ms(costs, accept) / sum(parts)
    return Candidate(tree, tokens_per_round, *parts, speedup)


def choose(
    trees: Sequence[TreeConfig],
    tokens_per_round: Sequence[float],
    costs: Costs,
    accept: AcceptCosts,
    *,
    default: TreeConfig,
    walks_to_the_end: bool,
    origin: str = "",
) -> TreeChoice:
    """Take the fastest candidate, of equals the one that comes first.

    Args:
        trees: the candidates.
        tokens_per_round: of each, from a survey.
        costs, accept: of this machine.
        default: the tree that is taken without tuning; compared with where it is a candidate.
        walks_to_the_end: see `candidate`.
        origin: a last line for the text: what the figures come from.
    """
    table = sorted(
        (
            candidate(tree, tokens, costs, accept, walks_to_the_end=walks_to_the_end)
            for tree, tokens in zip(trees, tokens_per_round, strict=True)
        ),
        key=lambda row: -row.speedup,
    )
    best, plain = table[0], plain_ms(costs, accept)
    lines = [*_explain(table, plain, default), origin, _doubt(costs)]
    return TreeChoice(
        best.tree,
        best.tokens_per_round,
        best.ms_per_round,
        best.speedup,
        plain,
        tuple(table),
        "\n".join(line for line in lines if line),
    )


def shape(tree: TreeConfig) -> str:
    """Example: "15 drafts, depth 4, top-k 6"."""
    return f"{tree.num_draft_tokens} drafts, depth {tree.tree_depth}, top-k {tree.branch_top_k}"


def _explain(table: list[Candidate], plain: float, default: TreeConfig) -> list[str]:
    best = table[0]
    lines = [
        f"auto tree: {shape(best.tree)}: {best.speedup:.2f}x plain expected",
        f"  {best.tokens_per_round:.2f} tokens a round in {best.ms_per_round:.1f} ms: propose "
        f"{best.propose:.1f}, verify {best.verify:.1f}, accept {best.accept:.1f}, commit "
        f"{best.commit:.1f}; plain decoding takes {plain:.1f} ms a token",
    ]
    if best.speedup <= 1:
        lines.append(
            "  no tree beats plain decoding here: this is the least slow one. A better head, a "
            "larger T or plain decoding would be faster"
        )
    drafts = best.tree.num_draft_tokens
    others = [row for row in table if row.tree.num_draft_tokens != drafts]
    if others:
        lines.append(f"  next best of another size: {_compared(others[0], best)}")
    fixed = [row for row in table if row.tree == default]
    if fixed and default == best.tree:
        lines.append("  it is the default tree")
    elif fixed:
        lines.append(f"  the default tree: {_compared(fixed[0], best)}")
    return lines


def _doubt(costs: Costs) -> str:
    if costs.spread <= BUSY:
        return ""
    return (
        f"  repeats of the cost measurements differ by {100 * costs.spread:.0f} %: something else "
        "was running. Choose again with --retune when the machine is idle"
    )


def _compared(row: Candidate, best: Candidate) -> str:
    return (
        f"{shape(row.tree)}: {row.tokens_per_round:.2f} tokens in {row.ms_per_round:.1f} ms, "
        f"{row.speedup:.2f}x plain ({100 * (1 - row.speedup / best.speedup):.1f} % fewer tokens/s)"
    )
