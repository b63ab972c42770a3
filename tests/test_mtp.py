"""MTP layers of checkpoints: their drafts, exact decoding with them, and what is refused.

Axes: T positions, D hidden size, V vocabulary.
"""

import json
from functools import cache, partial

import pytest
import reference_mtp
import torch
from answers import TREES, assert_same, run
from reference_tree import grow, paths
from safetensors.torch import load_file, save_file
from tiny import prompt_tokens
from tiny_mtp import FAMILIES, write_mtp_target
from transformers import AutoModelForCausalLM
from transformers.generation.candidate_generator import MTPCandidateGenerator

import eagle_fsd
from eagle_fsd.config import BadInput, TreeConfig
from eagle_fsd.decoding.drafter import RootDrafter
from eagle_fsd.decoding.target import Target
from eagle_fsd.drafters.eagle import EagleDrafter, head_drafter
from eagle_fsd.drafters.hybrid import HybridDrafter
from eagle_fsd.engine.select import ENGINES
from eagle_fsd.heads.mtp_files import write_mtp
from eagle_fsd.models.load import load_head, load_target_config
from eagle_fsd.models.weights import stored_model
from eagle_fsd.rules.fsd import Fsd
from eagle_fsd.rules.price import PathRule

V = 31
BY_TRANSFORMERS = ("deepseek_v3", "glm4_moe")
SWITCHES = ("mtp", "mtp,own=raw", "mtp,feature=raw,own=raw")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """By family, what write_mtp_target wrote, with few tokens: drafts are then accepted often."""
    return cache(
        lambda name, tokens=V: write_mtp_target(
            tmp_path_factory.mktemp(name), name, vocab_size=tokens
        )
    )


def target_and_head(written, name: str = "mtp", *, engine: str = "stock"):
    config = load_target_config(str(written.folder))
    head = load_head(name, config, target=str(written.folder))
    options = {"dtype": torch.float32, "device": "cpu", "trust_remote_code": False}
    model = stored_model(name, str(written.folder), config, **options).eval()
    layers = head.config.fused_layers(config.num_hidden_layers)
    return Target(model, engine=ENGINES[engine](), feature_layers=layers), head


# --- what it drafts -------------------------------------------------------------------------------


@torch.inference_mode()
@pytest.mark.parametrize("name", BY_TRANSFORMERS)
def test_first_level_is_that_of_transformers(checkpoints, name, monkeypatch):
    """The token and the logits that `generate(use_mtp=True)` drafts in each of its rounds."""
    written, rounds = checkpoints(name), []
    target, head = target_and_head(written)
    # whose numbers of layers are those of the large checkpoints
    monkeypatch.setattr(
        type(target.model), "_keys_to_ignore_on_load_unexpected", [r"model\.layers\.3\..*"]
    )
    drafted = MTPCandidateGenerator.get_candidates

    def watched(self, ids, *args, **kwargs):
        candidates, logits = drafted(self, ids, *args, **kwargs)
        if logits is not None:
            rounds.append((ids[0].tolist(), candidates[0, ids.shape[1] :].tolist(), logits[0]))
        return candidates, logits

    monkeypatch.setattr(MTPCandidateGenerator, "get_candidates", watched)
    prompt = torch.tensor([prompt_tokens(9, vocab_size=V)])
    # a Target takes its model's generation config
    model = AutoModelForCausalLM.from_pretrained(written.folder, dtype=torch.float32).eval()
    settings = {"max_new_tokens": 16, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    model.generate(prompt, attention_mask=torch.ones_like(prompt), use_mtp=True, **settings)
    drafter = EagleDrafter(head, target, TreeConfig(3, 1, 3))
    assert len(rounds) > 10
    for ids, drafts, logits_1V in rounds:
        _, features_1TD = target.hidden_and_features(torch.tensor([ids[:-1]]), use_cache=False)
        drafter.reset(40, ids[0])
        drafter.observe(features_1TD[0], ids[1:])
        tree = drafter.propose()
        assert drafts == [tree.token_N[tree.score_N[1:].argmax() + 1]]
        torch.testing.assert_close(tree.draft_logits_ER, logits_1V, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize("name", FAMILIES)
def test_trees_are_those_of_the_slow_version(checkpoints, name, switch):
    """Over rounds of observe and propose: tokens, parents and draft rows == path by path."""
    written = checkpoints(name)
    target, head = target_and_head(written, switch)
    drafter = EagleDrafter(head, target, TreeConfig(9, 3, 3))
    generator = torch.Generator().manual_seed(5)
    own = "raw" if "own=raw" in switch else "normed"
    drafter.reset(40, 2)
    tokens_T, features_TD = torch.empty(0, dtype=torch.int64), torch.empty(0, 40)
    for count in (9, 1, 3):
        new_T = torch.randint(0, V, (count,), generator=generator)
        new_TD = torch.randn(count, 40, generator=generator)
        drafter.observe(new_TD, new_T.tolist())
        tokens_T, features_TD = torch.cat([tokens_T, new_T]), torch.cat([features_TD, new_TD])
        tree = drafter.propose()
        after = partial(reference_mtp.after_path, written, tokens_T, features_TD, own=own)
        logits_of = cache(after)
        *_, kept = grow(logits_of, depth=3, top_k=3, drafts=9)
        node_paths = paths(tree.token_N.tolist(), tree.parent_N.tolist())
        assert set(node_paths[1:]) == set(kept) and tree.size == 10
        for path, row in zip(node_paths, tree.draft_row_N.tolist(), strict=True):
            if row >= 0:
                want_V = logits_of(path)
                torch.testing.assert_close(tree.draft_logits_ER[row], want_V, atol=1e-3, rtol=1e-3)
        assert drafter._sequence.cache.length == tokens_T.shape[0]


@torch.inference_mode()
@pytest.mark.parametrize("name", FAMILIES)
def test_the_state_before_the_norm(checkpoints, name):
    """feature=raw gives what the target's final norm is given."""
    written = checkpoints(name)
    target, _ = target_and_head(written, "mtp,feature=raw")
    ids = torch.tensor([prompt_tokens(11, vocab_size=V)])
    hidden_1TD, raw_1TD = target.hidden_and_features(ids, use_cache=False)
    assert not torch.allclose(hidden_1TD, raw_1TD)
    torch.testing.assert_close(target.model.model.norm(raw_1TD), hidden_1TD)


# --- decoding with it -----------------------------------------------------------------------------


@pytest.mark.processes  # long
@pytest.mark.parametrize("engine", ["stock", "packed"])
@pytest.mark.parametrize("name", FAMILIES)
def test_exact_is_plain_decoding(checkpoints, name, engine):
    """With its trees and with those of a hybrid, greedy and draw by draw; lossy rules run."""
    target, head = target_and_head(checkpoints(name), engine=engine)
    drafter, taken = head_drafter(head, target, TREES[2]), 0
    for length, temperature in ((5, 0.0), (23, 1.0)):
        prompt = prompt_tokens(length, seed=length, vocab_size=V)
        settings = {"temperature": temperature, "seed": 7, "budget": 20}
        plain = run(target, RootDrafter(), prompt, **settings).tokens
        for each in (drafter, HybridDrafter(drafter)):
            got = run(target, each, prompt, **settings)
            if temperature:
                assert got.tokens == plain
            else:
                assert_same(target, prompt, got.tokens, plain)
            taken += sum(r.accepted_drafts for r in got.rounds)
    assert taken > 5
    for rule in (Fsd(0.69), PathRule(20.0)):
        loose = run(target, drafter, prompt, rule=rule)
        assert loose.tokens_per_round > 1 and loose.fuzzy_share > 0


def test_by_name(checkpoints):
    """`head="mtp"` and arms with @mtp: the head's trees, hybrid ones, another shape, drawn drafts;
    another head is told."""
    written = checkpoints("qwen3_5_text", 258)
    given = {"dtype": "float32", "tree": "7x3x3"}
    model = eagle_fsd.load(str(written.folder), head="mtp", **given)
    ask = partial(eagle_fsd.generate, model, "What is it?", max_new_tokens=24)
    plain = ask(arm="plain").tokens
    for arm in ("exact@mtp", "exact@mtp:15x4x6", "exact", "exact@hybrid:9x3x3"):
        assert ask(arm=arm).tokens == plain
    drawn = {"temperature": 1.0, "seed": 3}
    ask(arm="rejection@mtp,sample=1", **drawn)
    other = eagle_fsd.load(str(written.folder), head=None, **given)
    with pytest.raises(BadInput, match="load it as the head, mtp"):
        eagle_fsd.generate(other, "What?", arm="exact@mtp")
