"""Chains of a batch (eagle_fsd_vllm/chains.py) against `accept` on each chain's own tree: what an
engine with a loop of its own forces is what the rules take. Needs no vLLM.

Axes: K drafts, V vocabulary, R rows of target logits, E of draft logits.
"""

import pytest
import torch
from eagle_fsd_vllm import chains as chains_module
from eagle_fsd_vllm.chains import Chain, taken_drafts
from fake_cuda import on_cuda

from eagle_fsd.arms import parse_arm
from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.acceptance import accept
from eagle_fsd.decoding.tree import DraftTree

V, K, STOP = 29, 4, 5
ARMS = ("exact", "ratio:1", "relaxed:0.1", "path:1.5", "fsd:0.2", "path:3,ends=1", "fsd:0")
ARMS += ("ratio:3,no_repeat=2", "fsd:0.4,ends=1,no_repeat=2", "fsd:0.3,child=draft", "ratio:inf")
WARM = SamplingConfig(0.8), SamplingConfig(0.7, 7, 0.9)
WARM_ARMS = ("ratio:1", "relaxed:0.1", "fsd:0.2", "ratio:3,no_repeat=2")


def batch(
    seed: int, arms: tuple[str, ...], samplings: tuple[SamplingConfig, ...] = (SamplingConfig(),)
) -> tuple[list[Chain], torch.Tensor, torch.Tensor]:
    """A chain an arm, of 1 to 4 drafts; the third has no draft distributions."""
    generator = torch.Generator().manual_seed(seed)
    target_RV = 2 * torch.randn(len(arms) * (K + 1), V, generator=generator)
    noise_RV = torch.randn(len(arms) * (K + 1), V, generator=generator)
    bend_R1 = 3 * torch.rand(len(target_RV), 1, generator=generator)
    draft_EV = target_RV + bend_R1 * noise_RV
    ends_R = torch.rand(len(target_RV), generator=generator) < 0.2
    target_RV[ends_R, STOP] = 9.0
    draft_EV[:, :4] += 4.0  # few different drafts, so that n-grams occur again
    found = []
    for number, arm in enumerate(arms):
        row, count = number * (K + 1), 1 + (seed + number) % K
        sampling = samplings[(seed + number) % len(samplings)]
        found.append(
            Chain(
                parse_arm(arm).policy(sampling),
                draft_EV[row : row + count].argmax(-1).tolist(),
                target_row=row,
                draft_row=-1 if number == 2 else row,
                stop_token_ids=[STOP],
                answer=torch.randint(4, (6,), generator=generator).tolist(),
            )
        )
    return found, target_RV, draft_EV


def outcome(chain: Chain, target_RV: torch.Tensor, draft_EV: torch.Tensor, uniform_S3):
    """What `accept` makes of the chain as a tree."""
    count = len(chain.tokens)
    node_N = torch.arange(count + 1)
    has_row_N = (node_N < count) & (chain.draft_row >= 0)
    tree = DraftTree(
        torch.tensor([chain.answer[-1], *chain.tokens]),
        (node_N - 1).clamp_min(0),
        torch.where(has_row_N, chain.draft_row + node_N, -1),
        draft_EV,
        max_depth=count,
    )
    target_NV = target_RV[chain.target_row : chain.target_row + count + 1]
    further = {"stop_token_ids": chain.stop_token_ids, "answer": chain.answer}
    return accept(tree, target_NV, uniform_S3, policy=chain.policy, **further)


def forced(chain: Chain, taken: list[int], target_RV: torch.Tensor) -> list[int]:
    """What an engine emits that forces these drafts and is exact elsewhere."""
    emitted = []
    for number, draft in enumerate(chain.tokens):
        exact = target_RV[chain.target_row + number].argmax().item()
        emitted.append(draft if number in taken else exact)
        if emitted[-1] != draft or draft == STOP:
            return emitted
    return [*emitted, target_RV[chain.target_row + len(chain.tokens)].argmax().item()]


def test_what_is_forced_is_what_the_rules_emit():
    longer = dict.fromkeys(ARMS, 0)
    for seed in range(200):
        chains, *logits = batch(seed, ARMS)
        for arm, chain, taken in zip(ARMS, chains, taken_drafts(chains, *logits), strict=True):
            want = outcome(chain, *logits, torch.zeros(K + 1, 3)).tokens
            got = forced(chain, taken, logits[0])
            assert got == want[: len(got)] and (len(got) == len(want) or got[-1] == STOP)
            longer[arm] += len(got) > len(forced(chain, [], logits[0]))
    off = {"exact", "fsd:0"}
    print(longer)
    assert all((count > 4) == (arm not in off) for arm, count in longer.items()), longer


@pytest.mark.parametrize("sampling", WARM)
def test_above_temperature_0_a_draft_is_forced_where_it_takes_any_place(sampling):
    """Of 20 draws `accept` takes a draft in another token's place only where it is forced, and ends
    a round at another token only where none is."""
    seen = set()
    for seed in range(40):
        chains, *logits = batch(seed, WARM_ARMS, (sampling,))
        for chain, taken in zip(chains, taken_drafts(chains, *logits), strict=True):
            generator = torch.Generator().manual_seed(seed)
            for uniform_S3 in torch.rand(20, K + 1, 3, generator=generator):
                got = outcome(chain, *logits, uniform_S3)
                for v, fuzzy in zip(got.path, got.fuzzy, strict=True):
                    assert not fuzzy or v in taken
                    seen.add(fuzzy)
                assert got.path[-1] not in taken or STOP in got.tokens
    assert seen == {False, True}


def test_parts_and_places_in_a_batch_change_nothing(monkeypatch):
    chains, *logits = batch(3, ARMS * 2, (SamplingConfig(), *WARM))
    chains = [c for c in chains if c.policy.sampling.temperature == 0 or "path" not in str(c)]
    whole = taken_drafts(chains, *logits)
    assert any(whole) and taken_drafts([], *logits) == []
    assert taken_drafts(chains[::-1], *logits) == whole[::-1]
    assert [taken_drafts([chain], *logits)[0] for chain in chains] == whole
    monkeypatch.setattr(chains_module, "MOST_LOGITS", V)
    assert taken_drafts(chains, *logits) == whole


def test_a_removed_draft_is_never_taken():
    """A grammar's -inf holds, whatever the rule, and the drafts behind it are out of reach."""
    for arm in ("ratio:inf", "fsd:inf", "relaxed:1", "path:1000"):
        for sampling in (SamplingConfig(), SamplingConfig(1.0)):
            if arm == "path:1000" and sampling.temperature:
                continue
            target_RV, draft_EV = torch.zeros(3, V), torch.zeros(2, V)
            target_RV[:, 7] = 1.0
            target_RV[1, 2] = -torch.inf
            chain = Chain(parse_arm(arm).policy(sampling), [3, 2], 0, 0)
            assert taken_drafts([chain], target_RV, draft_EV) == [[0]]


def test_an_accelerator_is_waited_for_once():
    """However many requests and rules there are."""
    arms = tuple(arm for arm in ARMS if arm != "exact")
    made = batch(5, arms)

    def work(device: str, chains: list[Chain], *logits: torch.Tensor) -> list[list[int]]:
        return taken_drafts(chains, *(rows.to(device, non_blocking=True) for rows in logits))

    here, there, waits = on_cuda(lambda: made, work)
    assert here == there and any(here)
    assert waits == ["tolist"]
