"""The report as a PDF to print or to send: every run's verdicts, the plots, then all its tables."""

import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure
from tabulate import tabulate

from eagle_fsd.evaluation.plots import STYLE
from eagle_fsd.evaluation.report.report_tables import Table
from eagle_fsd.evaluation.tables import arm_lines, cell_text
from eagle_fsd.runs.jsonl import write_file

WIDTH, HEIGHT, MARGIN, HEADING = 11.69, 8.27, 0.5, 0.4  # inches of a page of A4 on its side
LARGEST, NARROWEST = 9.0, 5.0  # points of letters
LETTER, LINE = 0.602, 1.3  # width of DejaVu Sans Mono's letters, height of lines, in letter sizes
NAME = 34  # letters of an arm's name or a category before it goes on in the next line


@dataclass(frozen=True)
class Section:
    """Lines of equally wide letters under a heading.

    Attributes:
        note: how to read it, on the first page.
        titles: of columns, on every page.
        blocks: what no page end parts, as a row of a table.
    """

    heading: str
    note: list[str]
    titles: list[str]
    blocks: list[list[str]]

    def pages(self) -> list[Figure]:
        """In letters so small that the longest line fits, but not below NARROWEST."""
        lines = [*self.note, *self.titles, *(line for block in self.blocks for line in block)]
        longest = max(map(len, lines), default=1)
        size = 72 * (WIDTH - 2 * MARGIN) / (LETTER * longest)
        size = max(NARROWEST, min(LARGEST, size))
        room = int(72 * (HEIGHT - 2 * MARGIN - HEADING) / (LINE * size))
        found = [[*self.note, *self.titles]]
        for block in self.blocks:
            if len(found[-1]) + len(block) > room:
                found.append([*self.titles])
            found[-1] += block
        headings = [self.heading] + [f"{self.heading} (continued)"] * (len(found) - 1)
        return [_page(*page, size) for page in zip(headings, found, strict=True)]


def write_pdf(path: Path, sections: Sequence[Section], plots: Sequence[tuple[Figure, str]]) -> None:
    """Sections, the first of them before the plots, which have captions."""
    made = BytesIO()
    with (
        matplotlib.rc_context(STYLE),
        warnings.catch_warnings(),
        PdfPages(made, metadata={"CreationDate": None}) as pdf,
    ):
        # of writing systems that the fonts lack: boxes stand for these letters
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        for number, section in enumerate(sections):
            for figure in section.pages():
                pdf.savefig(figure)
            for figure, words in [] if number else plots:
                pdf.savefig(with_caption(figure, words))
    write_file(path, made.getvalue())


def with_caption(figure: Figure, words: str) -> Figure:
    """The figure with words above it."""
    width, height = figure.get_size_inches()
    lines = textwrap.wrap(words, 85)
    figure.set_size_inches(width, height + 0.15 * len(lines))
    figure.suptitle("\n".join(lines), fontsize=8, ha="left", x=0.02)
    return figure


def _page(heading: str, lines: list[str], size: float) -> Figure:
    page = Figure(figsize=(WIDTH, HEIGHT))
    left, top = MARGIN / WIDTH, 1 - MARGIN / HEIGHT
    page.text(left, top, heading, fontsize=13, weight="bold", va="top")
    how = {"family": "monospace", "fontsize": size, "linespacing": LINE, "va": "top"}
    page.text(left, top - HEADING / HEIGHT, "\n".join(lines), **how)
    return page


def table_section(heading: str, note: str, table: Table) -> Section:
    """A table, intervals below their values, under its note."""
    shown, rows = table
    cells = [[_cell(row[key], form) for _, key, form in shown] for row in rows]
    titles = ["\n".join(textwrap.wrap(title, 14)) for title, _, _ in shown]
    sides = ["left" if form == "s" else "right" for _, _, form in shown]
    how = {"tablefmt": "simple", "disable_numparse": True, "colalign": sides}
    lines = tabulate(cells, titles, **how).splitlines()
    heights = [1 + max(text.count("\n") for text in row) for row in cells]
    ends = len(lines) - sum(heights) + np.cumsum([0, *heights])
    blocks = [lines[begin:end] for begin, end in pairwise(ends)]
    width = max(100, max(map(len, lines)))
    return Section(heading, [*textwrap.wrap(note, width), ""], lines[: ends[0]], blocks)


def _cell(value: object, form: str) -> str:
    if form == "s":
        how = {"width": NAME, "break_long_words": False}
        return "\n".join(
            x for part in arm_lines(str(value), NAME) for x in textwrap.wrap(part, **how)
        )
    return cell_text(value, form).replace(" [", "\n[").replace(" (", "\n(")
