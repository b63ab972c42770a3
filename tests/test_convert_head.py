"""The command that converts draft heads, end to end on folders."""

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_folder import write_random_head, write_target

from eagle_fsd.config import TreeConfig
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.heads.files import read_stored_head, write_head
from eagle_fsd.heads.head_config import HeadConfig
from eagle_fsd.heads.models import DraftHead, Eagle3Head
from eagle_fsd.models.load import load_head, load_target, load_target_config

COMMAND = Path(__file__).parent.parent / "train" / "convert_head.py"


def convert(monkeypatch, **options) -> None:
    """Run the command; a list is an option with several values."""
    values = {k: v if isinstance(v, list) else [v] for k, v in options.items()}
    arguments = [text for k, v in values.items() for text in (f"--{k}", *map(str, v))]
    monkeypatch.setattr(sys, "argv", [str(COMMAND), *arguments])
    runpy.run_path(str(COMMAND), run_name="__main__")


def write_eagle3_head(folder: Path, **changes) -> Path:
    """A random EAGLE-3 head for write_target's model, 19 tokens."""
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "intermediate_size": 44, "num_attention_heads": 4}
    kind = {"vocab_size": 258, "head_type": "eagle3", "draft_vocab_size": 19}
    head = Eagle3Head(HeadConfig(**sizes | kind | {"feature_layers": (0, 1, 1)} | changes))
    head.set_draft_tokens(torch.arange(3, 60, 3))
    write_head(folder, head.config, head.state_dict())
    return folder


def test_there_and_back(tmp_path, monkeypatch, capsys):
    """eagle_fsd -> speculators with the embedding -> eagle_fsd: every bit; the report says all."""
    target = write_target(tmp_path / "target")
    head = write_eagle3_head(tmp_path / "head")
    there, back = tmp_path / "there", tmp_path / "back"
    convert(monkeypatch, head=head, output=there, format="speculators", target=target)
    said = capsys.readouterr().out
    assert f"read {head}: EAGLE-3 head in the layout of eagle_fsd" in said
    assert "renamed midlayer.mlp.up_proj.weight to layers.0.mlp.up_proj.weight" in said
    assert "added embed_tokens.weight (258, 32)" in said
    assert "fuses hidden states (0, 1, 1) of the target" in said
    count = sum(t.numel() for t in load_file(head / "model.safetensors").values())
    assert f"{count - 258 - 19:,} parameters" in said
    assert "  layers.0.self_attn.q_proj.weight (32, 64) bfloat16" in said
    values = json.loads((there / "config.json").read_text())
    assert values["speculators_config"]["verifier"]["name_or_path"] == str(target)
    assert values["speculators_config"]["verifier"]["architectures"] == ["LlamaForCausalLM"]
    embedding = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    written = load_file(there / "model.safetensors")["embed_tokens.weight"]
    assert torch.equal(written, embedding.bfloat16())

    convert(monkeypatch, head=there, output=back)
    said = capsys.readouterr().out
    assert "in the layout of speculators" in said and "dropped embed_tokens.weight" in said
    first, second = read_stored_head(head), read_stored_head(back)
    assert first.config == second.config and second.layout == "eagle_fsd"
    for key, tensor in first.tensors.items():
        assert torch.equal(second.tensors[key], tensor), key
    load_head(there, load_target_config(str(target)))


@pytest.mark.parametrize("layout", ["eagle_fsd", "upstream", "speculators"])
def test_dtype_and_eagle_heads(tmp_path, monkeypatch, capsys, layout):
    """--dtype changes the weights and is said; an EAGLE-1/2 head goes to each layout it has."""
    head, output = write_random_head(tmp_path / "head"), tmp_path / "out"
    target = write_target(tmp_path / "target")
    convert(monkeypatch, head=head, output=output, format=layout, dtype="float32")
    assert "fc.weight (32, 64) float32" in capsys.readouterr().out
    got, want = read_stored_head(output), read_stored_head(head)
    assert got.layout == layout and got.config == want.config
    for key, tensor in want.tensors.items():
        assert torch.equal(got.tensors[key], tensor.float()), key
    load_head(output, load_target_config(str(target)))


DATA = {"data": "answers0.jsonl"}
# answers: 7 three times, 200 twice, 1, 9, 33 once; 5 only in prompts
ANSWERS = [
    {"prompt_ids": [5, 5, 5, 5], "answer_ids": [7, 200, 7, 33]},
    {"input_ids": [5, 5, 9, 7, 200, 1], "loss_mask": [0, 0, 1, 1, 1, 1]},
]


def write_answers(folder: Path, rows: list[dict] = ANSWERS) -> list[Path]:
    """A file a row, in the formats that training data may have."""
    paths = [folder / f"answers{i}.jsonl" for i in range(len(rows))]
    for path, row in zip(paths, rows, strict=True):
        path.write_text(json.dumps(row) + "\n")
    return paths


def drafted(target_folder: Path, head: DraftHead) -> DraftTree:
    """One tree that the head grows after a prompt of five tokens and a root."""
    layers = head.config.fused_layers(4)
    target, _ = load_target(str(target_folder), dtype="float32", feature_layers=layers)
    drafter = EagleDrafter(head.float(), target, TreeConfig(13, 4, 4))
    drafter.reset(40)
    generator = torch.Generator().manual_seed(5)
    features_TF = torch.randn(5, 32 * (3 if layers else 1), generator=generator)
    drafter.observe(features_TF, torch.tensor([11, 200, 3, 77, 150]))
    return drafter.propose()


def same_tree(one: DraftTree, other: DraftTree) -> None:
    for name in ("token_N", "parent_N", "draft_logits_ER"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name


def test_a_draft_vocabulary_for_an_eagle_head(tmp_path, monkeypatch, capsys):
    """The most frequent tokens of several files; weights as they were; other tokens never drafted,
    and draft logits that are the former ones' columns."""
    target = write_target(tmp_path / "target")
    write_random_head(tmp_path / "head")
    data, output = write_answers(tmp_path), tmp_path / "out"
    convert(monkeypatch, head=tmp_path / "head", output=output, draft_vocab=4, data=data)
    said = capsys.readouterr().out
    assert "draft vocabulary: 4 of the 258 tokens that the head drafted, 87.50% of the 8" in said
    assert "0 of them do not occur" in said
    stored, before = read_stored_head(output), read_stored_head(tmp_path / "head")
    for key, tensor in before.tensors.items():
        assert torch.equal(stored.tensors[key], tensor), key

    full, cut = (load_head(f, load_target_config(str(target))) for f in (tmp_path / "head", output))
    assert cut.draft_token_R.tolist() == [1, 7, 9, 200]
    tree, former = drafted(target, cut), drafted(target, full)
    assert set(tree.token_N[1:].tolist()) == {1, 7, 9, 200}
    wanted_R = former.draft_logits_ER[0, cut.draft_token_R]
    torch.testing.assert_close(tree.draft_logits_ER[0], wanted_R)


def test_a_draft_vocabulary_of_all_tokens_changes_nothing(tmp_path, monkeypatch, capsys):
    """By the command, and by a d2t that names every token."""
    target = write_target(tmp_path / "target")
    write_random_head(tmp_path / "head")
    data = write_answers(tmp_path)
    options = {"head": tmp_path / "head", "output": tmp_path / "out", "data": data}
    convert(monkeypatch, draft_vocab=258, **options)
    said = capsys.readouterr().out
    assert "100.00% of the 8" in said and "253 of them do not occur there" in said
    stored = read_stored_head(tmp_path / "head")
    assert read_stored_head(tmp_path / "out").config == stored.config
    named = replace(stored.config, draft_vocab_size=258)
    every = {"d2t": torch.zeros(258, dtype=torch.int64)}
    write_head(tmp_path / "named", named, stored.tensors | every)
    heads = [tmp_path / name for name in ("head", "out", "named")]
    first, *others = (drafted(target, load_head(h, load_target_config(str(target)))) for h in heads)
    for tree in others:
        same_tree(first, tree)


@pytest.mark.parametrize("layout", ["eagle_fsd", "upstream", "speculators", "specforge"])
def test_a_draft_vocabulary_for_an_eagle3_head(tmp_path, monkeypatch, capsys, layout):
    """Rows of the head's own lm_head, of tokens that it has rows for, in every layout."""
    target = write_target(tmp_path / "target")
    head = write_eagle3_head(tmp_path / "head", feature_layers=(1, 2, 3))  # drafts 3, 6, .. 57
    data, output = write_answers(tmp_path), tmp_path / "out"
    convert(monkeypatch, head=head, output=output, format=layout, draft_vocab=5, data=data)
    said = capsys.readouterr().out
    assert "draft vocabulary: 5 of the 19 tokens that the head drafted, 25.00% of the 8" in said
    assert "3 of them do not occur there" in said
    full, cut = (load_head(f, load_target_config(str(target))) for f in (head, output))
    token_R = torch.tensor([3, 6, 9, 12, 33])  # 9 and 33 were written, then the lowest
    assert torch.equal(cut.draft_token_R, token_R)
    assert torch.equal(cut.t2d.nonzero()[:, 0], token_R)
    assert torch.equal(cut.lm_head.weight, full.lm_head.weight[token_R // 3 - 1])
    tree, former = drafted(target, cut), drafted(target, full)
    assert set(tree.token_N[1:].tolist()) <= set(token_R.tolist())
    wanted_R = former.draft_logits_ER[0, token_R // 3 - 1]
    torch.testing.assert_close(tree.draft_logits_ER[0], wanted_R)


def test_a_draft_vocabulary_is_cut_again(tmp_path, monkeypatch):
    """Of a head that has one: as if cut at once."""
    write_random_head(tmp_path / "head")
    data = write_answers(tmp_path)
    for head, output, size in (("head", "five", 5), ("five", "twice", 2), ("head", "once", 2)):
        options = {"head": tmp_path / head, "output": tmp_path / output, "data": data}
        convert(monkeypatch, draft_vocab=size, **options)
    twice, once = (read_stored_head(tmp_path / name) for name in ("twice", "once"))
    assert twice.config == once.config
    assert twice.tensors["d2t"].tolist() == once.tensors["d2t"].tolist() == [7, 199]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"format": "onnx"}, "unknown --format 'onnx': eagle_fsd, upstream, speculators"),
        ({"dtype": "int4"}, "unknown --dtype 'int4': bfloat16"),
        ({"output": "head"}, "--output head holds a config.json already"),
        ({"format": "specforge"}, "specforge has no heads with head_type_eagle"),
        ({"head": "target"}, "the draft head in target does not fit: missing fc.weight"),
        ({"head": "gone"}, "no draft head at 'gone'"),
        # fused layers, checked before anything is written
        ({"head": "deep", "target": "target"}, "the draft head 'deep' fuses hidden states (2, 16,"),
        ({"draft_vocab": 4}, "--draft_vocab and --data, files of answers, go together"),
        ({"data": "answers0.jsonl"}, "--draft_vocab and --data, files of answers, go together"),
        ({"draft_vocab": 0, **DATA}, "a draft vocabulary of 0 must be 1 to 258 tokens"),
        ({"draft_vocab": -3, **DATA}, "a draft vocabulary of -3 must be 1 to 258 tokens"),
        ({"draft_vocab": 259, **DATA}, "a draft vocabulary of 259 must be 1 to 258 tokens"),
        ({"draft_vocab": 20, **DATA, "head": "deep"}, "a draft vocabulary of 20 must be 1 to 19"),
        ({"draft_vocab": 4, "data": "gone.jsonl"}, "no file at gone.jsonl"),
        ({"draft_vocab": 4, "data": "strange.jsonl"}, "strange.jsonl has token ids 7..258, the"),
        ({"draft_vocab": 4, **DATA, "format": "upstream"}, "--draft_vocab: upstream has no place"),
        (
            {"draft_vocab": 4, **DATA, "format": "speculators"},
            "--draft_vocab: speculators has no place for the draft vocabulary of an EAGLE-1/2 head",
        ),
    ],
)
def test_errors_are_one_line(tmp_path, monkeypatch, options, message):
    """What cannot be done ends in `error: ...` and writes nothing."""
    monkeypatch.chdir(tmp_path)
    write_target(Path("target"))
    write_random_head(Path("head"))
    write_eagle3_head(Path("deep"), feature_layers=(2, 16, 29))
    write_answers(Path())
    strange = {"prompt_ids": [5, 5], "answer_ids": [7, 258]}
    Path("strange.jsonl").write_text(json.dumps(strange) + "\n")
    with pytest.raises(SystemExit) as error:
        convert(monkeypatch, **{"head": "head", "output": "out"} | options)
    assert str(error.value).startswith(f"error: {message}") and "\n" not in str(error.value)
    assert not Path("out").exists()
