"""Drafters by name with their settings, as arms write them; a new one is a class and an entry here.

A drafter's own file, and with it transformers, is imported when it is built.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, Protocol

from eagle_fsd.config import (
    BadInput,
    TreeConfig,
    check_between,
    check_least,
    parse_tree,
    tree_name,
)
from eagle_fsd.decoding.tree import Drafter, RootDrafter
from eagle_fsd.decoding.verified import Guard
from eagle_fsd.rules.guards import Ends, NoRepeat

MOST_RECYCLED = 16  # of the target's own top tokens; then these are right with .88 (ngram.RECYCLED)


class LoadedModels(Protocol):
    """What a drafter is built of: a loaded model (models/loaded.py)."""

    target: object  # a Target
    drafter: Drafter  # of its head
    draft_model: object | None  # a second language model, a Target
    foreign_ids: Sequence[int]  # ids of its tokens that the target's tokenizer lacks


class DrafterSettings(Protocol):
    """A frozen dataclass whose fields are a drafter's parameters.

    Attributes:
        head: the type of head that it needs, if that is not any.
        shape: of its trees, if it is named; None: the model's, or it has none.
        vocab_size: see Drafter, as far as it is known before the drafter is built.
        default_guards: the guards that a lossy rule has on its trees if its arm states none.
        recycle: how many of the target's own top tokens are kept of every verified node, accepted
            or not, and drafted later; 0: none.
    """

    needs_head: ClassVar[bool] = False
    head: ClassVar[str] = ""
    needs_draft_model: ClassVar[bool] = False
    shape: TreeConfig | None = None
    vocab_size: ClassVar[int | None] = None
    default_guards: ClassVar[tuple[Guard, ...]] = ()
    samples: ClassVar[bool] = False
    recycle: int = 0

    def build(self, model: LoadedModels) -> Drafter: ...


@dataclass(frozen=True)
class NoDrafts(DrafterSettings):
    """Of arms that draft nothing; it has no name."""

    def build(self, model: LoadedModels) -> Drafter:
        return RootDrafter()


# --- trees that a model grows ---------------------------------------------------------------------


@dataclass(frozen=True)
class GrownTree(DrafterSettings):
    """Its `tree` is a shape, DRAFTSxLEVELSxTOPK, with the prices keep and deepen of a TreeConfig;
    "" is the head's own, with its prices."""

    tree: str = ""
    keep: float = 0.0
    deepen: float = 0.0

    def __post_init__(self):
        if self.shape is not None:  # spelled as tree_name does
            object.__setattr__(self, "tree", tree_name(replace(self.shape, keep=0.0, deepen=0.0)))
        elif self.keep or self.deepen:
            raise BadInput("keep and deepen are prices of a tree: name one, as in :12x6x4,keep=0.1")

    @property
    def shape(self) -> TreeConfig | None:
        if not self.tree:
            return None
        return replace(parse_tree(self.tree), keep=self.keep, deepen=self.deepen)

    def with_head(self, model: LoadedModels) -> Drafter:
        """The drafter of the model's head, with these trees."""
        head = getattr(model.drafter, "head", None)
        if head is None or self.head not in ("", head.config.head_type):
            wanted = f"the draft head {self.head!r}" if self.head else "a draft head"
            raise BadInput(f"these trees need {wanted}: name it with --head, or draft with @ngram")
        tree = self.shape or model.drafter.tree_config
        return model.drafter.with_tree(tree, samples=self.samples)


@dataclass(frozen=True)
class SampledTree(GrownTree):
    """Trees whose drafts are drawn where `sample` is 1, as rule rejection needs them (growing.py),
    and at 0 the best."""

    sample: int = 0

    def __post_init__(self):
        check_between(0, 1, sample=self.sample)
        super().__post_init__()

    @property
    def samples(self) -> bool:
        return bool(self.sample)


@dataclass(frozen=True)
class EagleSettings(SampledTree):
    needs_head: ClassVar[bool] = True

    def build(self, model: LoadedModels) -> Drafter:
        # a model without a head has a drafter too, which drafts nothing
        return model.drafter if self == EagleSettings() else self.with_head(model)


@dataclass(frozen=True)
class MtpSettings(EagleSettings):
    """The trees of the target's own MTP layer (`exact@mtp:15x4x6`); how that is read is the head's
    (`--head mtp,own=raw`)."""

    head: ClassVar[str] = "mtp"


@dataclass(frozen=True)
class HybridSettings(GrownTree):
    """The levels are the head's, the drafts those of it and of the text together.

    A repeated text is probable and easily drafted from itself, so without guards a lossy rule on
    these trees repeats it until the budget ends (results/rule_front).
    """

    needs_head: ClassVar[bool] = True
    default_guards: ClassVar[tuple[Guard, ...]] = (NoRepeat(3), Ends(1))
    recycle: int = 0

    def __post_init__(self):
        super().__post_init__()
        check_between(0, MOST_RECYCLED, recycle=self.recycle)

    def build(self, model: LoadedModels) -> Drafter:
        from eagle_fsd.drafters.hybrid import HybridDrafter

        return HybridDrafter(self.with_head(model), self.recycle)


@dataclass(frozen=True)
class LanguageModelSettings(SampledTree):
    """Trees of a second model; with a top-k of 1 a chain."""

    needs_draft_model: ClassVar[bool] = True
    tree: str = "5x5x1"

    def __post_init__(self):
        parse_tree(self.tree)  # there is none to fall back on
        super().__post_init__()

    def build(self, model: LoadedModels) -> Drafter:
        if model.draft_model is None:
            raise BadInput("language_model drafts with a second model: name it with --draft_model")
        from eagle_fsd.drafters.language_model import LanguageModelDrafter

        return LanguageModelDrafter(
            model.draft_model,
            model.target,
            self.shape,
            samples=self.samples,
            foreign_ids=model.foreign_ids,
        )


# --- n-grams --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NgramSettings(DrafterSettings):
    """How drafts are found.

    Attributes:
        num_draft_tokens: most drafts of a round, on at most ngram.DEEPEST levels.
        max_ngram: longest n-gram looked up; shorter ones down to 1 follow.
        branch: most continuations of a node; 1 drafts a chain.
        keep: the least probability of a path that a node is verified for; 0 fills the tree.
    """

    vocab_size: ClassVar[int | None] = 0  # each tree has its own
    num_draft_tokens: int = 15
    max_ngram: int = 3
    branch: int = 4
    keep: float = 0.1
    recycle: int = 8

    def __post_init__(self):
        check_least(self, num_draft_tokens=1, max_ngram=1, branch=1)
        check_between(0, 1, keep=self.keep)
        check_between(0, MOST_RECYCLED, recycle=self.recycle)

    def build(self, model: LoadedModels) -> Drafter:
        from eagle_fsd.drafters.ngram import NgramDrafter

        return NgramDrafter(**asdict(self))


DEFAULT_DRAFTER = "eagle"
DRAFTERS: dict[str, type[DrafterSettings]] = {
    "eagle": EagleSettings,  # dynamic trees of a draft head
    "hybrid": HybridSettings,  # continuations of n-grams grafted onto the head's tree
    "language_model": LanguageModelSettings,  # trees of a second language model
    "mtp": MtpSettings,  # trees of the MTP layer that the target's checkpoint brings
    "ngram": NgramSettings,  # what followed the same tokens before in the text
}
