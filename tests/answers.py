"""One answer by our loop, by transformers' generate, as it is streamed; and what is the same."""

import torch
from tiny import NoisyTargetDrafter, tiny_head, tiny_target
from transformers.generation.streamers import BaseStreamer

from eagle_fsd.arms import parse_arm
from eagle_fsd.config import SamplingConfig, TreeConfig
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.answer import Generation
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import Drafter
from eagle_fsd.decoding.verified import Rule
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.models.loaded import Model
from eagle_fsd.rules.fsd import Exact

EXACT = Exact()
TREES = [
    TreeConfig(5, 5, 1),  # a chain
    TreeConfig(7, 3, 4),
    TreeConfig(15, 5, 4),
    TreeConfig(23, 6, 3),
    TreeConfig(59, 6, 10),
    TreeConfig(4, 1, 7),  # one level
]


class Heard(BaseStreamer):
    """What a streamer is told, in order."""

    def __init__(self):
        self.all = []

    def put(self, value):
        self.all.append(value.tolist())

    def end(self):
        self.all.append("end")


def text_of(tokens) -> str:
    return "".join(f"<{token}>" for token in tokens)


def run(
    target: Target,
    drafter: Drafter,
    prompt: list[int],
    *,
    rule: Rule = EXACT,
    temperature: float = 0.0,
    seed: int = 0,
    budget: int = 24,
    stop: tuple[int, ...] = (),
    strings: tuple[str, ...] = (),
) -> Generation:
    policy = Policy(rule, SamplingConfig(temperature))
    policy.check(drafter)
    config = DecodeConfig(
        policy,
        StopConfig(budget, stop, strings, text_of if strings else None),
        seed,
    )
    return decode(target, drafter, prompt, config)


def drafter_of(name: str, target: Target) -> Drafter:
    """By an arm's text, eagle:7x3x4; "noisy" has drafts of which whole paths are accepted."""
    if name == "noisy":
        return NoisyTargetDrafter(target, TREES[3], noise=0.3)
    eagle = EagleDrafter(tiny_head(target), target, TREES[1])
    pair = tiny_target("llama", seed=1) if target.has_states else target.first_layers(2)
    return parse_arm(f"exact@{name}").build_drafter(Model(target, None, eagle, draft_model=pair))


def by_generate(target: Target, prompt: list[int], *, budget: int = 24, stop=()) -> list[int]:
    """The answer of transformers' own greedy search."""
    ids = torch.tensor([prompt])
    output = target.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),  # else a 0 in the prompt is taken for padding
        do_sample=False,
        max_new_tokens=budget,
        eos_token_id=list(stop) or None,
        pad_token_id=0,
    )
    return output[0, len(prompt) :].tolist()


@torch.inference_mode()
def assert_same(target: Target, prompt: list[int], ours: list[int], theirs: list[int]) -> None:
    """Equal, or parted at a proven tie of the target's two best tokens."""
    if ours == theirs:
        return
    parted = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b]
    assert parted, f"one answer is a part of the other: {ours} {theirs}"
    at = parted[0]
    logits_V = target.model(torch.tensor([prompt + ours[:at]])).logits[0, -1]
    best_2 = logits_V.topk(2)
    gap = float(best_2.values[0] - best_2.values[1])
    assert set(best_2.indices.tolist()) == {ours[at], theirs[at]} and gap < 1e-4, (
        f"token {at}: {ours[at]} or {theirs[at]}, and no tie (gap {gap:.2g})"
    )
