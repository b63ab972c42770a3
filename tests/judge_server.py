"""A scripted judge behind /v1/chat/completions: verdicts by a rule, faults in a given order."""

import json
import threading
import time
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


BODIES = {
    "broken": '{"choices": [{"mess',
    "text": "<html>Bad gateway</html>",
    "empty": '{"choices": []}',
    "null": '{"choices": [{"message": {"content": null}, "finish_reason": "stop"}]}',
}


class ScriptedJudge(ThreadingHTTPServer):
    """
    Args:
        reply: from a request's body to the judge's words.
        faults: one a request until they are used up: "" (none), a name of BODIES, "stall",
            "close", or a status, with its Retry-After: "429 0.3".

    Attributes:
        requests: (body, authorization) of every request.
        paths: what each was asked under, with its query.
        finish: why a reply ends, which a test may set.
    """

    def __init__(self, reply: Callable[[dict], str] = verdict, faults: Iterable[str] = ()):
        super().__init__(("127.0.0.1", 0), Handler)
        self.reply, self.faults = reply, iter(faults)
        self.requests: list[tuple[dict, str]] = []
        self.paths: list[str] = []
        self.finish = "stop"
        self.url = f"http://127.0.0.1:{self.server_port}/v1"

    def texts(self) -> list[str]:
        """The user message of every request."""
        return [body["messages"][-1]["content"] for body, _ in self.requests]

    def __enter__(self) -> "ScriptedJudge":
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers["Authorization"]
        self.server.requests.append((body, key))
        self.server.paths.append(self.path)
        fault = next(self.server.faults, "")
        if fault in ("close", "stall"):
            time.sleep(1 if fault == "stall" else 0)
            self.close_connection = True
        elif fault[:1].isdigit():  # some endpoints repeat the key that was sent
            self.send(fault, json.dumps({"error": {"message": f"no luck with {key}"}}))
        elif fault:
            self.send("200", BODIES[fault])
        else:
            message = {"role": "assistant", "content": self.server.reply(body)}
            choice = {"index": 0, "message": message, "finish_reason": self.server.finish}
            self.send("200", json.dumps({"choices": [choice]}))

    def send(self, how: str, text: str) -> None:
        status, *wait = how.split()
        self.send_response(int(status))
        self.send_header("Content-Type", "text/html" if text[0] == "<" else "application/json")
        self.send_header("Content-Length", str(len(text.encode())))
        for seconds in wait:
            self.send_header("Retry-After", seconds)
        self.end_headers()
        self.wfile.write(text.encode())
