"""Settings that check themselves: tree shape and sampling; and the error for what users pass."""

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from numbers import Integral, Real

DEFAULT_ARM = "fsd:0.3"  # of commands and of api.generate; the rule's own default threshold


class BadInput(ValueError):  # noqa: N818  (it is about what a user passed, and no error of ours)
    """What a user passed cannot be used; the text names the value and the remedy. Commands catch it
    and nothing else, so that an error of our own keeps its traceback."""


def one_line(error: Exception) -> str:
    """What an error of others is and says, in one line, to be quoted in a BadInput."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def check_known(what: str, name: str, known: Iterable[str]) -> None:
    """Refuse a name that is not among the known, which are listed."""
    if name not in known:
        raise BadInput(f"unknown {what} {name!r}{nearest(name, known)}; known: {', '.join(known)}")


def nearest(name: str, known: Iterable[str], *, before: str = "") -> str:
    """A question for the known name that is most like this one, shown with what stands before it;
    "" where none is."""
    alike = get_close_matches(name, list(known), n=1)
    return f", did you mean {before}{alike[0]}?" if alike else ""


def check_least(settings: object, prefix: str = "", /, **least: float) -> None:
    """Refuse fields, or an entry of a list, that are below the least, nan or infinite: of
    check_least(options, "--", steps=1) the text is "--steps must be at least 1, got 0"."""
    for name, low in least.items():
        value = getattr(settings, name)
        if not all(low <= v < math.inf for v in (value if isinstance(value, list) else [value])):
            raise BadInput(f"{prefix}{name} must be at least {low}, got {value}")


def check_between(low: float, high: float, **values: float) -> None:
    """Refuse values out of a range, its ends included."""
    for name, value in values.items():
        if not low <= value <= high:
            raise BadInput(f"{name} must be from {low} to {high}, got {value}")


def check_numbers(settings: object, **kinds: type) -> None:
    """Refuse fields that are no numbers of their kind, as None is none."""
    for name, kind in kinds.items():
        if isinstance(value := getattr(settings, name), bool) or not isinstance(value, kind):
            wanted = "an integer" if kind is Integral else "a number"
            raise BadInput(
                f"{name} must be {wanted}, got {value!r:.200}; leave it out for its default"
            )


def check_seed(seed: int) -> None:
    """Refuse a seed that torch has no room for."""
    check_between(1 - 2**63, 2**63 - 1, seed=seed)


def check_text(text: str) -> None:
    """Refuse text that UTF-8 has no bytes for."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(
            f"{text!r:.200} holds an invalid byte or half a surrogate pair: give UTF-8 text"
        ) from error


@dataclass(frozen=True)
class TreeConfig:
    """Shape of the dynamic draft tree (EAGLE-2, arXiv 2406.16858).

    Counts exclude the root. Upstream counts otherwise: its total_token 60 / depth 5 / top_k 10 are
    num_draft_tokens 59 / tree_depth 6 / branch_top_k 10 here.

    Attributes:
        num_draft_tokens: drafts that are verified each round; a verification is one wider.
        tree_depth: drafted levels, and so the most drafts that a round can accept.
        branch_top_k: children per expanded node, and expanded nodes per level. 1 drafts a chain.
        keep: the least probability of a path that a node is verified for, by the drafter; 0 keeps
            num_draft_tokens nodes in every round, as EAGLE-2 does.
        deepen: the least probability of a level's best path for which one more level is drafted;
            0 drafts tree_depth levels in every round.

    keep and deepen are prices. A node of path probability p brings p tokens, and costs the time to
    verify it; one more level brings at most its best path's p times the chance that the next token
    is right, and costs a step of the drafter and a node. So each is worth its time while p is at
    least its cost over the time that a token is worth, the reciprocal of tokens a second
    (docs/speed.md#trees-by-price; CaDDTree, arXiv 2606.01813, and SMART, 2604.09731, have the law).
    """

    num_draft_tokens: int = 59
    tree_depth: int = 6
    branch_top_k: int = 10
    keep: float = 0.0
    deepen: float = 0.0

    def __post_init__(self):
        check_least(self, num_draft_tokens=1, tree_depth=1, branch_top_k=1)
        check_between(0, 1, keep=self.keep, deepen=self.deepen)
        if not self.tree_depth <= self.num_draft_tokens <= self.pool_size:
            raise BadInput(
                f"{self.num_draft_tokens} drafts are no tree of {self.tree_depth} levels with "
                f"top-k {self.branch_top_k}: give from {self.tree_depth}, one a level, to the "
                f"{self.pool_size} that are drafted, or another depth or top-k"
            )

    @property
    def pool_size(self) -> int:
        """Candidates that are drafted before reranking: K + (depth - 1) * K^2."""
        return self.branch_top_k + (self.tree_depth - 1) * self.branch_top_k**2

    @property
    def num_expanded(self) -> int:
        """Nodes the drafter runs, the root included: 1 + (depth - 1) * K."""
        return 1 + (self.tree_depth - 1) * self.branch_top_k


# What training judges a head by, on every machine
SMALL_TREE = TreeConfig(num_draft_tokens=15, tree_depth=4, branch_top_k=6)
# On a CPU every node and level has its price (docs/speed.md#trees-by-price)
CPU_TREE = TreeConfig(12, 6, 4, keep=0.1, deepen=0.4)


def default_tree(device: str) -> TreeConfig:
    """A priced tree on a CPU; upstream's of 59 drafts on any other device."""
    return CPU_TREE if device == "cpu" else TreeConfig()


def tree_name(tree: TreeConfig) -> str:
    """Drafts x levels x top-k, and the prices that are set: "12x6x4,keep=0.1,deepen=0.4"."""
    name = f"{tree.num_draft_tokens}x{tree.tree_depth}x{tree.branch_top_k}"
    prices = {"keep": tree.keep, "deepen": tree.deepen}
    return name + "".join(f",{key}={value!r}" for key, value in prices.items() if value)


def parse_tree(text: str) -> TreeConfig:
    """The inverse of tree_name; refuses other texts."""
    shape, *prices = text.split(",")
    numbers = {name: value for name, _, value in (price.partition("=") for price in prices)}
    try:
        if len(numbers) < len(prices) or not numbers.keys() <= {"keep", "deepen"}:
            raise ValueError
        if not re.fullmatch("[0-9]{1,9}(x[0-9]{1,9}){2}", shape):
            raise ValueError
        numbers = {name: float(value) for name, value in numbers.items()}
    except ValueError:
        raise BadInput(
            "a tree is DRAFTSxLEVELSxTOPK, with prices behind it or not, such as 15x4x6 or "
            f"12x6x4,keep=0.1,deepen=0.4; got {text!r:.200}"
        ) from None
    return TreeConfig(*map(int, shape.split("x")), **numbers)


def as_tree(tree: TreeConfig | str | None) -> TreeConfig | None:
    """A shape of trees, given as one or as arms write it; None and "": not given."""
    return parse_tree(tree) if isinstance(tree, str) and tree else tree or None


@dataclass(frozen=True)
class SamplingConfig:
    """From logits to the target's next-token distribution, as in transformers' `generate`.

    Attributes:
        temperature: 0 takes the argmax.
        top_k: keep this many tokens; 0 keeps all.
        top_p: keep the smallest set with at least this probability; 1 keeps all.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self):
        check_numbers(self, temperature=Real, top_k=Integral, top_p=Real)
        # logits divided by still less could overflow float32
        if not (self.temperature == 0 or 1e-6 <= self.temperature < math.inf):
            raise BadInput(f"temperature must be 0 (greedy) or above 1e-6, got {self.temperature}")
        check_least(self, top_k=0)
        if not 0 < self.top_p <= 1:
            raise BadInput(f"top_p must be in (0, 1], got {self.top_p}")

    @property
    def filters(self) -> bool:
        """Whether top-k or top-p was set explicitly."""
        return self.top_k > 0 or self.top_p < 1


@contextmanager
def step_of_setup(name: str) -> Iterator[None]:
    """Around imports of packages that only this step of scripts/setup.sh installs, or the extra of
    its name: says so where one is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise BadInput(
            f"{error}: scripts/setup.sh {name} installs it into a checkout's environment, and "
            f"pip install 'eagle_fsd[{name}]' into any other"
        ) from error
