"""The table of divergences in docs/fsd.md is the library's: its numbers are computed anew."""

import pytest
import torch
from commands import ROOT

from eagle_fsd.decoding.divergence import DIVERGENCES, divergence


def test_the_divergences_of_the_fsd_page_are_the_library_s():
    """A row of the table: a target's and a draft's probabilities, and each divergence of them."""
    _, _, table = (ROOT / "docs" / "fsd.md").read_text().partition("\n| target |")
    table, _, _ = table.partition("\n\n")
    header, _, *lines = table.splitlines()
    _, *names = [cell.strip() for cell in header.strip("| ").split("|")]
    assert set(names) == set(DIVERGENCES) and len(lines) == 5
    for line in lines:
        target, draft, *shown = [cell.strip() for cell in line.strip("| ").split(" | ")]
        logits = [
            torch.tensor([float(p) for p in row.split(", ")]).log() for row in (target, draft)
        ]
        for name, value in zip(names, shown, strict=True):
            half_a_digit = 0.5 * 10 ** -len(value.partition(".")[2])
            computed = divergence(name, *logits).item()
            assert computed == pytest.approx(float(value), abs=half_a_digit * 1.01), (name, target)
