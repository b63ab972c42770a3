"""What a CUDA device would be given, without one: every tensor's device, and for what the host
waits. What only a GPU can show is listed in docs/gpu.md."""

from functools import partial
from itertools import cycle

import pytest
import torch
from fake_cuda import on_cuda
from tiny import EAGER, FAMILIES, HEADS, prompt_tokens, random_model, tiny_head
from transformers import PreTrainedModel

from eagle_fsd.arms import parse_arm
from eagle_fsd.config import SamplingConfig, TreeConfig
from eagle_fsd.decoding.answer import Generation
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode
from eagle_fsd.decoding.target import Target
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.engine.folded import Folded
from eagle_fsd.engine.select import ENGINES
from eagle_fsd.heads.draft_head import DraftHead
from eagle_fsd.models.generate import Request, complete, rescore
from eagle_fsd.models.loaded import Model

pytestmark = [
    pytest.mark.processes,  # not these, but as long
    # torch's own, where a module with fake tensors is copied
    pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor"),
]

ON_CUDA = [name for name in EAGER if name != "packed"]
KNOWN = [name for name in FAMILIES if name != "mixtral"]  # which asks the GPU what it can do
ROUND = {"plain": 1, "eagle": 1, "ngram": 2, "hybrid:5x2x3": 2}  # reads
ROUND |= dict.fromkeys(("eagle,sample=1", "language_model:5x2x3,sample=1", "language_model"), 1)


def parts(name: str = "eagle", family: str = "llama") -> tuple[PreTrainedModel, DraftHead]:
    """A model, and a head of HEADS that reads it."""
    kind = name.split(",")[0]
    fields = HEADS[name] | {"feature_layers": (0, 1, 3) if kind == "eagle3" else ()}
    return random_model(FAMILIES[family](), seed=0), tiny_head(head_type=kind, **fields)


def loaded(device: str, model: PreTrainedModel, head: DraftHead, engine: str = "folded") -> Model:
    head._rotary[0]._apply(torch.clone)  # fake; it is no submodule, and stays where it was loaded
    layers = head.config.feature_layers
    target = Target(model.to(device), engine=ENGINES[engine](), feature_layers=layers)
    eagle = EagleDrafter(head.to(device), target, TreeConfig(5, 2, 3))
    return Model(target, None, eagle, draft_model=target.first_layers(2))


# every head, drafter, engine and family, each with some of the others
OTHERS = zip(cycle(KNOWN), cycle(ON_CUDA), cycle([0.0, 0.7]), strict=False)
CASES = [(head, "eagle", *next(OTHERS)) for head in HEADS]
CASES += [("eagle", other, *next(OTHERS)) for other in ROUND if other != "eagle"]


@pytest.mark.parametrize(("head", "drafter", "family", "engine", "temperature"), CASES)
def test_a_round_waits_for_one_read(head, drafter, family, engine, temperature):
    """A hybrid for a second one. Bug held down: above temperature 0 a round waited until its
    uniforms were sent, and verification had ended."""
    rule = "rejection" if "sample" in drafter else "fsd:0.6"
    arm = parse_arm(drafter if drafter == "plain" else f"{rule}@{drafter}")
    config = DecodeConfig(arm.policy(SamplingConfig(temperature, 9, 0.9)), StopConfig(9, (3, 5)))

    def work(device: str, *given) -> Generation:
        model = loaded(device, *given, engine)
        return decode(model.target, arm.build_drafter(model), prompt_tokens(13), config)

    want, got, waits = on_cuda(partial(parts, head, family), work)
    paths = [[(step.path, step.fuzzy) for step in answer.rounds] for answer in (got, want)]
    assert got.tokens == want.tokens and paths[0] == paths[1]
    regrets = [[step.regret for step in answer.rounds] for answer in (got, want)]
    assert regrets[0] == [pytest.approx(regret, abs=1e-3) for regret in regrets[1]]
    assert (rounds := len(got.rounds)) > 1
    # prefill ends with a read; the first draft takes the table of positions along, and the first
    # tree of a model is looked at once an answer, for a NaN
    table = ["to cuda"] * 2 if arm.drafter.needs_head else []
    look = ["item"] if arm.drafter.needs_head or arm.drafter.needs_draft_model else []
    expected = ["read"] + table + look + ["read"] * ROUND[drafter] * rounds
    got = ["read" if wait in ("tolist", "to cpu") else wait for wait in waits]
    assert got[-len(expected) :] == expected


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_batch_waits_for_one_read_a_step(temperature):
    """Two pairs of texts of three tokens; then a text is scored, of which two sums are read."""

    def work(device: str, model: PreTrainedModel, head: DraftHead) -> list:
        target = Target(model.to(device), engine=Folded())
        requests = [Request(prompt_tokens(5 + n), 3, temperature) for n in range(4)]
        texts = complete(target, requests, batch_size=2)
        return [request.tokens for request in texts] + [rescore(target, [3, 5], [7, 11, 13])]

    want, got, waits = on_cuda(parts, work)
    assert got == want
    assert waits.count("tolist") == 2 * 3 and waits[-2:] == ["item"] * 2
