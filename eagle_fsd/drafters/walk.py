"""Drafters walked along a text that is known: the rounds in which exact decoding would emit it.

Greedy exact decoding emits the target's own text whatever is drafted. A round accepts as many
drafts as the text's own next tokens lie in its tree, and emits one more. So nothing is verified;
the drafter observes what decoding would show it.

Axes: L tokens of the text, F features.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch

from eagle_fsd.decoding.cache import TreeCache
from eagle_fsd.decoding.loop import StopConfig
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import Drafter, DraftTree

# Tokens kept beyond an answer's end: a round's accepted drafts are counted before trimming, so the
# last rounds look past it. The deepest tree that can be walked has as many levels.
TOKENS_BEYOND_END = 16


@dataclass(frozen=True)
class PlainText:
    """A prompt, the plain greedy answer to it, trimmed as the loop does, and TOKENS_BEYOND_END
    further greedy tokens.

    Attributes:
        stop_token_ids: that end an answer.
    """

    prompt: list[int]
    answer: list[int]
    beyond: list[int]
    stop_token_ids: tuple[int, ...] = ()

    @property
    def ids(self) -> list[int]:
        return [*self.prompt, *self.answer, *self.beyond]

    @property
    def roots(self) -> range:
        """Indices into `ids` of every token that may be a round's root: all of the answer but the
        last. The first is the one that prefill yields.

        Example, prompt a b, answer c d e, beyond f ..:  ids a b c d e f ..   roots 2 3
        """
        return range(len(self.prompt), len(self.prompt) + len(self.answer) - 1)

    @torch.inference_mode()
    def states(
        self, target: Target, cache: TreeCache | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The target run over it: hidden states after the final norm [L, D], features [L, F]. An
        empty cache, if there is one, keeps its rows."""
        ids_L = torch.tensor(self.ids, device=target.device)
        if cache is not None:
            return target.extend(cache, ids_L)
        hidden_1LD, features_1LF = target.hidden_and_features(ids_L[None], use_cache=False)
        return hidden_1LD[0], features_1LF[0]

    @torch.inference_mode()
    def rounds(self, drafter: Drafter, features_LF: torch.Tensor) -> list[int]:
        """Tokens of every round in which exact decoding emits the answer, before trimming."""
        rounds = walk(drafter, self.ids, self.roots, features_LF, self.stop_token_ids)
        return [len(path) for _, _, path in rounds]


def cut(prompt: list[int], greedy: list[int], stop: StopConfig) -> PlainText | None:
    """The text for a budget; None if more greedy tokens are needed."""
    answer, finish = stop.trim([], greedy)
    beyond = greedy[len(answer) :][:TOKENS_BEYOND_END]
    if finish is None or len(beyond) < TOKENS_BEYOND_END:
        return None
    return PlainText(prompt, answer, beyond, stop.token_ids)


def walk(
    drafter: Drafter,
    ids: Sequence[int],
    roots: range,
    features_LF: torch.Tensor,
    stop_token_ids: Collection[int] = (),
) -> Iterator[tuple[int, DraftTree, list[int]]]:
    """Every round: its root's place in the text, its tree, and the accepted path, the root first.
    It emits as many tokens as the path has nodes, the accepted drafts and the next token.

    Example, text A B C D, root A: a tree with B, and X below it, accepts B; C is the next token and
    the root of the next round. Emitted are two.

    Args:
        ids: a text longer by a tree's levels than the roots reach.
        roots: the first one's place, and the one behind the last that may be one.
        features_LF: the target's, of the text.
        stop_token_ids: drafts behind one of these are no gain, as when decoding.
    """
    drafter.reset(len(ids), ids[0])
    seen, root = 0, roots.start
    while root < roots.stop:
        drafter.observe(features_LF[seen:root], ids[seen + 1 : root + 1])
        tree = drafter.propose()
        assert root + tree.max_depth < len(ids), "the tree is deeper than the text behind its root"
        path = accepted_path(tree, ids[root + 1 :], stop_token_ids)
        yield root, tree, path
        seen, root = root, root + len(path)


def accepted_path(
    tree: DraftTree, following: Sequence[int], stop_token_ids: Collection[int]
) -> list[int]:
    """The root, and the drafts below it that are the tokens which follow it in the text, one below
    the other, up to the first that ends an answer."""
    tokens, parents = tree.token_N.tolist(), tree.parent_N.tolist()
    drafted = {(parents[node], tokens[node]): node for node in range(1, tree.size)}
    path = [0]
    for token in following:
        node = path[-1]
        if (node, token) not in drafted or (node > 0 and tokens[node] in stop_token_ids):
            break
        path.append(drafted[node, token])
    return path
