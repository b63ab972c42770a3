"""Answer records small enough to work their figures out by hand."""


def turn(token_ids, seconds, rounds=(), *, finish="stop", share=1.0, logp=-1.0) -> dict:
    """`rounds` are (tokens, fuzzy, tv, regret) lists."""
    names = ("tokens", "fuzzy", "tv", "regret")
    return {
        "token_ids": list(token_ids),
        "seconds": seconds,
        "finish": finish,
        "rescored_argmax_share": share,
        "rescored_mean_logp": logp,
        "rounds": [dict(zip(names, r, strict=True)) for r in rounds],
    }


def record(question_id, *turns) -> dict:
    return {"question_id": question_id, "turns": list(turns)}


def plain_rounds(count: int) -> list:
    return [([1], [0], [], []) for _ in range(count)]


# Two questions; the first has two turns. Each arm's answers differ in length and time.
HAND = {
    "generate": [
        record("q1", turn([5, 6, 7], 2.0), turn([8, 9], 1.0)),
        record("q2", turn([4], 1.0, finish="length")),
    ],
    "plain": [
        record(
            "q1",
            turn([5, 6, 7], 1.0, plain_rounds(2)),
            turn([8, 9], 0.5, plain_rounds(1), share=0.5, logp=-2.0),
        ),
        record("q2", turn([4, 4, 4, 4, 4], 2.5, plain_rounds(4), finish="length")),
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


def all_fuzzy() -> dict[str, list]:
    """HAND with an arm whose ceiling is without bound: f tau = 1 * 2."""
    rounds = [([1, 2, 3], [1, 1, 1], [0.5, 0.5], [1.0, 1.0, 1.0])]
    wild = [record("q1", turn([1, 2], 0.1, rounds), turn([1, 2], 0.1, rounds))]
    return HAND | {"fsd:9": [*wild, record("q2", turn([1, 2, 3], 0.1, rounds))]}
