"""Chunks that follow the structure of a document: sections, then blocks, then sentences, lines, words, characters.

Blocks are packed greedily up to the limit, afresh in every section, so that an edit changes the chunks of its own
section only. A section begins at each heading of the *top* level (the smallest level that occurs at least twice, else
the smallest that occurs) or above it, except where the section before holds nothing but headings.

Inside a section a chunk ends before a heading whose subsection would fit a chunk of its own but not what is left of
this one, or when the chunk is half full. A heading stays with what follows it, and so do anchors, imports and tags that
open something: what has no room beside them is split, between its lines if it is a table or code. A heading ends a
chunk only when it takes up more than three quarters of a chunk itself, when a line of code or a word that follows has
no room beside it, and when its section is empty.

Tables, code and admonitions that fit a chunk beside the headings directly above them are not split. No chunk crosses
what is not indexed, such as front matter, but for short comments.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctx_pipeline.chunking.model import Chunk, SizeLimit
from ctx_pipeline.chunking.packing import Packing, pack
from ctx_pipeline.chunking.sections import top_sections
from ctx_pipeline.documents.blocks import Block
from ctx_pipeline.documents.model import Parsed
from ctx_pipeline.documents.structure import document_blocks

VERSION = 2
"""Raised when the same text and settings would give other spans."""


class RecursiveChunker:
    """Cuts by structure where it can, by size where it must."""

    def __init__(self, limit: SizeLimit, overlap: int, identity: str) -> None:
        """`identity` tells the limit and the overlap (tokens of o200k_base) apart from others."""
        self.fingerprint = f"recursive/{VERSION}/{identity}"
        self._limit, self._overlap = limit, overlap

    def split(self, parsed: Parsed) -> list[Chunk]:
        """See Chunker."""
        blocks = document_blocks(parsed.text, parsed.media_type)
        return split_blocks(parsed.text, blocks, self._limit, self._overlap)


def split(text: str, *, markdown: bool, limit: SizeLimit, overlap: int = 0) -> list[Chunk]:
    """Chunks in order: each non-whitespace character that is indexed lies in exactly one; both limits hold in each.

    The one exception is a single character (with its combining marks) that has more tokens than a limit allows.
    With `overlap`, a chunk other than its section's first also begins with whole sentences from the end of the one
    before, up to that many tokens of o200k_base. A blank text has no chunks.
    """
    blocks = document_blocks(text, "text/markdown" if markdown else "text/plain")
    return split_blocks(text, blocks, limit, overlap)


def split_blocks(text: str, blocks: Sequence[Block], limit: SizeLimit, overlap: int) -> list[Chunk]:
    """`split` for a text whose blocks are known."""
    packing = Packing(text, blocks, limit, overlap)
    sections = top_sections(packing.units)
    return packing.chunks(
        lambda breaks: [pack(packing.units, section, packing.estimates, breaks) for section in sections]
    )
