"""The one decoding loop: prefill, then rounds of propose, verify, accept, commit.

Plain autoregressive decoding is this loop with a one-node tree (RootDrafter). Answers are trimmed
here, once, for every arm. What is asked of it stands below it, what it answers in answer.py.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from numbers import Integral

import torch

from eagle_fsd.config import BadInput, check_numbers, check_seed
from eagle_fsd.decoding.acceptance import Policy, accept
from eagle_fsd.decoding.answer import Generation, Round
from eagle_fsd.decoding.sampling import draw, uniforms
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import Drafter, DraftTree
from eagle_fsd.decoding.verified import UNIFORMS


def decode_rounds(
    target: Target, drafter: Drafter, prompt: Sequence[int], config: "DecodeConfig"
) -> Iterator[Round]:
    """Decode one answer, yielding after prefill and after every round. It has a cache and a drafter
    of its own, so that others may be decoded in between. Whoever makes rule and drafter checks that
    they go together (Policy.check).

    Axes: P positions of the answer, L prompt tokens, N tree nodes, A nodes of the accepted path, V
    vocabulary, F features.

    BadInput, when the first round is asked for: see check_request; logits are NaN or infinite.
    """
    check_request(target, prompt, config.stop)
    stop, device, room = config.stop, target.device, len(prompt) + config.stop.max_new_tokens
    uniform_P3 = answer_uniforms(config.seed, stop.max_new_tokens + drafter.max_nodes)
    policy, cache = config.policy.begin(), target.begin(room + drafter.max_nodes)
    drafter = drafter.begin(room, prompt[0], policy.sampling, config.seed)
    try:
        # 0. Prefill: the prompt's forward emits the answer's first token, the root.
        logits_V, features_LF = target.prefill(cache, torch.tensor(prompt, device=device))
        root = draw(logits_V[None], uniform_P3[:1, 0].to(device), policy.sampling).tolist()
        drafter.observe(features_LF, [*prompt[1:], *root])
        del features_LF  # the drafter keeps of them what it needs
        answer, finish = stop.trim([], root)
        yield Round(answer, finish)
        while finish is None:
            assert cache.committed == len(prompt) + len(answer) - 1  # the root has not been run
            # 1. Propose: the drafter grows a tree below the root.
            tree = drafter.propose()
            check_proposed(target, drafter, tree)
            # 2. Verify: the target runs all of its nodes in one forward.
            logits_NV, features_NF = target.verify(cache, tree)
            # 3. Accept: the rule chooses a path, which emits as many tokens as it has nodes.
            accepted = accept(
                tree,
                logits_NV,
                uniform_P3[len(answer) :],  # row 0 is for the token that the root emits
                policy=policy,
                stop_token_ids=stop.token_ids,
                answer=answer,
                drafter=drafter,
            )
            # 4. Commit: the path is kept; the last token that it emits is the next tree's root.
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
    target: Target, drafter: Drafter, prompt: Sequence[int], config: "DecodeConfig"
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


# --- what is asked --------------------------------------------------------------------------------


@dataclass(frozen=True)
class StopConfig:
    """When an answer ends: a stop token is kept in it, as in `generate`, and so is the token that
    completes a stop string (texts leave the string out: Model.text). Strings need `decode`, from
    token ids to text, special tokens included."""

    max_new_tokens: int = 128
    token_ids: tuple[int, ...] = ()
    strings: tuple[str, ...] = ()
    decode: Callable[[Sequence[int]], str] | None = None

    def __post_init__(self):
        check_numbers(self, max_new_tokens=Integral)
        if self.max_new_tokens < 1:
            raise BadInput(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if not all(isinstance(string, str) and string for string in self.strings):
            raise BadInput(f"stop strings are texts that are not empty, got {self.strings!r}")
        assert self.decode is not None or not self.strings, "stop strings need `decode`"

    def trim(self, answer: list[int], new: list[int]) -> tuple[list[int], str | None]:
        """The new tokens that belong to the answer, and why it ends: "stop", "length" or None."""
        for count, token in enumerate(new, start=1):
            stopped = token in self.token_ids
            if not stopped and self.strings:
                text = self.decode([*answer, *new[:count]])
                stopped = any(string in text for string in self.strings)
            if stopped:
                return new[:count], "stop"
            if len(answer) + count == self.max_new_tokens:
                return new[:count], "length"
        return new, None


@dataclass(frozen=True)
class DecodeConfig:
    policy: Policy
    stop: StopConfig = field(default_factory=StopConfig)
    seed: int = 0

    def __post_init__(self):
        check_numbers(self, seed=Integral)
        check_seed(self.seed)


def check_request(target: Target, prompt: Sequence[int], stop: StopConfig) -> None:
    """Refuse a request that cannot be carried out, before any work."""
    if len(prompt) == 0:
        raise BadInput("the prompt is empty: give at least one token")
    check_tokens(target, prompt)
    if len(prompt) + stop.max_new_tokens > target.max_positions:
        raise BadInput(
            f"prompt of {len(prompt)} tokens + max_new_tokens {stop.max_new_tokens} is beyond the "
            f"target's {target.max_positions} positions: shorten the prompt or lower the budget"
        )


def check_proposed(target: Target, drafter: Drafter, tree: DraftTree) -> None:
    """Refuse what could not even be run, of a drafter that may be a plug-in's; `accept` looks at
    the tree itself, when its numbers have reached the host."""
    told, most = "", drafter.max_nodes
    if not isinstance(tree, DraftTree):
        told = f"{tree!r:.50}: return a DraftTree from its `propose`"
    elif tree.size > most:
        told = f"a tree of {tree.size} nodes: more than its max_nodes, {most}"
    elif tree.token_N.device.type == "cpu":  # elsewhere they would have to be waited for
        strange = [token for token in tree.token_N.tolist() if not 0 <= token < target.vocab_size]
        told = f"token {strange[0]}: the target's are below {target.vocab_size}" if strange else ""
    if told:
        raise BadInput(f"drafter {type(drafter).__name__} proposes {told}")


def check_tokens(target: Target, prompt: Sequence[int]) -> None:
    if placed := [token for token in prompt if token in target.placeholders]:
        raise BadInput(
            f"prompt token {placed[0]} is the target's {target.placeholders[placed[0]]}, in whose "
            "place its whole model reads an image or a sound, and its text model something else: "
            "leave it out of the prompt"
        )
    strange = [token for token in prompt if not 0 <= token < target.vocab_size]
    if strange:
        raise BadInput(
            f"prompt token {strange[0]} is outside the target's vocabulary of {target.vocab_size}: "
            "was it made with another tokenizer, or was a token added to this one, such as [PAD], "
            "and the model not resized?"
        )
