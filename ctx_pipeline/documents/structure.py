"""The blocks of a document, by the rules of its format."""

from __future__ import annotations

from ctx_pipeline.documents.blocks import Block
from ctx_pipeline.documents.markdown import markdown_blocks
from ctx_pipeline.documents.plain_text import paragraphs, plain_blocks
from ctx_pipeline.documents.rst import rst_blocks


def document_blocks(text: str, media_type: str) -> list[Block]:
    """The text's blocks in order; together they hold every character other than whitespace.

    Source code and HTML are paragraphs here: their own structure has modules of its own.
    """
    match media_type:
        case "text/markdown":
            return markdown_blocks(text)
        case "text/x-rst":
            return rst_blocks(text)
        case "text/plain":
            return plain_blocks(text)
        case _:
            return paragraphs(text)
