"""Drafters by name, as arms say them; a new one is a file and an entry in DRAFTERS.

eagle.py             dynamic trees of a draft head
language_model.py    or of a second language model
growing.py           what these two share; grower.py the tree alone
ngram.py             what followed the same tokens before in the text (ngram_table.py)
hybrid.py            both: continuations grafted onto the head's tree
walk.py              any of them along a text that is known
"""

from typing import ClassVar, Protocol

from eagle_fsd.decoding.drafter import Drafter
from eagle_fsd.drafters.eagle import EagleSettings
from eagle_fsd.drafters.hybrid import HybridSettings
from eagle_fsd.drafters.language_model import LanguageModelSettings
from eagle_fsd.drafters.ngram import NgramSettings
from eagle_fsd.models.loaded import Model


class DrafterSettings(Protocol):
    """A frozen dataclass whose fields are a drafter's parameters.

    Attributes:
        needs_head: a draft head must be loaded for it.
        needs_draft_model: or a second language model; may be left out.
    """

    needs_head: ClassVar[bool]

    def build(self, model: Model) -> Drafter:
        """The drafter for a loaded model."""


DEFAULT_DRAFTER = "eagle"
DRAFTERS: dict[str, type[DrafterSettings]] = {
    "eagle": EagleSettings,
    "hybrid": HybridSettings,
    "language_model": LanguageModelSettings,
    "ngram": NgramSettings,
}
