"""The model of harm: with what chance a draft, taken in the place of the exact token, changes what
the answer comes to.

A small network reads what is at hand after verification: the target's state at the place (its
features, as the head reads them), the embeddings of the draft and of the exact token, and eight
numbers (SIGNALS). It is trained on forks, answers into which one draft was put (training/forks.py).
Judge Decoding (Bachmann et al., ICLR 2025) and AutoJudge (Garipov et al., NeurIPS 2025, arXiv
2504.20039) do the same for chains.

A folder holds it: config.json (sizes, the layers whose states it reads, for which weights it was
made) and model.safetensors.

Axes: C drafts, F features, D size of an embedding, S signals, W = F + 2 D + S.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

from eagle_fsd.config import BadInput
from eagle_fsd.decoding import columns
from eagle_fsd.decoding.columns import Rows
from eagle_fsd.runs.jsonl import write_file, write_json

CONFIG, WEIGHTS, MADE_FOR = "config.json", "model.safetensors", "made_for"
OF_WEIGHTS = (".safetensors", ".bin", ".gguf", "/commit")  # ends of the names that digests have
SIGNALS = ("js", "judged", "regret", "entropy", "top1", "margin", "depth", "log_place")
Embed = Callable[[torch.Tensor], torch.Tensor]


def signals(rows: Rows, answered: int) -> torch.Tensor:
    """The numbers that are known of a draft without any state, float32 [C, S].

    js is D of the draft's place and `judged` whether the drafter has a distribution there (where it
    has none js is 0); regret, entropy and top1 are the columns of these names; margin is the
    difference of the target's two largest logits, in nats; depth is that of the draft's parent in
    the tree, and log_place the logarithm of one more than the number of answer tokens before it.
    """
    js_M = columns.judged(rows, name="js")
    two_M2 = rows.target_MV.topk(2).values
    depth_C = rows.tree.depth_N[rows.parent_C].float()
    of_places = (js_M.nan_to_num(0.0), 1 - js_M.isnan().float(), two_M2[:, 0] - two_M2[:, 1])
    js_C, judged_C, margin_C = (value_M[rows.row_C] for value_M in of_places)
    entropy_C, top1_C = (f(rows)[rows.row_C] for f in (columns.entropy, columns.top1))
    place_C = (answered + depth_C).log1p()
    parts = (js_C, judged_C, columns.regret(rows), entropy_C, top1_C, margin_C, depth_C, place_C)
    return torch.stack(parts, dim=1)


@dataclass(frozen=True)
class HarmConfig:
    """Sizes of a model of harm.

    Attributes:
        feature_size, embedding_size: F and D of its target.
        feature_layers: the layers whose states the features are, () for those after the final norm.
        hidden_size: of its hidden layer; 0: none, it is logistic.
    """

    feature_size: int
    embedding_size: int
    feature_layers: tuple[int, ...] = ()
    hidden_size: int = 0

    @property
    def width(self) -> int:
        """W, the numbers that it reads of a draft."""
        return self.feature_size + 2 * self.embedding_size + len(SIGNALS)


class HarmModel(nn.Module):
    """From what is known of a draft [C, W] to the logit of its chance of harm [C].

    What it reads is centred and scaled by `mean_W` and `scale_W`, those of its training forks. D is
    left out where the drafter has no distribution.
    """

    def __init__(self, config: HarmConfig):
        super().__init__()
        self.config = config
        self.register_buffer("mean_W", torch.zeros(config.width))
        self.register_buffer("scale_W", torch.ones(config.width))
        hidden = config.hidden_size
        self.hidden = nn.Linear(config.width, hidden) if hidden else None
        self.out = nn.Linear(hidden or config.width, 1)

    def forward(self, input_CW: torch.Tensor) -> torch.Tensor:
        inner_CW = (input_CW - self.mean_W) * self.scale_W
        signal_CS = inner_CW[:, -len(SIGNALS) :]
        signal_CS[:, SIGNALS.index("js")] *= input_CW[:, SIGNALS.index("judged") - len(SIGNALS)]
        if self.hidden is not None:
            inner_CW = torch.relu(self.hidden(inner_CW))
        return self.out(inner_CW)[:, 0]

    @torch.no_grad()
    def column(
        self, embed: Embed, rows: Rows, *, features_NF: torch.Tensor, answered: int
    ) -> torch.Tensor:
        """The column `harm`: the chance of every draft asked about, 0 to 1, float32 [C].

        Args:
            embed: the target's, from tokens [C] to [C, D].
            features_NF: the target's features of every node.
            answered: how many tokens the answer has up to the root.
        """
        if not rows.token_C.numel():
            return rows.token_C.float()
        state_CF = features_NF[rows.parent_C]
        exact_C = rows.argmax_M[rows.row_C]
        signal_CS = signals(rows, answered)
        parts = (state_CF, embed(rows.token_C), embed(exact_C), signal_CS)
        chance_C = torch.sigmoid(self(torch.cat([part.float() for part in parts], dim=1)))
        # nothing was learnt from what is not finite, as of tokens that have no probability at all
        return torch.where(signal_CS.isfinite().all(1), chance_C, 1.0)


def write_model(
    model: HarmModel,
    folder: str | Path,
    *,
    made_for: Mapping[str, str] | None = None,
    **figures: object,
) -> None:
    """Write its folder.

    Args:
        made_for: digests of the files of its target and head.
        figures: kept in config.json beside the sizes.
    """
    folder = Path(folder)
    tensors = {name: value.contiguous() for name, value in model.state_dict().items()}
    write_file(folder / WEIGHTS, save(tensors))
    made = {"signals": list(SIGNALS), MADE_FOR: dict(made_for or {})}
    write_json(folder / CONFIG, asdict(model.config) | made | figures)


def check_made_for(folder: str | Path, digests: Mapping[str, str]) -> None:
    """Refuse, by a BadInput, a model of harm that was made for other weights of target or head than
    those of these digests (models/load.py). Files of which one side knows nothing are passed over.
    """
    try:
        made_for = json.loads((Path(folder) / CONFIG).read_text()).get(MADE_FOR, {})
    except (OSError, ValueError, AttributeError):
        return  # read_model says what is wrong
    if names := different(digests, made_for):
        raise BadInput(
            f"the model of harm at '{folder}' was trained for other weights ({', '.join(names)} "
            "differ): train it for this target and head"
        )


def different(digests: Mapping[str, str], others: Mapping[str, object]) -> list[str]:
    """The files of weights, by the names that digests have, of which both know another digest; all
    that `digests` has of a model of which both know files, but none of one name."""
    changed = []
    for label in dict.fromkeys(name.partition("/")[0] for name in digests):
        here, there = (
            {n for n in of if n.startswith(f"{label}/") and n.endswith(OF_WEIGHTS)}
            for of in (digests, others)
        )
        both = here & there
        if both:
            changed += sorted(name for name in both if digests[name] != others[name])
        elif there and f"{label}/commit" not in here | there:
            changed += sorted(here)
    return changed


def check_replaceable(folder: str | Path) -> None:
    """Refuse, by a BadInput, a folder to write a model of harm to that holds something else."""
    if Path(folder) == Path():  # as of an empty text
        raise BadInput("--output is empty: name the folder to write")
    try:
        is_other = "signals" not in json.loads((Path(folder) / CONFIG).read_text())
    except (OSError, ValueError, TypeError):
        is_other = (Path(folder) / CONFIG).exists()
    if is_other:
        raise BadInput(f"--output {folder} holds a {CONFIG} of another model: name another folder")


def read_model(folder: str | Path) -> HarmModel:
    """A model of harm from its folder; BadInput, which names the file: it is none."""
    folder = Path(folder)
    remedy = "give a folder that train/train_harm.py wrote"
    try:
        stored = json.loads((folder / CONFIG).read_text())
        if tuple(stored["signals"]) != SIGNALS:
            raise ValueError(f"it reads {stored['signals']}, this version gives {list(SIGNALS)}")
        sizes = {name: stored[name] for name in HarmConfig.__dataclass_fields__}
        sizes["feature_layers"] = tuple(sizes["feature_layers"])
        model = HarmModel(HarmConfig(**sizes))
        model.load_state_dict(load_file(folder / WEIGHTS))
    except (OSError, ValueError, LookupError, TypeError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise BadInput(f"no model of harm at '{folder}' ({reason}): {remedy}") from error
    if not all(math.isfinite(value.abs().sum()) for value in model.state_dict().values()):
        raise BadInput(f"the model of harm at '{folder}' has weights that are no numbers: {remedy}")
    return model.eval().requires_grad_(False)
