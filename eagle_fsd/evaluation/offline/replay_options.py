"""Options of evaluate/replay.py; nothing heavy is imported before they are parsed."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eagle_fsd.config import BadInput, parse_tree, tree_name
from eagle_fsd.runs.command import option

if TYPE_CHECKING:
    from eagle_fsd.evaluation.offline.replay import ReplayPlan

# What a run may be continued with, although it differs.
EXTENDABLE = frozenset(("heads", "device", "questions", "texts", "output"))


@dataclass
class ReplayOptions:
    heads: list[str] = field(
        default_factory=list,
        metadata={"help": "folders or hub ids of draft heads; empty: the shipped one"},
    )
    target: str = option("smollm2", "smollm2 (embedded), a folder, a .gguf file or a hub id")
    dtype: str = option("float32", "replay equals decoding in float32 only")
    device: str = option("", "torch device; empty: cuda if there is one")
    conv_template: str = option("", "FastChat template, for targets without a chat template")
    question_file: str = option("", "question.jsonl in FastChat's format; empty: MT-Bench")
    questions: int | None = option(None, "how many first turns, over all categories; default all")
    max_new_tokens: int = option(128, "budget of an answer")
    trees: list[str] = field(
        default_factory=lambda: ["7x4x6", "15x4x6", "23x5x8", "59x6x10"],
        metadata={"help": "drafts x levels x top-k; 4x4x1 is a chain"},
    )
    arms: list[str] = field(
        default_factory=lambda: ["fsd:0.2", "fsd:0.3", "fsd:0.4"],
        metadata={"help": "of rule fsd or fsd-paper, followed to their first fuzzy token"},
    )
    texts: str = option("", "folder of stored texts; default runs/plain_texts/TARGET-DTYPE")
    output: str = option("runs/replay", "folder of the run")

    def __post_init__(self):
        import torch

        from eagle_fsd.decoding.loop import StopConfig
        from eagle_fsd.models.load import DTYPES, SHIPPED_HEAD, check_device
        from eagle_fsd.models.loaded import template_stops
        from eagle_fsd.runs.provenance import without_checkout

        StopConfig(self.max_new_tokens)  # its own check
        template_stops(self.conv_template)  # its name is checked
        self.device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        check_device(self.device)
        if self.dtype not in DTYPES:
            raise BadInput(f"unknown dtype {self.dtype!r}; known: {', '.join(DTYPES)}")
        self.heads = list(dict.fromkeys(self.heads or [str(SHIPPED_HEAD)]))
        own = without_checkout(self.target).strip("/").replace("/", "_")
        self.texts = self.texts or f"runs/plain_texts/{own}-{self.dtype}"

    def plan(self) -> "ReplayPlan":
        """Trees and rules, checked."""
        from eagle_fsd.evaluation.arms import parse_arms
        from eagle_fsd.evaluation.offline.replay import WALKS, ReplayPlan
        from eagle_fsd.evaluation.offline.texts import BEYOND
        from eagle_fsd.rules.fsd import Fsd

        trees = tuple(dict.fromkeys(map(parse_tree, self.trees)))
        if not trees:
            raise BadInput("--trees names no tree: give at least one, such as 15x4x6")
        deepest = max(trees, key=lambda tree: tree.tree_depth)
        if deepest.tree_depth > BEYOND:
            raise BadInput(f"tree {tree_name(deepest)} is deeper than the {BEYOND} of replay")
        arms = parse_arms(self.arms) if self.arms else []
        for arm in arms:
            rule = arm.rule
            plain = type(rule) in WALKS and not arm.guards and not arm.tree
            # where fsd takes its first fuzzy token does not depend on the child
            any_child = type(rule) is Fsd
            if not plain or rule.logits != "raw" or not (any_child or rule.child == "draft"):
                raise BadInput(
                    f"arm {arm.text!r}: replay follows fsd, and fsd-paper with child draft, by raw "
                    "logits, without guards and trees of their own"
                )
        return ReplayPlan(trees, {arm.text: arm.rule for arm in arms})
