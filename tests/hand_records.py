"""Answer records made by hand: small ones to work everything out, and a whole run folder."""

import random
from pathlib import Path

from eagle_fsd.runs.jsonl import write_json, write_lines


def turn(token_ids, seconds, rounds=(), *, finish="stop", share=1.0, logp=-1.0) -> dict:
    """`rounds` are (tokens, fuzzy, tv, regret) lists."""
    names = ("tokens", "fuzzy", "tv", "regret")
    return {
        "prompt_tokens": 4,
        "token_ids": list(token_ids),
        "seconds": seconds,
        "finish": finish,
        "rescored_argmax_share": share,
        "rescored_mean_logp": logp,
        "rounds": [dict(zip(names, r, strict=True)) for r in rounds],
    }


def record(question_id, *turns) -> dict:
    return {"question_id": question_id, "turns": list(turns)}


PLAIN_ROUND = ([1], [0], [], [])
# Two questions; the first has two turns. Each arm's answers differ in length and time.
HAND = {
    "generate": [
        record("q1", turn([5, 6, 7], 2.0), turn([8, 9], 1.0)),
        record("q2", turn([4], 1.0, finish="length")),
    ],
    "plain": [
        record(
            "q1",
            turn([5, 6, 7], 1.0, [PLAIN_ROUND] * 2),
            turn([8, 9], 0.5, [PLAIN_ROUND], share=0.5, logp=-2.0),
        ),
        record("q2", turn([4, 4, 4, 4, 4], 2.5, [PLAIN_ROUND] * 4, finish="length")),
    ],
    "exact": [
        # tokens of rounds count before trimming: 3 + 1 in the first turn, of which 3 are kept
        record(
            "q1",
            turn([5, 6, 7], 0.5, [([6, 7, 8], [0, 0, 0], [0, 0], [0, 0])]),
            turn([8, 9], 0.25, [([9], [0], [0], [0])]),
        ),
        record("q2", turn([4, 4, 4, 4, 5], 1.0, [([4, 4], [0, 0], [0], [0])] * 2)),
    ],
    "fsd:0.2": [
        record(
            "q1",
            turn([5, 6, 1], 0.25, [([6, 1, 1, 2], [0, 1, 0, 0], [0.1, 0.5, 0], [0, 0.75, 0])]),
            turn([8, 9], 0.25, [([9, 9], [0, 1], [0.2], [0, 0.25])], share=0.5, logp=-3.0),
        ),
        record("q2", turn([4, 4, 4], 0.5, [([4, 4], [0, 0], [0.0], [0])])),
    ],
}
NO_ROUNDS = [record(i, turn([3], 0.5)) for i in ("q1", "q2")]


# --- a whole run folder, without a model --------------------------------------------------------

WORDS = "the sky is blue because light of short waves is scattered more than that of long".split()
# arm -> share of its tokens that are fuzzy
ARMS = {"plain": 0, "exact": 0, "fsd:0.2": 0.05, "fsd:0.4": 0.2, "random:0.1": 0.1}
ARMS |= {"random:0.3": 0.3}
TEXT = "Say it. </script><script>alert(1)</script><img src=x onerror=alert(2)>"


def made_run(questions: int = 4, *, rounds: int = 12) -> dict[str, list[dict]]:
    """Each arm's fuzzy tokens make its rounds longer and its text less likely; prompts and
    categories are hostile."""
    draw = random.Random(0)
    records: dict[str, list[dict]] = {arm: [] for arm in ARMS}
    for question in range(questions):
        lengths = [1 + draw.randrange(3) for _ in range(rounds)]
        for arm, share in ARMS.items():
            made = [_made_round(draw, 1 if arm == "plain" else n, arm, share) for n in lengths]
            head = {"question_id": question, "choice": 0, "category": f"{question % 2}{TEXT}"}
            head |= {"arm": arm, "temperature": 0.0, "tree": None, "session": "1"}
            records[arm].append(head | {"turns": [_made_turn(draw, made)]})
    return records


def _made_round(draw: random.Random, length: int, arm: str, share: float) -> dict:
    fuzzy = [int(draw.random() < share) for _ in range(length)]
    fuzzy += [0] * sum(fuzzy)  # what a fuzzy token won
    price = 3.0 if arm.startswith("random") else 1.0
    judged = [None if arm in ("plain", "exact") else draw.random() / 2 for _ in fuzzy]
    return {
        "tokens": [draw.randrange(len(WORDS)) for _ in fuzzy],
        "fuzzy": fuzzy,
        "divergence": judged,
        "tv": [float(flag) for flag in fuzzy],
        "regret": [price * draw.random() * flag for flag in fuzzy],
    }


def _made_turn(draw: random.Random, rounds: list[dict]) -> dict:
    tokens = [0, *(token for r in rounds for token in r["tokens"])]
    flags = [0, *(flag for r in rounds for flag in r["fuzzy"])]
    text, spans = "", []
    for token, flag in zip(tokens, flags, strict=True):
        spans += [[len(text), len(text) + len(WORDS[token]) + 1]] if flag else []
        text += f"{WORDS[token]} "
    regret = sum(x for r in rounds for x in r["regret"]) / len(tokens)
    seconds = len(rounds) * (1.0 + 0.1 * draw.random())
    share, logp = 1 - sum(flags) / len(flags), -0.5 - regret - 0.02 * draw.random()
    made = turn(tokens, seconds, share=share, logp=logp)
    return made | {"rounds": rounds, "prompt": TEXT, "text": text, "fuzzy_spans": spans}


def write_run(folder: Path, records: dict[str, list[dict]], *, target: str = "tiny") -> Path:
    (folder / "records").mkdir(parents=True)
    for number, rows in enumerate(records.values()):
        write_lines(folder / "records" / f"arm{number}.jsonl", rows)
    session = {"session": "1", "device": "a machine", "commit": "abc", "command": "c"}
    session |= {"versions": {"torch": "9.9"}, "timed": True, "warnings": []}
    options = {"target": target, "dtype": "float32"}
    write_json(folder / "run.json", {"options": options, "sessions": [session]})
    return folder
