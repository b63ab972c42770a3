"""The verdicts of one judge: asked of an OpenAI-compatible endpoint, kept in one file.

openai's client retries what may pass (connection, time limit, 408, 409, 429, 500 and above) and
waits in between. Every other failure ends the judging; what has been answered is on disk.
"""

import fcntl
import json
import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

import openai
from tqdm import tqdm

from eagle_fsd.config import BadInput
from eagle_fsd.runs.jsonl import append_line, read_lines
from eagle_fsd.tasks.judge_protocol import JudgeRequest, parse_verdict

OPENAI = "https://api.openai.com/v1"
PARAMETERS = {"temperature": 0, "max_tokens": 2048}  # FastChat's
REMEDIES = {
    401: "export the endpoint's key as OPENAI_API_KEY",
    404: "name the judge with --model as the endpoint does, and its address with --base_url",
    429: "wait, lower --concurrency, or see to the account",
}


class VerdictFile:
    """What a judge replied, a line a request, appended as it comes: {question_id, category, choice,
    turn, arm, baseline, game, prompt, digest: of the request, model, host, parameters, reply,
    error: why the endpoint refused this prompt, or null, finish, verdict: see parse_verdict, time}.
    """

    def __init__(self, path: Path):
        self.path = path
        self._lines: dict[str, dict] = {}  # by digest
        self._writing = threading.Lock()

    @contextmanager
    def opened(self) -> Iterator["VerdictFile"]:
        """Read what there is, cutting off a torn last line; no other process may judge meanwhile.

        Raises:
            BadInput: another process does, the file is damaged or cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = self.path.open("ab")
        except OSError as error:
            raise BadInput(f"cannot write to {self.path} ({error})") from error
        with lock:  # a kill releases it too
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                told = f"another process is judging into {self.path}: wait for its end"
                raise BadInput(told) from None
            self._lines = {line["digest"]: line for line in read_lines(self.path, repair=True)}
            yield self

    def line(self, request: JudgeRequest) -> dict | None:
        """The last reply to this very request."""
        return self._lines.get(request.digest)

    def unasked(self, requests: list[JudgeRequest], *, again: bool) -> list[JudgeRequest]:
        """Those without a reply; `again`: those without a verdict too."""
        lines = [(request, self.line(request)) for request in requests]
        return [r for r, line in lines if not line or (again and line["verdict"] is None)]

    def progress(self, requests: list[JudgeRequest]) -> str:
        """How many verdicts there are, and replies without one, in words."""
        lines = [line for request in requests if (line := self.line(request))]
        silent = sum(line["verdict"] is None for line in lines)
        text = f"{len(lines) - silent} of {len(requests)} verdicts are in {self.path}"
        told = f"; {silent} replies held no verdict, --retry_unparsed asks them again"
        return text + (told if silent else "")

    def add(self, request: JudgeRequest, reply: dict) -> dict:
        """Append a reply from JudgeEndpoint.ask; it is on disk when this returns."""
        what = asdict(request) | {"digest": request.digest}
        del what["messages"]
        verdict = parse_verdict(reply["reply"], pairwise=request.baseline is not None)
        line = what | reply | {"verdict": verdict, "time": time.time()}
        with self._writing:
            append_line(self.path, line)
            self._lines[request.digest] = line
        return line


class JudgeEndpoint:
    """Asks one judge; safe to use from several threads.

    Args:
        base_url: address of the API, such as http://localhost:8000/v1.
        key: never shown or written.
        seconds, retries: time limit of an attempt, and how many follow a failed one.
        parameters: a JSON object, goes before PARAMETERS; null leaves a parameter out.

    Raises:
        BadInput: the address, the key or the parameters cannot be used.
    """

    def __init__(
        self, model: str, *, base_url: str, key: str, seconds: float, retries: int, parameters: str
    ):
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise BadInput(
                "OPENAI_API_KEY is not set, or holds a space, a line end or a character beyond "
                "ASCII: export the endpoint's key (for a local server any word)"
            )
        self.host = _host(base_url)
        given = PARAMETERS | _json_object(parameters)
        parameters = {name: value for name, value in given.items() if value is not None}
        self._asked = {"model": model, "host": self.host, "parameters": parameters}
        self._key = key
        self._client = openai.OpenAI(
            base_url=base_url, api_key=key, timeout=seconds, max_retries=retries
        )

    def ask(self, request: JudgeRequest) -> dict:
        """The judge's words, as VerdictFile.add takes them.

        Raises:
            BadInput: the endpoint cannot be reached, refuses such requests or gave no completion.
        """
        try:
            completion = self._client.chat.completions.create(
                model=self._asked["model"],
                messages=request.messages,
                extra_body=self._asked["parameters"],
            )
        except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
            # of this prompt alone, as where a filter takes offence
            return self._asked | {"reply": "", "error": self._redact(error), "finish": None}
        except openai.APIError as error:
            remedy = REMEDIES.get(getattr(error, "status_code", 0), "see that it is up")
            told = f"the judge at {self.host} failed: {self._redact(error)}; {remedy}"
            raise BadInput(told) from None
        except json.JSONDecodeError as error:
            completion = f"broken JSON ({error})"
        choices = getattr(completion, "choices", None)
        if not choices:
            raise BadInput(
                f"{self.host} sent no chat completion but {self._redact(completion)}: --base_url "
                "must name an OpenAI-compatible API, such as http://localhost:8000/v1"
            )
        # JSON may hold half a surrogate pair, which no file takes
        words = (choices[0].message.content or "").encode(errors="replace").decode()
        return self._asked | {"reply": words, "error": None, "finish": choices[0].finish_reason}

    def _redact(self, said: object) -> str:
        """Some endpoints repeat the key that was sent."""
        return str(said).replace(self._key, "[key]")[:400]


def _host(base_url: str) -> str:
    """Host and port, without credentials."""
    try:
        parts = urlsplit(base_url)
        if parts.scheme in ("http", "https") and parts.hostname:
            return f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname
    except ValueError:  # no port number; the text may hold a password
        pass
    raise BadInput(
        "--base_url (or OPENAI_BASE_URL) is no http address: give one such as "
        "http://localhost:8000/v1"
    )


def _json_object(text: str) -> dict:
    try:
        given = json.loads(text)
    except json.JSONDecodeError:
        given = None
    if not isinstance(given, dict) or {"model", "messages", "stream"} & set(given):
        raise BadInput(
            f"--parameters {text}: give a JSON object of what the endpoint takes beside model and "
            'messages, such as \'{"temperature": null, "max_completion_tokens": 4096}\''
        )
    return given


def ask_all(
    endpoint: JudgeEndpoint,
    requests: list[JudgeRequest],
    verdicts: VerdictFile,
    *,
    concurrency: int,
    give_up: int,
) -> None:
    """Ask, several at a time; the first failure ends it once those under way are on disk.

    Args:
        give_up: replies from the start without one verdict after which to stop.

    Raises:
        BadInput: see JudgeEndpoint.ask; or no verdict came.
    """

    def judge(request: JudgeRequest) -> dict:
        return verdicts.add(request, endpoint.ask(request))

    waiting, under_way, silent = deque(requests), set(), 0.0
    with (
        tqdm(total=len(requests), unit="request", desc="judge") as bar,
        ThreadPoolExecutor(concurrency) as pool,
    ):
        while waiting or under_way:
            while waiting and len(under_way) < concurrency:
                under_way.add(pool.submit(judge, waiting.popleft()))
            done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            for line in [future.result() for future in done]:
                bar.update()
                # one verdict proves that the judge can
                silent = silent + 1 if line["verdict"] is None else -math.inf
                if silent >= give_up:
                    said = line["error"] or line["reply"]
                    raise BadInput(f"no verdict in {silent:.0f} replies; the last: {said!r:.300}")
