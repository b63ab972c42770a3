"""Acceptance statistics from one decoding against decoding with every tree from the same roots."""

from dataclasses import replace

import pytest
import torch
from eagle_fsd.decoding.accept import accept, uniforms
from tiny_folder import write_random_head, write_target

from eagle_fsd.api import Model, load
from eagle_fsd.config import AcceptConfig, SamplingConfig, TreeConfig
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.drafters.grower import TreeGrower
from eagle_fsd.speed.tree_choice.calibration import TuningConfig
from eagle_fsd.speed.tree_choice.survey import Survey, survey

pytestmark = pytest.mark.processes  # minutes together: not in the fast suite

FIRST = 0  # <s>, which begins every prompt and which no drafter is told
VISITING = TreeConfig(7, 3, 4)
TUNING = TuningConfig(prompts=("Say one.", "And two?"), max_new_tokens=20)
WIDE = (TreeConfig(5, 5, 4), TreeConfig(20, 5, 4), TreeConfig(13, 3, 4), TreeConfig(2, 1, 4))
NARROW = (TreeConfig(4, 4, 1), TreeConfig(6, 3, 2), TreeConfig(9, 4, 2))


class PathDrafter:
    """Drafts from the target's own logits plus noise that depends on the path alone, so that trees
    of all shapes are drafted from the same distributions. Notes the roots."""

    draft_token_R = None

    def __init__(self, target, tree: TreeConfig, *, noise: float, roots: list):
        self.target, self.tree_config, self.noise, self.roots = target, tree, noise, roots
        self.max_nodes = tree.num_draft_tokens + 1

    def with_tree(self, tree: TreeConfig) -> "PathDrafter":
        return PathDrafter(self.target, tree, noise=self.noise, roots=self.roots)

    def reset(self, capacity: int) -> None:
        self._tokens = [FIRST]

    def observe(self, features_TF: torch.Tensor, next_token_T: torch.Tensor) -> None:
        self._tokens += next_token_T.tolist()

    @torch.inference_mode()
    def propose(self) -> DraftTree:
        self.roots.append(list(self._tokens))
        return self.grow(self._tokens)

    @torch.inference_mode()
    def grow(self, tokens: list[int]) -> DraftTree:
        grower = TreeGrower(self.tree_config)
        path_KT = torch.tensor([tokens])
        for _ in range(self.tree_config.tree_depth):
            logits_KV = self.target.model(path_KT, use_cache=False).logits[:, -1]
            token_K, slot_K = grower.add_level(3 * logits_KV + self.noise * _noise(path_KT, 258))
            path_KT = torch.cat([path_KT[slot_K], token_K[:, None]], dim=1)
        return grower.finish(torch.tensor(tokens[-1]))


def _noise(path_KT: torch.Tensor, vocab: int) -> torch.Tensor:
    seeds = [hash(tuple(path)) % 2**31 for path in path_KT.tolist()]
    return torch.stack(
        [torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Model:
    folder = tmp_path_factory.mktemp("models")
    target, head = write_target(folder / "target", layers=2), write_random_head(folder / "head")
    loaded = load(str(target), head=str(head), dtype="float32", engine="stock")
    drafter = PathDrafter(loaded.target, VISITING, noise=4.0, roots=[])
    return replace(loaded, drafter=drafter)


@torch.inference_mode()
def accepted_alone(model: Model, tree: TreeConfig, root: list[int], config: AcceptConfig) -> int:
    """Drafts that a tree of this shape accepts at a root, at temperature 0, on its own."""
    drafted = model.drafter.with_tree(tree).grow(root)
    model.target.start(len(root) + drafted.size)
    model.target.prefill(torch.tensor(root[:-1]))
    logits_NV, _ = model.target.verify(drafted)
    uniform_S3 = uniforms(drafted.max_depth, torch.Generator())
    return accept(
        drafted, logits_NV, uniform_S3, config=config, sampling=SamplingConfig()
    ).accepted_drafts


@pytest.mark.parametrize("accept_config", [AcceptConfig("exact"), AcceptConfig(threshold=0.3)])
def test_figures_are_those_of_each_tree_at_the_same_roots(model, accept_config):
    """Trees of the large one's own top-k exactly; narrower ones never more, and hardly less."""
    model.drafter.roots.clear()
    found = survey(model, accept_config, SamplingConfig(), WIDE + NARROW, TUNING, visiting=VISITING)
    roots = list(model.drafter.roots)
    assert found.rounds == len(roots)
    for tree, tokens in zip(WIDE + NARROW, found.tokens_per_round, strict=True):
        alone = [accepted_alone(model, tree, root, accept_config) for root in roots]
        mean = 1 + sum(alone) / len(alone)
        if tree in WIDE:
            assert tokens == pytest.approx(mean, abs=1e-9), tree
        else:
            assert mean - 0.1 <= tokens <= mean + 1e-9, tree
    assert max(found.tokens_per_round) > 1.5  # something was accepted


def test_the_visiting_tree_decodes(model):
    """The roots are those of decoding with that tree, whatever the others are."""
    roots = []
    for trees in (WIDE, NARROW):
        model.drafter.roots.clear()
        config = AcceptConfig(threshold=0.3)
        survey(model, config, SamplingConfig(), trees, TUNING, visiting=VISITING)
        roots.append(list(model.drafter.roots))
    assert roots[0] == roots[1]
    for before, after in zip(roots[0], roots[0][1:], strict=False):
        if after[: len(before)] == before:  # of the same prompt
            accepted = accepted_alone(model, VISITING, before, config)
            assert len(after) == len(before) + accepted + 1


def test_a_larger_threshold_accepts_more(model):
    """T takes part: with T infinite a chain is always accepted to its end."""
    found = [
        survey(model, config, SamplingConfig(), NARROW, TUNING, visiting=VISITING)
        for config in (AcceptConfig(threshold=0.0), AcceptConfig(threshold=float("inf")))
    ]
    exact, all_accepted = (f.tokens_per_round for f in found)
    assert all_accepted[0] == 5 and exact[0] < 5
    assert all(a < b for a, b in zip(exact, all_accepted, strict=True))


def test_sampling_repeats(model):
    """At temperature 1 a seed gives the same figures, another seed others."""
    args = model, AcceptConfig(threshold=0.3), SamplingConfig(1.0), WIDE
    first, again = (survey(*args, TUNING, visiting=VISITING) for _ in range(2))
    assert first == again
    assert survey(*args, replace(TUNING, seed=1), visiting=VISITING) != first


def test_a_broken_survey_is_refused():
    with pytest.raises(ValueError, match="0 rounds"):
        Survey((1.0,), 0)
    with pytest.raises(ValueError, match="not a survey"):
        Survey((0.5,), 3)
