"""The options that commands share, each declared once. Nothing heavy is imported before they are
parsed (cli.py).

A command's options are a subclass of the groups that it takes, with those of its own. The text
under an option is its help; one that gets another default in a subclass keeps it:

    @dataclass
    class SampleOptions(RunOptions):
        prompt: str = ""
        '''The prompt.'''
        max_new_tokens: int = 256

What makes two runs the same is what a dataclass compares: a run goes on although an option with
may_change is another now (runs.folder.Run.of). So device, dtype and tree are settled here, where
they are not given.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from eagle_fsd.config import (
    DEFAULT_ARM,
    BadInput,
    SamplingConfig,
    check_between,
    check_least,
    check_seed,
    default_tree,
    parse_tree,
    tree_name,
)

if TYPE_CHECKING:
    from eagle_fsd.arms import Arm
    from eagle_fsd.models.loaded import Model


def option(default, help: str = "", *, may_change: bool = False):
    """A field of what plain defaults cannot say: a list, that it may change, a help that is made of
    names."""
    kept = {"compare": not may_change, "metadata": {"help": help}}
    if isinstance(default, list):
        return field(default_factory=default.copy, **kept)
    return field(default=default, **kept)


@dataclass
class PluginOptions:
    """Of commands that take arms or read a run of them."""

    plugin: str = option("", may_change=True)  # its digest may not
    """A Python file with rules of your own, which is executed; see docs/extend.md."""

    def load_plugin(self) -> None:
        """Run the file, if one is named, so that arms may name what it registers."""
        if self.plugin:
            from eagle_fsd.plugin import load_plugin

            load_plugin(self.plugin)

    def plugin_digest(self) -> dict[str, str]:
        """What tells the file from another of its name."""
        from eagle_fsd.runs.provenance import file_digests

        path = Path(self.plugin)
        return file_digests("plugin", path.parent, [path.name]) if self.plugin else {}


@dataclass
class FolderOptions:
    """Of commands whose records go to a folder (runs/folder.py)."""

    output: str = option("", may_change=True)
    """The folder that the run is written to. Empty: the first of runs/NAME, runs/NAME_2, ... that
    is new or holds a run of the same settings, NAME being what is run."""


PLAN = option(
    False,
    "Tell how many answers are to be made, how long that takes and how much memory it needs; but "
    "for one answer to time where none is there, nothing is run.",
    may_change=True,
)


@dataclass
class RunOptions(FolderOptions):
    """Of commands whose records are of answers to questions."""

    questions: int | None = option(None, may_change=True)
    """The number of questions, spread evenly over the categories. Not given: all, but few of
    MT-Bench where all would take long: 8 by mt_bench.py on a CPU, 16 by calibrate.py."""
    max_new_tokens: int = 128
    """The most tokens that an answer may have."""

    def __post_init__(self):
        check_least(self, "--", max_new_tokens=1)


@dataclass
class QuestionOptions(RunOptions):
    question_file: str = ""
    """A question.jsonl in FastChat's format. Empty: MT-Bench's."""


@dataclass
class BenchOptions(RunOptions):
    """Of commands whose arms answer questions (evaluation/bench.py)."""

    arms: list[str] = option(
        [
            *("generate", "plain", "exact", DEFAULT_ARM, "exact@hybrid"),
            *(f"{rule}@hybrid" for rule in (DEFAULT_ARM, "path")),
        ],
        may_change=True,
    )
    """The arms to compare, each as rule[:value][,field=value][@drafter[:tree]]; see
    docs/evaluate.md."""
    turns: int = 0
    """The number of turns of each question that are asked. 0: all."""
    num_choices: int = option(1, may_change=True)
    """The number of answers of every arm to every question, each with a seed of its own."""
    quality_only: bool = option(False, may_change=True)
    """Measure no speeds, so that other processes may use the machine."""
    batch: int = option(1, may_change=True)
    """The number of answers that are made together, where no speeds are measured (--quality_only,
    or a launcher): the same answers, in float32."""
    traces: int = option(0, may_change=True)
    """The number of questions, spread over the categories, whose draft trees are kept for the
    report as they are answered."""
    plan: bool = PLAN

    def __post_init__(self):
        super().__post_init__()
        check_least(self, "--", turns=0, traces=0, batch=1)
        check_between(1, 1000, num_choices=self.num_choices)  # all are listed before one is made


@dataclass
class TargetOptions:
    trains: ClassVar[bool] = False  # runs many texts at once, and decodes no single answer

    target: str = "smollm2"
    """The target: smollm2 (embedded), a folder, a .gguf file, a hub id, or random:SHAPE for random
    weights."""
    device: str = option("", may_change=True)  # dtype and tree, which follow from it, may not
    """The torch device, or auto to spread a large target over several. Empty: cuda if there is one,
    else cpu."""
    dtype: str = ""
    """The dtype: bfloat16, float16 or float32. Empty: bfloat16 where the hardware multiplies it,
    else float32, which decoding takes on x86 CPUs in any case."""

    def __post_init__(self):
        from eagle_fsd.models.load import chosen_device, default_dtype, training_dtype

        self.device = chosen_device(self.device)
        usual_dtype = training_dtype if self.trains else default_dtype
        self.dtype = self.dtype or usual_dtype(self.device)


@dataclass
class ChatOptions(TargetOptions):
    conv_template: str = ""
    """The name of a FastChat template, for a target that has no chat template of its own."""
    system: str | None = None
    """A system message before the first user turn: a text, or a file that holds it. Not given: none
    but the chat template's own, if it has one."""
    template_settings: list[str] = option([])
    """What the target's chat template is told beside the messages, each as NAME=VALUE, such as
    enable_thinking=false; values are JSON or else text."""

    def __post_init__(self):
        from eagle_fsd.messages import read_system, read_template_settings

        super().__post_init__()
        if self.system is not None:
            self.system = read_system(self.system)  # a run's settings are to tell what it says
        told = read_template_settings(self.template_settings)  # in one order and spelling
        self.template_settings = [f"{name}={json.dumps(told[name])}" for name in sorted(told)]


@dataclass
class ModelOptions(ChatOptions, PluginOptions):
    head: str = ""
    """The draft head: a folder, a hub id, or mtp for the MTP layer in the target's own checkpoint.
    Empty: mtp of arms with @mtp, else the one that ships for smollm2."""
    draft_model: str = ""
    """The draft model of arms with @language_model: named as --target is, with the same tokenizer,
    or layers:N for the target's own first N layers."""
    tree: str = ""
    """The shape of the head's draft trees, as DRAFTSxLEVELSxTOPK, with their prices. Empty:
    12x6x4,keep=0.1,deepen=0.4 on a CPU, 59x6x10 elsewhere."""
    generate_ends: bool = False
    """End answers where transformers' generate does, at the tokens of generation_config alone, also
    where the chat template ends a turn with another one."""
    thought_marks: str = ""
    """The marks around the thought of a reasoning target, with a space between: '<a> </a>'. Empty:
    as its chat template or its tokens tell."""
    engine: str = "auto"
    """How forwards are run: packed or compiled on a CPU, folded or stock anywhere; auto takes the
    fastest of those that need no compiling."""

    def __post_init__(self):
        import torch

        from eagle_fsd.engine.select import choose_engines
        from eagle_fsd.models.load import DTYPES

        super().__post_init__()
        if self.thought_marks and len(self.thought_marks.split()) != 2:
            raise BadInput(
                "--thought_marks takes a thought's begin mark and its end mark with a space "
                f"between, got {self.thought_marks!r}"
            )
        choose_engines(self.engine, device=self.device, dtype=DTYPES.get(self.dtype, torch.float32))
        self.tree = tree_name(parse_tree(self.tree) if self.tree else default_tree(self.device))

    def digests(self) -> dict[str, str]:
        """Digests of the files of the models and of the plugin, by which two of one name differ."""
        from eagle_fsd.models import load

        own = str(load.SHIPPED_HEAD) if self.target == load.EMBEDDED_TARGET else ""
        digests = load.target_digests(self.target) | load.head_digests(self.head or own)
        if self.draft_model and not load.own_layers(self.draft_model):
            digests |= load.target_digests(self.draft_model, "draft_model")
        return digests | self.plugin_digest()

    def load(
        self, arms: Sequence["Arm"], *, date: datetime | None = None, keep_stock: bool = False
    ) -> "Model":
        """models.loaded.load with these options, of what the arms need."""
        from eagle_fsd.messages import read_template_settings
        from eagle_fsd.models.load import is_mtp
        from eagle_fsd.models.loaded import load

        # 1. The head: none, the one that is named, or the target's own MTP layer.
        own = [arm for arm in arms if arm.drafter.head]  # with @mtp
        head = self.head or (own[0].drafter.head if own else "")
        if own and not is_mtp(head):
            raise BadInput(
                f"arm {own[0].text!r} drafts with the target's own MTP layer, and --head {head} is "
                "another: leave it out, or compare the two in runs of their own"
            )
        # 2. The draft model.
        pair = any(arm.drafter.needs_draft_model for arm in arms)
        if pair and not self.draft_model:
            raise BadInput("language_model drafts with a second model: name it with --draft_model")
        return load(
            self.target,
            head=head if any(arm.drafter.needs_head for arm in arms) else None,
            draft_model=self.draft_model if pair else "",
            tree=self.tree,
            dtype=self.dtype,
            device=self.device,
            conv_template=self.conv_template,
            system=self.system or "",
            template_settings=read_template_settings(self.template_settings),
            date=date,
            generate_ends=self.generate_ends,
            marks=(tuple(self.thought_marks.split()),) if self.thought_marks else (),
            engine=self.engine,
            keep_stock=keep_stock,
        )


@dataclass
class SamplingOptions:
    temperature: float = 0.0
    """The sampling temperature; 0 is greedy."""
    top_k: int = 0
    """Sample among this many most likely tokens; a lossy rule accepts no other token either. 0:
    off."""
    top_p: float = 1.0
    """Sample within the most likely tokens of this total probability; a lossy rule accepts no other
    token either. 1: off."""
    seed: int = 0
    """The seed of all sampling."""

    def __post_init__(self):
        check_seed(self.seed)

    def sampling(self) -> SamplingConfig:
        return SamplingConfig(self.temperature, self.top_k, self.top_p)
