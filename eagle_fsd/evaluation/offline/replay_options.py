"""Options of evaluate/replay.py; nothing heavy is imported before they are parsed."""

from dataclasses import dataclass
from pathlib import Path

from eagle_fsd.cli import RunOptions, option


@dataclass
class ReplayOptions(RunOptions):
    heads: list[str] = option([], "folders or hub ids of draft heads; empty: the shipped one")
    target: str = option("smollm2", "smollm2 (embedded), a folder, a .gguf file or a hub id")
    dtype: str = option("float32", "replay equals decoding in float32 only")
    device: str = option("", "torch device; empty: cuda if there is one")
    conv_template: str = option("", "FastChat template, for targets without a chat template")
    question_file: str = option("", "question.jsonl in FastChat's format; empty: MT-Bench")
    questions: int | None = option(None, "how many first turns, over all categories; default all")
    max_new_tokens: int = option(128, "budget of an answer")
    arms: list[str] = option(
        [f"exact@eagle:{tree}" for tree in ("7x4x6", "15x4x6", "23x5x8", "59x6x10")]
        + [f"fsd:{threshold}" for threshold in (0.2, 0.3, 0.4)],
        "what is replayed: rules that judge a node by itself, with any drafter; trees are 15x4x6",
    )
    texts: str = option("", "folder of stored texts; default one of target and code")
    output: str = option("runs/replay", "folder of the run")

    def __post_init__(self):
        import torch

        from eagle_fsd.decoding.loop import StopConfig
        from eagle_fsd.models.load import SHIPPED_HEAD, check_device
        from eagle_fsd.models.loaded import template_stops
        from eagle_fsd.runs.provenance import digest, source_digest

        StopConfig(self.max_new_tokens)  # its own check
        template_stops(self.conv_template)  # its name is checked
        self.device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        check_device(self.device, self.dtype)
        self.heads = list(dict.fromkeys(self.heads or [str(SHIPPED_HEAD)]))
        kind = [self.target, self.dtype, self.conv_template, source_digest()]
        own = f"{Path(self.target).name}-{digest(kind)}"  # of changed code they are made anew
        self.texts = self.texts or f"runs/plain_texts/{own}"
