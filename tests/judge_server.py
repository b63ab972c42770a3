"""A judge behind an OpenAI-compatible endpoint on this machine."""

import json
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def rating(body: dict) -> str:
    """Always the same for a prompt."""
    return f"Read. Rating: [[{zlib.crc32(body['messages'][-1]['content'].encode()) % 10 + 1}]]"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        self.server.keys.add(self.headers["Authorization"])
        status = self.server.faults.pop(0) if self.server.faults else 200
        refusal = self.server.refusal(body)
        status = 400 if refusal else status
        text = json.dumps({"error": {"message": refusal or "no luck"}})
        if status == 200 and self.server.reply is None:
            text = json.dumps({"page": "Welcome"})
        elif status == 200:
            message = {"role": "assistant", "content": self.server.reply(body)}
            text = json.dumps({"choices": [{"index": 0, "message": message}]})
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Retry-After", "0.1")
        self.end_headers()
        self.wfile.write(text.encode())


@contextmanager
def serving() -> Iterator[ThreadingHTTPServer]:
    """A server that answers by its `reply`, by None no judge's, after the statuses in `faults`, and
    with 400 what `refusal` has a word on; `bodies` is what it was asked."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.refusal = lambda body: ""
    server.reply, server.faults, server.bodies, server.keys = rating, [], [], set()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()
