"""extras/reader.py and gemma.py, with a tiny random model in Gemma's place; reader_controls.py."""

import copy
import json

import numpy as np
import pytest
import torch
from commands import load_command, rows
from gemma import NAME, is_new, read_dialogue
from hand_records import made_run, write_run
from tiny import NoisyTargetDrafter, prompt_tokens, tiny_target
from tiny_folder import write_target

from eagle_fsd.config import BadInput, SamplingConfig, TreeConfig
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode
from eagle_fsd.evaluation.run_data import read_run
from eagle_fsd.models.load import load_target
from eagle_fsd.rules import RULES
from eagle_fsd.runs.provenance import digest

READER, CONTROLS = load_command("extras/reader.py"), load_command("extras/reader_controls.py")
Second = RULES.pop("second")  # other files' tests see the library's own rules


def test_the_second_of_every_ten_tokens():
    """As one decodes by hand, token by token; its regret is that of the second choice."""
    target, length = tiny_target("llama"), 34
    prompt = prompt_tokens(9)
    drafter = NoisyTargetDrafter(target, TreeConfig(2, 1, 2))
    config = DecodeConfig(Policy(Second(10), SamplingConfig()), StopConfig(length))
    answer = decode(target, drafter, prompt, config)
    text, regrets = list(prompt), []
    for number in range(1, length + 1):
        logits_V = target.model(torch.tensor([text]), use_cache=False).logits[0, -1]
        best_2 = logits_V.topk(2)
        choice = int(number % 10 == 0)
        regrets.append((best_2.values[0] - best_2.values[choice]).item())
        text.append(best_2.indices[choice].item())
    assert list(answer.tokens) == text[len(prompt) :]
    recorded = [regret for r in answer.rounds for regret in r.regret]
    assert recorded[: length - 1] == pytest.approx(regrets[1:], abs=1e-4)


def test_a_cut_target(tmp_path):
    """It goes from its last layer to the norm of the whole one; no more layers than there are."""
    folder = write_target(tmp_path / "whole")
    CONTROLS.write_cut(str(folder), 3, tmp_path / "cut")
    whole, cut = (
        load_target(str(tmp_path / name), dtype="float32")[0].model for name in ("whole", "cut")
    )
    ids = torch.tensor([prompt_tokens(9)])
    hidden = whole(ids, output_hidden_states=True).hidden_states[3]
    wanted = whole.lm_head(whole.model.norm(hidden))
    torch.testing.assert_close(cut(ids).logits, wanted)
    with pytest.raises(BadInput, match="1 to 3, not 4"):
        CONTROLS.write_cut(str(folder), 4, tmp_path / "more")


def test_new_tokens():
    assert is_new([*b"abcdxabcdy"]).tolist() == [True] * 5 + [False] * 4 + [True]
    assert is_new([1, 1, 1, 1]).all() and is_new([]).shape == (0,)


def test_a_dialogue(tmp_path):
    """Token by token, each behind the text before it; bytes of one character count once."""
    target, tokenizer = load_target(str(write_target(tmp_path)), dtype="float32")
    turns = [("Why?", "é, so so so so so."), ("Is it?", ""), ("Sure?", "Yes €.")]
    said = read_dialogue(target.model, tokenizer, turns)
    ids = [tokenizer.bos_token_id]
    for (question, answer), of_answer in zip(turns, said, strict=True):
        ids += tokenizer.encode("\n\n" * (len(ids) > 1) + question + "\n\n")
        tokens, logp = tokenizer.encode(answer), []
        for token in tokens:
            logits_V = target.model(torch.tensor([ids])).logits[0, -1]
            logp.append(logits_V.log_softmax(-1)[token].item())
            ids.append(token)
        assert of_answer["characters"] == len(answer)
        assert of_answer["logp"] == pytest.approx(sum(logp), abs=1e-3)
        new = [at for at, flag in enumerate(is_new(tokens)) if flag]
        assert of_answer["new_logp"] == pytest.approx(sum(logp[at] for at in new), abs=1e-3)
    assert said[0]["new_characters"] == len("é, so.") and said[2]["new_characters"] == 6


@pytest.fixture
def records(tmp_path, monkeypatch):
    """A run's, with arms of path; the cache holds a tiny model by Gemma's name."""
    monkeypatch.setenv("EAGLE_FSD_CACHE", str(tmp_path / "cache"))
    write_target(tmp_path / "cache" / NAME)
    (tmp_path / "cache" / f"{NAME}-terms").mkdir()
    made = made_run(8)
    for value in ("0.1", "0.3"):
        other = copy.deepcopy(made[f"random:{value}"])
        made[f"path:{value}"] = [row | {"arm": f"path:{value}"} for row in other]
    return made


def test_the_correlation_of_regret_with_what_was_lost():
    """By hand: of two rankings of 4 that differ by a swap of neighbours it is 1 - 6 * 2 / 60."""
    lost = {"fsd:1": (1, 0.2), "fsd:2@hybrid": (2, 0.1)}
    lost |= {"fsd:3": (3, 0.3), "fsd:4": (4, 0.4)}
    arms = [
        {"arm": arm, "regret_per_token": regret, "tv_per_token": -regret}
        | {f"{name}_minus_plain": {"value": -loss} for name in (READER.LOGP, READER.NEW)}
        for arm, (regret, loss) in lost.items()
    ]
    found = {(row["drafter"], row["of"]): row[READER.LOGP] for row in READER.correlate(arms)}
    by_regret = {"all": pytest.approx(0.8), "eagle": pytest.approx(1.0)}
    assert {group: found[group, "regret/token"] for group in by_regret} == by_regret
    assert found["all", "TV/token"] == pytest.approx(-0.8)


def test_runs_are_read_and_compared(records, tmp_path, capsys):
    """Differences are those by hand; what was read is not read again, and a run that has grown is
    read on; another target's run is compared with the first run's plain, without a regret."""
    output = tmp_path / "read"
    some = {arm: answers[:3] for arm, answers in records.items()}
    READER.compare([write_run(tmp_path / "some", some)], output, "")
    (kept,) = output.glob("*.jsonl")
    before = rows(kept)
    cut = [row | {"arm": "plain"} for row in records["fsd:0.4"]]
    runs = [write_run(tmp_path / "run", records)]
    runs.append(write_run(tmp_path / "cut", {"plain": cut}, target="cut"))
    READER.compare(runs, output, "")
    # 1. each text once: those of path are random's
    assert rows(kept)[: len(before)] == before and len(rows(kept)) == 8 * (len(records) - 2)
    # 2. the numbers
    said = {row["dialogue"]: row["turns"][0] for row in rows(kept)}
    by_text = {arm: [said[digest(READER._pieces(row))] for row in records[arm]] for arm in records}

    def score(arm: str) -> np.ndarray:
        return np.array([turn["logp"] / turn["characters"] for turn in by_text[arm]])

    def rate(arm: str) -> float:
        sums = {key: sum(turn[key] for turn in by_text[arm]) for key in ("logp", "characters")}
        return sums["logp"] / sums["characters"]

    found = json.loads((output / "reader.json").read_text())
    arms = {(row["run"], row["arm"]): row for row in found["arms"]}
    for arm in records:
        gap = arms["run", arm]["logp_per_character_minus_plain"]["value"]
        assert gap == pytest.approx(rate(arm) - rate("plain")), arm
    other, row = arms["cut", "plain"], arms["run", "fsd:0.4"]
    gap = "new_logp_per_character_minus_plain"
    assert other[gap] == row[gap] and other["regret_per_token"] is None
    # 3. at the same gain path, which has random's answers, is no better than random
    gaps = {row["line"]: row["logp_per_character_minus"] for row in found["at_equal_gain"]}
    assert gaps["path"] is None and gaps["random"]["value"] == pytest.approx(0, abs=1e-12)
    assert gaps["fsd"]["value"] != 0
    # 4. what is shown, on the run's own page too
    scores = read_run(runs[0]).scores
    of_page = {row["arm"]: row for row in scores if row["score"].startswith("logp/")}
    wanted = (score("fsd:0.4") - score("plain")).mean()
    assert of_page["fsd:0.4"]["vs_plain"]["value"] == pytest.approx(wanted)
    assert scores[0]["score"].startswith("new logp/")
    text = (output / "reader.md").read_text()
    assert "Gemma Terms of Use" in text and text.strip() in capsys.readouterr().out
    with pytest.raises(BadInput, match="no arm plain"):
        less = {arm: rows for arm, rows in records.items() if arm != "plain"}
        READER.compare([write_run(tmp_path / "less", less)], output, "")
