"""What a CUDA device would be given, without one: every tensor's device, and for what the host
waits. What only a GPU can show is listed in docs/speed.md."""

from functools import partial
from itertools import cycle

import pytest
import torch
from fake_cuda import on_cuda
from tiny import EAGER, FAMILIES, HEADS, prompt_tokens, random_model, tiny_head
from transformers import PreTrainedModel

from eagle_fsd.arms import parse_arm
from eagle_fsd.config import SamplingConfig, TreeConfig
from eagle_fsd.decoding.loop import DecodeConfig, Generation, StopConfig, decode
from eagle_fsd.decoding.target import Target
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.engine.select import ENGINES
from eagle_fsd.heads.draft_head import DraftHead, unroll
from eagle_fsd.models.generate import Request, complete, rescore
from eagle_fsd.models.loaded import Model
from eagle_fsd.training.data import Batches, Dialogue, supervised
from eagle_fsd.training.features import TargetStates
from eagle_fsd.training.losses import cross_entropy

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
    assert repr(got) == repr(want) and (rounds := len(got.rounds)) > 1
    # prefill ends with a read; the first draft takes the table of positions along, and the first
    # tree of a model is looked at once an answer, for a NaN
    table = ["to cuda"] * 2 if arm.needs_head else []
    look = ["item"] if arm.needs_head or arm.needs_draft_model else []
    expected = ["read"] + table + look + ["read"] * ROUND[drafter] * rounds
    got = ["read" if wait in ("tolist", "to cpu") else wait for wait in waits]
    assert got[-len(expected) :] == expected


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_batch_waits_for_one_read_a_step(temperature):
    """Two pairs of texts of three tokens; then a text is scored, of which two sums are read."""

    def work(device: str, model: PreTrainedModel, head: DraftHead) -> list:
        target = Target(model.to(device))
        requests = [Request(prompt_tokens(5 + n), 3, temperature) for n in range(4)]
        texts = complete(target, requests, batch_size=2)
        return [request.tokens for request in texts] + [rescore(target, [3, 5], [7, 11, 13])]

    want, got, waits = on_cuda(parts, work)
    assert got == want
    assert waits.count("tolist") == 2 * 3 and waits[-2:] == ["item"] * 2


@pytest.mark.parametrize("name", ["eagle", "eagle, 37 tokens", "eagle3, 37 tokens"])
def test_the_loss_and_its_gradient_are_on_the_device(name):
    """Those of states computed online; autograd itself asks for a GPU, and the mask of positions
    for their number."""

    def work(device: str, *given) -> str:
        model = loaded(device, *given)
        target, (_, head) = model.target, given
        dialogue = Dialogue(prompt_tokens(9), [False] * 4 + [True] * 5)
        masks, states = [supervised(dialogue)] * 2, TargetStates(target).of
        batches = Batches([dialogue] * 2, masks, states, 64, seed=0, noise=0.1)
        feature_BTF, next_BT, target_BTD, _ = batches.batch(0)
        hidden_SBTD = unroll(head.train(), feature_BTF, target.embed(next_BT), steps=3)
        hidden_SMD = head.normed(hidden_SBTD.flatten(1, 2))
        rows_RD = target.lm_head.weight
        rows_RD = rows_RD if head.d2t is None else rows_RD[head.draft_token_R]
        own_RD = rows_RD if head.lm_head is None else head.lm_head.weight
        weight_SM = torch.ones(hidden_SMD.shape[:2], device=device)
        target_MD = target_BTD.flatten(0, 1)
        return cross_entropy(hidden_SMD, own_RD, target_MD, rows_RD, weight_SM).device.type

    want, got, waits = on_cuda(partial(parts, name), work)
    assert (want, got) == ("cpu", "cuda") and "item" not in waits
