"""A scripted judge behind /v1/chat/completions: verdicts by a rule, faults in a given order."""

import json
import threading
import zlib
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def verdict(body: dict) -> str:
    """Always the same for a prompt: a rating of 1 to 10, or a preference."""
    text = body["messages"][-1]["content"]
    number = zlib.crc32(text.encode())
    if "Assistant B" in text:
        return f"Compared. [[{'ABC'[number % 3]}]]"
    return f"Read. Rating: [[{number % 10 + 1}]]"


class ScriptedJudge(ThreadingHTTPServer):
    """
    Args:
        reply: from a request's body to the judge's words.
        faults: one a request until they are used up: "" (none), "broken" (no JSON), "text" (no
            JSON and says so), "empty" (no choices), "null" (no content), "stall", "close", or
            a status, with its Retry-After: "429 0.3".

    Attributes:
        requests: (body, authorization) of every request.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, reply: Callable[[dict], str] = verdict, faults: Iterable[str] = ()):
        super().__init__(("127.0.0.1", 0), Handler)
        self.reply, self.faults = reply, list(faults)
        self.requests: list[tuple[dict, str]] = []
        self.lock = threading.Lock()
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def texts(self) -> list[str]:
        """The user message of every request."""
        return [body["messages"][-1]["content"] for body, _ in self.requests]

    def __enter__(self) -> "ScriptedJudge":
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self.ended.set()
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_) -> None:
        pass

    def do_POST(self) -> None:
        server: ScriptedJudge = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.requests.append((body, self.headers["Authorization"]))
            fault, *wait = (server.faults.pop(0) if server.faults else "").split() or [""]
        if fault == "close":
            self.close_connection = True
        elif fault == "stall":
            server.ended.wait(10)
            self.close_connection = True
        elif fault == "broken":
            self.send(200, '{"choices": [{"mess')
        elif fault == "text":
            self.send(200, "<html>Bad gateway</html>", "text/html")
        elif fault.isdigit():
            # some endpoints repeat the key that was sent
            error = {"message": f"no luck with {self.headers['Authorization']}"}
            self.send(int(fault), json.dumps({"error": error}), wait=wait)
        else:
            message = {"role": "assistant", "content": server.reply(body)}
            if fault == "null":
                message["content"] = None
            completion = {
                "id": "x",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107},
            }
            if fault == "empty":
                completion["choices"] = []
            self.send(200, json.dumps(completion))

    def send(self, status: int, text: str, kind: str = "application/json", wait=()) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if wait:
            self.send_header("Retry-After", wait[0])
        self.end_headers()
        self.wfile.write(data)
