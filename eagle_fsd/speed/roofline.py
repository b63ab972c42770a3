"""The memory roofline: what a forward must read, and how fast the device reads.

A step or a verification reads the weights and the cache of its context; the tree's own rows and
activations are left out, a few MB at most.
"""

import torch
from transformers import PretrainedConfig

from eagle_fsd.models.random_weights import empty_model
from eagle_fsd.speed.clock import synchronized_time

SAMPLE_BYTES = {"cpu": 2**28, "cuda": 2**30}  # well beyond any cache
TRIES = 7


def weight_bytes_read(config: PretrainedConfig, dtype: torch.dtype) -> int | None:
    """Bytes of weights that a forward reads once, however many tokens it takes.

    Everything but the embedding table, of which a row a token is read (not counted); where the
    lm_head is that table, it is read. None for a model with experts, of which the tokens decide.
    """
    if getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None):
        return None
    model = empty_model(config, dtype, "meta")
    embedding = model.get_input_embeddings().weight
    tied = model.get_output_embeddings().weight is embedding
    weights = sum(parameter.nbytes for parameter in model.parameters())  # tied ones once
    return weights - (0 if tied else embedding.nbytes)


def measure_bandwidth(device: torch.device, *, sample_bytes: int = 0) -> float:
    """Bytes a second that the device moves: the best of a sum (read) and a copy (read + write).

    Args:
        sample_bytes: size of the tensor; 0 chooses one beyond the device's caches.
    """
    count = (sample_bytes or SAMPLE_BYTES[device.type]) // 4
    source = torch.ones(count, dtype=torch.float32, device=device)
    goal = torch.zeros_like(source)
    best = 0.0
    for work, moved in ((source.sum, 4 * count), (lambda: goal.copy_(source), 8 * count)):
        for _ in range(TRIES):
            began = synchronized_time(device)
            work()
            best = max(best, moved / (synchronized_time(device) - began))
    return best
