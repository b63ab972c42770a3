"""Targets and heads by name: what loads, and what is refused before any weights are read."""

import pytest
import torch
from tiny import FAMILIES, prompt_tokens, random_model
from tiny_folder import write_target

from eagle_fsd.api import generate, load
from eagle_fsd.config import BadInput
from eagle_fsd.models.load import load_target, target_digests


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


def test_drafts_that_cannot_be_made_are_refused(tmp_path):
    """Bug held down: without a head an arm with a tree of its own ended in an AttributeError."""
    model = load(str(write_target(tmp_path)), head=None, dtype="float32")
    assert len(generate(model, "Say a.", arm="exact", max_new_tokens=3).tokens) == 3
    with pytest.raises(BadInput, match="without one"):
        generate(model, "Say a.", arm="exact@eagle:7x3x4")
