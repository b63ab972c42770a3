"""Targets and heads by name: what loads, and what is refused before any weights are read."""

from pathlib import Path

import pytest
import torch
from tiny import FAMILIES, SIZES, prompt_tokens, random_model
from tiny_folder import write_target
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    DistilBertConfig,
    Gemma3Config,
    LlamaConfig,
    MambaConfig,
    PreTrainedTokenizerFast,
    T5Config,
)

from eagle_fsd.api import generate, load
from eagle_fsd.config import BadInput
from eagle_fsd.models.load import load_target, load_target_config, target_digests


def save_tokenizer(folder: Path) -> None:
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(SIZES["vocab_size"])}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)


@torch.inference_mode()
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_target_loads_as_it_was_saved(tmp_path, family):
    """With its tokenizer and in the dtype asked for; float32 gives the saved model's own logits."""
    model = random_model(FAMILIES[family](), seed=0)
    model.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    target, tokenizer = load_target(str(tmp_path), dtype="float32")
    assert target.dtype == torch.float32 and target.vocab_size == 101 and target.hidden_size == 40
    assert target.max_positions == 251 and target.device.type == "cpu"
    assert tokenizer.convert_tokens_to_ids("w17") == 17
    assert not target.model.training
    prompt = torch.tensor(prompt_tokens(9))
    target.start(9)
    want_V = model(prompt[None]).logits[0, -1]
    torch.testing.assert_close(target.prefill(prompt)[0], want_V, atol=1e-5, rtol=0)
    half, _ = load_target(str(tmp_path), dtype="float16")
    assert {p.dtype for p in half.model.parameters()} == {torch.float16}
    with pytest.raises(BadInput, match="float64.*bfloat16"):
        load_target(str(tmp_path), dtype="float64")
    for device in ("meta", "mps", "xpu", "hpu", "cpu:x", ""):
        with pytest.raises(BadInput, match=f"unknown device '{device}': give cpu, cuda, cuda:1 or"):
            load_target(str(tmp_path), device=device)


@pytest.mark.parametrize(
    "config, message",
    [
        (T5Config(), "'t5' is an encoder-decoder"),
        (Gemma3Config(), "'gemma3' is multimodal"),
        (MambaConfig(num_hidden_layers=2), "'mamba' has layers of type"),
        (LlamaConfig(rope_parameters={"rope_type": "dynamic", "factor": 2.0}), "'dynamic'"),
        (LlamaConfig(rope_parameters={"rope_theta": "1e4"}), "numbers .*'rope_theta': '1e4'"),
    ],
)
def test_unsupported_targets_are_refused_by_their_config_alone(tmp_path, config, message):
    """The folder holds no weights: the refusal names the model type and comes before them."""
    config.save_pretrained(tmp_path)
    with pytest.raises(BadInput, match=message):
        load_target(str(tmp_path))


def test_a_model_that_writes_no_text_is_refused(tmp_path):
    """transformers raises a ValueError of its own here; a user sees ours, in one line."""
    DistilBertConfig().save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    with pytest.raises(BadInput, match=f"target '{tmp_path}' does not load"):
        load_target(str(tmp_path))


def test_unknown_targets_are_refused(tmp_path):
    """The name is repeated, and what may be given said; so of folders that hold no target."""
    for name in ("nobody/nothing-here", "not a name", ""):
        with pytest.raises(BadInput, match=f"unknown target '{name}'.*smollm2.*folder"):
            load_target_config(name)
    llama = '{"model_type": "llama", "rope_parameters": '
    for text in ("{", "{}", '{"model_type": "novel"}', llama + '"x"}'):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(BadInput, match="unknown target"):
            load_target_config(str(tmp_path))
    FAMILIES["llama"]().save_pretrained(tmp_path)
    with pytest.raises(BadInput, match="no head ships .*--head.*train_head.py.*--arms generate pl"):
        load(str(tmp_path))


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
    """Bugs held down: without a head an arm with a tree of its own ended in an AttributeError, and
    more drafts than there is memory for in torch's own error."""
    model = load(str(write_target(tmp_path)), head=None, dtype="float32")
    assert len(generate(model, "Say a.", arm="exact", max_new_tokens=3).tokens) == 3
    refused = {"exact@eagle:7x3x4": "without one", "exact@eagle:auto": "15x4x6"}
    for arm, told in (refused | {"exact@lookup:99999999999999": "lower it"}).items():
        with pytest.raises(BadInput, match=told):
            generate(model, "Say a.", arm=arm)
