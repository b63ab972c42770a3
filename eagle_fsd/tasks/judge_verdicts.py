"""Asks a judge behind an OpenAI-compatible endpoint, and keeps every reply in a run folder.

openai's client retries what may pass (connection, time limit, 408, 409, 429, 500 and above) and
waits in between. Every other failure ends the judging; what has been answered is on disk.
"""

import json
import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

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


class JudgeEndpoint:
    """Asks one judge, from any thread. OPENAI_API_KEY is never shown or written.

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
        base_url = base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI
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
        self.described = {"model": model, "host": _host(base_url), "parameters": given}
        self.described["openai"] = openai.__version__
        self._client = openai.OpenAI(
            base_url=base_url, api_key=self._key, timeout=seconds, max_retries=retries
        )

    def ask(self, messages: list[dict[str, str]]) -> dict:
        """A reply: {reply, error: why the endpoint refused this prompt alone, or None, finish};
        BadInput where it cannot be reached, refuses such requests or gave no completion."""
        try:
            completion = self._client.chat.completions.create(
                model=self.described["model"],
                messages=messages,
                extra_body=self.described["parameters"],
            )
        except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
            # as where a filter takes offence
            return {"reply": "", "error": self._redact(error), "finish": None}
        except (openai.APIError, json.JSONDecodeError) as error:
            raise self._failed(error) from None
        choices = getattr(completion, "choices", None)  # it is a text where the reply was no JSON
        if not choices:
            raise self._failed(f"no chat completion but {completion}")
        # JSON may hold half a surrogate pair, which no file takes
        words = (choices[0].message.content or "").encode(errors="replace").decode()
        return {"reply": words, "error": None, "finish": choices[0].finish_reason}

    def _failed(self, said: object) -> BadInput:
        return BadInput(
            f"the judge at {self.described['host']} failed: {self._redact(said)}; see that it is "
            "up and OpenAI-compatible, that --base_url and --model are what it expects, and "
            "OPENAI_API_KEY its key"
        )

    def _redact(self, said: object) -> str:
        """Some endpoints repeat the key that was sent."""
        return str(said).replace(self._key, "[key]")[:400]


def _host(base_url: str) -> str:
    """Host and port, without credentials."""
    try:
        parts = urlsplit(base_url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts.netloc.rpartition("@")[2]
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
                    said = record["error"] or record["reply"]
                    raise BadInput(f"no verdict in {GIVE_UP} replies; the last: {said!r:.300}")
        finally:
            pool.shutdown(cancel_futures=True)
