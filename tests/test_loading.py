"""Targets and heads by name: what loads, and what is refused before any weights are read."""

import time
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from head_files import SIZES as HEAD_SIZES
from head_files import TargetShape, eagle_tensors, save
from tiny import FAMILIES, SIZES, prompt_tokens, random_model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    DistilBertConfig,
    Gemma3Config,
    Lfm2Config,
    Llama4TextConfig,
    MambaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    T5Config,
)

from eagle_fsd.api import load
from eagle_fsd.config import BadInput
from eagle_fsd.models.load import load_head, load_target, load_target_config


@pytest.fixture
def offline(monkeypatch):
    """No network, said beforehand: a machine without one retries for half a minute otherwise."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def save_tokenizer(folder: Path) -> None:
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(SIZES["vocab_size"])}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)


@torch.inference_mode()
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_target_loads_as_it_was_saved(tmp_path, family):
    """A saved folder loads with its tokenizer; float32 gives the saved model's own logits."""
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


def test_target_loads_in_half_precision(tmp_path):
    """The dtype asked for is the dtype of every weight; an unknown one lists those that are."""
    random_model(FAMILIES["llama"](), seed=0).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    target, _ = load_target(str(tmp_path), dtype="float16")
    assert {p.dtype for p in target.model.parameters()} == {torch.float16}
    with pytest.raises(BadInput, match="float64.*bfloat16"):
        load_target(str(tmp_path), dtype="float64")


UNSUPPORTED = {
    "encoder-decoder": (lambda: T5Config(), "'t5' is an encoder-decoder"),
    "multimodal": (lambda: Gemma3Config(), "'gemma3' is multimodal"),
    "chunked": (
        lambda: Llama4TextConfig(num_hidden_layers=4),
        "'llama4_text' has layers of type .'chunked_attention'",
    ),
    "convolution": (
        lambda: Lfm2Config(num_hidden_layers=2, layer_types=["conv", "full_attention"]),
        "'lfm2' has layers of type .'conv'",
    ),
    "state space": (lambda: MambaConfig(num_hidden_layers=2), "'mamba' has layers of type"),
}


@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_unsupported_targets_are_refused_by_their_config_alone(tmp_path, kind):
    """The folder holds no weights: the refusal names the model type and comes before them."""
    make, message = UNSUPPORTED[kind]
    config: PretrainedConfig = make()
    config.save_pretrained(tmp_path)
    for read in (load_target_config, load_target):
        with pytest.raises(BadInput, match=message):
            read(str(tmp_path))


def test_a_model_that_writes_no_text_is_refused(tmp_path):
    """transformers raises a ValueError of its own here; a user sees ours, in one line."""
    DistilBertConfig().save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    with pytest.raises(BadInput, match=f"target '{tmp_path}' does not load"):
        load_target(str(tmp_path))


def test_supported_configs_are_taken(tmp_path):
    """Every tested family's saved config passes, its sliding window unchanged."""
    for family, make in FAMILIES.items():
        make().save_pretrained(tmp_path / family)
        loaded = load_target_config(str(tmp_path / family))
        assert loaded.model_type == make().model_type
        window = getattr(make(), "sliding_window", None)
        assert getattr(loaded, "sliding_window", None) == window


@pytest.mark.parametrize("name", ["nobody/nothing-here", "nothing-here", "not a name", "a/b/c", ""])
def test_unknown_targets_are_refused(offline, name):
    """No folder and no hub: a BadInput that repeats the name and says what may be given."""
    began = time.perf_counter()
    with pytest.raises(BadInput, match=f"unknown target '{name}'.*smollm2.*folder"):
        load_target_config(name)
    assert time.perf_counter() - began < 10


@pytest.mark.parametrize(
    "files",
    [{}, {"config.json": "{"}, {"config.json": "{}"}, {"config.json": '{"model_type": "novel"}'}],
)
def test_folders_that_hold_no_target_are_refused(tmp_path, offline, files):
    """Empty folder, broken JSON, no model type, a model type that transformers does not know."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(BadInput, match="unknown target"):
        load_target_config(str(tmp_path))


def test_heads_that_are_not_there_are_refused(offline):
    """A hub id that cannot be reached is named; a target without a head of its own: what to do."""
    began = time.perf_counter()
    with pytest.raises(BadInput, match="no draft head at 'nobody/no-head'"):
        load_head("nobody/no-head", FAMILIES["llama"]())
    assert time.perf_counter() - began < 10
    with pytest.raises(BadInput, match="'some/target'.*--head.*train_head.py.*--arms generate pl"):
        load("some/target")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_head_keeps_the_dtype_it_was_saved_in(tmp_path, dtype):
    """load_head returns the file's own tensors, on the CPU, in eval mode."""
    tensors = {key: tensor.to(dtype) for key, tensor in eagle_tensors().items()}
    head = load_head(save(tmp_path, HEAD_SIZES, tensors), TargetShape())
    assert not head.training
    assert head.state_dict().keys() == tensors.keys()
    for key, tensor in head.state_dict().items():
        assert tensor.dtype == dtype and torch.equal(tensor, tensors[key])
