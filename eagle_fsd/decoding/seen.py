"""Whether tensors of which copies are kept are still what they were."""

from collections.abc import Iterable

import torch

SAMPLED = 16  # numbers of a tensor that are compared


class Seen:
    """Tensors as they are now.

    Compared are the objects, their storage and torch's count of their changes. That does not count
    a change through `.data`, such as PEFT's merge, so that numbers spread over each are compared
    too: a change through `.data` of a few others is not found.
    """

    def __init__(self, tensors: Iterable[torch.Tensor | None]):
        # the tensors are held, so that no other comes to lie at the place of one
        self._marks = [(tensor, _mark(tensor)) for tensor in tensors]

    def is_now(self, tensors: Iterable[torch.Tensor | None]) -> bool:
        """Whether these are the tensors, unchanged."""
        tensors = list(tensors)
        return len(tensors) == len(self._marks) and all(
            now is then and _mark(now) == mark
            for now, (then, mark) in zip(tensors, self._marks, strict=True)
        )


def _mark(tensor: torch.Tensor | None) -> tuple:
    # wrappers, as of quantised weights, have no storage of their own
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_meta:
        return ()
    tensor = tensor.detach()  # which shares the count
    changes = 0 if tensor.is_inference() else tensor._version
    numbers = tensor.reshape(-1)[:: max(1, tensor.numel() // SAMPLED)].tolist()
    # as text, in which NaN equals itself
    return tensor.data_ptr(), tensor.dtype, tensor.shape, changes, str(numbers)
