"""The draft tree that is fastest on this machine: measured costs times what every tree accepts.

    tokens/s = E[tokens per round] / (propose + verify + settle)

Costs are single forwards (forwards.py), by width of the verification and by levels of the draft.
Acceptance comes from a replay (drafters/growth.py): calibration prompts are answered by the plain
loop, and below every token of the answers trees of all sizes are grown at once; what each accepts
of the text is what real greedy decoding by the exact rule accepts with it.

So the tree is chosen by the exact rule, whatever rule will use it: by tokens/s under a loose rule a
chain wins, whose fuzzy share is far higher at the same T. For `fsd` the choice holds more: a tree
is refused whose share of fuzzy tokens, predicted to first order (walks that end where D passes),
exceeds that of the default tree by more than `hold_fuzzy_share`. Sampling is not looked at.

Axes: B roots, L tokens of a text, S levels.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from tqdm import tqdm

from eagle_fsd.api import default_tree
from eagle_fsd.config import BadInput, TreeConfig, tree_name
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.drafter import RootDrafter
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode
from eagle_fsd.decoding.rule import Rule
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.drafters.growth import HeadOnText, grow
from eagle_fsd.drafters.pool import visited_roots
from eagle_fsd.evaluation.offline.levels import judge_levels
from eagle_fsd.evaluation.offline.replay import walk_fsd
from eagle_fsd.models.assets import cache_dir
from eagle_fsd.models.loaded import Model
from eagle_fsd.rules.fsd import Exact, Fsd
from eagle_fsd.runs.jsonl import write_json
from eagle_fsd.runs.provenance import describe_device, weights_digest
from eagle_fsd.speed.forwards import WIDTHS, ForwardProbes, in_turn, rows_needed

DRAFTS = (*range(1, 17), 19, 23, 27, 31, 39, 47, 59)
LEVELS = 8
BRANCHES = (1, 2, 3, 4, 6, 8, 10)
# A tree with more drafts a level than this is never the best, and would have to be verified.
DRAFTS_PER_LEVEL = 12
REPEATS, CONTEXT = 7, 200  # of the costs
# None is from a test set, so that nothing is chosen on what it is measured by.
PROMPTS = (
    "Explain to a twelve-year-old why the moon seems to change its shape during a month.",
    "List eight things to check before a long bicycle trip, with half a sentence on each.",
    "Write a Python function that counts how often each word occurs in a text file, ignoring "
    "case, and prints the ten most frequent words.",
    "A shop sells pens at 3 for 2 euros and notebooks at 4 euros each. How much do 12 pens and "
    "5 notebooks cost together? Show the steps.",
    "Tell a short story about a lighthouse keeper who finds a letter in a bottle.",
    "Rewrite this more politely: You sent me the wrong parts again. I want my money back today, "
    "and I will never buy anything from you again.",
    "Compare trains and buses for travel between two cities. Which would you choose, and why?",
)
Curve = list[list[float]]  # [point, milliseconds], by rising point


@dataclass(frozen=True)
class Candidate:
    """What is expected of a tree.

    Attributes:
        tokens_per_round: under the exact rule, the next token included.
        fuzzy_share: predicted for rule fsd; None for others.
        propose, verify, settle: milliseconds a round.
        speedup: tokens a second over those of plain decoding.
        held: it keeps to hold_fuzzy_share.
    """

    tree: str
    tokens_per_round: float
    fuzzy_share: float | None
    propose: float
    verify: float
    settle: float
    speedup: float
    held: bool = True

    @property
    def ms_per_round(self) -> float:
        return self.propose + self.verify + self.settle

    def in_words(self) -> str:
        return (
            f"{self.tree}, {self.speedup:.2f}x plain expected under the exact rule: "
            f"{self.tokens_per_round:.2f} tokens a round in {self.ms_per_round:.1f} ms (propose "
            f"{self.propose:.1f}, verify {self.verify:.1f}, settle {self.settle:.1f})"
        )


@dataclass(frozen=True)
class TreeChoice:
    """The chosen tree's name, all candidates (the fastest first), and why in a few lines."""

    tree: str
    table: list[Candidate]
    text: str


def candidate_trees(draft_vocab_size: int) -> list[TreeConfig]:
    """All shapes that are looked at, the smallest first; the draft vocabulary bounds top-k."""
    shapes = [
        (drafts, depth, branch)
        for drafts in DRAFTS
        for depth in range(1, LEVELS + 1)
        for branch in BRANCHES
        if depth <= drafts <= DRAFTS_PER_LEVEL * depth and branch <= draft_vocab_size
    ]
    return [TreeConfig(*s) for s in shapes if s[0] <= TreeConfig(s[1], s[1], s[2]).pool_size]


def choose_tree(
    model: Model,
    rule: Rule,
    *,
    hold_fuzzy_share: float = 0.01,
    max_new_tokens: int = 64,
    folder: Path | None = None,
    retune: bool = False,
) -> TreeChoice:
    """The tree for a rule on this machine.

    Args:
        model: its target's sequence is lost; its drafter is left alone.
        rule: see above for what is asked of it.
        hold_fuzzy_share: see above.
        max_new_tokens: budget of every calibration prompt.
        folder: where measurements are kept; default: tuning/ in the cache folder.
        retune: measure again, whatever is kept.

    Raises:
        BadInput: the model has no draft head, or its target too few positions to measure in.
    """
    if not isinstance(model.drafter, EagleDrafter):
        raise BadInput("there is no tree to choose without a draft head: name one with --head")
    longest = max(len(model.prompt_ids(prompt)) for prompt in PROMPTS)
    needed = max(CONTEXT + rows_needed(REPEATS), longest + max_new_tokens + LEVELS)
    if needed > model.target.max_positions:
        raise BadInput(
            f"the target's {model.target.max_positions} positions are too few to choose a tree in, "
            f"{needed} are needed: name the tree, such as 7x3x4"
        )
    folder = folder or cache_dir() / "tuning"
    trees = candidate_trees(model.drafter.draft_vocab_size)
    # JSON has no infinity, which a threshold may be
    judged = f"{rule.divergence} {rule.threshold}" if type(rule) is Fsd else None
    key = _key(model)
    costs = kept(folder, "costs", key, lambda: measure_costs(model), retune=retune)
    counts = kept(
        folder,
        "acceptance",
        key | {"judged": judged, "tokens": max_new_tokens, "trees": [tree_name(t) for t in trees]},
        lambda: count_acceptance(model, trees, rule if judged else None, max_new_tokens),
        retune=retune,
    )
    default = tree_name(default_tree(model.target.device.type))
    return choose(trees, counts, costs, default=default, hold=hold_fuzzy_share if judged else None)


# --- measured -----------------------------------------------------------------------------------


def measure_costs(model: Model) -> dict[str, Curve | float]:
    """Milliseconds of verification by width, of a draft's first and of each further level by
    branch_top_k, and of settling a round."""
    text = model.prompt_ids(" ".join(PROMPTS))
    context = (text * (CONTEXT // len(text) + 1))[:CONTEXT]
    probes = ForwardProbes(model, context, REPEATS)
    branches = [k for k in BRANCHES if k <= model.drafter.draft_vocab_size]
    deep = LEVELS - 2  # levels of the deeper of two drafts, whose difference is that of its levels
    named = {("verify", width): probes.verify(width) for width in WIDTHS}
    named |= {("draft", k, d): probes.draft(d, k) for k in branches for d in (1, deep)}
    named["settle"] = probes.settle()
    seconds = in_turn(named, REPEATS, label="cost of a round's parts")
    model.target.close()
    ms = {name: 1000 * median(times) for name, times in seconds.items()}
    first = {k: ms["draft", k, 1] for k in branches}
    return {
        "verify": [[width, ms["verify", width]] for width in WIDTHS],
        "first_level": [[k, first[k]] for k in branches],
        "next_level": [
            [k, max(0.0, ms["draft", k, deep] - first[k]) / (deep - 1)] for k in branches
        ],
        "settle": ms["settle"],
    }


@torch.inference_mode()
def count_acceptance(
    model: Model, trees: Sequence[TreeConfig], rule: Fsd | None, max_new_tokens: int
) -> list[list[int]]:
    """What every tree accepts on the calibration prompts: [rounds, accepted drafts, rounds at whose
    end the rule would take a fuzzy token] of each."""
    count_T3 = np.zeros((len(trees), 3), dtype=np.int64)
    for prompt in tqdm(PROMPTS, desc="acceptance by tree", unit="prompt", leave=False):
        ids = model.prompt_ids(prompt)
        config = DecodeConfig(Policy(Exact()), StopConfig(max_new_tokens + LEVELS))
        text = decode(model.target, RootDrafter(), ids, config).tokens
        answer, _ = model.stop(max_new_tokens).trim([], text)
        if len(answer) > 1:
            count_T3 += _count_text(model, [*ids, *text], len(ids), len(answer), trees, rule)
    return count_T3.tolist()


def _count_text(
    model: Model,
    ids: list[int],
    prompt: int,
    answer: int,
    trees: Sequence[TreeConfig],
    rule: Fsd | None,
) -> np.ndarray:
    """count_acceptance of one text, whose first `prompt` tokens are not the answer's."""
    target = model.target
    ids_L = torch.tensor(ids[: prompt + answer + LEVELS], device=target.device)
    hidden_1LD, features_1LF = target.hidden_and_features(ids_L[None], use_cache=False)
    branches = {tree.branch_top_k for tree in trees}
    widest = TreeConfig(LEVELS, LEVELS, max(branches))
    text = HeadOnText(model.drafter, ids_L, features_1LF[0], widest)
    root_B = torch.arange(prompt, prompt + answer - 1, device=target.device)
    passes_BS = torch.zeros(len(root_B), LEVELS, dtype=torch.bool, device=target.device)
    if rule is not None and rule.threshold > 0:
        end, asked = prompt + answer, (rule.divergence,)
        levels = judge_levels(text, hidden_1LD[0], root_B, end, levels=LEVELS, divergences=asked)
        passes_BS = levels.divergence_BS[rule.divergence] <= rule.threshold
    growths = {}
    for k in branches:
        most = max(tree.num_draft_tokens for tree in trees if tree.branch_top_k == k)
        growths[k] = grow(text, root_B, TreeConfig(max(most, LEVELS), LEVELS, k))
    rows = []
    for tree in trees:
        accepted_B, fuzzy_B = walk_fsd(growths[tree.branch_top_k], tree, passes_BS)
        visited = visited_roots(accepted_B)
        rows.append([len(visited), int(accepted_B[visited].sum()), int(fuzzy_B[visited].sum())])
    return np.array(rows)


# --- chosen -------------------------------------------------------------------------------------


def at(curve: Curve, point: float) -> float:
    """A curve's value: linear between the measured points, constant beyond them."""
    return float(np.interp(point, *zip(*curve, strict=True)))


def choose(
    trees: Sequence[TreeConfig],
    counts: Sequence[Sequence[int]],
    costs: dict[str, Curve | float],
    *,
    default: str,
    hold: float | None,
) -> TreeChoice:
    """The fastest candidate that is held, of equals the one that comes first.

    Args:
        trees, counts: from candidate_trees and count_acceptance.
        costs: from measure_costs.
        default: name of the tree that is taken without a choice; where the draft vocabulary is too
            small for it, nothing is refused.
        hold: hold_fuzzy_share; None where the rule's share is not predicted.
    """
    if not all(rounds for rounds, _, _ in counts):
        raise BadInput("no calibration prompt was answered by more than one token: name the tree")
    plain_ms = at(costs["verify"], 1) + costs["settle"]  # a round of plain decoding, one token
    shares = {
        tree_name(tree): fuzzy / (rounds + accepted)
        for tree, (rounds, accepted, fuzzy) in zip(trees, counts, strict=True)
    }
    table = []
    for tree, (rounds, accepted, _) in zip(trees, counts, strict=True):
        name, k = tree_name(tree), tree.branch_top_k
        propose = at(costs["first_level"], k) + (tree.tree_depth - 1) * at(costs["next_level"], k)
        verify, tokens = at(costs["verify"], 1 + tree.num_draft_tokens), 1 + accepted / rounds
        speedup = tokens * plain_ms / (propose + verify + costs["settle"])
        share = None if hold is None else shares[name]
        held = hold is None or share <= shares.get(default, 1.0) + hold
        table.append(
            Candidate(name, tokens, share, propose, verify, costs["settle"], speedup, held)
        )
    table.sort(key=lambda row: -row.speedup)
    best = next(row for row in table if row.held)
    return TreeChoice(best.tree, table, _explain(table, best, default, plain_ms))


def _explain(table: list[Candidate], best: Candidate, default: str, plain_ms: float) -> str:
    """The choice in a few lines: what it costs and brings, what was refused."""
    lines = [f"auto tree: {best.in_words()}", f"  plain decoding takes {plain_ms:.1f} ms a token"]
    lines += [f"  the default tree: {row.in_words()}" for row in table if row.tree == default]
    if best.speedup <= 1:
        lines.append("  no tree beats plain decoding here: this is the least slow one")
    refused = [row.fuzzy_share for row in table if not row.held]
    if refused:
        lines.append(
            f"  {len(refused)} of {len(table)} trees are refused: predicted fuzzy share up to "
            f"{max(refused):.3f}, this one's is {best.fuzzy_share:.3f}"
        )
    return "\n".join(lines)


# --- kept ---------------------------------------------------------------------------------------


def _key(model: Model) -> dict[str, str | int]:
    """What a measurement depends on: machine, threads, torch, weights."""
    target = model.target
    return {
        "machine": describe_device(str(target.device)),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "engine": target.engine.name,
        "dtype": str(target.dtype),
        # packed layers have no parameters to take a digest of, so the place counts too
        "target": weights_digest(target.model),
        "place": hashlib.sha256(target.model.config.name_or_path.encode()).hexdigest()[:16],
        "head": model.drafter.fingerprint,
        "prompts": [model.prompt_ids(prompt) for prompt in PROMPTS],
    }


def kept(folder: Path, kind: str, key: dict, measure: Callable[[], object], *, retune: bool):
    """A measurement from its file, or made now and put there: KIND-HASH.json, of the whole key.

    A broken file, or a folder that cannot be written to, is told and measured anew.
    """
    text = json.dumps(key, sort_keys=True)
    path = folder / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    if path.is_file() and not retune:
        try:
            return json.loads(path.read_text(encoding="utf-8"))["measured"]
        except (ValueError, KeyError, TypeError, OSError) as error:
            print(f"warning: {path} is broken ({error}); measuring again", file=sys.stderr)
    measured = measure()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, {"key": key, "measured": measured})
    except OSError as error:
        print(
            f"warning: cannot keep what was measured in {folder} ({error}); set EAGLE_FSD_CACHE "
            "to a writable folder",
            file=sys.stderr,
        )
    return measured
