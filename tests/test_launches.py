"""How many kernels a round launches on CUDA, for what its host waits, and what its attention is
given: counted on fake tensors of a thin model with as many layers and heads as Llama-3.1-8B. What
they cost no GPU has told. `python tests/test_launches.py` prints the table of results/launches."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
import torch
from fake_cuda import FakeCuda, within
from transformers import AutoConfig, AutoModelForCausalLM

from eagle_fsd.arms import parse_arm
from eagle_fsd.config import SamplingConfig, as_tree
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode_rounds
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import Drafter
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.engine.select import choose_engines
from eagle_fsd.evaluation.batches import Batch
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
    model, parsed = thin_model(kind, layers), parse_arm(arm)

    def work() -> None:
        moved = model(tree)
        parts = moved.target, parsed.build_drafter(moved)
        decoding = DecodeConfig(parsed.policy(SamplingConfig()), StopConfig(30))
        rounds = decode_rounds(*(Lapped(part, note) for part in parts), [*range(3, 60)], decoding)
        for _ in range(4):
            next(rounds)
            note("")

    within(mode, work)


def thin_model(kind: str, layers: int) -> Callable[[str], Model]:
    """What moves a model and a head to the device, within the mode, by the shape of its trees."""
    config = AutoConfig.for_model("llama", **SIZES, num_hidden_layers=layers)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    head = build_head(HeadConfig(head_type=kind, **SIZES, **HEADS[kind])).eval().bfloat16()
    if kind == "eagle3":
        head.set_draft_tokens(torch.arange(0, SIZES["vocab_size"], 2))
    model.requires_grad_(False)
    head.requires_grad_(False)

    def moved(tree: str) -> Model:
        head._rotary[0]._apply(torch.clone)  # fake; it is no submodule, and stays on the CPU
        target = Target(
            model.to("cuda:0"),
            engine=choose_engines("auto", device="cuda:0", dtype=torch.bfloat16)[0],
            feature_layers=head.config.fused_layers(layers),
        )
        return Model(target, None, EagleDrafter(head.to("cuda:0"), target, as_tree(tree)))

    return moved


def batched_round(
    kind: str, tree: str, arm: str, size: int, monkeypatch: pytest.MonkeyPatch, layers: int = FEW
) -> tuple[int, list[str]]:
    """Launches of the third round of so many answers that are made together, and for what the host
    waits there."""
    model, parsed, mode = thin_model(kind, layers), parse_arm(arm), FakeCuda()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 40, 1 << 40))
    for name in ("memory_reserved", "memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda device: 0)
    laps: list[list[tuple[int, int]]] = [[] for _ in range(4)]

    def answer(batch: Batch, drafter: Drafter, number: int) -> None:
        with mode:  # modes are a thread's own
            decoding = DecodeConfig(parsed.policy(SamplingConfig()), StopConfig(30), number)
            prompt = [*range(3 + number, 60)]
            rounds = decode_rounds(batch.model.target, drafter, prompt, decoding)
            for lap in laps:
                next(rounds)
                lap.append((mode.launches.total(), len(mode.waits)))

    def work() -> None:
        batch = Batch(model(tree), size)
        drafter = parsed.build_drafter(batch.model)
        batch.reserve(300)
        answers = [partial(answer, batch, drafter, number) for number in range(size)]
        assert len([*batch.run(answers)]) == size

    within(mode, work)
    (before, since), (after, until) = max(laps[2]), max(laps[3])
    return after - before, mode.waits[since:until]


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


def test_answers_made_together_share_launches(monkeypatch):
    """Eight launch less than four times what one does (less than three at 32 layers): what is an
    answer's own, the tree that it grows and the rule, is all that is launched eight times. Each
    waits once, as alone."""
    alone, waits = batched_round(*ROUNDS[3], 1, monkeypatch)
    assert waits == ["to cpu"]
    launches, waits = batched_round(*ROUNDS[3], 8, monkeypatch)
    assert launches < 4 * alone
    assert waits == ["to cpu"] * 8


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
    print(
        "\n| head, tree, arm | answers together | launches of their round | of an answer | waits |"
    )
    print("|---" * 5 + "|")
    for chosen in ROUNDS:
        for size in (1, 4, 8, 16):
            with pytest.MonkeyPatch.context() as patch:
                total, waits = batched_round(*chosen, size, patch, LAYERS)
            row = [" ".join(chosen), size, total, round(total / size), len(waits)]
            print("|", " | ".join(map(str, row)), "|", flush=True)
