"""MTP layers of checkpoints: their drafts, exact decoding with them, and what is refused.

Axes: T positions, D hidden size, V vocabulary.
"""

import json
import re
import shutil
from functools import cache, partial

import pytest
import reference_mtp
import torch
from answers import TREES, assert_same, run
from reference_tree import grow, paths
from safetensors.torch import load_file, save_file
from tiny import WIDE, for_model, prompt_tokens
from tiny_mtp import FAMILIES, write_mtp_target
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.generation.candidate_generator import MTPCandidateGenerator

import eagle_fsd
from eagle_fsd.config import BadInput, TreeConfig
from eagle_fsd.decoding.drafter import RootDrafter
from eagle_fsd.decoding.target import Target
from eagle_fsd.drafters.eagle import head_drafter
from eagle_fsd.drafters.hybrid import HybridDrafter
from eagle_fsd.engine.select import ENGINES
from eagle_fsd.heads.mtp_files import write_mtp
from eagle_fsd.models.digests import head_digests
from eagle_fsd.models.load import load_head, load_target_config
from eagle_fsd.models.weights import stored_model
from eagle_fsd.rules.fsd import Fsd
from eagle_fsd.rules.price import PathRule

V = 31
BY_TRANSFORMERS = ("deepseek_v3", "glm4_moe")
SWITCHES = ("mtp", "mtp,own=raw", "mtp,feature=raw,own=raw")
# several layers, each for a level; with two the third level is the second one's again
SEVERAL = [("qwen2", 2, "mtp"), ("deepseek_v3", 2, "mtp,own=raw"), ("glm4_moe", 3, "mtp")]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """By family, what write_mtp_target wrote, with few tokens: drafts are then accepted often."""

    def written(name: str, tokens: int = V, layers: int = 1):
        folder = tmp_path_factory.mktemp(name)
        return write_mtp_target(folder, name, vocab_size=tokens, layers=layers)

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
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", BY_TRANSFORMERS)
def test_levels_are_those_of_transformers(checkpoints, name, layers, monkeypatch):
    """The tokens and the logits that `generate(use_mtp=True)` drafts in each of its rounds, a level
    for each layer that is stored."""
    written, rounds = checkpoints(name, layers=layers), []
    target, head = target_and_head(written)
    # whose numbers of layers are those of the large checkpoints
    monkeypatch.setattr(
        type(target.model), "_keys_to_ignore_on_load_unexpected", [r"model\.layers\.[34]\..*"]
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
    drafter = head_drafter(head, target, TreeConfig(layers, layers, 1))
    assert len(rounds) > 5
    for ids, drafts, logits_KV in rounds:
        _, features_1TD = target.hidden_and_features(torch.tensor([ids[:-1]]), use_cache=False)
        drafter.reset(40, ids[0])
        drafter.observe(features_1TD[0, :3], ids[1:4])
        drafter.propose()
        drafter.observe(features_1TD[0, 3:], ids[4:])
        tree = drafter.propose()
        assert drafts == tree.token_N[1:].tolist()
        torch.testing.assert_close(tree.draft_logits_ER, logits_KV, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize(
    ("name", "layers", "switch"),
    [*((name, 1, switch) for name in FAMILIES for switch in SWITCHES), *SEVERAL],
)
def test_trees_are_those_of_the_slow_version(checkpoints, name, layers, switch):
    """Over rounds of observe and propose: tokens, parents and draft rows == path by path."""
    written = checkpoints(name, layers=layers)
    target, head = target_and_head(written, switch)
    drafter = head_drafter(head, target, TreeConfig(5, 2, 2)).with_tree(TreeConfig(9, 3, 3))
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


@torch.inference_mode()
def test_the_state_before_the_norm_leaves_the_model_as_it_was(checkpoints):
    """Bug held down: the model then gave its states twice, and a second target was refused."""
    target, _ = target_and_head(checkpoints("qwen2"), "mtp,feature=raw")
    ids = torch.tensor([prompt_tokens(11, vocab_size=V)])
    _, raw_1TD = target.hidden_and_features(ids, use_cache=False)
    states = target.model(ids, output_hidden_states=True).hidden_states
    assert len(states) == target.num_layers + 1
    again = Target(target.model, feature_layers=target.feature_layers)
    assert torch.equal(again.hidden_and_features(ids, use_cache=False)[1], raw_1TD)


# --- decoding with it -----------------------------------------------------------------------------


@pytest.mark.processes  # long
@pytest.mark.parametrize("engine", ["stock", "packed"])
@pytest.mark.parametrize("name", FAMILIES)
def test_exact_is_plain_decoding(checkpoints, name, engine):
    """With its trees and with those of a hybrid, greedy and draw by draw; lossy rules run."""
    layers = 2 if name == "qwen2" else 1
    target, head = target_and_head(checkpoints(name, layers=layers), engine=engine)
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


# --- files ----------------------------------------------------------------------------------------


def test_written_layers_load_again(checkpoints, tmp_path):
    """From a folder, with the switches; under the keys that the checkpoint has."""
    for name in FAMILIES:
        written, folder = checkpoints(name), tmp_path / name
        config = load_target_config(str(written.folder))
        head = load_head("mtp,own=raw", config, target=str(written.folder))
        folder.mkdir()
        write_mtp(folder, head)
        stored, mine = (load_file(f / "model.safetensors") for f in (written.folder, folder))
        assert mine.keys() == written.keys
        assert all(torch.equal(mine[key], stored[key]) for key in mine)
        again = load_head(folder, config)
        assert again.config.own == "raw" and again.config.head_type == "mtp"
        pairs = zip(again.state_dict().items(), head.state_dict().items(), strict=True)
        assert all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


def test_switches_stay_with_a_trained_layer(checkpoints, tmp_path):
    """Bug held down: `mtp:FOLDER` read the layer in the folder without its switches, and commands
    took the folder for a target's."""
    written, folder = checkpoints("qwen3_5_text"), tmp_path / "head"
    config = load_target_config(str(written.folder))
    folder.mkdir()
    write_mtp(folder, load_head("mtp,own=raw,feature=raw", config, target=str(written.folder)))
    for name, own in ((f"mtp:{folder}", "raw"), (f"mtp:{folder},own=normed", "normed")):
        head = load_head(name, config)
        assert (head.config.own, head.config.feature) == (own, "raw")
        assert head_digests(name) == head_digests(str(folder))
    with pytest.raises(BadInput, match="its model_type is qwen3_5_text, not glm4_moe"):
        load_head(f"mtp:{folder}", load_target_config(str(checkpoints("glm4_moe").folder)))


def test_a_trained_layer_in_a_folder_called_mtp(checkpoints, tmp_path, monkeypatch):
    """Bug held down: `--head mtp` read the checkpoint's layer and not that of the folder, without a
    word."""
    target = str(checkpoints("qwen3_5_text").folder)
    config = load_target_config(target)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mtp").mkdir()
    head = load_head("mtp,own=raw", config, target=target)
    write_mtp("mtp", head)
    with pytest.raises(BadInput, match=r"a folder 'mtp' holds a trained one: name that \./mtp"):
        load_head("mtp", config, target=target)
    assert load_head("./mtp", config, target=target).config.own == "raw"


def test_shards_and_another_checkpoint(checkpoints, tmp_path):
    """Only the files that hold the layer are opened; `mtp:FOLDER` reads another checkpoint than the
    target's, such as the one that a re-saved target lost its layer of."""
    written = checkpoints("glm4_moe")
    tensors = load_file(written.folder / "model.safetensors")
    parts = {"one": tensors.keys() - written.keys, "two": written.keys}
    folder = tmp_path / "shards"
    folder.mkdir()
    save_file({key: tensors[key] for key in parts["two"]}, folder / "two.safetensors")
    places = {key: f"{name}.safetensors" for name, keys in parts.items() for key in keys}
    tables = {key for key in places if key.endswith(("embed_tokens.weight", "head.weight"))}
    index = {"weight_map": {key: places[key] for key in places if key not in tables}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config = load_target_config(str(written.folder))
    one = load_head("mtp", config, target=str(written.folder)).state_dict()
    two = load_head(f"mtp:{folder}", config, target="smollm2").state_dict()
    assert one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)
    assert head_digests(f"mtp:{written.folder}").keys() >= {"head/model.safetensors"}
    assert head_digests("mtp,own=raw") == {}


def test_a_multimodal_checkpoint(checkpoints, tmp_path):
    """As Qwen3.5 is released: the text model inside, the MTP layer under the same keys."""
    written = checkpoints("qwen3_5_text", 258)
    text = json.loads((written.folder / "config.json").read_text())
    eyes = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2}
    eyes |= {"out_hidden_size": text["hidden_size"]}
    config = AutoConfig.for_model("qwen3_5", text_config=text, vision_config=eyes)
    folder = shutil.copytree(written.folder, tmp_path / "whole")
    AutoModelForImageTextToText.from_config(config).float().save_pretrained(folder)
    own = load_file(written.folder / "model.safetensors")
    change_tensors(
        folder,
        lambda tensors: (
            {k: own.get(k.replace("model.language_model.", "model."), tensors[k]) for k in tensors}
            | {key: own[key] for key in written.keys}
        ),
    )
    given = {"head": "mtp", "dtype": "float32", "tree": "7x3x3"}
    models = [eagle_fsd.load(str(each), **given) for each in (written.folder, folder)]
    alone, whole = (eagle_fsd.generate(m, "What?", arm="exact@mtp").tokens for m in models)
    assert alone == whole
    heads = [model.drafter.head.state_dict() for model in models]
    assert all(torch.equal(heads[0][key], heads[1][key]) for key in heads[0])


@torch.inference_mode()
def test_a_readout_of_its_own(checkpoints, tmp_path):
    """A copy of the target's lm_head is not held twice; another one is read, and written."""
    folder = shutil.copytree(checkpoints("deepseek_v3").folder, tmp_path / "target")
    target, head = target_and_head(checkpoints("deepseek_v3"))
    assert head.lm_head is None
    key = "model.layers.3.shared_head.head.weight"
    change_tensors(folder, lambda tensors: tensors | {key: tensors[key] * 2})
    config = load_target_config(str(folder))
    other = load_head("mtp", config, target=str(folder))
    (tmp_path / "head").mkdir()
    write_mtp(tmp_path / "head", other)
    trees = []
    for each in (head, other, load_head(tmp_path / "head", config)):
        drafter = head_drafter(each, target, TreeConfig(3, 1, 3))
        drafter.reset(9, 2)
        drafter.observe(torch.ones(1, 40), [3])
        trees.append(drafter.propose().draft_logits_ER)
    torch.testing.assert_close(trees[1], 2 * trees[0])
    assert torch.equal(trees[1], trees[2])


# --- bad input ------------------------------------------------------------------------------------


def change_tensors(folder, edit) -> None:
    tensors = edit(load_file(folder / "model.safetensors"))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def without(*keys: str):
    return lambda tensors: {k: t for k, t in tensors.items() if not k.startswith(keys)}


def replaced(key: str, change):
    return lambda tensors: tensors | {key: change(tensors[key])}


DOWN = "model.layers.3.mlp.shared_experts.down_proj.weight"
PROJ = "model.layers.3.eh_proj.weight"
# what is done to a checkpoint of glm4_moe, and what is then told of it
FAULTS = {
    "none": (without("model.layers.3."), "holds no MTP layer (though its config counts 1)"),
    "a part": (without(DOWN), f"1 tensors are missing, the first {DOWN}"),
    "an expert": (
        without("model.layers.3.mlp.experts.4.up"),
        "the first model.layers.3.mlp.experts.4.up_proj.weight",
    ),
    "a shape": (
        replaced("model.layers.3.self_attn.k_proj.weight", lambda t: t[:7].clone()),
        "model.layers.3.self_attn.k_proj.weight is (7, 40) and not (28, 40)",
    ),
    "transposed": (replaced(PROJ, lambda t: t.T.contiguous()), f"{PROJ} is (80, 40)"),
    "more": (
        lambda tensors: tensors | {"model.layers.3.self_attn.q_proj.bias": torch.zeros(56)},
        "model.layers.3.self_attn.q_proj.bias is unexpected",
    ),
    "fp8": (
        replaced(DOWN, lambda t: t.to(torch.float8_e4m3fn)),
        f"is quantised ({DOWN} is F8_E4M3)",
    ),
    "packed": (
        lambda tensors: (
            without(DOWN)(tensors) | {f"{DOWN}_packed": torch.zeros(3, dtype=torch.int32)}
        ),
        f"is quantised ({DOWN}_packed is I32)",
    ),
    "scales": (
        lambda tensors: tensors | {f"{DOWN}_scale_inv": torch.ones(1, 1)},
        f"is quantised ({DOWN}_scale_inv is F32)",
    ),
    "no numbers": (replaced(PROJ, lambda t: t / 0), f"{PROJ} in "),
    "an embedding": (
        replaced("model.layers.3.embed_tokens.weight", lambda t: t + 1),
        "model.layers.3.embed_tokens.weight in ",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_told_by_its_tensor(checkpoints, tmp_path, fault):
    """And what helps; before the target's weights load."""
    folder = shutil.copytree(checkpoints("glm4_moe").folder, tmp_path / "target")
    edit, told = FAULTS[fault]
    change_tensors(folder, edit)
    with pytest.raises(BadInput, match=re.escape(told)) as error:
        eagle_fsd.load(str(folder), head="mtp")
    remedies = ("files that were released", "take the checkpoint", "name another --head")
    assert any(remedy in str(error.value) for remedy in remedies) and "\n" not in str(error.value)


def test_fewer_layers_than_the_config_counts(tmp_path):
    """Bug held down: one of two loaded without a word, and drafted every level."""
    folder = write_mtp_target(tmp_path, "deepseek_v3", layers=2).folder
    change_tensors(folder, without("model.layers.4."))
    told = "holds 1 of the 2 MTP layers that its config counts: it has no tensor"
    with pytest.raises(BadInput, match=rf"{told} 'model\.layers\.4\.eh_proj\.weight'"):
        eagle_fsd.load(str(folder), head="mtp")


def test_a_layer_of_another_family(checkpoints, tmp_path):
    """By the keys, by the config, or by the target that a folder was written for."""
    qwen, glm = checkpoints("qwen3_5_text"), checkpoints("glm4_moe")
    config = load_target_config(str(glm.folder))
    with pytest.raises(BadInput, match=r"no tensor 'model\.layers\.3\.eh_proj\.weight'"):
        load_head(f"mtp:{qwen.folder}", config)
    head = load_head("mtp", config, target=str(glm.folder))
    write_mtp(tmp_path, head)
    with pytest.raises(BadInput, match="its model_type is glm4_moe, not qwen3_5_text"):
        load_head(tmp_path, load_target_config(str(qwen.folder)))
    with pytest.raises(BadInput, match="its model_type is glm4_moe, not qwen3_5_text"):
        head.config.check_fits(load_target_config(str(qwen.folder)))
    (tmp_path / "model.safetensors").write_bytes(b"no")
    with pytest.raises(BadInput, match="cannot read the MTP layer in"):
        load_head(tmp_path, config)
    llama = for_model("llama", **WIDE)
    with pytest.raises(BadInput, match="type 'llama' have no MTP layer that is known here, only"):
        load_head(f"mtp:{glm.folder}", llama)
    for name in ("mtp,own=loud", "mtp,norm=raw", "mtp,own=raw,own=raw"):
        with pytest.raises(BadInput, match=r"is not mtp\[:FOLDER\] with feature or own"):
            load_head(name, config, target=str(glm.folder))
    for target in ("", "random:llama-3.1-8b", "some.gguf"):
        with pytest.raises(BadInput, match="lies in its safetensors files"):
            load_head("mtp", config, target=target)


def test_a_model_saved_by_transformers_has_lost_it(checkpoints, tmp_path):
    """Its classes leave the keys out; the model itself then loads, with any other drafter."""
    written = checkpoints("qwen3_next", 258)
    folder = shutil.copytree(written.folder, tmp_path / "target")
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder)
    with pytest.raises(BadInput, match="transformers leaves these out when it saves"):
        eagle_fsd.load(str(folder), head="mtp")
    assert eagle_fsd.load(str(folder), head=f"mtp:{written.folder}", dtype="float32")
