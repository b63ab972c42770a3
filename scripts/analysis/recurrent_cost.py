"""What draft trees over recurrent layers cost: time and memory of verification, of the fold of a
path into the states beside its replay by transformers' own steps, and of reading a long prompt.

    python scripts/analysis/recurrent_cost.py                  # minutes, and 8 GB of memory

The model has random weights near the shape of Qwen3.5-0.8B. The prompt is read in a process of its
own for each side, since a process's highest use of memory is kept for its life.
"""

import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

import psutil
import torch
from transformers import DynamicCache, Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_recurrent_gated_delta_rule

from eagle_fsd.cli import option, run_command
from eagle_fsd.config import BadInput
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.engine.packed import Packed
from eagle_fsd.models.random_weights import random_model
from eagle_fsd.recurrent.scans import delta_rule

CONFIG = {
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}


@dataclass
class CostOptions:
    what: str = option("all", "all, or one of verify, fold, prompt; ours and theirs read a prompt.")
    context: int = option(500, "Tokens before the trees that are verified.")
    prompt: int = option(4000, "Tokens of the long prompt.")
    repeats: int = option(9, "Verifications of each width, by turns.")


def model():
    return random_model(Qwen3_5TextConfig(**CONFIG), dtype=torch.float32, device="cpu")


def tree_of(nodes: int) -> DraftTree:
    """Five children of the root, and five of the first node of each level."""
    parents = [0] + [5 * ((node - 1) // 5 - 1) + 1 if node > 5 else 0 for node in range(1, nodes)]
    return DraftTree.from_parents(list(range(7, 7 + nodes)), parents)


@torch.inference_mode()
def verify(options: CostOptions) -> None:
    target = Target(model(), engine=Packed(), keep_stock=False)
    target.start(options.context + 200)
    target.prefill(torch.arange(options.context) * 7 % 30011)
    states = target._sequence.cache.state_bytes
    times, kept = {}, {}
    for repeat in range(options.repeats + 1):
        for nodes in (1, 6, 16, 60):
            tree = tree_of(nodes)
            begin = time.perf_counter()
            target.verify(tree)
            if repeat:  # the first warms up
                times.setdefault(nodes, []).append(1e3 * (time.perf_counter() - begin))
            kept[nodes] = target._sequence.cache.stash_bytes
            target._sequence.cache.keep_path(target.cache_length, torch.tensor([0]))
            target._sequence.cache.length = target.cache_length
    one = statistics.median(times[1])
    print(f"states: {states / 1e6:.1f} MB")
    for nodes, each in times.items():
        median = statistics.median(each)
        print(
            f"{nodes} nodes: {median:.1f} ms ({min(each):.1f}), {median / one:.2f} of one; kept "
            f"{kept[nodes] / 1e6:.1f} MB; a copy of the states a node {nodes * states / 1e6:.0f} MB"
        )


@torch.inference_mode()
def fold(options: CostOptions) -> None:
    """One layer's shape; errors against float64."""
    torch.manual_seed(0)
    heads, size = CONFIG["linear_num_value_heads"], CONFIG["linear_key_head_dim"]
    tree, path = tree_of(60), torch.tensor([0, 1, 6, 11, 16])
    errors, times = {"fold": [], "replay": []}, {"fold": [], "replay": []}
    for _ in range(40):
        shapes = {"query": 3, "key": 3, "value": 3, "g": 1, "beta": 1}
        given = {name: torch.randn(1, 60, heads, size) for name, n in shapes.items() if n == 3}
        given |= {"g": -torch.rand(1, 60, heads), "beta": torch.rand(1, 60, heads)}
        state = torch.randn(1, heads, size, size)
        more = {"use_qk_l2norm_in_kernel": True, "initial_state": state}
        _, stash = delta_rule(**given, **more, ancestor_NN=tree.ancestor_NN)
        part = {name: x[:, path] for name, x in given.items()}
        exact = {name: x.double() for name, x in part.items()} | {"initial_state": state.double()}
        exact["use_qk_l2norm_in_kernel"], exact["output_final_state"] = True, True
        want = recurrence(**exact)
        begin = time.perf_counter()
        folded = stash.folded(state, path)
        between = time.perf_counter()
        _, replayed = torch_recurrent_gated_delta_rule(**part, **more, output_final_state=True)
        end = time.perf_counter()
        for name, got, seconds in (
            ("fold", folded, between - begin),
            ("replay", replayed, end - between),
        ):
            errors[name].append((got - want).abs().max().item())
            times[name].append(1e3 * seconds)
    for name in errors:
        print(
            f"{name}: largest error {max(errors[name]):.1e} of states of size 1, "
            f"{statistics.median(times[name]):.2f} ms a layer for a path of 5 nodes"
        )


def recurrence(query, key, value, g, beta, initial_state, **_) -> torch.Tensor:
    """The state behind these tokens, in their own precision."""
    key = key * torch.rsqrt(key.square().sum(-1, keepdim=True) + 1e-6)
    state = initial_state
    for i in range(key.shape[1]):
        k, v = key[:, i, :, :, None], value[:, i, :, None]
        state = state * g[:, i, :, None, None].exp()
        state = state + k * (beta[:, i, :, None, None] * (v - (state * k).sum(-2, keepdim=True)))
    return state


@torch.inference_mode()
def read(options: CostOptions) -> None:
    """A long prompt, by our cache (stock engine) or by transformers' own."""
    stock, ids = model(), torch.arange(options.prompt) * 7 % 30011
    process, forward = psutil.Process(), None
    if options.what == "ours":
        target = Target(stock)
        target.start(options.prompt + 200)
        forward = lambda: target.prefill(ids)  # noqa: E731
    else:
        cache = DynamicCache(config=stock.config)
        forward = lambda: stock(ids[None], past_key_values=cache, logits_to_keep=1)  # noqa: E731
    before, begin = process.memory_info().rss, time.process_time()
    forward()
    print(json.dumps([time.process_time() - begin, highest() - before]))


def highest() -> int:
    """Bytes that this process has held at most."""
    import resource

    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def prompt(options: CostOptions) -> None:
    found = {"ours": [], "theirs": []}
    for side in ("ours", "theirs", "theirs", "ours"):
        command = [sys.executable, __file__, "--what", side, "--prompt", str(options.prompt)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found[side].append(json.loads(output.splitlines()[-1]))
    for side, rows in found.items():
        seconds = ", ".join(f"{row[0]:.1f}" for row in rows)
        memory = ", ".join(f"{row[1] / 2**20:.0f}" for row in rows)
        print(f"{options.prompt} tokens, {side}: {seconds} CPU seconds; {memory} MiB on top")


PARTS = {"verify": verify, "fold": fold, "prompt": prompt}


def measure(options: CostOptions) -> None:
    if options.what in ("ours", "theirs"):
        return read(options)
    if options.what not in ("all", *PARTS):
        raise BadInput(f"--what must be all, verify, fold or prompt, got {options.what!r}")
    for name, part in PARTS.items():
        if options.what in ("all", name):
            part(options)


if __name__ == "__main__":
    run_command(measure, [CostOptions])
