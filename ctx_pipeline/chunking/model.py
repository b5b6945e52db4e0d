"""A chunk, what it may hold, and what the pipeline asks of whatever cuts documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ctx_pipeline.documents.blocks import Span
from ctx_pipeline.documents.left_out import without
from ctx_pipeline.documents.model import Parsed
from ctx_pipeline.embedding.protocol import Embedder
from ctx_pipeline.errors import SettingsError
from ctx_pipeline.settings import CONTEXT_TOKENS


@dataclass(frozen=True)
class SizeLimit:
    """What a chunk may hold: both limits apply."""

    max_tokens: int
    """Ceiling counted by tiktoken's o200k_base, at least 1."""
    embedder_tokens: int
    """What the embedder's window leaves for the chunk, counted by its own tokenizer, at least 1."""
    count_embedder_tokens: Callable[[Sequence[str]], list[int]]
    """Tokens of each text by the embedder's tokenizer, without special tokens."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.embedder_tokens < 1:
            raise ValueError(
                f"a chunk needs room for at least 1 token, got max_tokens={self.max_tokens} and "
                f"embedder_tokens={self.embedder_tokens}: raise chunking.max_tokens, or choose another embedder"
            )

    def allows(self, tokens: int, embedder_tokens: int) -> bool:
        return tokens <= self.max_tokens and embedder_tokens <= self.embedder_tokens

    def beside_overlap(self, overlap: int) -> SizeLimit:
        """What is left of a chunk beside `overlap` tokens of o200k_base.

        An embedder may need more tokens for the same text (e5 up to 1.29 times as many, measured on code), but never
        gets more than half of its room reserved.
        """
        reserved = min(overlap * 5 // 4, self.embedder_tokens // 2)
        return SizeLimit(self.max_tokens - overlap, self.embedder_tokens - reserved, self.count_embedder_tokens)


@dataclass(frozen=True)
class Chunk:
    """A span of the parsed text, which begins and ends with a character other than whitespace."""

    start: int
    """Character offset of the first character."""
    end: int
    """Character offset after the last character."""
    line: int
    """1-based line of `start`."""
    text: str
    """The parsed text from `start` to `end`."""
    heading_path: tuple[str, ...]
    """Titles of the headings in force at the first content after the overlap; headings that open the chunk count.

    In code, names of the definitions that began before that place and enclose it.
    """
    tokens: int
    """Tokens of `text` by o200k_base."""
    embedder_tokens: int
    """Tokens of `indexed_text` by the embedder's tokenizer."""
    page: int | None = None
    """1-based page of `start`; None where the document has no pages."""
    table_head: tuple[str, ...] = ()
    """Cells of the header row, the first ones, of the table whose later rows the chunk begins with; else empty."""
    left_out: tuple[Span, ...] = ()
    """Spans inside the chunk that are not indexed: comments, tags of HTML tables."""

    @property
    def indexed_text(self) -> str:
        """What of the text is embedded and put into full text."""
        # A limit of a few tokens may cut a chunk out of a comment.
        return without(self.text, self.start, self.left_out).strip() or self.text if self.left_out else self.text


class Chunker(Protocol):
    """Cuts documents into chunks by one strategy."""

    fingerprint: str
    """Identity of everything that affects a chunk's span; the chunk stage's hash. Known without loading anything."""

    def split(self, parsed: Parsed) -> list[Chunk]:
        """Chunks in order: starts and ends increase, each indexed character but whitespace lies in at least one.

        But what is not indexed: front matter, comments and data URIs (see `documents.left_out`).
        Both size limits hold, except for a single character (with its combining marks) that has more tokens than a
        limit allows. A blank text has no chunks.
        """
        ...


def embedder_chunk_tokens(embedder: Embedder) -> int:
    """What the embedder's window leaves for a chunk beside its context, by the embedder's tokenizer."""
    left = embedder.window_tokens - CONTEXT_TOKENS
    if left < 32:
        raise SettingsError(
            f"embedding.model {embedder.name}: its window of {embedder.window_tokens} tokens leaves {left} for a chunk "
            f"beside a context of {CONTEXT_TOKENS}; at least 32 are needed"
        )
    return left
