"""The optimizer Muon beside torch's own, whose products are bfloat16."""

import pytest
import torch

from eagle_fsd.training.muon import Muon


@pytest.mark.parametrize("shape", [(24, 24), (16, 40), (40, 16)])
def test_steps_are_those_of_torch(shape):
    """Several, with momentum and decay, of square, wide and tall matrices; of float32 up to what
    bfloat16 rounds."""
    gradients = torch.randn(4, *shape, generator=torch.Generator().manual_seed(1))
    moved = {}
    for name in ("torch", "bfloat16", "float32"):
        matrix = torch.nn.Parameter(torch.ones(shape))
        if name == "torch":
            shared = {"lr": 0.01, "weight_decay": 0.1}
            optimizer = torch.optim.Muon([matrix], adjust_lr_fn="match_rms_adamw", **shared)
        else:
            dtype = getattr(torch, name)
            optimizer = Muon([matrix], dtype=dtype, lr=0.01, weight_decay=0.1)
        for gradient in gradients:
            matrix.grad = gradient.clone()
            optimizer.step()
        moved[name] = matrix.detach() - 0.999**4  # what decay alone would leave
    size = moved["torch"].norm()
    assert (moved["bfloat16"] - moved["torch"]).norm() < 0.01 * size
    assert (moved["float32"] - moved["torch"]).norm() < 0.03 * size
