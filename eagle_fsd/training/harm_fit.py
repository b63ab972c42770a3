"""Training the model of harm (heads/harm_model.py) on forks (forks.py), and how well it tells them
apart.

Questions are parted by a digest of their names: of ten, six are learnt from, two choose the weight
decay and fit the calibration, two are reported on. So no question is on two sides.

Axes: C forks, W what is read of a draft, Q questions, K signals.
"""

import hashlib
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import stdtrit
from scipy.stats import rankdata
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy
from tqdm import tqdm

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.target import Target
from eagle_fsd.heads.harm_model import SIGNALS, HarmConfig, HarmModel
from eagle_fsd.stats import share_interval

PARTS = ("learn",) * 6 + ("choose",) * 2 + ("report",) * 2
DECAYS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
LEAST = 50  # forks of a part
# signals that are compared with it, each so that a larger one should be more harmful
RIVALS = {"js": 1, "regret": 1, "entropy": 1, "margin": -1, "log_place": -1}


@dataclass(frozen=True)
class Forks:
    """Forks as numbers.

    Attributes:
        questions: of every fork.
        input_CW: what the model reads, float32.
        harm_C: 0 to 1.
    """

    questions: list[str]
    input_CW: torch.Tensor
    harm_C: torch.Tensor

    def part(self, name: str) -> "Forks":
        """Those of one of PARTS."""
        chosen = [c for c, question in enumerate(self.questions) if part_of(question) == name]
        index_C = torch.tensor(chosen, dtype=torch.int64)
        of = [self.questions[c] for c in chosen]
        return Forks(of, self.input_CW[index_C], self.harm_C[index_C])

    def signal(self, name: str) -> torch.Tensor:
        return self.input_CW[:, self.input_CW.shape[1] - len(SIGNALS) + SIGNALS.index(name)]


def part_of(question: int | str) -> str:
    return PARTS[hashlib.sha256(str(question).encode()).digest()[0] % len(PARTS)]


@torch.inference_mode()
def read_forks(target: Target, texts: Mapping[object, dict], forks: Sequence[dict]) -> Forks:
    """The drafted forks with the target's states, for which every answer is run once.

    Args:
        texts, forks: records of train/mine_forks.py, the texts by (question, 0).
    """
    by_question = defaultdict(list)
    for row in forks:
        if row["kind"] == "draft":
            by_question[row["question_id"]].append(row)
    questions, inputs, harms = [], [], []
    for question, rows in tqdm(by_question.items(), desc="states of answers"):
        text = texts[question, 0]
        ids_L = torch.tensor(text["prompt_ids"] + text["answer_ids"], device=target.device)
        _, features_1LF = target.hidden_and_features(ids_L[None], use_cache=False)
        place_C = torch.tensor([len(text["prompt_ids"]) - 1 + row["place"] for row in rows])
        tokens = [torch.tensor([row[name] for row in rows]) for name in ("token", "exact")]
        parts = [features_1LF[0, place_C], *(target.embed(token_C) for token_C in tokens)]
        parts.append(torch.tensor([[row[name] for name in SIGNALS] for row in rows]))
        inputs.append(torch.cat([part.float().cpu() for part in parts], dim=1))
        questions += [str(question)] * len(rows)
        harms += [row["harm"] for row in rows]
    if not questions:
        raise BadInput("there are no forks to learn from: run mine_forks.py on more questions")
    return Forks(questions, torch.cat(inputs), torch.tensor(harms))


def fit(forks: Forks, config: HarmConfig, *, states: bool = True, seed: int = 0) -> HarmModel:
    """A model that was learnt from one part, with the weight decay that suits another part best,
    on which its chances are then calibrated (Platt 1999).

    Args:
        states: False: it reads the SIGNALS alone.
    """
    parts = {name: forks.part(name) for name in dict.fromkeys(PARTS)}
    for name, part in parts.items():
        if len(part.questions) < LEAST or not 0 < part.harm_C.mean() < 1:
            raise BadInput(
                f"{len(part.questions)} forks in the part {name!r} are too few, or all alike: mine "
                f"at least {5 * LEAST} forks, of more questions"
            )
    learn, choose = parts["learn"], parts["choose"]
    best, least = None, math.inf
    for decay in tqdm(DECAYS, desc="weight decays", leave=False):
        model = _learn(learn, config, decay, states=states, seed=seed)
        with torch.no_grad():
            loss = cross_entropy(model(choose.input_CW), choose.harm_C).item()
        if loss < least:
            best, least = model, loss
    return _calibrated(best, choose)


def _learn(forks: Forks, config: HarmConfig, decay: float, *, states: bool, seed: int) -> HarmModel:
    """The least cross entropy plus decay / 2 times the squares of the weights, by L-BFGS."""
    torch.manual_seed(seed)
    model = HarmModel(config)
    model.mean_W.copy_(forks.input_CW.mean(0))
    scale_W = 1 / forks.input_CW.std(0).clamp_min(1e-6)
    scale_W[forks.input_CW.std(0) < 1e-6] = 0  # says nothing here
    if not states:
        scale_W[: -len(SIGNALS)] = 0
    model.scale_W.copy_(scale_W)
    weights = [layer.weight for layer in (model.hidden, model.out) if layer is not None]
    nn.init.zeros_(model.out.weight)
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=200, line_search_fn="strong_wolfe", tolerance_grad=1e-5
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(model(forks.input_CW), forks.harm_C)
        loss = loss + decay / 2 * sum((weight**2).sum() for weight in weights)
        loss.backward()
        return loss

    optimizer.step(closure)
    return model.eval().requires_grad_(False)


def _calibrated(model: HarmModel, forks: Forks) -> HarmModel:
    """The model with a slope and an offset on its logits, fitted to these forks."""
    logit_C = model(forks.input_CW)
    slope_2 = torch.tensor([1.0, 0.0], requires_grad=True)
    optimizer = torch.optim.LBFGS([slope_2], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(slope_2[0] * logit_C + slope_2[1], forks.harm_C)
        loss = loss + 1e-3 * (slope_2[0] - 1) ** 2  # a constant logit has no slope
        loss.backward()
        return loss

    optimizer.step(closure)
    slope, offset = slope_2.detach()
    model.out.weight.mul_(slope)
    model.out.bias.mul_(slope).add_(offset)
    return model


# --- how well it tells them apart ---------------------------------------------------------------


def roc_area(
    value_C: np.ndarray, harmful_C: np.ndarray, questions: Sequence[str]
) -> tuple[float, np.ndarray]:
    """The area under the ROC curve, that is the chance that a harmful fork has the larger value of
    two, and what it is without each question in turn, for an interval. NaN where there are not both
    kinds."""
    names, of_C = np.unique(questions, return_inverse=True)
    keep = (of_C != q for q in range(len(names)))
    without_Q = np.array([_area(value_C[keep_C], harmful_C[keep_C]) for keep_C in keep])
    return _area(value_C, harmful_C), without_Q


def _interval(
    value: float, without_Q: np.ndarray, *, low: float, high: float
) -> dict[str, float | None]:
    """Tukey's jackknife, see eagle_fsd/stats.py, within bounds."""
    n = len(without_Q)
    if n < 3 or not np.isfinite(without_Q).all():
        return {"value": value if math.isfinite(value) else None, "low": None, "high": None}
    error = math.sqrt((n - 1) * ((without_Q - without_Q.mean()) ** 2).mean())
    margin = float(stdtrit(n - 1, 0.975)) * error
    return {"value": value, "low": max(low, value - margin), "high": min(high, value + margin)}


def _area(value_C: np.ndarray, harmful_C: np.ndarray) -> float:
    """Mann and Whitney's statistic, ties count half; NaN where there are not both kinds."""
    more = int(harmful_C.sum())
    less = len(harmful_C) - more
    if not more or not less:
        return math.nan
    ranks_C = rankdata(value_C)
    return float((ranks_C[harmful_C].sum() - more * (more + 1) / 2) / (more * less))


def areas(forks: Forks, models: Mapping[str, HarmModel]) -> list[dict]:
    """A row for every model and signal: name, forks, questions, share harmful, the area, and by how
    much the first model's is larger ("ahead", None of itself)."""
    harmful_C = (forks.harm_C > 0.5).numpy()
    values = {name: model(forks.input_CW) for name, model in models.items()}
    values |= {
        name if sign > 0 else f"-{name}": sign * forks.signal(name) for name, sign in RIVALS.items()
    }
    count = {"forks": len(forks.questions), "questions": len(set(forks.questions))}
    rows, first = [], None
    for name, value_C in values.items():
        area, without_Q = roc_area(value_C.double().numpy(), harmful_C, forks.questions)
        row = {"signal": name, **count, "harmful": float(harmful_C.mean())}
        row |= {"area": _interval(area, without_Q, low=0.0, high=1.0), "ahead": None}
        if first:
            row["ahead"] = _interval(first[0] - area, first[1] - without_Q, low=-1.0, high=1.0)
        first = first or (area, without_Q)
        rows.append(row)
    return rows


def shares(forks: Sequence[dict]) -> list[dict]:
    """How harmful forks are, a row for every category of questions and kind of token: category,
    kind, questions, forks, and harm, their mean with its 95 % interval."""
    rows = []
    for category, kind in sorted({(row["category"], row["kind"]) for row in forks}):
        sums: dict[object, np.ndarray] = defaultdict(lambda: np.zeros(2))
        for row in forks:
            if (row["category"], row["kind"]) == (category, kind):
                sums[row["question_id"]] += row["harm"], 1
        harm = share_interval(list(sums.values()))
        count = int(sum(part_2[1] for part_2 in sums.values()))
        row = {"category": category, "kind": kind, "questions": len(sums), "forks": count}
        rows.append(row | {"harm": harm})
    return rows


def reliability(forks: Forks, model: HarmModel, *, bins: int = 5) -> list[dict]:
    """Forks in as many parts of equal size by their foreseen chance: foreseen and found, means."""
    chance_C = torch.sigmoid(model(forks.input_CW))
    parts = torch.argsort(chance_C).tensor_split(bins)
    return [
        {
            "forks": len(part),
            "foreseen": chance_C[part].mean().item(),
            "found": forks.harm_C[part].mean().item(),
        }
        for part in parts
        if len(part)
    ]
