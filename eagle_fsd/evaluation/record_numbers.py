"""Numbers of one record, of which rates are made.

A record is a question answered by one arm: question_id, arm, turns (answering.turn_record). A turn
of prefill's token and two rounds, of 3 and 2 tokens, the last one trimmed at a budget of 5:

    prefill  a | round  b c d | round  e f        token_ids  a b c d e
    answers 1    tokens 5    rounds 2    round_tokens 5 (b to f), so 2.5 tokens a round
"""

import math
from collections.abc import Callable, Sequence

Record = dict  # JSON-able, see above
RecordNumber = Callable[[Record], float]  # a rate's numerator or denominator
GRAM = 4  # tokens whose return counts as repetition
LOOP_PERIOD, LOOP_REPEATS, LOOP_TOKENS = 32, 3, 16  # see is_looping


def repetition(tokens: Sequence[int]) -> float:
    """Share of an answer's 4-grams that occurred before in it; 0 for fewer than 5 tokens.

    Example: a b c d a b c d has 4-grams abcd bcda cdab dabc abcd: 1 of 5.
    """
    grams = [tuple(tokens[i : i + GRAM]) for i in range(len(tokens) - GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def is_looping(tokens: Sequence[int]) -> bool:
    """Whether an answer ends in a loop: its end repeats a stretch of at most 32 tokens at least 3
    times, over at least 16 tokens."""
    for period in range(1, LOOP_PERIOD + 1):
        length = max(LOOP_REPEATS * period, LOOP_TOKENS)
        end = tokens[-length:]
        if len(end) == length and end[period:] == end[:-period]:
            return True
    return False


def rounds_of(record: Record) -> list[dict]:
    return [r for turn in record["turns"] for r in turn["rounds"]]


def of_turns(value: Callable[[dict], float]) -> RecordNumber:
    return lambda record: sum(value(turn) for turn in record["turns"])


def of_round_tokens(key: str) -> RecordNumber:
    """NaN where a token has none: its metric is then unknown."""
    return lambda record: sum(
        math.nan if x is None else float(x) for r in rounds_of(record) for x in r[key]
    )


def _counted_rounds(turn: dict) -> float:
    """NaN of transformers' own loop, which records none: one token is prefill's, any more take
    rounds."""
    return len(turn["rounds"]) or (0 if len(turn["token_ids"]) < 2 else math.nan)


def _ends_looping(turn: dict) -> bool:
    """Without the last token of an answer that stopped, which may be the stop token."""
    tokens = turn["token_ids"]
    return is_looping(tokens[:-1] if turn["finish"] == "stop" else tokens)


answers = of_turns(lambda turn: 1)
tokens = of_turns(lambda turn: len(turn["token_ids"]))
seconds = of_turns(lambda turn: turn["seconds"])
rounds = of_turns(_counted_rounds)
round_tokens = of_turns(lambda turn: sum(len(r["tokens"]) for r in turn["rounds"]))
fuzzy, regret, tv = map(of_round_tokens, ("fuzzy", "regret", "tv"))
# a turn holds the mean over its tokens
argmax_tokens = of_turns(lambda turn: turn["rescored_argmax_share"] * len(turn["token_ids"]))
logp = of_turns(lambda turn: turn["rescored_mean_logp"] * len(turn["token_ids"]))
at_limit = of_turns(lambda turn: turn["finish"] == "length")
repeated = of_turns(lambda turn: repetition(turn["token_ids"]))
looping = of_turns(_ends_looping)


def same_as_plain(record: Record) -> float:
    """Answers that equal plain's token for token; NaN where plain has none."""
    if record["plain"] is None:
        return math.nan
    both = zip(record["turns"], record["plain"]["turns"], strict=True)
    return sum(mine["token_ids"] == theirs["token_ids"] for mine, theirs in both)
