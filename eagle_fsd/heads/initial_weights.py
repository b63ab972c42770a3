"""Whether a weight still is what it was initialised with: nothing that training left behind shows.

A matrix is taken for one of independent draws if two things hold, of a part of at most PART rows
and columns:

    spread   The mean squares of its rows, and of its columns, scatter as those of independent draws
             do. For n columns the variance of a row's sum of squares is n times that of a square,
             whatever the distribution; z is how many standard errors the found ratio is above 1,
             and |z| < 5 for rows and columns alike.
    top      Its largest singular value is at most where the spectrum of independent draws ends
             (Marchenko and Pastur), their standard deviation times sqrt(rows) + sqrt(columns), but
             for 5 % and what small matrices vary by.

Trained weights have rows and columns of their own size: in the shipped head the larger z of each
matrix is 100 to 3,075, of fresh normal and uniform draws it is below 3. Weights that training moved
by little are not told from drawn ones, so the verdict says what shows, not what was done.
"""

import math
from dataclasses import dataclass

import torch

PART = 4096
LEAST = 16  # rows and columns below which nothing can be said
STEPS = 40  # of the power iteration, which approaches the largest singular value from below


@dataclass(frozen=True)
class Spread:
    """See above: z of rows and columns, and the largest singular value over its limit."""

    row_z: float
    column_z: float
    top: float
    margin: float

    @property
    def drawn(self) -> bool:
        return max(abs(self.row_z), abs(self.column_z)) < 5 and self.top < 1 + self.margin

    def __str__(self) -> str:
        return (
            f"spread of its rows z {self.row_z:.1f}, of its columns z {self.column_z:.1f}, largest "
            f"singular value {self.top:.2f} of what independent draws have"
        )


def spread(weight_MN: torch.Tensor) -> Spread | None:
    """Of a matrix; None if it is none, is too small or says nothing, being of one number."""
    if weight_MN.ndim != 2 or min(weight_MN.shape) < LEAST:
        return None
    steps = [math.ceil(size / PART) for size in weight_MN.shape]
    part_MN = weight_MN[:: steps[0], :: steps[1]].float()
    square_MN = part_MN.square()
    variance, size = square_MN.var().item(), square_MN.mean().sqrt().item()
    if not variance:
        return None
    M, N = part_MN.shape

    def z(sums: torch.Tensor, added: int) -> float:
        return (sums.var().item() / (added * variance) - 1) / math.sqrt(2 / (len(sums) - 1))

    limit = size * (math.sqrt(M) + math.sqrt(N))
    return Spread(
        row_z=z(square_MN.sum(1), N),
        column_z=z(square_MN.sum(0), M),
        top=largest_singular_value(part_MN) / limit,
        margin=0.05 + 2 * min(M, N) ** (-2 / 3),
    )


def largest_singular_value(matrix_MN: torch.Tensor) -> float:
    """From below, by power iteration from one fixed start."""
    generator = torch.Generator().manual_seed(0)
    vector_N = torch.randn(matrix_MN.shape[1], generator=generator)
    for _ in range(STEPS):
        vector_N = matrix_MN.T @ (matrix_MN @ vector_N)
        vector_N = vector_N / vector_N.norm()
    return (matrix_MN @ vector_N).norm().item()
