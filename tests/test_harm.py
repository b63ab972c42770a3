"""The model of harm: its column against a slow computation, the rules that read it, and how it is
made: forks of a tiny target, and a model that learns a harm which was planted."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import load_command, write_rows
from reference_accept import random_round
from tiny import prompt_tokens, tiny_head, tiny_target
from tiny_folder import write_random_head, write_target
from transformers import LlamaForCausalLM

from eagle_fsd.arms import parse_arm
from eagle_fsd.cli import ModelOptions, run_command
from eagle_fsd.config import BadInput, SamplingConfig, TreeConfig
from eagle_fsd.decoding.acceptance import Policy, accept
from eagle_fsd.decoding.columns import Rows
from eagle_fsd.decoding.divergence import divergence
from eagle_fsd.decoding.drafter import RootDrafter
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode, decode_rounds
from eagle_fsd.drafters.eagle import head_drafter
from eagle_fsd.drafters.walk import TOKENS_BEYOND_END, PlainText
from eagle_fsd.evaluation.questions import Question
from eagle_fsd.heads.harm_model import (
    SIGNALS,
    HarmConfig,
    HarmModel,
    check_replaceable,
    different,
    read_model,
    signals,
    write_model,
)
from eagle_fsd.models.load import load_tokenizer
from eagle_fsd.models.loaded import attach_harm, load
from eagle_fsd.rules import RULES
from eagle_fsd.rules.harm import Harm
from eagle_fsd.rules.price import PathRule
from eagle_fsd.runs.folder import Run
from eagle_fsd.tasks.scorers import SCORERS, normalize
from eagle_fsd.training.forks import ForkMiner, Prompt, harm
from eagle_fsd.training.harm_fit import Forks, areas, fit, part_of, reliability, roc_area, shares

GREEDY = SamplingConfig()


def random_model(target, *, seed: int = 0, hidden: int = 0) -> HarmModel:
    torch.manual_seed(seed)
    sizes = HarmConfig(target.hidden_size, target.hidden_size, (), hidden)
    return HarmModel(sizes).eval().requires_grad_(False)


@pytest.mark.parametrize("hidden", [0, 11])
def test_the_column_is_what_the_network_says_of_each_draft(hidden):
    """One draft at a time, from the numbers' definitions; on rows of a walk and on all at once."""
    target = tiny_target("llama")
    model = random_model(target, hidden=hidden)
    for seed in range(6):
        tree, logits_NV, _ = random_round(seed, vocab=target.vocab_size)
        features_NF = torch.randn(tree.size, target.hidden_size)
        rows = Rows.of_tree(tree, logits_NV, GREEDY)
        got_N = model.column(target.embed, rows, features_NF=features_NF, answered=7)
        for node in range(1, tree.size):
            v = int(tree.parent_N[node])
            row_V, token = logits_NV[v].float(), int(tree.token_N[node])
            probs_V, best = torch.softmax(row_V, -1), int(row_V.argmax())
            number = int(tree.draft_row_N[v])
            js = 0.0
            if number >= 0:
                drafted = tree.draft_logits_ER[number : number + 1]
                js = divergence("js", row_V[None], drafted, tree.draft_token_R).item()
            two = row_V.sort(descending=True).values
            depth = float(tree.depth_N[v])
            entropy = -(probs_V[probs_V > 0] * probs_V[probs_V > 0].log()).sum()
            values = [js, float(number >= 0), row_V[best] - row_V[token], entropy, probs_V[best]]
            values += [two[0] - two[1], depth, torch.tensor(8.0 + depth - 0).log()]
            ids = torch.tensor([token, best])
            input_W = torch.cat([features_NF[v], *target.embed(ids), torch.tensor(values)])
            want = torch.sigmoid(model(input_W[None]))[0]
            assert got_N[node].item() == pytest.approx(want.item(), abs=1e-5)


def test_a_draft_without_probability_is_harmful_whatever_was_learnt():
    """Bug held down: with an infinite regret and a negative weight on it the chance was 0."""
    target = tiny_target("llama")
    model = random_model(target)
    tree, logits_NV, _ = random_round(1, vocab=target.vocab_size)
    logits_NV[tree.parent_N[1], tree.token_N[1]] = -torch.inf
    features_NF = torch.randn(tree.size, target.hidden_size)
    for sign in (1.0, -1.0):
        model.out.weight[0, SIGNALS.index("regret") - len(SIGNALS)] = sign
        rows = Rows.of_tree(tree, logits_NV, GREEDY)
        got_N = model.column(target.embed, rows, features_NF=features_NF, answered=7)
        assert got_N[1] == 1 and got_N.isfinite().all()


def judged_round(seed: int) -> tuple[tuple, dict]:
    """A random round, and a column harm of random chances."""
    round_ = random_round(seed, vocab=11)
    generator = torch.Generator().manual_seed(seed)
    chance_NV = torch.rand(round_[0].size, 11, generator=generator)
    return round_, {"harm": lambda rows: chance_NV[rows.parent_C, rows.token_C]}


def test_the_rule_takes_the_least_harm_up_to_its_value():
    """Against a walk by hand; 0 is exact and 1 goes down to a leaf as accept-all does."""
    lengths = {0.0: 0, 0.4: 0, 1.0: 0}
    for seed in range(200):
        round_, further = judged_round(seed)
        tree, logits_NV, _ = round_
        tokens, parents = tree.token_N.tolist(), tree.parent_N.tolist()
        harm_N = further["harm"](Rows.of_tree(tree, logits_NV, GREEDY)).tolist()
        for chance in lengths:
            got, _ = accept(*round_, policy=Policy(Harm(chance)), further=further)
            path = [0]
            while children := [c for c in range(1, tree.size) if parents[c] == path[-1]]:
                best = int(logits_NV[path[-1]].argmax())
                hits = [c for c in children if tokens[c] == best]
                least = min(children, key=lambda c: harm_N[c])
                if not hits and not (chance > 0 and harm_N[least] <= chance):
                    break
                path.append(hits[0] if hits else least)
            assert got.path == path
            lengths[chance] += len(path)
        exact, _ = accept(*round_, policy=Policy(RULES["exact"]()))
        none, _ = accept(*round_, policy=Policy(Harm(0.0)), further=further)
        all_, _ = accept(*round_, policy=Policy(Harm(1.0)), further=further)
        assert none.tokens == exact.tokens
        # down to a leaf, where accept-all ends too, though by other children
        assert not [c for c in range(1, tree.size) if parents[c] == all_.path[-1]]
    assert lengths[0.0] < lengths[0.4] < lengths[1.0]


def test_path_pays_by_the_chance_of_harm():
    """With a harm that equals regret it is path by regret; b = 0 is exact."""
    for seed in range(100):
        round_, further = judged_round(seed)
        for price in (0.0, 0.3, 1.0):
            by_regret, _ = accept(*round_, policy=Policy(PathRule(price)))
            same = {"harm": lambda rows: rows.best_M[rows.row_C] - rows.of_asked(rows.target_MV)}
            rule = PathRule(price, cost="harm")
            assert accept(*round_, policy=Policy(rule), further=same)[0] == by_regret
        exact, _ = accept(*round_, policy=Policy(RULES["exact"]()))
        rule = PathRule(0.0, cost="harm")
        assert accept(*round_, policy=Policy(rule), further=further)[0].tokens == exact.tokens


def test_decoding_gives_the_rule_the_states_of_the_round():
    """Every fuzzy token of an answer has a chance of harm below the value, recomputed from a plain
    run of the text up to it."""
    target = tiny_target("llama")
    model = random_model(target)
    attach_harm(model, target)
    drafter = head_drafter(tiny_head(target, seed=3), target, TreeConfig(7, 3, 3))
    prompt, fuzzy = prompt_tokens(9), 0
    config = DecodeConfig(Policy(Harm(0.5)), StopConfig(40))
    answer: list[int] = []
    for step in decode_rounds(target, drafter, prompt, config):
        answered = len(answer)
        for number, flag in enumerate(step.acceptance.fuzzy if step.acceptance else ()):
            fuzzy += flag
            if not flag or answered + number >= len(answer) + len(step.tokens):
                continue
            text = prompt + answer + step.tokens[:number]
            ids_1L = torch.tensor([text])
            hidden_1LD, _ = target.hidden_and_features(ids_1L, use_cache=False)
            v = step.acceptance.path[number]
            row_NV = target.logits(hidden_1LD[0, -1:]).expand(step.tree.size, -1)
            token_C = torch.tensor([step.acceptance.tokens[number]])
            rows = Rows(
                step.tree, row_NV, slice(v, v + 1), torch.zeros_like(token_C), token_C, GREEDY
            )
            state_NF = hidden_1LD[0, -1:].expand(step.tree.size, -1)
            chance = model.column(target.embed, rows, features_NF=state_NF, answered=answered)
            assert chance.item() <= 0.5 + 1e-4
        answer += step.tokens
    assert fuzzy > 3
    plain = decode(target, RootDrafter(), prompt, DecodeConfig(Policy(Harm(0.0)), StopConfig(40)))
    none = decode(target, drafter, prompt, DecodeConfig(Policy(Harm(0.0)), StopConfig(40)))
    assert none.tokens == plain.tokens != answer


def test_a_rule_that_reads_harm_is_refused_without_the_model():
    target = tiny_target("llama")
    with pytest.raises(BadInput, match="reads 'harm'.*harm=FOLDER"):
        decode(target, RootDrafter(), [2, 3], DecodeConfig(Policy(Harm(0.1))))


def test_a_model_is_written_and_read(tmp_path):
    target = tiny_target("llama")
    model = random_model(target, hidden=5)
    write_model(model, tmp_path / "harm", forks=3)
    again = read_model(tmp_path / "harm")
    assert again.config == model.config
    input_CW = torch.randn(4, model.config.width)
    assert torch.equal(again(input_CW), model(input_CW))
    (tmp_path / "harm" / "model.safetensors").write_bytes(b"cut off")
    with pytest.raises(BadInput, match="no model of harm at"):
        read_model(tmp_path / "harm")
    check_replaceable(tmp_path / "harm")
    check_replaceable(tmp_path / "new")
    for other in ("{}", "[]", "torn"):
        (tmp_path / "harm" / "config.json").write_text(other)
        with pytest.raises(BadInput, match="holds a config.json of another model"):
            check_replaceable(tmp_path / "harm")
    wider = HarmModel(HarmConfig(3, 5))
    with pytest.raises(BadInput, match="train it for this target"):
        attach_harm(wider, target)


def test_files_of_one_name_are_compared_and_models_without_any_differ():
    """Bug held down: two targets whose files have different names counted as one."""
    made = {"target/a.gguf": "1", "target/config.json": "2", "head/model.safetensors": "3"}
    assert different(made, made) == []
    assert different(made, made | {"target/config.json": "4"}) == []
    assert different(made, made | {"target/a.gguf": "4"}) == ["target/a.gguf"]
    assert different(made, {"target/b.gguf": "1"}) == ["target/a.gguf"]
    assert different(made, {"head/model.safetensors": "3", "seed": 0}) == []
    commit = {"target/commit": "1"}  # of a hub id: a folder of its files is not known to be another
    assert different(commit, made) == different(made, commit) == []
    assert different(commit, {"target/commit": "2"}) == ["target/commit"]


# --- forks ----------------------------------------------------------------------------------------


def test_harm_is_another_end_or_what_the_rest_lacks():
    ends = Prompt("q", "c", [1], outcome=lambda tokens: tokens[-1])
    assert harm(ends, [4, 5, 6], [4, 9, 6], 1) == 0
    assert harm(ends, [4, 5, 6], [4, 9, 7], 1) == 1
    text = Prompt("q", "c", [1], outcome=None)
    plain = [9, 1, 2, 3, 4, 5, 6, 7]
    assert harm(text, plain, [8, 1, 2, 3, 4, 5, 6, 7], 0) == 0
    assert harm(text, plain, [8, 0, 1, 2, 3, 4, 5, 0], 0) == pytest.approx(1 - 2 / 4)
    assert harm(text, plain, [8, 7, 6, 5, 4], 0) == 1


def mine(arguments: list) -> None:
    command = load_command("train/mine_forks.py")
    run_command(command.mine_forks, [command.ForkOptions], [str(a) for a in arguments])


def records(folder, name: str) -> list[dict]:
    lines = (folder / "records" / f"{name}.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "session"} for line in lines]


def miner(target, folder, *, stops=frozenset(), forks: int = 9) -> ForkMiner:
    drafter = head_drafter(tiny_head(target, seed=3), target, TreeConfig(7, 3, 3))
    run = Run(folder, {})
    run.begin_session()
    return ForkMiner(target, drafter, stops, run, 40, forks, 0, 4)


@pytest.mark.parametrize("everywhere", [False, True])
def test_places_and_signals_are_those_of_exact_decoding(tmp_path, everywhere):
    """Of every round's end, or of all the places that it comes by, up to the answer's end."""
    target = tiny_target("llama")
    mining, prompt = miner(target, tmp_path / "run"), prompt_tokens(9)
    mining.everywhere = everywhere
    exact = DecodeConfig(Policy(RULES["exact"]()), StopConfig(40))
    answer, wanted = [], []
    for step in decode_rounds(target, mining.drafter, prompt, exact):
        if step.tree is not None:
            values_NS = signals(Rows.of_tree(step.tree, step.logits_NV, GREEDY), len(answer))
            path, emitted = step.acceptance.path, step.acceptance.tokens
            for depth, (node, own) in enumerate(zip(path, emitted, strict=True)):
                below = [c for c in range(1, step.tree.size) if step.tree.parent_N[c] == node]
                below = [c for c in below if step.tree.token_N[c] != own]
                place, end = len(answer) + depth, depth + 1 == len(path)
                if below and place < 40 and (end or everywhere):
                    tokens = step.tree.token_N[below].tolist()
                    wanted.append((place, not end, tokens, values_NS[below]))
        answer += step.tokens
    got = list(mining._candidates(PlainText(prompt, answer, [2] * TOKENS_BEYOND_END), None))
    assert [(p.number, p.exact_drafted) for p in got] == [(p, hit) for p, hit, *_ in wanted]
    assert wanted[-1][0] > 40 - 3 and {hit for _, hit, *_ in wanted} == {False, everywhere}
    for place, (_, _, tokens, values_CS) in zip(got, wanted, strict=True):
        assert [token for token, _ in place.drafted] == tokens
        torch.testing.assert_close(torch.tensor([v for _, v in place.drafted]), values_CS)


def test_a_fork_that_ends_the_answer_is_not_gone_on_with(tmp_path):
    """Bug held down: a stop token put in by chance was continued. And every fork is what the
    target says behind it."""
    target, stops = tiny_target("llama"), frozenset(range(0, 60, 4))
    mining = miner(target, tmp_path / "run", stops=stops)
    prompts = [Prompt(i, "c", prompt_tokens(5 + i, seed=i), None) for i in range(9)]
    mining.mine(prompts)
    forks = list(mining.run.records["forks"].values())
    ended = [row for row in forks if row["token"] in stops]
    assert {row["kind"] for row in ended} == {"draft", "chance"}
    assert all(row["tokens"] == [] for row in ended) and len(ended) < len(forks)
    plain = DecodeConfig(Policy(RULES["exact"]()), StopConfig(40, tuple(stops)))
    for row in forks:
        text = mining.run.records["texts"][row["question_id"], 0]
        begun = [*text["answer_ids"][: row["place"]], row["token"]]
        if row["token"] not in stops and len(begun) < 40:
            stop = replace(plain, stop=StopConfig(40 - len(begun), tuple(stops)))
            alone = decode(target, RootDrafter(), [*text["prompt_ids"], *begun], stop)
            assert row["tokens"] == alone.tokens
    for row in mining.run.records["done"].values():
        mine = [fork for fork in forks if fork["question_id"] == row["question_id"]]
        assert row["forks"] == len(mine)


def test_forks_are_mined_and_a_killed_run_goes_on(tmp_path):
    target, head = write_target(tmp_path / "target"), write_random_head(tmp_path / "head")
    questions = [{"question_id": i, "category": "c", "turns": [f"Question {i}?"]} for i in range(6)]
    file = tmp_path / "question.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in questions))
    fixed = ["--target", target, "--head", head, "--tasks", file, "--device", "cpu", "--forks", 6]
    fixed += ["--dtype", "float32", "--max_new_tokens", 24, "--tree", "5x3x3", "--batch_size", 3]
    mine([*fixed, "--output", tmp_path / "whole"])
    forks = records(tmp_path / "whole", "forks")
    assert {row["kind"] for row in forks} == {"draft", "chance"}
    assert all(row["token"] != row["exact"] and 0 <= row["harm"] <= 1 for row in forks)
    texts = {row["question_id"]: row for row in records(tmp_path / "whole", "texts")}
    for row in forks:
        assert texts[row["question_id"]]["answer_ids"][row["place"]] == row["exact"]
    # as if it had been killed: some of the forks are there, and no question is done
    mine([*fixed, "--questions", 4, "--output", tmp_path / "cut"])
    path = tmp_path / "cut" / "records" / "forks.jsonl"
    path.write_text("".join(f"{line}\n" for line in path.read_text().splitlines()[:3]))
    (tmp_path / "cut" / "records" / "done.jsonl").unlink()
    mine([*fixed, "--output", tmp_path / "cut"])
    asked = [questions[5], *questions[1:]]  # another one in the first place
    write_rows(file, *(row | {"question_id": i} for i, row in enumerate(asked)))
    (tmp_path / "cut" / "records" / "done.jsonl").unlink()
    with pytest.raises(SystemExit, match="answered another question 0: name another folder"):
        mine([*fixed, "--output", tmp_path / "cut"])
    order = lambda row: (row["question_id"], row["choice"])  # noqa: E731
    assert sorted(records(tmp_path / "cut", "forks"), key=order) == sorted(forks, key=order)


def test_numbers_that_are_equal_are_one_outcome_and_a_refused_run_leaves_its_folder_free(tmp_path):
    """Bugs held down: 18 and 18.00 were another number, and a budget beyond the target's positions
    was refused after the folder had been begun, which then took no other."""
    target, head = write_target(tmp_path / "target"), write_random_head(tmp_path / "head")
    command, model = load_command("train/mine_forks.py"), load(str(target), head=None)
    (question,) = [Question(1, "c", ["?"], ["18"])]

    def comes_to(text: str) -> object:
        tokens = model.tokenizer(text, add_special_tokens=False).input_ids
        return command.comes_to(SCORERS["last_number"], model, question, tokens)

    assert comes_to("It is 18") == comes_to("It is 18.00") != comes_to("It is 18.5")
    file = write_rows(tmp_path / "question.jsonl", {"question_id": 1, "turns": ["?"]})
    fixed = ["--target", target, "--head", head, "--device", "cpu", "--dtype", "float32"]
    fixed += ["--tasks", file, "--tree", "5x3x3", "--output", tmp_path / "out"]
    with pytest.raises(SystemExit, match="leave it out"):
        mine([*fixed, "--max_new_tokens", 100_000])
    mine([*fixed, "--max_new_tokens", 12])


@pytest.mark.processes  # long
def test_the_scorer_says_which_forks_are_harmful(tmp_path):
    """One that finds the plain answers to questions of odd numbers right, and no other: there a
    fork is harmful that lacks the plain text, and elsewhere none is."""
    target, head = write_target(tmp_path / "target"), write_random_head(tmp_path / "head")
    asked = [{"question_id": i, "category": "ab"[i % 3 > 1], "turns": [f"{i}?"]} for i in range(16)]
    file = write_rows(tmp_path / "question.jsonl", *asked)
    fixed = ["--target", target, "--head", head, "--device", "cpu", "--dtype", "float32"]
    fixed += ["--max_new_tokens", 60, "--tree", "5x3x3", "--forks", 5]
    mine([*fixed, "--tasks", file, "--output", tmp_path / "all"])
    tokenizer = load_tokenizer(str(target))
    texts = {row["question_id"]: row for row in records(tmp_path / "all", "texts")}

    def text(tokens: list[int]) -> str:
        return normalize(tokenizer.decode(tokens, skip_special_tokens=True))

    for i, row in enumerate(asked):
        row["reference"] = [text(texts[i]["answer_ids"]) if i % 2 else "another"]
    known = write_rows(tmp_path / "known.jsonl", *asked)
    scored = ["--tasks", known, "--scorer", "contains"]
    mine([*fixed, *scored, "--output", tmp_path / "scored"])
    forks = records(tmp_path / "scored", "forks")
    assert {row["question_id"] for row in forks} == {i for i, of in texts.items() if of["finished"]}
    for row in forks:
        plain = texts[row["question_id"]]["answer_ids"]
        fork = text([*plain[: row["place"]], row["token"], *row["tokens"]])
        assert row["harm"] == (row["question_id"] % 2 and f" {text(plain)} " not in f" {fork} ")
    assert {row["harm"] for row in forks} == {0, 1}
    summary = json.loads((tmp_path / "scored" / "summary.json").read_text())
    assert {row["category"] for row in summary["forks"]} == {row["category"] for row in forks}
    assert sum(row["forks"] for row in summary["forks"]) == len(forks)


# --- training -------------------------------------------------------------------------------------


def planted_forks(count: int, *, seed: int = 0) -> Forks:
    """Harm follows one number of the state, and a little one signal; forks of 300 questions."""
    generator = torch.Generator().manual_seed(seed)
    input_CW = torch.randn(count, 30 + len(SIGNALS), generator=generator)
    logit_C = 3 * input_CW[:, 4] + 0.5 * input_CW[:, 30 + SIGNALS.index("regret")]
    harm_C = (torch.rand(count, generator=generator) < torch.sigmoid(logit_C)).float()
    return Forks([f"q/{i % 300}" for i in range(count)], input_CW, harm_C)


def test_the_model_learns_what_signals_do_not_tell():
    forks = planted_forks(4000)
    sizes = HarmConfig(10, 10)
    models = {"model": fit(forks, sizes), "alone": fit(forks, sizes, states=False)}
    report = forks.part("report")
    rows = {row["signal"]: row["area"] for row in areas(report, models)}
    assert rows["model"]["low"] > 0.8 > rows["alone"]["high"]
    assert rows["alone"]["value"] > rows["entropy"]["value"]
    for row in reliability(report, models["model"]):
        assert row["foreseen"] == pytest.approx(row["found"], abs=0.1)


def test_without_a_draft_distribution_divergence_says_nothing():
    """Bug held down: D was read as 0 there, so a draft from the text looked the less harmful."""
    model = HarmModel(HarmConfig(3, 2))
    input_CW = torch.randn(5, model.config.width)
    js, judged_ = (SIGNALS.index(name) - len(SIGNALS) for name in ("js", "judged"))
    for known in (0.0, 1.0):
        input_CW[:, judged_] = known
        other_CW = input_CW.clone()
        other_CW[:, js] += 0.3
        same = torch.equal(model(input_CW), model(other_CW))
        assert same == (known == 0)


def write_deaf_target(folder: Path, **changes) -> Path:
    """One without attention, so that some of its forks come back to the plain text."""
    target = write_target(folder, **changes)
    deaf = LlamaForCausalLM.from_pretrained(target)
    for layer in deaf.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
    deaf.save_pretrained(target)
    return target


@pytest.mark.processes  # long
def test_a_model_is_trained_reported_on_and_decoded_with(tmp_path, capsys):
    """The command, with a second task."""
    target, head = write_deaf_target(tmp_path / "target"), write_random_head(tmp_path / "head")
    fixed = ["--target", target, "--head", head, "--device", "cpu", "--dtype", "float32"]
    fixed += ["--max_new_tokens", 24, "--tree", "4x2x2", "--forks", 16]
    for name, count in (("one", 40), ("two", 5)):
        asked = [
            {"question_id": i, "category": name, "turns": [f"{name}{i}"]} for i in range(count)
        ]
        file = write_rows(tmp_path / f"{name}.jsonl", *asked)
        mine([*fixed, "--tasks", file, "--output", tmp_path / name])
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    command = load_command("train/train_harm.py")
    arguments = ["--forks", one, "--other", two, "--output", str(tmp_path / "harm")]
    run_command(command.train_harm, [command.HarmOptions], [*arguments, "--device", "cpu"])
    text = capsys.readouterr().out
    assert f"Drafted forks of {one}, questions that it has not seen" in text
    assert f"Drafted forks of {two}, another task" in text
    config = json.loads((tmp_path / "harm" / "config.json").read_text())
    for folder, category in (one, "one"), (two, "two"):
        forks = records(Path(folder), "forks")
        report = config["report"][folder]
        kinds = {row["kind"]: row for row in report["forks"]}
        assert all(row["category"] == category for row in kinds.values())
        for kind, row in kinds.items():
            harms = [fork["harm"] for fork in forks if fork["kind"] == kind]
            assert row["forks"] == len(harms)
            assert row["harm"]["value"] == pytest.approx(sum(harms) / len(harms))
        drafted = {row["question_id"] for row in forks if row["kind"] == "draft"}
        seen = drafted if folder == two else {i for i in drafted if part_of(i) == "report"}
        names = {row["signal"]: row for row in report["areas"]}
        assert names["the model"]["questions"] == len(seen)
        area = names["the model"]["area"]["value"] - names["regret"]["area"]["value"]
        assert names["regret"]["ahead"]["value"] == pytest.approx(area)
    model = load(str(target), head=str(head), harm=str(tmp_path / "harm"), tree="7x3x3")
    decoded = decode(
        model.target,
        model.drafter,
        model.prompt_ids("one1"),
        DecodeConfig(Policy(Harm(1.0)), StopConfig(30)),
    )
    assert any(any(acceptance.fuzzy) for acceptance in decoded.rounds)


@pytest.mark.processes  # long
def test_it_is_of_its_targets_weights_and_of_all_layers_that_the_head_reads(tmp_path, capsys):
    """Bugs held down: no model could be trained for a head that fuses layers, one of another target
    of the same sizes was taken, and one that no arm reads was looked at."""
    target = write_deaf_target(tmp_path / "target", layers=7)
    head = write_random_head(tmp_path / "head", head_type="eagle3")
    asked = [{"question_id": i, "category": "c", "turns": [f"one{i}"]} for i in range(40)]
    file = write_rows(tmp_path / "question.jsonl", *asked)
    fixed = ["--target", target, "--head", head, "--device", "cpu", "--dtype", "float32"]
    fixed += ["--max_new_tokens", 24, "--tree", "4x2x2", "--forks", 16, "--tasks", file]
    mine([*fixed, "--output", tmp_path / "forks"])
    command = load_command("train/train_harm.py")
    arguments = ["--forks", str(tmp_path / "forks"), "--output", str(tmp_path / "harm")]

    def train() -> None:
        run_command(command.train_harm, [command.HarmOptions], [*arguments, "--device", "cpu"])

    train()
    options = {"target": str(target), "device": "cpu", "dtype": "float32"}
    options |= {"harm": str(tmp_path / "harm")}
    own = ModelOptions(**options, head=str(head))
    assert own.digests().keys() >= {"harm/model.safetensors", "head/model.safetensors"}
    model = own.load([parse_arm("harm:1")])
    assert model.target.further and len(model.target.feature_layers) == 3
    assert not ModelOptions(**options).load([parse_arm("exact@ngram")]).target.further
    other = LlamaForCausalLM.from_pretrained(target)
    for layer in other.model.layers:
        layer.mlp.up_proj.weight.data.add_(0.1)
    other.save_pretrained(target)
    with pytest.raises(BadInput, match=r"other weights \(target/model.safetensors differ\)"):
        load(str(target), head=str(head), harm=options["harm"])
    with pytest.raises(SystemExit, match="are of another target or head"):
        train()


def test_no_question_is_in_two_parts_and_too_few_forks_are_refused():
    assert {part_of(f"q/{i}") for i in range(100)} == {"learn", "choose", "report"}
    with pytest.raises(BadInput, match="are too few"):
        fit(planted_forks(100), HarmConfig(10, 10))
    forks = planted_forks(1500)
    rest = [c for c, question in enumerate(forks.questions) if part_of(question) != "report"]
    unreported = Forks([forks.questions[c] for c in rest], forks.input_CW[rest], forks.harm_C[rest])
    with pytest.raises(BadInput, match="0 forks in the part 'report'"):
        fit(unreported, HarmConfig(10, 10))


def test_where_no_fork_is_harmful_the_share_may_still_be_above_0():
    """Bug held down: its interval was [0, 0]."""
    forks = [
        {"question_id": q, "category": "c", "kind": "draft", "harm": 0.0} for q in range(40)
    ] * 3
    (row,) = shares(forks)
    assert (row["questions"], row["forks"]) == (40, 120)
    assert row["harm"]["value"] == row["harm"]["low"] == 0 < row["harm"]["high"] < 0.1


def test_the_area_is_the_chance_that_a_harmful_fork_has_the_larger_value():
    rng = random.Random(0)
    value = [rng.randrange(5) + 0.0 for _ in range(60)]
    harmful = [rng.random() < 0.2 + v / 10 for v in value]
    questions = [str(i % 12) for i in range(60)]
    pairs = [
        (a > b) + (a == b) / 2
        for a, bad in zip(value, harmful, strict=True)
        for b, worse in zip(value, harmful, strict=True)
        if bad and not worse
    ]
    arrays = torch.tensor(value).numpy(), torch.tensor(harmful).numpy()
    got, without_Q = roc_area(*arrays, questions)
    assert got == pytest.approx(sum(pairs) / len(pairs))
    assert len(without_Q) == 12 and without_Q.min() < got < without_Q.max()
