"""How many kernels a round launches on CUDA, for what its host waits, and what its attention is
given: counted on fake tensors of a thin model with as many layers and heads as Llama-3.1-8B. What
they cost no GPU has told. `python tests/test_launches.py` prints the table of results/launches."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from fake_cuda import FakeCuda, within
from transformers import AutoConfig, AutoModelForCausalLM

from eagle_fsd.arms import parse_arm
from eagle_fsd.config import SamplingConfig, as_tree
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode_rounds
from eagle_fsd.decoding.target import Target
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.engine.select import choose_engines
from eagle_fsd.heads.draft_head import build_head
from eagle_fsd.heads.head_config import HeadConfig
from eagle_fsd.models.loaded import Model
from eagle_fsd.speed.rounds import Lapped

LAYERS, FEW = 32, 6  # of the table; of the tests, which count a layer
LEVELS = {"59x8x10": 8, "59x6x10": 6}
SIZES = {"hidden_size": 256, "intermediate_size": 64, "vocab_size": 512}
SIZES |= {"num_attention_heads": 32, "num_key_value_heads": 8}
HEADS = {"eagle": {}, "eagle3": {"draft_vocab_size": 256}}
PHASES = ("propose", "verify", "accept", "commit")
ROUNDS = [
    ("eagle3", "59x8x10", "exact"),
    ("eagle3", "59x8x10", "path:0.9"),
    ("eagle", "59x6x10", "exact"),
    ("eagle", "59x6x10", "path:0.9"),
]

pytestmark = [
    pytest.mark.processes,  # not these, but as long
    pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor"),
]


def run(kind: str, tree: str, arm: str, mode: FakeCuda, note: Callable, layers: int = FEW) -> None:
    """Three rounds of an answer in the mode; note(phase) at the end of each phase, and note("") at
    the end of each round, of which prefill's is the first."""
    config = AutoConfig.for_model("llama", **SIZES, num_hidden_layers=layers)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    head = build_head(HeadConfig(head_type=kind, **SIZES, **HEADS[kind])).eval().bfloat16()
    if kind == "eagle3":
        head.set_draft_tokens(torch.arange(0, SIZES["vocab_size"], 2))
    model.requires_grad_(False)
    head.requires_grad_(False)

    def work() -> None:
        head._rotary[0]._apply(torch.clone)  # fake; it is no submodule, and stays on the CPU
        target = Target(
            model.to("cuda:0"),
            engine=choose_engines("auto", device="cuda:0", dtype=torch.bfloat16)[0],
            feature_layers=head.config.fused_layers(layers),
        )
        eagle = EagleDrafter(head.to("cuda:0"), target, as_tree(tree))
        parsed = parse_arm(arm)
        parts = target, parsed.build_drafter(Model(target, None, eagle))
        decoding = DecodeConfig(parsed.policy(SamplingConfig()), StopConfig(30))
        rounds = decode_rounds(*(Lapped(part, note) for part in parts), [*range(3, 60)], decoding)
        for _ in range(4):
            next(rounds)
            note("")

    within(mode, work)


def counted_round(
    kind: str, tree: str, arm: str, layers: int = FEW
) -> tuple[Counter[str], list[str]]:
    """Launches by phase of an answer's third round, and for what its host waits there."""
    mode, laps = FakeCuda(), []

    def note(phase: str) -> None:
        laps.append((phase, mode.launches.total(), len(mode.waits)))

    run(kind, tree, arm, mode, note, layers)
    start = [place for place, (phase, *_) in enumerate(laps) if not phase][-2]
    phases: Counter[str] = Counter()
    for (_, before, _), (phase, after, _) in pairwise(laps[start:]):
        phases[phase] += after - before
    return phases, mode.waits[laps[start][2] :]


@pytest.mark.parametrize(("kind", "tree", "arm"), [ROUNDS[0], ROUNDS[3]])
def test_launches_of_a_round_have_a_ceiling(kind, tree, arm):
    """Upstream's own code, counted alike, launches some 2,600 of EAGLE-3's; before this engine
    joined products, norms and rotary positions a round had 2,250."""
    phases, waits = counted_round(kind, tree, arm)
    levels = LEVELS[tree]
    assert phases["verify"] <= 19 * FEW + 20
    assert phases["propose"] <= 52 * levels
    assert phases["accept"] + phases["commit"] <= 40
    assert waits == ["to cpu"]


def test_attention_is_given_aligned_masks_and_none_is_planned_by_cudnn():
    """Two faults held down, by reading: with cuDNN's attention on, nearly every call of a round
    would have waited for a plan of its own; and the memory-efficient kernel copies a mask whose
    rows are not 16 bytes apart, in every layer."""
    torch.backends.cuda.enable_cudnn_sdp(True)
    mode = FakeCuda()
    run(*ROUNDS[2], mode, lambda phase: None)
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    masks = [given[3] for given in mode.attended if len(given) == 4]
    assert len(masks) >= 2 * (FEW + 5)
    assert all(strides[-2] % 8 == 0 for _, strides in masks)


if __name__ == "__main__":
    print("| head, tree, arm |", " | ".join(PHASES), "| sum | waits |")
    print("|---" * 7 + "|")
    for chosen in ROUNDS:
        phases, waits = counted_round(*chosen, LAYERS)
        launches = [phases[phase] for phase in PHASES]
        row = [" ".join(chosen), *map(str, launches), str(sum(launches)), ", ".join(waits)]
        print("|", " | ".join(row), "|", flush=True)
