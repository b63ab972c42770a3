"""An EAGLE-3 head in llama.cpp's server beside this library's chain of the same head: texts, drafts
that were accepted, and tokens a second, both in float32.

    python extras/llama_chain.py --server build/bin/llama-server --target T.gguf --drafts H.gguf \
        --head HEAD --output runs/llama_chain.jsonl

The two files are what llama.cpp's convert_hf_to_gguf.py makes of the target's folder and, with
--target-model-dir, of the head's. Questions are MT-Bench's first turns, greedy; after each the
engines change their order. What is done is kept, a line a question.
"""

import argparse
import json
import subprocess
import time
import urllib.request
from functools import partial
from pathlib import Path

import torch
from tqdm import tqdm

import eagle_fsd
from eagle_fsd.evaluation.questions import read_questions
from eagle_fsd.stats import paired_ratio, rate_interval

DRAFTS = 4  # a round
PORT = 8077
OURS, PLAIN = "ours, exact", "ours, plain"


def serve(options: argparse.Namespace, port: int, *more: str) -> subprocess.Popen:
    """A server of the target, ready to be asked."""
    command = [
        options.server,
        "-m",
        options.target,
        "--port",
        str(port),
        "-t",
        str(options.threads),
    ]
    command += ["--ctx-size", "2048", "--parallel", "1", "--no-warmup", "-fa", "off", *more]
    command += ["--cache-type-k", "f32", "--cache-type-v", "f32"]
    log = Path(options.output).with_suffix(f".{port}.log").open("w")
    process = subprocess.Popen(command, stdout=log, stderr=log)
    for _ in range(300):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health")
            return process
        except OSError:
            time.sleep(0.2)
    process.kill()
    raise SystemExit(f"no answer of the server: see {log.name}")


def ask(port: int, prompt: list[int], tokens: int) -> dict:
    """Greedy token ids of the server, its rounds and its seconds behind the prompt."""
    body = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "top_k": 1, "seed": 0}
    body |= {"return_tokens": True, "cache_prompt": False, "repeat_penalty": 1.0}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/completion",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    answer = json.load(urllib.request.urlopen(request))
    times = answer["timings"]
    return {
        "tokens": answer["tokens"],
        "accepted": times.get("draft_n_accepted", 0),
        "seconds": times["predicted_ms"] / 1000,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("server", "target", "drafts", "head", "output"):
        parser.add_argument(f"--{name}", required=True)
    for name, number in (("questions", 16), ("tokens", 128), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=number)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    output = Path(options.output)
    lines = output.read_text().splitlines() if output.exists() else []
    done = {row["question"]: row for row in map(json.loads, lines)}
    model = eagle_fsd.load(dtype="float32", head=options.head)
    drafts = ["-md", options.drafts, "--spec-type", "draft-eagle3", "--spec-draft-n-max"]
    drafts += [str(DRAFTS), "--spec-draft-n-min", "0", "--spec-draft-p-min", "0"]
    drafts += ["--cache-type-k-draft", "f32", "--cache-type-v-draft", "f32"]
    servers = [serve(options, PORT, *drafts), serve(options, PORT + 1)]

    def own(arm: str, turn: str) -> dict:
        times = []  # behind prefill and every round; the server's time begins behind prefill too
        settings = {"arm": arm, "max_new_tokens": options.tokens}
        answer = eagle_fsd.generate(
            model, turn, **settings, watch=lambda _: times.append(time.perf_counter())
        )
        seconds = times[-1] - times[0]
        rounds, tokens = len(answer.rounds), len(answer.tokens)
        return {"tokens": answer.tokens, "accepted": tokens - 1 - rounds, "seconds": seconds}

    try:
        for number, question in enumerate(
            tqdm(read_questions("")[: options.questions], unit="question")
        ):
            if number in done:
                continue
            turn = question.turns[0]
            prompt = model.prompt_ids(turn)
            runs = {
                "llama.cpp, draft-eagle3": partial(ask, PORT, prompt, options.tokens),
                OURS: partial(own, f"exact@eagle:{DRAFTS}x{DRAFTS}x1", turn),
                "llama.cpp, plain": partial(ask, PORT + 1, prompt, options.tokens),
                PLAIN: partial(own, "plain", turn),
            }
            order = [*runs][:: 1 if number % 2 else -1]
            row = {"question": number} | {name: runs[name]() for name in order}
            done[number] = row
            with output.open("a") as file:
                file.write(json.dumps(row) + "\n")
    finally:
        for server in servers:
            server.kill()
    report([done[number] for number in sorted(done)])


def report(rows: list[dict]) -> None:
    """A line an engine: its rounds and texts beside ours, and its tokens a second over plain's."""

    def spread(found: dict) -> str:
        bounds = [f"{found[end]:.2f}" for end in ("low", "high") if found[end] is not None]
        return f"{found['value']:.2f}" + (f" [{', '.join(bounds)}]" if bounds else "")

    for name in [name for name in rows[0] if name != "question"]:
        drafted = [row[name] for row in rows]
        counts = [(len(each["tokens"]) - 1, each["seconds"]) for each in drafted]
        rounds = [(n, n - each["accepted"]) for each, (n, _) in zip(drafted, counts, strict=True)]
        base = [(len(row[PLAIN]["tokens"]) - 1, row[PLAIN]["seconds"]) for row in rows]
        texts = sum(row[name]["tokens"] == row[PLAIN]["tokens"] for row in rows)
        alike = sum(row[name]["accepted"] == row[OURS]["accepted"] for row in rows)
        rate = sum(n for n, _ in counts) / sum(seconds for _, seconds in counts)
        print(
            f"{name}: tokens a round {spread(rate_interval(rounds))}; of {len(rows)} answers with "
            f"{PLAIN}'s text {texts}, with as many accepted drafts as {OURS} {alike}; tokens a "
            f"second {rate:.1f}, over {PLAIN}'s {spread(paired_ratio(counts, base))}"
        )


if __name__ == "__main__":
    main()
