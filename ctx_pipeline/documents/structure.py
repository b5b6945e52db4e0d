"""The blocks of a document, by the rules of its format."""

from __future__ import annotations

from ctx_pipeline.documents.blocks import NOT_INDEXED, Block
from ctx_pipeline.documents.left_out import with_left_out
from ctx_pipeline.documents.markdown import markdown_blocks
from ctx_pipeline.documents.model import Parsed
from ctx_pipeline.documents.plain_text import plain_blocks


def document_blocks(text: str, media_type: str) -> list[Block]:
    """The text's blocks in order; together they hold every character other than whitespace.

    Those that are not indexed are among them, and the others tell what inside them is not; see `left_out`.
    """
    blocks = markdown_blocks(text) if media_type == "text/markdown" else plain_blocks(text)
    return with_left_out(text, blocks, media_type)


def has_indexed_text(parsed: Parsed) -> bool:
    """Whether chunks come of a document: it may be nothing but front matter, or a comment."""
    return any(block.kind not in NOT_INDEXED for block in document_blocks(parsed.text, parsed.media_type))
