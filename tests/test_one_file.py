"""one_file.py and the library answer the same: tokens, which of them are fuzzy, and how many every
round emitted. Neither is written from the other; head trees and rule `fsd`, and so `exact`."""

import ast
import re
import sys
from pathlib import Path

import pytest
import torch
from answers import run
from commands import ROOT, load_command
from tiny import WIDE, for_model, prompt_tokens, random_model, tiny_head

import eagle_fsd
from eagle_fsd.arms import parse_arm
from eagle_fsd.config import SamplingConfig, TreeConfig
from eagle_fsd.decoding.loop import DecodeConfig, Generation, decode
from eagle_fsd.decoding.target import Target
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.evaluation.questions import read_questions, spread
from eagle_fsd.heads.files import write_head
from eagle_fsd.models.assets import embedded_target
from eagle_fsd.models.load import SHIPPED_HEAD
from eagle_fsd.rules.fsd import Exact, Fsd

one_file = load_command("one_file.py")

V = 13  # so few tokens that a random head often drafts the right one
RULES = {0.0: Exact(), 0.2: Fsd(0.2), 0.35: Fsd(0.35), 0.6: Fsd(0.6)}
TREES = (15, 4, 3), (5, 5, 1)  # drafts, levels, children; the second is a chain
PART = torch.tensor([1, 2, 3, 5, 8, 9, 12])  # of the vocabulary


def as_in_file(answer: Generation) -> tuple[list[int], list[bool], list[int]]:
    return answer.tokens, answer.fuzzy, [len(r.tokens) for r in answer.rounds]


def tiny_models(
    family: str, folder: Path, *, part: torch.Tensor | None = None
) -> tuple[EagleDrafter, one_file.Head]:
    """A random target, with a head that both have: the library's drafter, and the file's head."""
    target = Target(random_model(for_model(family, **WIDE | {"vocab_size": V}), seed=0))
    head = tiny_head(target, draft_vocab_size=None if part is None else len(part))
    if part is not None:
        head.set_draft_tokens(part)
    write_head(folder, head)
    drafter = EagleDrafter(head, target, TreeConfig(*TREES[0]))
    return drafter, one_file.Head(folder, target.model)


def both(
    drafter: EagleDrafter,
    head: one_file.Head,
    prompt: list[int],
    threshold: float,
    *,
    tree: tuple[int, int, int] = TREES[0],
    stop: tuple[int, ...] = (),
    **settings,
) -> Generation:
    """The library's answer, once it has been held against the file's."""
    target, own = drafter.target, drafter.with_tree(TreeConfig(*tree))
    ours = run(target, own, prompt, rule=RULES[threshold], stop=stop, **settings)
    theirs = one_file.generate(
        target.model, head, prompt, threshold, {*stop}, tree=tree, **settings
    )
    assert theirs == as_in_file(ours), (tree, threshold, stop, settings)
    return ours


@pytest.mark.parametrize(
    "family,part,temperature", [("llama", None, 0.0), ("llama", PART, 0.8), ("qwen2", None, 0.8)]
)
def test_one_file_is_the_library(family, part, temperature, tmp_path):
    """Exact and three thresholds, on trees and on chains, by heads over all of the vocabulary and a
    part of it. Rounds of all lengths arise, and a larger threshold has more fuzzy tokens."""
    drafter, head = tiny_models(family, tmp_path, part=part)
    lengths, fuzzy = set(), dict.fromkeys(RULES, 0)
    for seed, tree in enumerate(TREES * 2):
        prompt = prompt_tokens(9 + seed, seed=seed, vocab_size=V)
        for threshold in RULES:
            settings = {"tree": tree, "budget": 24, "temperature": temperature, "seed": seed}
            answer = both(drafter, head, prompt, threshold, **settings)
            lengths |= {len(r.tokens) for r in answer.rounds}
            fuzzy[threshold] += sum(answer.fuzzy)
    assert lengths == {1, 2, 3, 4, 5, 6}
    assert 0 == fuzzy[0.0] < fuzzy[0.2] < fuzzy[0.35] < fuzzy[0.6]


def test_ends_amid_a_round(tmp_path):
    """Every budget, and every token of the answer as a stop token: both at the front, in the middle
    and at the end of rounds; behind a stop token nothing drafted is taken."""
    drafter, head = tiny_models("llama", tmp_path)
    prompt = prompt_tokens(9, vocab_size=V)
    whole = both(drafter, head, prompt, 0.6, budget=16)
    cut = {"stop": 0, "length": 0}
    asked = [{"budget": budget} for budget in range(1, 12)]
    asked += [{"budget": 16, "stop": (token, V)} for token in dict.fromkeys(whole.tokens)]
    for settings in asked:
        answer = both(drafter, head, prompt, 0.6, **settings)
        emitted = 1 + sum(len(r.tokens) for r in answer.rounds)
        cut[answer.finish] += emitted > len(answer.tokens)
    assert min(cut.values()) > 1


@pytest.mark.embedded
@pytest.mark.parametrize(
    "count,budget,thresholds",
    [
        (2, 12, (0.0, 0.45)),
        pytest.param(20, 64, (0.0, 0.2, 0.3, 0.45), marks=pytest.mark.slow),
    ],
)
def test_one_file_is_the_library_on_the_embedded_target(count, budget, thresholds):
    """MT-Bench first turns with the shipped head: exact and fuzzy, by trees of two shapes. The slow
    one takes half an hour on two cores."""
    model, fuzzy = eagle_fsd.load("smollm2", dtype="float32"), 0
    target = one_file.AutoModelForCausalLM.from_pretrained(embedded_target(), dtype=torch.float32)
    head, stop = one_file.Head(SHIPPED_HEAD, target), model.stop(budget)
    for question in spread(read_questions(""), count):
        prompt = model.prompt_ids(question.turns[0])
        for tree in ("15x4x6", "7x3x3"):
            for threshold in thresholds:
                rule = f"fsd:{threshold}" if threshold else "exact"
                arm = parse_arm(f"{rule}@eagle:{tree}")
                config = DecodeConfig(arm.policy(SamplingConfig()), stop)
                ours = decode(model.target, arm.build_drafter(model), prompt, config)
                shape, ends = tuple(map(int, tree.split("x"))), {*stop.token_ids}
                theirs = one_file.generate(
                    target, head, prompt, threshold, ends, stop.max_new_tokens, shape
                )
                assert theirs == as_in_file(ours), (question.question_id, tree, threshold)
                fuzzy += sum(theirs[1])
    assert fuzzy > 0


def test_it_runs_as_a_command(models, monkeypatch, capsys):
    """With folders and a threshold; at 0 no token is fuzzy."""
    monkeypatch.setattr(sys, "argv", ["one_file.py", *map(str, models), "0"])
    exec(
        compile((ROOT / "one_file.py").read_text(), "one_file.py", "exec"), {"__name__": "__main__"}
    )
    assert re.search(r"\n\d+ tokens in \d+ rounds, 0 of them \[fuzzy\]\n$", capsys.readouterr().out)


def test_it_is_short_and_stands_alone():
    """At most 200 lines, and nothing but torch, transformers, safetensors and Python's own; of the
    library only, where it is a command, the place of what comes with it."""
    source = (ROOT / "one_file.py").read_text()
    assert len(source.splitlines()) <= 200
    imported = {
        (alias.name if isinstance(node, ast.Import) else node.module).partition(".")[0]
        for node in ast.parse(source).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert imported - set(sys.stdlib_module_names) == {"torch", "transformers", "safetensors"}
    body, _, command = source.partition('if __name__ == "__main__":')
    assert "import eagle_fsd" not in source and "from eagle_fsd" not in body
    assert command.count("eagle_fsd") == 1
