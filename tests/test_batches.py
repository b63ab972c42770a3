"""Answers made together are those made one at a time, whoever they share a forward with."""

import _thread
import json
import signal
import threading
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from answers import TREES
from commands import QUESTIONS, bench_options, rows
from tiny import FAMILIES, SLIDING, prompt_tokens, random_model, target_and_head, tiny_head
from tiny_recurrent import hybrid_target
from transformers import AutoConfig

from eagle_fsd.arms import parse_arm
from eagle_fsd.config import BadInput, SamplingConfig
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode_rounds
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import RootDrafter
from eagle_fsd.drafters.eagle import head_drafter
from eagle_fsd.engine.select import ENGINES
from eagle_fsd.engine.trial import shares_forwards
from eagle_fsd.evaluation.batches import Batch, SharedTarget
from eagle_fsd.models.loaded import Model
from eagle_fsd.runs.folder import record_files

# Chains, priced trees that end at levels of their own, drawn drafts, drafts of the text, and none
ARMS = ["exact", "fsd:0.5@eagle:5x5x1", "path:2@hybrid:7x3x3,keep=0.02,deepen=0.3"]
ARMS += ["rejection@eagle:6x2x3,sample=1", "random:0.3@ngram", "fsd:0.4@language_model", "plain"]
LENGTHS = [5, 20, 33, 12, 9, 41, 7]


def loaded(family: str = "llama", engine: str = "stock") -> Model:
    target = Target(random_model(FAMILIES[family](), seed=3), engine=ENGINES[engine]())
    drafter = head_drafter(tiny_head(target), target, TREES[1])
    return Model(target, None, drafter, draft_model=target.first_layers(2))


def answer(model: Model, arm: str, length: int, *, temperature: float = 0.7) -> list:
    """Tokens, paths and flags of each round; regrets and TVs, which roundings move, apart."""
    chosen, prompt = parse_arm(arm), prompt_tokens(length, seed=length)
    # a budget that ends within a round, and a stop token and a string that some texts have
    string = StopConfig(5 + length, (17,), ("7 7", "3 1"), lambda ids: " ".join(map(str, ids)))
    config = DecodeConfig(chosen.policy(SamplingConfig(temperature)), string, seed=length)
    shown, costs = [], []
    for one in decode_rounds(model.target, chosen.build_drafter(model), prompt, config):
        made = one.acceptance
        shown.append((one.tokens, one.finish, made and (made.path, made.fuzzy)))
        costs += [*made.regret, *made.tv] if made else []
    return [shown, torch.tensor(costs)]


def together(
    model: Model, size: int, calls: Sequence[Callable[[Model], object]], *, alone: Sequence = ()
) -> list:
    """Results, of which those numbered in `alone` had too few rows to share."""
    batch = Batch(model, size)
    batch.reserve(150)
    found = dict(batch.run([partial(call, batch.model) for call in calls]))
    assert answering() == 0 and batch.alone == {*alone}
    return [found[number] for number in sorted(found)]


def answering() -> int:
    """Threads of answers that are under way."""
    return sum(type(thread).__module__ == Batch.__module__ for thread in threading.enumerate())


def check_same(got: list, want: list) -> None:
    for (shown, costs), (alone, alone_costs) in zip(got, want, strict=True):
        assert shown == alone
        torch.testing.assert_close(costs, alone_costs, atol=2e-4, rtol=1e-3, equal_nan=True)


@pytest.mark.parametrize(("size", "temperature"), [(2, 0.0), (5, 0.7)])
def test_arms_of_every_kind_share_forwards(size: int, temperature: float):
    """All at once, so that those of one node and those of many, of this level and of that, are in
    one forward; and each ends when it likes."""
    model = loaded()
    calls = [
        partial(answer, arm=arm, length=length, temperature=temperature)
        for length in LENGTHS
        for arm in ARMS
    ]
    check_same(together(model, size, calls), [call(model) for call in calls])


@pytest.mark.parametrize("family", [*SLIDING, "qwen3", "mixtral"])
def test_families(family: str):
    model = loaded(family)
    calls = [partial(answer, arm="fsd:0.4", length=length) for length in LENGTHS]
    check_same(together(model, 3, calls), [call(model) for call in calls])


def shares(model: Model) -> bool:
    batch = Batch(model, 2)
    return shares_forwards(batch.model.target, batch.run)


def test_layers_that_go_by_the_sizes_of_a_forward_are_told_apart():
    """Bug held down: GPT-Neo makes a mask of its own, by which a text's node was hidden from itself
    where another text of the forward had more nodes; the text changed without a word."""
    assert shares(loaded())
    assert not shares(Model(hybrid_target("qwen3_5_text"), None, RootDrafter()))
    sizes = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "vocab_size": 101}
    config = AutoConfig.for_model("gpt_neo", **sizes, attention_types=[[["global"], 2]])
    target = Target(random_model(config, seed=1, attention="eager"))
    assert not shares(Model(target, None, RootDrafter()))


def test_a_second_text_of_an_answer_has_rows_of_its_own():
    """As of a plug-in's drafter that runs another text through the target meanwhile."""
    model = loaded()

    def call(own: Model, length: int) -> list:
        cache, rounds = own.target.begin(60), rounds_of(own, length)
        first, _ = own.target.prefill(cache, torch.tensor(prompt_tokens(50, seed=9)))
        return [[first.argmax().item(), *rounds], torch.empty(0)]

    def rounds_of(own: Model, length: int) -> list:
        config = DecodeConfig(parse_arm("exact").policy(SamplingConfig()), StopConfig(20))
        prompt = prompt_tokens(length, seed=length)
        return [one.tokens for one in decode_rounds(own.target, own.drafter, prompt, config)]

    calls = [partial(call, length=length) for length in LENGTHS]
    check_same(together(model, 3, calls), [call(model) for call in calls])


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "compiled"])
def test_engines(engine: str):
    model = loaded(engine=engine)
    calls = [partial(answer, arm="path:2", length=length) for length in LENGTHS]
    check_same(together(model, 4, calls), [call(model) for call in calls])


@pytest.mark.parametrize("head", ["eagle3, 37 tokens", "eagle, two layers"])
def test_heads(head: str):
    target, head = target_and_head(head)
    model = Model(target, None, head_drafter(head, target, TREES[1]))
    calls = [partial(answer, arm="exact", length=length) for length in LENGTHS]
    check_same(together(model, 3, calls), [call(model) for call in calls])


def test_a_longer_answer_than_there_is_room_for_is_made_alone():
    model = loaded()
    calls = [partial(answer, arm="exact", length=length) for length in [6, 100, 8]]
    check_same(together(model, 2, calls, alone=[1]), [call(model) for call in calls])


def test_one_that_fails_ends_alone_and_no_other_is_begun():
    model, begun = loaded(), []

    def call(own: Model, number: int) -> list:
        begun.append(number)
        if number == 1:
            next(decode_rounds(own.target, own.drafter, [2, 3], config()))
            raise ZeroDivisionError(number)
        return answer(own, "exact", LENGTHS[number])

    batch = Batch(model, 3)
    ended, run = {}, batch.run([partial(call, batch.model, number) for number in range(6)])
    with pytest.raises(ZeroDivisionError):
        for number, made in run:
            ended[number] = made
    assert ended.keys() == {0, 2} and begun == [0, 1, 2]
    check_same([ended[0], ended[2]], [answer(model, "exact", LENGTHS[n]) for n in (0, 2)])


def config() -> DecodeConfig:
    return DecodeConfig(parse_arm("exact").policy(SamplingConfig()), StopConfig(20))


def test_closed_it_ends_all_that_are_under_way():
    model, closed = loaded(), []

    def call(own: Model, length: int) -> None:
        try:
            answer(own, "exact", length)
        finally:
            closed.append(length)

    batch = Batch(model, 3)
    run = batch.run([partial(call, batch.model, length) for length in [60, 5, 61, 62]])
    next(run)
    run.close()
    assert sorted(closed) == [5, 60, 61] and answering() == 0


def test_an_interrupt_ends_all_and_the_model_answers_again():
    """Bug held down: the answer that went on at Ctrl-C was still taken for going on, so that the
    next one outside a batch waited for ever."""
    model = loaded()

    def interrupt(own: Model) -> list:
        _thread.interrupt_main()
        return answer(own, "exact", 20)

    batch = Batch(model, 2)
    calls = [partial(answer, batch.model, "exact", 60), partial(interrupt, batch.model)]
    # what runs in a shell's background ignores interrupts
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(batch.run(calls))
    finally:
        signal.signal(signal.SIGINT, before)
    assert answering() == 0
    batch.next_turn()
    check_same([answer(batch.model, "exact", 5)], [answer(model, "exact", 5)])


def test_room_that_no_machine_has_is_refused_by_name():
    batch = Batch(loaded(), 4)
    batch.reserve(10**12)
    with pytest.raises(BadInput, match=r"--batch 4 needs .* GB .* lower it"):
        list(batch.run([partial(answer, batch.model, "plain", 5)]))


def test_every_round_of_the_bench_is_shared(call, models, tmp_path, monkeypatch):
    """Bugs held down: the trial at loading left rows for itself alone, too few for most answers,
    a second turn got none, and deep trees of the head needed more than were reserved, so that with
    --batch they were made alone, without a word."""
    texts, run = [], SharedTarget.together

    def together(target: SharedTarget, caches: Sequence, trees: Sequence) -> list:
        texts.append(len(caches))
        return run(target, caches, trees)

    monkeypatch.setattr(SharedTarget, "together", together)
    arms = ["plain", "fsd:0.4@hybrid"]
    # rows are as the longest question needs them; a random text is read back as more tokens
    long = {"question_id": 9, "category": "long", "turns": ["a b c " * 60]}
    asked = tmp_path / "asked.jsonl"
    asked.write_text("".join(json.dumps(question) + "\n" for question in [*QUESTIONS, long]))
    options = ["--quality_only", "--batch", 3, "--max_new_tokens", 60, "--arms", *arms]
    options += ["--tree", "12x10x4", "--output"]
    command = ["evaluate/mt_bench.py", *bench_options(models, tmp_path), *options]
    told = call(*command, tmp_path / "run", "--question_file", asked)
    assert "more rows" not in told
    turns = [
        turn
        for path in record_files(tmp_path / "run")
        for row in rows(path)
        for turn in row["turns"]
    ]
    assert len(turns) == len(arms) * (2 * len(QUESTIONS) + 1)
    # the trial at loading shares a forward of two texts
    assert sum(texts) == 2 + sum(len(turn["rounds"]) for turn in turns)
    # and where no question is long enough for that, it is told
    assert "--batch: of 6 answers " in call(*command, tmp_path / "short")


@pytest.mark.processes
def test_a_run_goes_on_with_and_without_batches(call, models, tmp_path):
    """Begun one by one, gone on with three at a time, and one by one again: the answers of a run
    that never had batches."""
    arms = ["plain", "fsd:0.4", "exact@hybrid", "generate"]
    options = [*bench_options(models, tmp_path), "--temperature", 0.7]
    assert "add --quality_only" in call("evaluate/mt_bench.py", *options, "--batch", 2)
    options += ["--quality_only", "--output"]
    call("evaluate/mt_bench.py", *options, tmp_path / "a", "--arms", *arms)
    options.append(tmp_path / "b")
    call("evaluate/mt_bench.py", *options, "--questions", 1, "--arms", *arms[:1])
    call("evaluate/mt_bench.py", *options, "--questions", 2, "--batch", 3, "--arms", *arms)
    call("evaluate/mt_bench.py", *options, "--arms", *arms)
    one, other = (
        {
            (row["arm"], row["question_id"]): [turn["token_ids"] for turn in row["turns"]]
            for path in record_files(tmp_path / folder)
            for row in rows(path)
        }
        for folder in "ab"
    )
    assert one == other and len(one) == len(arms) * len(QUESTIONS)
