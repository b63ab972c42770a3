"""Our loop as the `custom_generate` of transformers' `generate`: it returns and streams what that
does itself, refuses by name what it cannot honour, and leaves the user's model as it was."""

import copy
import gc
import shutil
import weakref
from dataclasses import asdict

import pytest
import torch
from answers import EXACT, Heard
from tiny import FAMILIES, prompt_tokens, random_model, tiny_head
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    MaxLengthCriteria,
    StopStringCriteria,
    TopKLogitsWarper,
)
from transformers.generation import EosTokenCriteria

import eagle_fsd
from eagle_fsd.config import BadInput, SamplingConfig, TreeConfig
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import RootDrafter

TREE = TreeConfig(7, 3, 4)
PROMPT = torch.tensor([prompt_tokens(9)])
CONFIG = DecodeConfig(Policy(EXACT), StopConfig(12))


def tiny_model(family: str = "llama"):
    return random_model(FAMILIES[family](), seed=0)


def method(arm: str = "exact", head=None):
    return eagle_fsd.custom_generate(head=head or tiny_head(), arm=arm, tree=TREE)


def new_tokens(model, ours, ids=PROMPT, **settings) -> list[int]:
    output = model.generate(ids, pad_token_id=0, custom_generate=ours, **settings)
    assert output[:, : ids.shape[1]].equal(ids) and output.dtype == ids.dtype
    return output[0, ids.shape[1] :].tolist()


def same_as_generate(model, ours, ids=PROMPT, **settings) -> list[int]:
    """The new tokens, once they are `generate`'s, returned and streamed."""
    heard = Heard(), Heard()
    want = new_tokens(model, None, ids, streamer=heard[0], **settings)
    assert new_tokens(model, ours, ids, stream_to=heard[1], **settings) == want
    assert heard[0].all == heard[1].all == [ids.tolist(), *([token] for token in want), "end"]
    return want


def test_answers_end_where_generate_ends_them(models):
    """By lengths, end tokens, time, strings and criteria of one's own; with n-grams too."""
    model = AutoModelForCausalLM.from_pretrained(models[0])
    tokenizer = AutoTokenizer.from_pretrained(models[0])
    ours, ids = method(head=models[1]), tokenizer("Once", return_tensors="pt").input_ids
    free = same_as_generate(model, ours, ids, max_new_tokens=24)
    assert same_as_generate(model, method("exact@ngram"), ids, max_new_tokens=24) == free
    ends = {token: free.index(token) + 1 for token in free}
    late = max(ends, key=ends.get)

    def criterion(input_ids, scores):
        return torch.tensor([input_ids[0, -1].item() == late])

    for settings, length in (
        ({}, 20),
        ({"max_length": 11}, 7),
        ({"max_new_tokens": 24, "eos_token_id": [late, 1]}, ends[late]),
        ({"max_new_tokens": 24, "max_time": 0.0}, 1),
        ({"max_new_tokens": 24, "stopping_criteria": [criterion]}, ends[late]),
        ({"max_length": 9, "stopping_criteria": [MaxLengthCriteria(17)]}, 13),
        ({"max_length": 9, "stopping_criteria": [MaxLengthCriteria(3)]}, 1),
        (
            {"eos_token_id": free[0], "stopping_criteria": [EosTokenCriteria(free[1])]},
            ends[free[1]],
        ),
    ):
        assert len(same_as_generate(model, ours, ids, **settings)) == length, settings
    string = StopStringCriteria(tokenizer, tokenizer.decode(free[7:9]))
    same_as_generate(model, ours, ids, max_new_tokens=24, stopping_criteria=[string])


def test_sampling_is_our_loop_s_with_torch_s_seed(models):
    """By temperature, top-k and top-p: plain's text in every arm, the same again after the same
    manual_seed, also when the first call loaded the head (which draws random weights)."""
    model, sampling = AutoModelForCausalLM.from_pretrained(models[0]), SamplingConfig(0.7, 12, 0.9)
    asked = asdict(sampling) | {"do_sample": True, "max_new_tokens": 24}
    exact, plain = method(head=models[1]), method("plain")
    texts = []
    for ours in (exact, exact, plain):
        torch.manual_seed(5)
        texts.append([new_tokens(model, ours, **asked) for _ in range(2)])
    torch.manual_seed(5)
    seeds = [torch.randint(2**63 - 1, ()).item() for _ in range(2)]
    configs = [DecodeConfig(Policy(EXACT, sampling), StopConfig(24), seed) for seed in seeds]
    target, prompt = Target(model), PROMPT[0].tolist()
    want = [decode(target, RootDrafter(), prompt, config).tokens for config in configs]
    assert texts == [want] * 3 and want[0] != want[1]


def test_what_a_call_did_is_told():
    """The last call's answer, trimmed as what it returned is; of the rounds before trimming."""
    model, ours = tiny_model(), method("fsd:inf")
    assert ours.last is None
    whole = new_tokens(model, ours, max_new_tokens=12)
    first = ours.last
    assert first.tokens == whole and first.finish == "length"
    emitted = [len(step.tokens) for step in first.rounds]
    assert first.tokens_per_round == sum(emitted) / len(emitted) > 2
    assert first.fuzzy_share > 0.5
    new_tokens(model, ours, max_new_tokens=12, eos_token_id=whole[6])
    assert ours.last.finish == "stop" and ours.last.tokens == whole[: whole.index(whole[6]) + 1]
    assert first.tokens == whole  # an answer is its caller's to keep


SAMPLED = {"do_sample": True}


@pytest.mark.parametrize(
    "named, settings",
    [
        ("beam_search", {"num_beams": 2}),
        ("a batch of 3", SAMPLED | {"num_return_sequences": 3}),
        ("padding", {"attention_mask": (PROMPT != PROMPT[0, 0]).long()}),
        ("position_ids", {"position_ids": torch.arange(1, 10)[None]}),
        ("past_key_values", {"past_key_values": DynamicCache()}),
        ("inputs_embeds", {"inputs": None, "inputs_embeds": torch.zeros(1, 9, 40)}),
        ("output_attentions", {"output_attentions": True}),
        ("RepetitionPenaltyLogitsProcessor", {"repetition_penalty": 1.2}),
        ("TopKLogitsWarper", SAMPLED | {"logits_processor": [TopKLogitsWarper(5)]}),
        ("beyond the target's 251 positions", {"max_new_tokens": 243}),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(named, settings):
    with pytest.raises(BadInput, match=named):
        tiny_model().generate(custom_generate=method(), **{"inputs": PROMPT} | settings)


def test_models_and_arms_that_cannot_decode_are_refused():
    """With the remedy; of attention and mode at every call."""
    model, ours = tiny_model(), method()
    new_tokens(model, ours)
    model.train()
    with pytest.raises(BadInput, match=r"call model.eval\(\)"):
        new_tokens(model, ours)
    model.eval().set_attn_implementation("flex_attention")
    with pytest.raises(BadInput, match="flex_attention .model.set_attn.*'sdpa'"):
        new_tokens(model, ours)
    model.set_attn_implementation("sdpa")
    model.lm_head = torch.nn.Sequential(model.lm_head)
    with pytest.raises(BadInput, match="a Sequential as lm_head"):
        new_tokens(model, ours)
    model = tiny_model()
    model.resize_token_embeddings(103)
    with pytest.raises(BadInput, match="vocab_size is 101, not 103"):
        new_tokens(model, ours)
    with pytest.raises(BadInput, match="needs a head, or a draft model"):
        eagle_fsd.custom_generate(head=None, arm="exact@language_model")


def assigned(model) -> None:
    """Twice, so that the second weights may lie where the first ones did."""
    for seed in (5, 6):
        weights = random_model(FAMILIES["llama"](), seed=seed).state_dict()
        model.load_state_dict(weights, assign=True)


def merged(model) -> None:
    """As PEFT's merge does; torch counts no change of it, as it does of an optimizer's."""
    model.lm_head.weight.data += torch.randn_like(model.lm_head.weight)


def embedded(model) -> None:
    model.set_input_embeddings(copy.deepcopy(model.get_input_embeddings()))
    torch.nn.init.normal_(model.get_input_embeddings().weight)


@pytest.mark.parametrize("change", [assigned, merged, embedded])
def test_a_model_that_changes_between_calls_is_read_anew(change):
    """Its tokens, and with a head over a draft vocabulary the drafts too, are those of a method
    that has not seen it before. Bug held down: new layers were decoded with the old readout."""
    model, head = tiny_model(), tiny_head(draft_vocab_size=61)
    torch.manual_seed(3)
    fuzzy, exact = method("fsd:0.5", head=head), method(head=head)
    for ours in (fuzzy, exact):
        new_tokens(model, ours, max_new_tokens=12)
    change(model)
    same_as_generate(model, exact, max_new_tokens=12)
    for factor in (1, 1.5):
        with torch.no_grad():  # and a head that is trained on
            for parameter in head.parameters():
                parameter.mul_(factor)
        fresh = method("fsd:0.5", head=head)
        assert new_tokens(model, fuzzy) == new_tokens(model, fresh)
        assert asdict(fuzzy.last) == asdict(fresh.last)


def test_the_model_stays_as_it_was_and_is_read_once(models, tmp_path):
    """Nothing is planted, exchanged or frozen; the head's folder is read for a model's first call
    only, and what was built goes with the model."""
    model = AutoModelForCausalLM.from_pretrained(models[0])
    model.generation_config.max_new_tokens = 12
    names, modules = [*vars(model)], list(model.modules())
    settings, config = model.generation_config.to_dict(), model.config.to_dict()
    weights = [p.clone() for p in model.parameters()]
    head = shutil.copytree(models[1], tmp_path / "head")
    ours = method(head=head)
    answer = same_as_generate(model, ours)
    shutil.rmtree(head)
    assert same_as_generate(model, ours) == answer and len(answer) == 12
    assert [*vars(model)] == names and list(model.modules()) == modules
    assert model.generation_config.to_dict() == settings and model.config.to_dict() == config
    now = zip(model.parameters(), weights, strict=True)
    assert all(p.requires_grad and p.equal(before) for p, before in now)
    with pytest.raises(BadInput, match="head. is neither a folder here"):
        new_tokens(AutoModelForCausalLM.from_pretrained(models[0]), ours)
    alive = weakref.ref(model)
    del model, modules, now
    gc.collect()
    assert alive() is None
