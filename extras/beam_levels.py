"""How many levels of a draft tree hold all of the target's own K beams, so how many forwards a
speculative beam search needs (the strict rule of AtSpeed, arXiv 2410.05165).

    python extras/beam_levels.py 2 4

Beam search by plain forwards, scored as transformers does; at every step each live beam's tree is
drafted, and afterwards it is counted how far the beams of the later steps are in it. A throw-away.
"""

import sys
from collections import Counter
from dataclasses import dataclass, field

import torch

import eagle_fsd
from eagle_fsd.config import parse_tree
from eagle_fsd.evaluation.questions import read_questions, spread

SHAPES = ("12x6x4,keep=0.1,deepen=0.4", "15x4x6", "59x6x10")
PROMPTS, BUDGET, FAR = 12, 64, -1e9


@dataclass
class Beam:
    tokens: tuple[int, ...]
    score: float
    rows: list[int]  # of its tokens but the last, in the target's cache
    features: list[torch.Tensor]  # of the prompt's last token, and of the same tokens


@dataclass
class Step:
    """The beams at a step, and what was drafted below them, by arm."""

    beams: list[Beam]
    drafted: dict[str, set[tuple[int, ...]]] = field(default_factory=dict)


def paths(tree, tokens: tuple[int, ...], base: float) -> list[tuple[float, tuple[int, ...]]]:
    """(score, tokens from the prompt on) of a tree's drafts."""
    found = [tokens]
    for token, parent in zip(tree.token_N.tolist()[1:], tree.parent_N.tolist()[1:], strict=True):
        found.append((*found[parent], token))
    return [(base + s, p) for s, p in zip(tree.score_N.tolist()[1:], found[1:], strict=True)]


@torch.inference_mode()
def search(model, prompt: list[int], K: int) -> tuple[list[Step], tuple[int, ...]]:
    """The steps, and the best finished answer at length penalty 1."""
    target, L = model.target, len(prompt)
    ends = set(target.eos_token_ids)
    keep = max(2, 1 + len(ends)) * K
    target.start(L + BUDGET * K)
    logits_V, features_LF = target.prefill(torch.tensor(prompt))
    drafters = {s: model.drafter.with_tree(parse_tree(s)) for s in SHAPES}
    for drafter in drafters.values():
        drafter.reset(L + BUDGET, prompt[0])
        drafter.observe(features_LF[:-1], prompt[1:])
        drafter.propose()
    beams, logits_KV = [Beam((), 0.0, [], [features_LF[-1]])], logits_V[None]
    scores_K, steps, done, improvable = torch.zeros(1), [], [(FAR, ())] * K, True
    for length in range(1, BUDGET + 1):
        # 1. The best continuations of all beams (transformers' beam scorer)
        total = torch.log_softmax(logits_KV.float(), -1) + scores_K[:, None]
        best = total.flatten().topk(keep)
        V, found, new = total.shape[1], [], []
        for rank, (score, place) in enumerate(zip(best.values, best.indices.tolist(), strict=True)):
            parent, token = beams[place // V], place % V
            if token in ends or length == BUDGET:
                if rank < K and improvable:
                    found.append((score.item() / length, (*parent.tokens, token)))
            else:
                new.append((parent, token, score))
        done = sorted([*done, *found], key=lambda one: -one[0])[:K]
        if length == BUDGET:
            break
        scores_K = torch.stack([score for *_, score in new[:K]])
        beams = [
            Beam((*p.tokens, t), s.item(), list(p.rows), list(p.features)) for p, t, s in new[:K]
        ]
        improvable = improvable and scores_K[0].item() / length > done[-1][0]
        if not improvable:
            break
        # 2. A tree for every beam, of each shape
        step, pool = Step(beams), []
        for shape, drafter in drafters.items():
            step.drafted[shape] = set()
            for beam in beams:
                drafter.cache.length = drafter.cache.committed = L - 1
                drafter.observe(torch.stack(beam.features), beam.tokens)
                drafts = paths(drafter.propose(), beam.tokens, beam.score)
                step.drafted[shape] |= {path for _, path in drafts}
                pool += drafts if shape == SHAPES[-1] else []
        pool.sort(key=lambda one: -one[0])
        for count in (15, 30, 59):
            step.drafted[f"forest {count}"] = {path for _, path in pool[: count * K]}
        steps.append(step)
        # 3. The plain forward of all beams' last tokens
        rows = list(range(target.cache.length, target.cache.length + K))
        visible_NK = torch.zeros(K, rows[-1] + 1, dtype=torch.bool)
        visible_NK[:, :L] = True
        for n, beam in enumerate(beams):
            beam.rows.append(rows[n])
            visible_NK[n, beam.rows] = True
        position_K = torch.full((K,), L + length - 1)
        place_K = torch.cat([torch.arange(L), L + torch.arange(rows[-1] + 1 - L) // K])
        hidden_ND, features_NF = target.run(
            target.cache, torch.tensor([b.tokens[-1] for b in beams]), torch.tensor(rows),
            position_K, visible_NK, place_K,
        )  # fmt: skip
        target.cache.length += K
        logits_KV = target.logits(hidden_ND)
        for beam, features in zip(beams, features_NF, strict=True):
            beam.features.append(features)
    target.close()
    return steps, done[0][1]


def levels(steps: list[Step], start: int, arm: str, *, lazy: bool) -> tuple[int, int]:
    """How far below a step the rule goes, and how many beams it misses there. The lazy rule also
    goes on where the next beams are all behind drafted ones and better than those that are not:
    what is missing can only become worse."""
    drafted = steps[start].drafted[arm]
    known = {beam.tokens for beam in steps[start].beams}
    for at in range(start, len(steps)):
        unknown = [b.score for b in steps[at].beams if b.tokens not in known]
        then = steps[at + 1].beams if at + 1 < len(steps) else []
        certain = lazy and then and unknown and all(
            b.tokens[:-1] in known and b.score > max(unknown) for b in then
        )  # fmt: skip
        if unknown and not certain:
            return at - start - 1, len(unknown)
        known = {b.tokens for b in then if b.tokens in drafted}
    return len(steps) - 1 - start, 0


def parted(beams: list[Beam]) -> int:
    """Tokens of all beams since they parted, those shared counted once."""
    every = {b.tokens[:n] for b in beams for n in range(1, len(b.tokens) + 1)}
    common = {p for p in every if all(b.tokens[: len(p)] == p for b in beams)}
    return len(every - common)


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = eagle_fsd.load("smollm2", dtype="float32", keep_stock=True)
    questions = spread(read_questions(""), PROMPTS)
    print([q.question_id for q in questions])
    for K in map(int, sys.argv[1:]):
        found = []
        for number, question in enumerate(questions):
            prompt = model.prompt_ids(question.turns[0])
            steps, answer = search(model, prompt, K)
            if number < 3:
                theirs = model.target.model.generate(
                    torch.tensor([prompt]), num_beams=K, max_new_tokens=BUDGET, do_sample=False
                )[0, len(prompt) :].tolist()
                print("same as generate:", list(answer) == theirs)
            found.append(steps)
        wide = [parted(s.beams) for steps in found for s in steps]
        print(f"K={K}: {len(wide)} steps; tokens since parted {sum(wide) / len(wide):.1f}, "
              f"most {max(wide)}")  # fmt: skip
        for arm in found[0][0].drafted:
            drafts = [len(s.drafted[arm]) for steps in found for s in steps]
            text = f"K={K} {arm}: drafts {sum(drafts) / len(drafts):.1f}"
            for lazy in (False, True):
                rounds, each, missed = 0, [], Counter()
                for steps in found:
                    at, mine = 0, 0
                    while at < len(steps):
                        count, missing = levels(steps, at, arm, lazy=lazy)
                        missed[missing] += 1
                        at, mine = at + 1 + count, mine + 1
                    rounds += mine
                    each.append(mine / len(steps))
                text += (
                    f"; {'lazy' if lazy else 'strict'} forwards/token {rounds / len(drafts):.3f} "
                    f"({min(each):.2f} to {max(each):.2f}), missing {sorted(missed.items())}"
                )
            print(text, flush=True)
