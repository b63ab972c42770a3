"""Targets and heads by name: what loads, and what is refused before any weights are read; and those
of random weights: shapes, bytes, names."""

import pytest
import torch
from tiny import FAMILIES, prompt_tokens, random_model
from tiny_folder import write_target
from transformers import AutoModelForCausalLM, LlamaConfig

from eagle_fsd.api import generate, load
from eagle_fsd.config import BadInput, TreeConfig
from eagle_fsd.decoding.target import Target
from eagle_fsd.models import random_weights
from eagle_fsd.models.load import load_target, load_target_config, target_digests


@torch.inference_mode()
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_target_loads_as_it_was_saved(tmp_path, family):
    """With its tokenizer and in the dtype asked for; float32 gives the saved model's own logits."""
    model = random_model(FAMILIES[family](), seed=0)
    model.save_pretrained(write_target(tmp_path))
    target, tokenizer = load_target(str(tmp_path), dtype="float32")
    assert target.dtype == torch.float32 and target.vocab_size == 101 and target.hidden_size == 40
    assert target.max_positions == 251 and target.device.type == "cpu"
    assert tokenizer.convert_tokens_to_ids("</s>") == 1
    assert not target.model.training
    prompt = torch.tensor(prompt_tokens(9))
    target.start(9)
    want_V = model(prompt[None]).logits[0, -1]
    torch.testing.assert_close(target.prefill(prompt)[0], want_V, atol=1e-5, rtol=0)
    half, _ = load_target(str(tmp_path), dtype="float16")
    assert {p.dtype for p in half.model.parameters()} == {torch.float16}


def test_a_target_is_told_by_its_files_or_its_commit(tmp_path, monkeypatch):
    """By every file of a folder, hidden ones apart; of a hub id by the snapshot, here one that the
    hub's cache has."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--some--one" / "snapshots" / "4f2a"
    FAMILIES["llama"]().save_pretrained(snapshot)
    (snapshot / ".hidden").touch()
    (snapshot / "tokenizer.model").touch()
    (tmp_path / "models--some--one" / "refs").mkdir()
    (tmp_path / "models--some--one" / "refs" / "main").write_text("4f2a")
    assert [*target_digests(str(snapshot))] == ["target/config.json", "target/tokenizer.model"]
    assert target_digests("some/one") == {"target/commit": "4f2a"}
    assert target_digests("random:llama-3.1-8b") == {}


# --- random weights -------------------------------------------------------------------------------


def tiny_config(**changes) -> LlamaConfig:
    config = FAMILIES["llama"]()
    config.update({"vocab_size": 307, "num_hidden_layers": 6} | changes)
    return config


@pytest.mark.parametrize(
    ("name", "parameters"), [("llama-3.1-8b", 8_030_261_248), ("qwen3-32b", 32_762_123_264)]
)
def test_built_in_shapes_have_the_published_number_of_parameters(name, parameters):
    config = load_target_config(f"random:{name}")
    model = random_weights.shaped_model(config, torch.bfloat16, "meta")
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@pytest.mark.parametrize("tied", [False, True])
def test_a_random_model_is_the_stock_model_with_those_weights(tied):
    """Ties and all."""
    config = tiny_config(tie_word_embeddings=tied)
    model = random_weights.random_model(config, dtype=torch.float32, device="cpu")
    target = Target(model)
    stock = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    stock.load_state_dict(model.state_dict())
    prompt_L = torch.tensor(prompt_tokens(17))
    target.start(17)
    logits_V, _ = target.prefill(prompt_L)
    assert torch.allclose(logits_V, stock(prompt_L[None]).logits[0, -1], atol=1e-4, rtol=1e-4)
    assert len(target.lm_head.weight.unique(dim=0)) == target.vocab_size
    assert (target.embed_tokens.weight is target.lm_head.weight) == tied
    # its logits vary by random_weights.STEEPNESS
    assert target.eos_token_ids == () and 6 < logits_V.std() < 10


@pytest.mark.parametrize("head", ["", "random:eagle:149", "random:eagle3", "random:eagle3:149"])
def test_loaded_by_name_and_drafting_deeply(tmp_path, head):
    """Flat drafts would fill the first levels only. Answers run to their budget."""
    tiny_config().save_pretrained(tmp_path)
    tree = TreeConfig(11, 4, 3)
    model = load(f"random:{tmp_path / 'config.json'}", head=head, tree=tree, dtype="float32")
    answer = generate(model, "Say a.", arm="exact", max_new_tokens=23)
    assert len(answer.tokens) == 23
    assert model.drafter.propose().max_depth == 4
    if "149" in head:
        token_R = model.drafter.draft_token_R
        assert token_R.shape == (149,) and (token_R.diff() > 0).all() and token_R[-1] < 307


def test_drafts_that_cannot_be_made_are_refused(tmp_path):
    """Bug held down: without a head an arm with a tree of its own ended in an AttributeError."""
    model = load(str(write_target(tmp_path)), head=None, dtype="float32")
    assert len(generate(model, "Say a.", arm="exact", max_new_tokens=3).tokens) == 3
    with pytest.raises(BadInput, match="without one"):
        generate(model, "Say a.", arm="exact@eagle:7x3x4")


def test_a_random_target_that_does_not_fit_is_refused(tmp_path, monkeypatch):
    """Before it is made: pages, and bytes of a page, are 100."""
    tiny_config().save_pretrained(tmp_path)
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    with pytest.raises(BadInput, match=r"needs 0.000386 GiB and cpu has 9.31e-06 GiB"):
        load_target(f"random:{tmp_path}", dtype="float32")
