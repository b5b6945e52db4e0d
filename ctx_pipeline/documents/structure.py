"""The blocks of a document, by the rules of its format."""

from __future__ import annotations

from ctx_pipeline.documents.blocks import NOT_INDEXED, Block
from ctx_pipeline.documents.left_out import with_left_out
from ctx_pipeline.documents.markdown import markdown_blocks
from ctx_pipeline.documents.model import Parsed
from ctx_pipeline.documents.plain_text import paragraphs, plain_blocks
from ctx_pipeline.documents.rst import rst_blocks


def document_blocks(text: str, media_type: str) -> list[Block]:
    """The text's blocks in order; together they hold every character other than whitespace.

    Source code and HTML are paragraphs here: their own structure has modules of its own. Blocks that are not indexed
    are among them, and the others tell what inside them is not; see `left_out`.
    """
    return with_left_out(text, _blocks(text, media_type), media_type)


def has_indexed_text(parsed: Parsed) -> bool:
    """Whether chunks come of a document: it may be nothing but front matter, or a comment."""
    return any(block.kind not in NOT_INDEXED for block in document_blocks(parsed.text, parsed.media_type))


def _blocks(text: str, media_type: str) -> list[Block]:
    match media_type:
        case "text/markdown":
            return markdown_blocks(text)
        case "text/x-rst":
            return rst_blocks(text)
        case "text/plain":
            return plain_blocks(text)
        case _:
            return paragraphs(text)
