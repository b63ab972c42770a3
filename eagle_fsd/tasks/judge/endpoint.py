"""One request to an OpenAI-compatible endpoint, with its retries. Nothing here reads a verdict."""

import asyncio
import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import openai
from openai.types.chat import ChatCompletion

from eagle_fsd.tasks.judge.judge_prompts import Messages

TEMPERATURE = 0  # FastChat's, as is 2048 for max_tokens
HOPELESS = (401, 402, 403, 404)  # no request of the same kind can succeed
TRANSIENT = (408, 409, 425, 429)  # and all of 500 and above
LONGEST_BACKOFF = 60.0  # seconds
LONGEST_WAIT = 300.0  # seconds that Retry-After may ask for


class JudgeStoppedError(Exception):
    """Asking on makes no sense; the message says why, without the key."""


@dataclass(frozen=True)
class Reply:
    """What came back.

    Attributes:
        text: the judge's words; empty where it refused this prompt.
        error: its reason for refusing this prompt; None if it answered.
        finish: "stop", "length" or what else the endpoint says; None if it says nothing.
    """

    text: str
    error: str | None
    finish: str | None
    prompt_tokens: int
    completion_tokens: int
    seconds: float


class MalformedReplyError(ValueError):
    """A response that is no chat completion."""


def check_base_url(base_url: str) -> str:
    """Host and port, without credentials.

    Raises:
        ValueError: no http address.
    """
    try:
        parts = urlsplit(base_url)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError(
            f"OPENAI_BASE_URL names no endpoint on {host or 'any host'}: give one such as "
            "http://localhost:8000/v1"
        )
    return f"{host}:{port}" if port else host


def check_key(key: str) -> None:
    """Raises ValueError for a key that is missing or that no header can carry; never shows it."""
    if not key:
        raise ValueError(
            "OPENAI_API_KEY is not set: export the endpoint's key (for a local server any word)"
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError("OPENAI_API_KEY holds a space, a line end or a character beyond ASCII")


class Endpoint:
    """Asks one judge. Make and use it within one event loop.

    Args:
        max_tokens: budget of a reply.
        seconds: time limit of a request, from sending to the last byte.
        retries: further attempts after one that failed for a passing reason: rate limit, server
            error, time limit, connection, a response that is no completion.
        first_wait: seconds before the first retry; doubled each time, with jitter. Retry-After is
            waited out instead where the endpoint gives one.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str,
        key: str,
        max_tokens: int,
        seconds: float,
        retries: int,
        first_wait: float,
    ):
        # retried here, not by the client, which gives up on what is no JSON
        self._client = openai.AsyncOpenAI(
            base_url=base_url, api_key=key, timeout=seconds, max_retries=0
        )
        self._key = key
        self._model, self._max_tokens = model, max_tokens
        self._seconds, self._retries, self._first_wait = seconds, retries, first_wait

    async def __aenter__(self) -> "Endpoint":
        return self

    async def __aexit__(self, *_) -> None:
        await self._client.close()

    async def ask(self, messages: Messages) -> Reply:
        """The judge's reply.

        Raises:
            JudgeStoppedError: the endpoint refuses all such requests, asks for too long a wait,
                or failed in every attempt.
        """
        for attempt in range(self._retries + 1):
            wait = None
            try:
                return await self._request(messages)
            except openai.APIStatusError as error:
                reason = f"HTTP {error.status_code}: {self._server_message(error)}"
                quota = error.code == "insufficient_quota"
                if error.status_code in HOPELESS or quota:
                    raise JudgeStoppedError(f"the judge refuses ({reason})") from None
                if error.status_code < 500 and error.status_code not in TRANSIENT:
                    return Reply("", reason, None, 0, 0, 0.0)
                wait = retry_after(error.response.headers.get("retry-after"))
            except TimeoutError:
                reason = f"no reply within {self._seconds:g} s"
            except (openai.APIConnectionError, ValueError) as error:  # ValueError: broken JSON
                reason = self._redact(f"{error} {error.__cause__ or ''}".strip())
            if wait is not None and wait > LONGEST_WAIT:
                raise JudgeStoppedError(f"the judge asks to wait {wait:.0f} s ({reason})")
            if attempt < self._retries:
                await asyncio.sleep(backoff(attempt, self._first_wait, wait))
        raise JudgeStoppedError(
            f"the judge did not answer in {self._retries + 1} attempts; the last: {reason}"
        )

    async def _request(self, messages: Messages) -> Reply:
        began = time.monotonic()
        # the client's own limit is for each read, which a trickling server never exceeds
        async with asyncio.timeout(self._seconds):
            completion = await self._client.chat.completions.create(
                model=self._model,
                messages=messages,
                temperature=TEMPERATURE,
                max_tokens=self._max_tokens,
                n=1,
            )
        return read_completion(completion, time.monotonic() - began)

    def _server_message(self, error: openai.APIStatusError) -> str:
        body = error.body
        words = body.get("message") or body.get("detail") if isinstance(body, dict) else None
        return self._redact(str(words or error.message))

    def _redact(self, words: str) -> str:
        return words.replace(self._key, "[key]")[:400]


def read_completion(completion: ChatCompletion | str, seconds: float) -> Reply:
    """The first choice of a completion; no content is an empty text.

    Raises:
        MalformedReplyError: there is no choice with a message (the client does not check).
    """
    choices = getattr(completion, "choices", None)
    first = choices[0] if isinstance(choices, list) and choices else None
    message = getattr(first, "message", None)
    content = getattr(message, "content", None)
    if message is None or not isinstance(content, str | None):
        raise MalformedReplyError(f"the response is no chat completion: {completion!r:.200}")
    usage = getattr(completion, "usage", None)
    return Reply(
        (content or "").encode(errors="replace").decode(),  # JSON may hold half a surrogate pair
        None,
        first.finish_reason,
        getattr(usage, "prompt_tokens", None) or 0,
        getattr(usage, "completion_tokens", None) or 0,
        seconds,
    )


def retry_after(header: str | None) -> float | None:
    """Seconds of a Retry-After header, given as such or as a date; None if it says nothing."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(header)
    except ValueError:
        return None
    zoned = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (zoned - datetime.now(UTC)).total_seconds())


def backoff(attempt: int, first_wait: float, wait: float | None) -> float:
    """Seconds before retry `attempt` (from 0): half to all of first_wait 2^attempt, at most a
    minute; or a given wait, and a little more, so that not all come back at once."""
    own = min(LONGEST_BACKOFF, first_wait * 2**attempt) * random.uniform(0.5, 1)
    return own if wait is None else wait + random.uniform(0, first_wait)
