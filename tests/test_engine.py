"""Engines: the same results as the stock model, whichever way the forwards are run.

`packed` needs oneDNN's products. Answers and trees of every engine: test_matrix.py.
"""

import copy
import gc
import inspect
import weakref
from functools import partial

import pytest
import torch
from answers import by_generate, run
from reference_tree import largest_error
from tiny import FAMILIES, SIZES, WIDE, prompt_tokens, random_model, randomize, tiny_head
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from eagle_fsd.config import BadInput, TreeConfig
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import DraftTree, RootDrafter
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.engine import attention, products
from eagle_fsd.engine.attention import RotaryAttention
from eagle_fsd.engine.folded import Folded
from eagle_fsd.engine.packed import Packed, can_pack
from eagle_fsd.engine.select import ENGINES, choose_engines
from eagle_fsd.engine.trial import checked_target
from eagle_fsd.families import text_body

TREE = DraftTree.from_parents([3, 5, 7, 11, 13, 17, 19], [0, 0, 0, 1, 1, 3, 2])


def pair(family: str, engine: str, *, positions: int = 251) -> tuple[Target, Target]:
    """The stock target, and one of the same weights under the engine."""
    config = FAMILIES[family]()
    config.max_position_embeddings = positions
    model = random_model(config, seed=0)
    return Target(model), Target(model, engine=ENGINES[engine]())


def test_the_stock_model_is_left_alone_unless_it_may_go():
    model = random_model(FAMILIES["llama"](), seed=0)
    names = list(model.state_dict())
    kept = Target(model, engine=Packed())
    assert kept.has_stock and kept.model is model
    assert list(model.state_dict()) == names
    assert model.config._attn_implementation == "sdpa"
    gone = Target(model, engine=Packed(), keep_stock=False)
    assert not gone.has_stock
    left = [name for name, _ in model.named_parameters()]
    assert not any("proj" in name for name in left)  # no second copy of the weights is held


@torch.inference_mode()
@pytest.mark.parametrize("keep_stock", [False, True])
def test_joined_weights_are_held_once(keep_stock):
    """Layers of the folded engine and of the stock model beside it are parts of the same ones."""
    model = random_model(FAMILIES["qwen2"](), seed=0)  # whose q, k and v have biases
    ids, bytes_before = torch.tensor([prompt_tokens(9)]), storage_bytes(model)
    expected = model(ids).logits
    target = Target(model, engine=Folded(), keep_stock=keep_stock)
    attention = text_body(target.model).layers[0].self_attn
    assert isinstance(attention.forward, RotaryAttention) != keep_stock
    logits_V, _ = target.prefill(target.begin(9), ids[0])
    torch.testing.assert_close(logits_V, expected[0, -1], atol=1e-4, rtol=1e-4)
    assert storage_bytes(model) == bytes_before
    if keep_stock:
        assert torch.equal(model(ids).logits, expected)


def storage_bytes(model: PreTrainedModel) -> int:
    storages = [parameter.untyped_storage() for parameter in model.parameters()]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


needs_half = pytest.mark.skipif(not products.can_multiply(), reason="no 16-bit products here")


@needs_half
@pytest.mark.parametrize("tied", [False, True])
def test_tables_are_held_in_16_bits_and_give_the_same_numbers(tied):
    config = FAMILIES["llama"]()
    config.tie_word_embeddings = tied
    model = random_model(config, seed=0)
    stock = Target(copy.deepcopy(model), engine=Folded())
    target = Target(model, engine=Packed(), keep_stock=False)
    assert target.dtype == torch.float32
    held = target.embed_tokens.weight, target.readout.lm_head.weight
    assert [weight.dtype for weight in held] == [torch.bfloat16] * 2
    assert (held[0] is held[1]) == tied
    token_T = torch.tensor(prompt_tokens(9))
    torch.testing.assert_close(target.embed(token_T), stock.embed(token_T), atol=0, rtol=0)
    ids = token_T[None]
    logits = target.model(ids).logits, stock.model(ids).logits
    torch.testing.assert_close(*logits, atol=1e-4, rtol=1e-4)
    hidden_ND = torch.randn(3, target.hidden_size)
    rows_R = torch.tensor([1, 5, 6])
    torch.testing.assert_close(
        target.readout.of_tokens(rows_R)(hidden_ND), stock.readout.of_tokens(rows_R)(hidden_ND)
    )


LEAN = {"llama", "mistral", "mistral_sliding", "mixtral", "qwen2", "qwen2_sliding"}


@pytest.mark.parametrize("family", FAMILIES)
def test_norms_attention_and_mlps_are_exchanged_where_they_compute_the_same(family):
    """Gemma's norms multiply by 1 + weight, and Qwen 3 and Gemma 3 norm queries and keys. A gated
    MLP is the same in all of them; Mixtral has experts instead."""
    model = random_model(FAMILIES[family](), seed=0)
    Target(model, engine=Packed(), keep_stock=False)
    layers = model.base_model.layers
    lean = {isinstance(layer.self_attn.forward, RotaryAttention) for layer in layers}
    assert lean == {family in LEAN}
    norms = {isinstance(layer.input_layernorm, torch.nn.Module) for layer in layers}
    assert norms == {family == "gemma3"}
    if family != "mixtral":
        assert not any(inspect.ismethod(layer.mlp.forward) for layer in layers)


@pytest.mark.parametrize(
    ("family", "limit"), [("gemma2", {"attn_logit_softcapping": 50.0}), ("olmo", {"clip_qkv": 8.0})]
)
def test_attention_with_limits_is_left_as_it_is(family, limit):
    """Bug held down: limits that small numbers do not reach were taken for none, and a layer that
    caps scores or clips queries lost that."""
    config = AutoConfig.for_model(family, **WIDE, **limit)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()  # small weights
    Target(model.requires_grad_(False), engine=Packed(), keep_stock=False)
    forwards = [layer.self_attn.forward for layer in model.base_model.layers]
    assert not any(isinstance(forward, RotaryAttention) for forward in forwards)


@needs_half
def test_a_table_that_cannot_be_shrunk_stays_the_one_that_lm_head_reads():
    """Bug held down: of Gemma's scaled embedding, which keeps float32, the tied lm_head took a
    further copy in 16 bits."""
    config = FAMILIES["gemma3"]()
    config.tie_word_embeddings = True
    target = Target(random_model(config, seed=0), engine=Packed(), keep_stock=False)
    assert target.readout.lm_head.weight is target.embed_tokens.weight


def test_plain_weights_go_while_others_are_packed():
    """Bug held down: the list of modules gone over kept every weight until the last was packed."""
    model = random_model(FAMILIES["llama"](), seed=0)
    weights = [weakref.ref(parameter) for parameter in model.model.layers.parameters()]
    alive = []

    class Watched(Packed):
        def linear(self, weight_RD, bias_R):
            alive.append(sum(weight() is not None for weight in weights))
            return super().linear(weight_RD, bias_R)

    Watched().exchange(model.model)
    assert alive[-1] <= len(weights) / 2


class Unlike(torch.nn.Module):
    """Layers that are called by going over containers, one by its name in one, and one whose weight
    is read by its parent."""

    def __init__(self):
        super().__init__()
        sizes = (37, 53), (53, 41)
        self.one = torch.nn.Sequential(*(torch.nn.Linear(*size) for size in sizes))
        self.each = torch.nn.ModuleList(torch.nn.Linear(41, 41) for _ in range(3))
        self.named = torch.nn.ModuleDict({"last": torch.nn.Linear(41, 43)})
        self.router = torch.nn.Linear(43, 5, bias=False)

    def forward(self, x_ND):
        x_ND = self.one(x_ND)
        for layer in self.each:
            x_ND = layer(x_ND)
        return torch.nn.functional.linear(self.named["last"](x_ND), self.router.weight.float())


@torch.inference_mode()
def test_layers_in_containers_and_those_whose_weight_is_read_are_not_left_out():
    """Bugs held down: a Sequential without its leaves handed its input on (ctrl), a ModuleList
    without them had no layers, and a product in a layer's place has no weight (longcat_flash)."""
    module, x_ND = Unlike(), torch.randn(3, 37)
    expected = module(x_ND)
    Packed().exchange(module)
    torch.testing.assert_close(module(x_ND), expected, atol=1e-4, rtol=1e-4)


# Families whose layers an engine left out, called wrongly or gave a mask of another shape; of
# partly rotary heads; and that ask for position_ids
ODD = {
    "doge": {"hidden_size": 32, "head_dim": 8},
    "afmoe": {"num_experts": 4, "num_experts_per_tok": 2, "num_shared_experts": 1},
    "stablelm": {"hidden_size": 64, "head_dim": 16},
    "ministral3": {"hidden_size": 64, "head_dim": 16},
}
ODD["afmoe"] |= {"num_hidden_layers": 4, "moe_intermediate_size": 16, "sliding_window": 9}


def odd_model(family: str) -> PreTrainedModel:
    config = AutoConfig.for_model(family, **SIZES | {"intermediate_size": 52} | ODD[family])
    model = random_model(config, seed=1)
    model.generation_config.update(eos_token_id=5, repetition_penalty=1.5)
    return model


@torch.inference_mode()
@pytest.mark.parametrize("engine", ["folded", "packed"])
@pytest.mark.parametrize("family", ODD)
def test_engines_run_families_whose_layers_are_their_own(family, engine):
    """Bugs held down: some were refused with a message that blamed the family, others ended in a
    RuntimeError and a TypeError while they were tried; and the trial, a Target of its own, took the
    generation config along, of which a user is then told nothing."""
    target = checked_target(partial(odd_model, family), [ENGINES[engine]()])
    assert largest_error(target, prompt_tokens(41), TREE) < 2e-4
    assert target.eos_token_ids == (5,) and target.left_out == {"repetition_penalty": 1.5}


class HidesItsReads(LlamaForCausalLM):
    """A family of its own whose feed-forward layers, which are like no other's, read a weight in a
    way that no source shows."""

    config_class = type("HidesItsReadsConfig", (LlamaConfig,), {"model_type": "hides_its_reads"})

    def __init__(self):
        super().__init__(self.config_class(**WIDE))
        randomize(self.eval().requires_grad_(False), seed=0, scale=1.5)
        for layer in self.model.layers:
            layer.mlp.forward = partial(self.multiply, layer.mlp)

    @staticmethod
    def multiply(mlp, x_ND):
        weights = [getattr(mlp, f"{name}_proj").weight for name in ("gate", "up", "down")]
        gate_NI, up_NI = (torch.nn.functional.linear(x_ND, weight) for weight in weights[:2])
        return torch.nn.functional.linear(mlp.act_fn(gate_NI) * (1 + up_NI), weights[2])


@pytest.mark.parametrize("keep_stock", [False, True])
@pytest.mark.skipif(not can_pack(torch.float32), reason="needs oneDNN")
def test_the_next_engine_is_taken_and_one_that_is_named_refused(keep_stock, capsys):
    """Bug held down: the family was refused for what the engine did to it."""
    engines = choose_engines("auto", device="cpu", dtype=torch.float32)
    target = checked_target(HidesItsReads, engines, keep_stock=keep_stock)
    assert target.engine.name == "folded"
    told = "engine 'packed' cannot run targets of type 'hides_its_reads' (their layers take no "
    assert told in capsys.readouterr().err
    prompt = prompt_tokens(19)
    expected = by_generate(Target(HidesItsReads()), prompt)
    assert run(target, RootDrafter(), prompt).tokens == expected
    with pytest.raises(BadInput, match="^engine 'packed' cannot run .*: use auto; here are"):
        checked_target(HidesItsReads, [Packed()], keep_stock=keep_stock)


def test_a_single_query_under_a_boolean_mask(monkeypatch):
    """Held down: beyond its window a plain step gets transformers' boolean mask, and the products
    for wide trees in bfloat16 tried to add it."""
    monkeypatch.setattr(attention, "PRODUCT_SCORES", 1)
    model = random_model(FAMILIES["mistral_sliding"](), seed=0).bfloat16()
    targets = Target(model), Target(model, engine=Folded())
    rows = []
    for target in targets:
        cache = target.begin(100)
        target.prefill(cache, torch.tensor(prompt_tokens(90)))
        rows.append(target.verify(cache, DraftTree.from_parents([3], [0]))[0])
    torch.testing.assert_close(*rows, atol=0.1, rtol=0.1)


def test_a_cache_goes_when_its_owner_lets_it_go():
    """Held down: layers that knew their cache kept it alive until the cycle collector ran."""
    target = Target(random_model(FAMILIES["llama"](), seed=0), engine=Folded())
    cache = target.begin(50)
    target.prefill(cache, torch.tensor(prompt_tokens(11)))
    gc.disable()
    try:
        before = weakref.ref(cache)
        del cache
        assert before() is None
    finally:
        gc.enable()


def test_engines_are_chosen_and_refused_by_device():
    for device in ("cuda:1", "auto"):
        choices = choose_engines("auto", device=device, dtype=torch.bfloat16)
        assert [engine.name for engine in choices] == ["folded", "stock"]
    expected = "packed" if can_pack(torch.float32) else "folded"
    assert choose_engines("auto", device="cpu", dtype=torch.float32)[0].name == expected
    with pytest.raises(BadInput, match="'packed' needs a CPU"):
        choose_engines("packed", device="cuda", dtype=torch.float32)


@pytest.mark.slow  # each of its functions takes a minute
@needs_half
def test_a_few_functions_are_compiled_for_contexts_of_any_length(tmp_path, monkeypatch, capsys):
    """Up to 1024 rows, and once more beyond: the target's step and the drafter's over what was
    committed, each for one position and for several, and the drafter's over a level. The answers
    are those of the stock engine."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    stock, target = pair("gemma3", "compiled", positions=2048)
    head, counts = tiny_head(stock, seed=2), []
    drafters = [EagleDrafter(head, each, TreeConfig(5, 3, 4)) for each in (target, stock)]
    for length in (5, 300, 29, 1100):
        for ours, theirs in (drafters, (RootDrafter(), RootDrafter())):
            got = run(target, ours, prompt_tokens(length), budget=20)
            assert got.tokens == run(stock, theirs, prompt_tokens(length), budget=20).tokens
        counts.append(capsys.readouterr().err.count("compiling"))
    assert counts == [5, 0, 0, 5]


@pytest.mark.processes  # long
@needs_half
@pytest.mark.parametrize("lacking", ["compiler", "cache"])
def test_what_cannot_be_compiled_runs_as_it_is_and_says_so(lacking, tmp_path, monkeypatch):
    """Without a compiler, and where its results cannot be kept."""
    (tmp_path / "file").write_text("")
    cache = tmp_path / "file" / "cache" if lacking == "cache" else tmp_path
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
    compiler = "no-such-compiler" if lacking == "compiler" else "g++"
    stock, target = pair("llama", "compiled")
    prompt = prompt_tokens(9)
    with torch._inductor.config.patch({"cpp.cxx": (compiler,)}):
        with pytest.warns(UserWarning, match="cannot compile, running as engine 'packed': .+"):
            answer = run(target, RootDrafter(), prompt, budget=5)
    assert answer.tokens == run(stock, RootDrafter(), prompt, budget=5).tokens
