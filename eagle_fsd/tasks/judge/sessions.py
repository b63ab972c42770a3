"""The launches of a judging, as its record holds them: where they asked, and at what prices.

A session is {"session": its number, "host", "prices": {"prompt", "reply"} of a million tokens or
None, ...}; the ledger's usage says which replies are of it.
"""

from eagle_fsd.tasks.judge.ledger import Ledger

Prices = dict[str, float]


def next_number(ledger: Ledger, sessions: list[dict]) -> int:
    """Of the session that begins now; the record may have been moved away from its replies."""
    return 1 + max([*ledger.usage, *(session["session"] for session in sessions)], default=0)


def hosts(ledger: Ledger, sessions: list[dict]) -> list[str]:
    """Where the replies come from."""
    found = [session["host"] for session in sessions if session["session"] in ledger.usage]
    return list(dict.fromkeys(found))


def cost(ledger: Ledger, sessions: list[dict]) -> tuple[float | None, int]:
    """Of all replies of sessions with prices, None without any; and how many others there are."""
    prices = {session["session"]: session["prices"] for session in sessions if session["prices"]}
    paid, without = [], 0
    for number, (replies, prompt_tokens, reply_tokens) in ledger.usage.items():
        if number not in prices:
            without += replies
            continue
        given = prices[number]
        paid.append((prompt_tokens * given["prompt"] + reply_tokens * given["reply"]) / 1e6)
    return (sum(paid) if paid else None), without
