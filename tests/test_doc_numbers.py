"""Numbers of the pages that follow from code: they are computed anew and must stand there."""

import re

import pytest
import torch
from commands import ROOT

from eagle_fsd.decoding.divergence import DIVERGENCES, divergence
from eagle_fsd.heads.draft_head import HEAD_TYPES
from eagle_fsd.heads.head_config import head_shape
from eagle_fsd.models.random_weights import SHAPES, shaped_model


def rows(page: str, first: str) -> list[list[str]]:
    """The cells of the rows of a page's table whose header begins with this cell; its header too,
    without the line below it."""
    (table,) = re.findall(
        rf"^\| {first} \|.*\n(?:\|.*\n)+", (ROOT / "docs" / page).read_text(), re.M
    )
    lines = [
        [cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines()
    ]
    return [lines[0], *lines[2:]]


def test_the_divergences_of_the_fsd_page_are_the_library_s():
    (_, _, *names), *cases = rows("fsd.md", "target")
    assert set(names) == set(DIVERGENCES) and len(cases) == 5
    for target, draft, *shown in cases:
        logits = [
            torch.tensor([float(p) for p in row.split(", ")]).log() for row in (target, draft)
        ]
        for name, value in zip(names, shown, strict=True):
            half_a_digit = 0.5 * 10 ** -len(value.partition(".")[2])
            found = divergence(name, *logits).item()
            assert found == pytest.approx(float(value), abs=half_a_digit * 1.01), (name, target)


def test_the_sizes_of_the_8b_page_are_those_of_the_shapes():
    page = " ".join((ROOT / "docs/your_model.md").read_text().split())
    config = SHAPES["llama-3.1-8b"]()
    model = shaped_model(config, torch.float16, "meta")
    weights = sum(parameter.numel() for parameter in model.parameters())
    heads = {}
    for head_type, vocab in {"eagle": 0, "eagle3": 32000}.items():
        with torch.device("meta"):
            head = HEAD_TYPES[head_type](head_shape(config, head_type=head_type, draft_vocab=vocab))
        heads[head_type] = sum(parameter.numel() for parameter in head.parameters())
    row_bytes = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 2
    state_bytes = 4 * config.hidden_size * 2
    for shown in (
        f"| {2 * weights / 1e9:.1f} GB | {weights:,} parameters x 2 bytes |",
        f"| {2 * heads['eagle3'] / 1e9:.2f} GB | {heads['eagle3'] / 1e6:.1f} million parameters",
        f"An EAGLE-2 head for this target takes {2 * heads['eagle'] / 1e9:.2f} GB.",
        f"{row_bytes:,} bytes a token |",
        f"| {2048 * row_bytes / 1e9:.2f} GB at 2,048 tokens |",
        f"are {128 * (1024 + 400) * row_bytes / 1e9:.0f} GB.",
        f"x 16 bytes = {16 * heads['eagle3'] / 1e9:.1f} GB)",
        f"= {state_bytes / 1e3:.1f} KB (three fused layers",
        f"for EAGLE-1/2 {state_bytes / 4e3:.1f} KB.",
        f"| {3e6 * state_bytes / 1e9:.0f} GB |",
        f"| {1e8 * state_bytes / 1e12:.1f} TB |",
        f"| {5e8 * state_bytes / 1e12:.0f} TB |",
    ):
        assert shown in page, shown
