"""The open requests of a judge, several at a time, one writer."""

import asyncio

from tqdm import tqdm

from eagle_fsd.tasks.judge.endpoint import Endpoint, JudgeStoppedError
from eagle_fsd.tasks.judge.ledger import Game, Ledger


async def ask_all(
    endpoint: Endpoint, ledger: Ledger, games: list[Game], *, concurrency: int, give_up: int
) -> None:
    """Ask every game and add its reply to the ledger at once.

    The first failure ends all: what is under way then is given up, at most `concurrency` requests.

    Args:
        give_up: matches without a verdict, in a row from the start, after which to stop.

    Raises:
        JudgeStoppedError: the endpoint stopped, or no verdict ever came.
    """
    waiting = iter(games)
    judged = 0

    async def work(bar: tqdm) -> None:
        nonlocal judged
        for match, number in waiting:  # one iterator for all workers
            reply = await endpoint.ask(match.messages(number))
            judged += ledger.add((match, number), reply)
            bar.update()
            if not ledger.verdicts and judged >= give_up:
                words = reply.error or reply.text
                raise JudgeStoppedError(
                    f"no verdict in the first {judged} judgments, which only --retry_unparsed asks "
                    f"again; the last reply: {words!r:.300}"
                )

    try:
        with tqdm(total=len(games), unit="request", desc="judge") as bar:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(concurrency, len(games))):
                    group.create_task(work(bar))
    except* JudgeStoppedError as stopped:
        reason = stopped.exceptions[0]
    else:
        return
    raise reason
