"""Whether a model is still what something was made of: for custom_generate, whose model is its
user's, who may go on training it or merge an adapter into it."""

from collections.abc import Callable

import torch
from torch import nn

SAMPLED = 16  # numbers of a tensor that are compared


class Seen:
    """Modules and tensors as they are now, to be compared with what they are later.

    Compared are the objects; of a tensor its storage too, and torch's count of its changes. That
    does not count a change through `.data`, such as PEFT's merge, so that numbers spread over each
    are compared as well: a change through `.data` of a few others is not found.

    Args:
        current: gives them, None for one that is not there.
    """

    def __init__(self, current: Callable[[], list[nn.Module | torch.Tensor | None]]):
        self._current = current
        # the objects are held, so that no other comes to lie at the place of one
        self._then = [(part, _mark(part)) for part in current()]

    def has_changed(self) -> bool:
        now = self._current()
        return len(now) != len(self._then) or any(
            part is not then or _mark(part) != mark
            for part, (then, mark) in zip(now, self._then, strict=True)
        )


def _mark(part: nn.Module | torch.Tensor | None) -> tuple:
    # wrappers, as of quantised weights, have no storage of their own
    if type(part) not in (torch.Tensor, nn.Parameter) or part.is_meta:
        return ()
    tensor = part.detach()  # which shares the count
    changes = 0 if tensor.is_inference() else tensor._version
    numbers = tensor.reshape(-1)[:: max(1, tensor.numel() // SAMPLED)].tolist()
    # as text, in which NaN equals itself
    return tensor.data_ptr(), tensor.dtype, tensor.shape, changes, str(numbers)
