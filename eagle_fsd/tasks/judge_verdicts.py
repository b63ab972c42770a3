"""Asks a judge behind an OpenAI-compatible endpoint, and keeps every reply in a run folder.

openai's client retries what may pass (connection, time limit, 408, 409, 429, 500 and above) and
waits in between. Every other failure ends the judging; what has been answered is on disk.
"""

import base64
import json
import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import (
    SplitResult,
    parse_qsl,
    quote,
    quote_plus,
    unquote,
    unquote_plus,
    urlsplit,
    urlunsplit,
)

from tqdm import tqdm

from eagle_fsd.cli import step_of_setup
from eagle_fsd.config import BadInput
from eagle_fsd.runs.folder import Run
from eagle_fsd.tasks.judge_protocol import parse_verdict

with step_of_setup("tasks"):
    import openai

OPENAI = "https://api.openai.com/v1"  # where no other address is given
PARAMETERS = {"temperature": 0, "max_tokens": 2048}  # FastChat's
GIVE_UP = 20  # replies from the start without one verdict
KEY_LENGTH = 8  # a shorter word in a judge's reply is no key ("none", a version)


class JudgeEndpoint:
    """Asks one judge, from any thread. OPENAI_API_KEY, and the user, the password and the query of
    base_url, are never shown or written.

    Args:
        seconds, retries: time limit of an attempt, and how many follow a failed one.
        parameters: a JSON object, goes before PARAMETERS; null leaves a parameter out.

    Attributes:
        described: for the record, without credentials.
    """

    def __init__(self, model: str, *, base_url: str, seconds: float, retries: int, parameters: str):
        self._key = os.environ.get("OPENAI_API_KEY", "")
        if not self._key.isascii() or not self._key.isprintable() or len(self._key.split()) != 1:
            raise BadInput(
                "OPENAI_API_KEY is not set, or holds a space, a line end or a character beyond "
                "ASCII: export the endpoint's key (for a local server any word)"
            )
        address = _address(base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI)
        query = dict(parse_qsl(address.query, keep_blank_values=True))
        self._secrets = _secrets(self._key, address)
        try:
            given = PARAMETERS | json.loads(parameters)
            if given.keys() & {"model", "messages", "stream"}:
                raise ValueError("they are ours")
        except (TypeError, ValueError) as error:
            raise BadInput(
                f"--parameters {parameters} ({error}): give a JSON object of what the endpoint "
                "takes beside model and messages, such as "
                '\'{"temperature": null, "max_completion_tokens": 4096}\''
            ) from None
        given = {name: value for name, value in given.items() if value is not None}
        host = address.netloc.rpartition("@")[2]
        self.described = {"model": model, "host": host, "parameters": given}
        self.described["openai"] = openai.__version__
        self._client = openai.OpenAI(
            base_url=urlunsplit(address._replace(query="", fragment="")),
            default_query=query,  # which it would lose as a part of the address
            api_key=self._key,
            timeout=seconds,
            max_retries=retries,
        )

    def ask(self, messages: list[dict[str, str]]) -> dict:
        """A reply: {reply, error: why the endpoint refused this prompt alone, or None, finish}, in
        which a key that is repeated is replaced; BadInput where the endpoint cannot be reached,
        refuses such requests or gave no completion."""
        try:
            completion = self._client.chat.completions.create(
                model=self.described["model"],
                messages=messages,
                extra_body=self.described["parameters"],
            )
        except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
            # as where a filter takes offence
            return {"reply": "", "error": self._redact(error)[:400], "finish": None}
        except (openai.APIError, json.JSONDecodeError) as error:
            raise self._failed(error) from None
        choices = getattr(completion, "choices", None)  # it is a text where the reply was no JSON
        if not choices:
            raise self._failed(f"no chat completion but {completion}")
        reply = self._redact(choices[0].message.content or "", least=KEY_LENGTH)
        finish = choices[0].finish_reason
        finish = None if finish is None else self._redact(finish, least=KEY_LENGTH)
        return {"reply": reply, "error": None, "finish": finish}

    def _failed(self, reply: object) -> BadInput:
        return BadInput(
            f"the judge at {self.described['host']} failed: {self._redact(reply)[:400]}; see that "
            "it is up and OpenAI-compatible, that --base_url and --model are what it expects, and "
            "OPENAI_API_KEY its key"
        )

    def _redact(self, reply: object, least: int = 1) -> str:
        """Without the secrets of at least `least` characters: some endpoints repeat what was sent,
        and so may a judge, whose own words may hold a short one by chance."""
        # JSON may hold half a surrogate pair, which no file takes
        text = str(reply).encode(errors="replace").decode()
        for secret in self._secrets:
            if len(secret) >= least:
                text = text.replace(secret, "[key]")
        return text


def _secrets(key: str, address: SplitResult) -> list[str]:
    """What is not to be shown, the longest first: also as it stands in an address, and in the
    header that is made of user and password. In a query a plus is a space to some, and to others
    a plus."""
    user, password = unquote(address.username or ""), unquote(address.password or "")
    pairs = [piece.partition("=") for piece in address.query.split("&")]
    asked = [value or name for name, _, value in pairs]
    words = {key, user, password, *map(unquote, asked), *map(unquote_plus, asked)}
    words |= {write(word, safe="") for word in words for write in (quote, quote_plus)}
    words |= {address.username, address.password, *asked}
    words.add(base64.b64encode(f"{user}:{password}".encode()).decode())
    return sorted(filter(None, words), key=len, reverse=True)


def _address(base_url: str) -> SplitResult:
    try:
        parts = urlsplit(base_url)
        whole = parts.hostname and parts.port != 0 and len(base_url.split()) == 1
        if parts.scheme in ("http", "https") and whole:
            return parts
    except ValueError:  # no port number; the text may hold a password
        pass
    raise BadInput(
        "--base_url (or OPENAI_BASE_URL) is no http address: give one such as "
        "http://localhost:8000/v1"
    )


def judge_all(
    endpoint: JudgeEndpoint, requests: list[dict], verdicts: Run, name: str, *, concurrency: int
) -> None:
    """Ask, several at a time, and add a record a reply: the request without its messages, what
    JudgeEndpoint.ask gives, verdict (see parse_verdict) and time.

    The first failure, or GIVE_UP, ends it with BadInput once what is under way is on disk.
    """

    def judge(request: dict) -> dict:
        record = request | endpoint.ask(request["messages"])
        del record["messages"]
        pairwise = record["baseline"] is not None
        record["verdict"] = parse_verdict(record["reply"], pairwise=pairwise)
        verdicts.add(name, record | {"time": time.time()})
        return record

    silent = 0.0
    with ThreadPoolExecutor(concurrency) as pool:
        replies = pool.map(judge, requests)
        try:
            for record in tqdm(replies, total=len(requests), unit="request", desc="judge"):
                # one verdict proves that the judge can
                silent = silent + 1 if record["verdict"] is None else -math.inf
                if silent == GIVE_UP:
                    last = record["error"] or record["reply"]
                    raise BadInput(f"no verdict in {GIVE_UP} replies; the last: {last!r:.300}")
        finally:
            pool.shutdown(cancel_futures=True)
