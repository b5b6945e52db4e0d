"""Block structure of plain text."""

from __future__ import annotations

from itertools import pairwise

from ctx_pipeline.documents.blocks import Block, blank_line_cuts, trimmed


def plain_blocks(text: str) -> list[Block]:
    """Paragraphs of plain text: runs of lines separated by blank lines."""
    spans = (trimmed(text, start, end) for start, end in pairwise([0, *blank_line_cuts(text, 0, len(text)), len(text)]))
    return [Block("paragraph", start, end) for start, end in spans if start < end]
