"""`scripts/serve_vllm.sh` over HTTP: eight requests at once with four arms, bad arms, one more.

    python run_server.py TARGET HEAD OWN.json [tokens] [options of vllm serve]

OWN.json is of own_texts.py. Each answer must be this library's own; a bad arm gets a 400 with the
reason, and the server answers on. On a CPU its kernels are interpreted, as in run_engine.py.
"""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

SCRIPT = Path(__file__).parents[3] / "scripts" / "serve_vllm.sh"
PORT = int(os.environ.get("PORT", "8034"))
URL = f"http://127.0.0.1:{PORT}"
ARMS = (None, "ratio:1", "path:0.6", "fsd:0.35")
BAD = {
    "fsd:-1": "threshold must be 0 or above, got -1.0",
    "fds:0.3": "unknown rule 'fds'; known: exact, fsd",
    "path:0.6@eagle:15x4x6": "the drafter is the server's",
    "cactus:0.1": "vLLM cannot run cactus",
}


def ask(prompt: list[int], arm: object, tokens: int) -> tuple[int, dict]:
    """The status, and the body, of one completion."""
    body = {"prompt": prompt, "temperature": 0, "max_tokens": tokens, "return_token_ids": True}
    if arm is not None:
        body["vllm_xargs"] = {"arm": arm}
    headers = {"Content-Type": "application/json"}
    request = Request(f"{URL}/v1/completions", json.dumps(body).encode(), headers)
    try:
        with urlopen(request, timeout=3600) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


def wait_for(server: subprocess.Popen) -> None:
    while True:
        if server.poll() is not None:
            sys.exit(f"the server ended with {server.returncode}")
        try:
            urlopen(f"{URL}/health", timeout=5)
            return
        except (URLError, OSError):
            time.sleep(2)


def check(own: str, tokens: int) -> None:
    stored = json.loads(Path(own).read_text())
    prompts, wanted = stored["prompts"], stored["answers"]

    def is_own(turn: int, arm: str | None) -> bool:
        status, body = ask(prompts[turn], arm, tokens)
        assert status == 200, body
        return body["choices"][0]["token_ids"] == wanted[arm or "exact"][turn][:tokens]

    asked = [(turn, arm) for turn in range(2) for arm in ARMS]
    begin = time.perf_counter()
    with ThreadPoolExecutor(len(asked)) as pool:
        right = list(pool.map(lambda one: is_own(*one), asked))
    seconds = time.perf_counter() - begin
    print(
        f"{len(asked)} at once: own texts {sum(right)} of {len(right)}, {seconds:.0f} s", flush=True
    )
    for arm, why in {**BAD, 0.35: "arm must be a text"}.items():
        status, body = ask(prompts[0], arm, tokens)
        print(arm, status, body["error"]["message"], flush=True)
        assert status == 400 and why in body["error"]["message"]
    assert is_own(0, "ratio:1") and all(right)
    with urlopen(f"{URL}/metrics") as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("vllm:spec_decode_num") and "created" not in line:
                print(line)


if __name__ == "__main__":
    target, head, own, tokens, *options = [*sys.argv[1:4], *(sys.argv[4:] or ["8"])]
    command = ["bash", str(SCRIPT), target, head, "--port", str(PORT), *options]
    server = subprocess.Popen(command)
    try:
        wait_for(server)
        check(own, int(tokens))
    finally:
        server.terminate()
        server.wait(60)
