"""The drafter of several MTP layers, each for a level of its own. A single one, which is run for
every level, is an EagleDrafter's.

Layer k was trained on token j beside what layer k - 1 made of token j - 1, so that a token at depth
d of the tree is run by the layers from d on, and by the last one alone where d is beyond it; its
children are drafted by the first of these. The layers below d are not run again below it:

    committed tokens    layers 0 1 2    layer 0 reads the target's features, layer k what layer
    depth 1             layers   1 2    k - 1 made of the token before
    depth 2 and below   layer      2    which beyond depth 2 reads its own output

transformers' MtpModel comes to the same by running each layer over the text, shifted by one.

Axes: T new positions, D hidden size, S cache rows.
"""

import torch

from eagle_fsd.config import BadInput, SamplingConfig, TreeConfig
from eagle_fsd.decoding.drafter import GREEDY
from eagle_fsd.decoding.engine import CachedSequence
from eagle_fsd.decoding.masks import additive, fold
from eagle_fsd.decoding.target import Target
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.heads.mtp_head import MtpHead


class MtpDrafter(EagleDrafter):
    """Its nodes' hidden state is what every layer made of them, side by side; of layers that are
    not run there, zeros."""

    head: MtpHead

    def __init__(self, head: MtpHead, target: Target, tree: TreeConfig):
        if target.engine.sequence is not CachedSequence:
            raise BadInput(
                f"engine {target.engine.name!r} records a step once for all levels, and this head "
                f"has {head.config.count} MTP layers, each for a level of its own: use auto"
            )
        super().__init__(head, target, tree)
        del self.readout  # of one layer; the class's own is for all
        self._last_layer, own = head.config.count - 1, self.head.lm_head
        self._read = target.readout() if own is None else own

    def reset(
        self, capacity: int, first_token: int, sampling: SamplingConfig = GREEDY, seed: int = 0
    ) -> None:
        super().reset(capacity, first_token, sampling, seed)
        self._before: torch.Tensor | None = None  # what the layers made of the last committed token

    def _step(self, *step) -> torch.Tensor:
        self._level = 0
        return super()._step(*step)

    def forward(self, hidden_TD, token_T, place_T, visible_TS, base, width) -> torch.Tensor:
        level, self._level = self._level, self._level + 1
        D, last = self.target.hidden_size, self._last_layer
        embedding_TD, outputs = self.target.embed(token_T), {}
        for layer in range(min(level, last), last + 1):
            if level == 0 and layer == 0:
                read_TD = hidden_TD
            elif level == 0:
                before_1D = torch.zeros_like(hidden_TD[:1])
                if self._before is not None:
                    before_1D = self._before[:, (layer - 1) * D : layer * D]
                read_TD = torch.cat([before_1D, outputs[layer - 1][:-1]])
            else:
                own = layer if level > last else layer - 1
                read_TD = hidden_TD[:, own * D : (own + 1) * D]
            inputs = (read_TD[None], embedding_TD[None], place_T)
            cache, mask = self._sequence.cache, self._mask(layer, token_T, visible_TS)
            outputs[layer] = self.head.run_layer(layer, *inputs, cache=cache, mask=mask)[0]
        nothing_TD = torch.zeros_like(embedding_TD)
        parts = [outputs.get(layer, nothing_TD) for layer in range(last + 1)]
        every = torch.cat(parts, dim=-1)
        if level == 0:
            self._before = every[-1:]
        return every

    def _mask(
        self, layer: int, token_T: torch.Tensor, visible_TS: torch.Tensor | None
    ) -> torch.Tensor:
        """A layer sees no row of the first tokens, before which the layers below have none."""
        T = token_T.shape[0]
        if visible_TS is None:
            rows = self._sequence.cache.layers[layer].length + T
            whole_TS = torch.ones(T, rows, dtype=torch.bool, device=token_T.device)
            visible_TS = whole_TS.tril(rows - T)
        row_S = torch.arange(visible_TS.shape[1], device=token_T.device)
        return fold(additive(visible_TS & (row_S >= layer), self.target.dtype), self._query_groups)

    def readout(self, hidden_TD: torch.Tensor) -> torch.Tensor:
        layer, D = min(self._level - 1, self._last_layer), self.target.hidden_size
        return self._read(self.head.normed(hidden_TD[:, layer * D : (layer + 1) * D], layer))
