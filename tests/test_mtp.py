"""The MTP layer of a checkpoint: its drafts, exact decoding with it, and what is refused.

Axes: T positions, D hidden size, V vocabulary.
"""

import json
import shutil
from functools import cache, partial

import pytest
import reference_mtp
import torch
from answers import TREES, assert_same, run
from reference_tree import assert_grown
from safetensors.torch import load_file, save_file
from tiny import prompt_tokens
from tiny_mtp import FAMILIES, write_mtp_target
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.generation.candidate_generator import MTPCandidateGenerator

import eagle_fsd
from eagle_fsd.config import BadInput, TreeConfig
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import RootDrafter
from eagle_fsd.drafters.eagle import head_drafter
from eagle_fsd.drafters.hybrid import HybridDrafter
from eagle_fsd.engine.select import ENGINES
from eagle_fsd.heads.mtp_files import write_mtp
from eagle_fsd.models.load import head_digests, load_head, load_target_config
from eagle_fsd.models.weights import stored_model

V = 31
BY_TRANSFORMERS = ("deepseek_v3", "glm4_moe")
SWITCHES = ("mtp", "mtp,own=raw", "mtp,feature=raw,own=raw")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """By family, what write_mtp_target wrote, with few tokens: drafts are then accepted often."""

    def written(name: str, tokens: int = V):
        return write_mtp_target(tmp_path_factory.mktemp(name), name, vocab_size=tokens)

    return cache(written)


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
def test_the_first_level_is_that_of_transformers(checkpoints, name, monkeypatch):
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
    drafter = head_drafter(head, target, TreeConfig(1, 1, 1))
    assert len(rounds) > 5
    for ids, drafts, logits_KV in rounds:
        _, features_1TD = target.forward(torch.tensor([ids[:-1]]))
        drafter = drafter.begin(40, ids[0])
        drafter.observe(features_1TD[0, :3], ids[1:4])
        drafter.propose()
        drafter.observe(features_1TD[0, 3:], ids[4:])
        tree = drafter.propose()
        assert drafts == tree.token_N[1:].tolist()
        torch.testing.assert_close(tree.draft_logits_ER, logits_KV, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize("name", FAMILIES)
def test_trees_are_those_of_the_slow_version(checkpoints, name, switch):
    """Over rounds of observe and propose: tokens, parents and draft rows == path by path."""
    written = checkpoints(name)
    target, head = target_and_head(written, switch)
    drafter = head_drafter(head, target, TreeConfig(5, 2, 2)).with_tree(TreeConfig(9, 3, 3))
    generator = torch.Generator().manual_seed(5)
    own = "raw" if "own=raw" in switch else "normed"
    drafter = drafter.begin(40, 2)
    tokens_T, features_TD = torch.empty(0, dtype=torch.int64), torch.empty(0, 40)
    for count in (9, 1, 3):
        new_T = torch.randint(0, V, (count,), generator=generator)
        new_TD = torch.randn(count, 40, generator=generator)
        drafter.observe(new_TD, new_T.tolist())
        tokens_T, features_TD = torch.cat([tokens_T, new_T]), torch.cat([features_TD, new_TD])
        tree = drafter.propose()
        after = partial(reference_mtp.after_path, written, tokens_T, features_TD, own=own)
        assert_grown(tree, cache(after), TreeConfig(9, 3, 3), 1e-3)
        assert drafter.cache.length == tokens_T.shape[0]


@torch.inference_mode()
@pytest.mark.parametrize("name", FAMILIES)
def test_the_state_before_the_norm(checkpoints, name):
    """feature=raw gives what the target's final norm is given. Bug held down: the model then gave
    its states twice, and a second target was refused."""
    target, _ = target_and_head(checkpoints(name), "mtp,feature=raw")
    ids = torch.tensor([prompt_tokens(11, vocab_size=V)])
    hidden_1TD, raw_1TD = target.forward(ids)
    assert not torch.allclose(hidden_1TD, raw_1TD)
    torch.testing.assert_close(target.model.model.norm(raw_1TD), hidden_1TD)
    again = Target(target.model, feature_layers=target.feature_layers)
    assert torch.equal(again.forward(ids)[1], raw_1TD)


# --- decoding with it -----------------------------------------------------------------------------


@pytest.mark.processes  # long
@pytest.mark.parametrize("name", FAMILIES)
def test_exact_is_plain_decoding(checkpoints, name):
    """With its trees and with those of a hybrid, greedy and draw by draw."""
    target, head = target_and_head(checkpoints(name), engine="packed")
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


# --- files ----------------------------------------------------------------------------------------


def change_tensors(folder, edit) -> None:
    tensors = edit(load_file(folder / "model.safetensors"))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def assert_same_weights(head, other) -> None:
    one, two = head.state_dict(), other.state_dict()
    assert one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_written_layer_loads_again(checkpoints, tmp_path, monkeypatch, name):
    """From a folder, with the switches, under the keys that the checkpoint has. Bug held down:
    `mtp:FOLDER` read it without its switches, and commands took the folder for a target's."""
    written, folder = checkpoints(name), tmp_path / "mtp"
    target = str(written.folder)
    config = load_target_config(target)
    head = load_head("mtp,own=raw,feature=raw", config, target=target)
    write_mtp(folder, head)
    stored, again = (load_file(f / "model.safetensors") for f in (written.folder, folder))
    assert again.keys() == written.keys
    assert all(torch.equal(again[key], stored[key]) for key in again)
    monkeypatch.chdir(tmp_path)
    for name, own in (("./mtp", "raw"), (f"mtp:{folder},own=normed", "normed")):
        loaded = load_head(name, config, target=target)
        assert (loaded.config.own, loaded.config.feature) == (own, "raw")
        assert_same_weights(loaded, head)
        assert head_digests(name) == head_digests(str(folder))


def test_a_multimodal_checkpoint_in_shards(checkpoints, tmp_path):
    """As Qwen3.5 is released: the text model inside, the MTP layer under the same keys, and of the
    files only those opened that hold it. By name, with arms of another shape and hybrid ones."""
    written = checkpoints("qwen3_5_text", 258)
    text = json.loads((written.folder / "config.json").read_text())
    eyes = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2}
    eyes |= {"out_hidden_size": text["hidden_size"]}
    config = AutoConfig.for_model("qwen3_5", text_config=text, vision_config=eyes)
    folder = shutil.copytree(written.folder, tmp_path / "whole")
    AutoModelForImageTextToText.from_config(config).float().save_pretrained(folder)
    own, whole = (load_file(f / "model.safetensors") for f in (written.folder, folder))
    whole = {k: own.get(k.replace("model.language_model.", "model."), whole[k]) for k in whole}
    (folder / "model.safetensors").unlink()
    parts = {"one.safetensors": whole, "two.safetensors": {key: own[key] for key in written.keys}}
    for name, tensors in parts.items():
        save_file(tensors, folder / name, metadata={"format": "pt"})
    index = {key: name for name, tensors in parts.items() for key in tensors}
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": index}))
    given = {"head": "mtp", "dtype": "float32", "tree": "7x3x3"}
    models = [eagle_fsd.load(str(each), **given) for each in (written.folder, folder)]
    ask = partial(eagle_fsd.generate, prompt="What is it?", max_new_tokens=24)
    plain = ask(models[0], arm="plain").tokens
    for arm in ("exact@mtp", "exact@mtp:15x4x6", "exact@hybrid:9x3x3"):
        assert all(ask(model, arm=arm).tokens == plain for model in models)
    assert_same_weights(*(model.drafter.head for model in models))
    (folder / "one.safetensors").unlink()
    config = load_target_config(str(written.folder))
    one = load_head("mtp", config, target=str(written.folder))
    assert_same_weights(one, load_head(f"mtp:{folder}", config, target="elsewhere"))
    assert head_digests(f"mtp:{folder}").keys() >= {"head/two.safetensors"}
    assert head_digests("mtp,own=raw") == {}


def test_a_readout_of_its_own(checkpoints, tmp_path):
    """A copy of the target's lm_head is not held twice, be it rounded; another one is read, and
    written. Bug held down: a layer in bfloat16 beside tables in float32 was refused though every
    number was equal. A pickle of the same tensors is read too."""
    written, key = checkpoints("deepseek_v3"), "model.layers.3.shared_head.head.weight"
    config = load_target_config(str(written.folder))
    folder = shutil.copytree(written.folder, tmp_path / "target")
    tables = ("model.embed_tokens.weight", "lm_head.weight")
    change_tensors(
        folder, lambda ts: {k: t if k in tables else t.bfloat16() for k, t in ts.items()}
    )
    head = load_head("mtp", config, target=str(folder))
    assert head.lm_head is None and head.dtype == torch.bfloat16
    change_tensors(folder, lambda ts: ts | {key: ts[key] * 2})
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    head = load_head("mtp", config, target=str(folder))
    write_mtp(tmp_path, head)
    for each in (head, load_head(tmp_path, config)):
        assert torch.equal(each.lm_head.weight, (written.longer.lm_head.weight * 2).bfloat16())


# --- bad input ------------------------------------------------------------------------------------


def test_what_is_no_single_layer_of_the_target_s_family(checkpoints, tmp_path):
    """Several layers, of which one would draft every level without a word (bug held down); a model
    that transformers saved, whose classes leave the keys out; and another family's, by the config
    beside it or by the target that a folder was written for."""
    glm, qwen = (checkpoints(name).folder for name in ("glm4_moe", "qwen3_5_text"))
    folder = shutil.copytree(glm, tmp_path / "two")
    change_tensors(
        folder, lambda t: t | {key.replace("layers.3.", "layers.4."): t[key].clone() for key in t}
    )
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_nextn_predict_layers": 2}))
    saved = tmp_path / "saved"
    AutoModelForCausalLM.from_pretrained(glm).save_pretrained(saved)
    mtp = tmp_path / "mtp"
    write_mtp(mtp, load_head("mtp", load_target_config(str(glm)), target=str(glm)))
    for name, target, told in (
        ("mtp", folder, "holds 2 MTP layers.*: name another head"),
        ("mtp", saved, "holds 0"),
        ("mtp,own=loud", glm, r"is not mtp\[:FOLDER\] with feature or own"),
        (f"mtp:{qwen}", glm, "its model_type is qwen3_5_text, not glm4_moe"),
        (mtp, qwen, "its model_type is glm4_moe, not qwen3_5_text"),
    ):
        with pytest.raises(BadInput, match=told):
            load_head(name, load_target_config(str(target)), target=str(target))
