"""The one decoding loop: prefill, then rounds of propose, verify, accept, commit.

Plain autoregressive decoding is this loop with a one-node tree (RootDrafter). Answers are trimmed
here, once, for every arm. What is asked is in request.py, what is answered in answer.py.
"""

from collections.abc import Iterator, Sequence

import torch

from eagle_fsd.decoding.acceptance import accept
from eagle_fsd.decoding.answer import Generation, Round
from eagle_fsd.decoding.request import DecodeConfig, check_request
from eagle_fsd.decoding.sampling import draw, uniforms
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import Drafter
from eagle_fsd.decoding.verified import UNIFORMS


def decode_rounds(
    target: Target, drafter: Drafter, prompt: Sequence[int], config: DecodeConfig
) -> Iterator[Round]:
    """Decode one answer, yielding after prefill and after every round. It has a cache and a drafter
    of its own, so that others may be decoded in between. Whoever makes rule and drafter checks that
    they go together (Policy.check).

    Axes: P positions of the answer, L prompt tokens, N tree nodes, A nodes of the accepted path, V
    vocabulary, F features.

    BadInput: see check_request; logits are NaN or infinite.
    """
    check_request(target, prompt, config.stop)
    stop, device, room = config.stop, target.device, len(prompt) + config.stop.max_new_tokens
    uniform_P3 = answer_uniforms(config.seed, stop.max_new_tokens + drafter.max_nodes)
    policy, cache = config.policy.begin(), target.begin(room + drafter.max_nodes)
    drafter = drafter.begin(room, prompt[0], policy.sampling, config.seed)
    try:
        # 1. Prefill: the prompt's forward emits the answer's first token, the root.
        logits_V, features_LF = target.prefill(cache, torch.tensor(prompt, device=device))
        root = draw(logits_V[None], uniform_P3[:1, 0].to(device), policy.sampling).tolist()
        drafter.observe(features_LF, [*prompt[1:], *root])
        del features_LF  # the drafter keeps of them what it needs
        answer, finish = stop.trim([], root)
        yield Round(answer, finish)
        while finish is None:
            assert cache.committed == len(prompt) + len(answer) - 1  # the root has not been run
            # 2. The drafter proposes a tree below the root, and the target verifies it.
            tree = drafter.propose()
            logits_NV, features_NF = target.verify(cache, tree)
            # 3. The rule accepts a path of it, which emits as many tokens as it has nodes.
            accepted = accept(
                tree,
                logits_NV,
                uniform_P3[len(answer) :],  # row 0 is for the token that the root emits
                policy=policy,
                stop_token_ids=stop.token_ids,
                answer=answer,
            )
            # 4. The path is committed; the last token that it emits is the next tree's root.
            # (copies of up to 64 KB to a CUDA device return at once: its programming guide)
            path_A = torch.tensor(accepted.path).to(device, non_blocking=True)
            target.commit(cache, path_A)
            drafter.observe(features_NF[path_A], accepted.tokens, logits_NV)
            kept, finish = stop.trim(answer, accepted.tokens)
            answer = answer + kept
            yield Round(kept, finish, accepted, tree, logits_NV)
    finally:
        drafter.close()


def decode(
    target: Target, drafter: Drafter, prompt: Sequence[int], config: DecodeConfig
) -> Generation:
    """One answer to its end; see decode_rounds."""
    result = Generation()
    for one_round in decode_rounds(target, drafter, prompt, config):
        result.add(one_round)
    return result


def answer_uniforms(seed: int, positions: int) -> torch.Tensor:
    """The random numbers of an answer, float32 [positions, 3] on the CPU, by seed and position
    alone: rules, trees, drafters, budgets and devices can be compared draw by draw. A longer block
    begins with the shorter one, as torch.rand fills it in order."""
    return uniforms(torch.Generator().manual_seed(seed), positions, UNIFORMS)
