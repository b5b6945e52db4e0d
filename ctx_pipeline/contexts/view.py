"""Views: what the model reads of a document to write the contexts of its chunks.

A document up to `window_tokens` is one view. A longer one is cut into windows, at places that depend on its content
and not on offsets: every beginning of a chunk has a priority, made of the level of the heading that stands there and
of a hash of the text; a range of chunks that is too large is cut at its highest priority, and so are its parts. (The
windows are the maximal subtrees of a treap that are small enough.) Text inserted, edited or deleted somewhere cannot
change which other place of a range has the highest priority. So only the windows that touch it can change: to each
side of it, chunks of no more than `window_tokens` get another view, whatever the length of the document.

Nothing here comes from a document's path, so that a renamed document has the same views.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ctx_pipeline.chunking.model import Chunk
from ctx_pipeline.documents.blocks import Block
from ctx_pipeline.documents.left_out import are_apart
from ctx_pipeline.documents.model import Parsed
from ctx_pipeline.documents.structure import document_blocks
from ctx_pipeline.documents.titles import own_title

VERSION = 1
"""Raised when the same document and chunks would give other views."""

_DEEPEST = 7


@dataclass(frozen=True, slots=True)
class View:
    """A document, or a window of a long one, with the chunks that lie in it."""

    title: str
    """As the document states it; empty when it has none of its own."""
    heading_path: tuple[str, ...]
    """Of a window, the headings above its first chunk; empty for a whole document."""
    text: str
    first: int
    """Position of the first chunk in the document."""
    chunks: tuple[Chunk, ...]

    @property
    def tokens(self) -> int:
        """Tokens of the text by o200k_base, give or take one for each gap between chunks."""
        return _tokens(self.chunks)


def document_views(parsed: Parsed, chunks: Sequence[Chunk], window_tokens: int) -> list[View]:
    """The views of a document in order; each chunk lies in exactly one, and no chunks give no views.

    A view has at most `window_tokens` (o200k_base), or is a single chunk that is larger.
    """
    if not chunks:
        return []
    blocks = document_blocks(parsed.text, parsed.media_type)
    title = own_title(parsed.text, parsed.media_type, blocks, parsed.metadata)
    if _tokens(chunks) <= window_tokens:
        return [_view(parsed, title, (), chunks, 0, len(chunks))]
    return [
        _view(parsed, title, chunks[first].heading_path, chunks, first, last)
        for first, last in windows(_priorities(blocks, chunks), [chunk.tokens + 1 for chunk in chunks], window_tokens)
    ]


def beginning(parsed: Parsed, chunks: Sequence[Chunk], most_tokens: int) -> View:
    """One view of as many first chunks as have at most `most_tokens` (o200k_base), at least one."""
    sizes = accumulate(chunk.tokens + 1 for chunk in chunks)
    last = max(1, sum(size - 1 <= most_tokens for size in sizes))
    blocks = document_blocks(parsed.text, parsed.media_type)
    title = own_title(parsed.text, parsed.media_type, blocks, parsed.metadata)
    return _view(parsed, title, (), chunks, 0, last)


def windows(priorities: Sequence[tuple[int, bytes, bytes]], sizes: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Ranges of at most `most` (or of one element), cut before the elements of the highest priorities.

    Of equal priorities the first counts as higher.
    """
    found = []
    waiting = [(0, len(sizes))]
    while waiting:
        first, last = waiting.pop()
        if last - first == 1 or sum(sizes[first:last]) - 1 <= most:
            found.append((first, last))
        else:
            cut = max(range(first + 1, last), key=priorities.__getitem__)
            waiting += [(cut, last), (first, cut)]
    return found


def _view(
    parsed: Parsed, title: str, heading_path: tuple[str, ...], chunks: Sequence[Chunk], first: int, last: int
) -> View:
    own = tuple(chunks[first:last])
    return View(title, heading_path, _read(parsed.text, own), first, own)


def _read(text: str, chunks: Sequence[Chunk]) -> str:
    """The text from the first chunk to the end of the last, without long parts that are not indexed."""
    parts = []
    start = chunks[0].start
    for chunk, following in pairwise(chunks):
        if are_apart(text, chunk.end, following.start):
            parts.append(text[start : chunk.end])
            start = following.start
    return "\n\n".join([*parts, text[start : chunks[-1].end]])


def _priorities(blocks: Sequence[Block], chunks: Sequence[Chunk]) -> list[tuple[int, bytes, bytes]]:
    """A heading's place is known by its path: editing what follows it moves no window. The text breaks ties."""
    levels = {}
    lead: int | None = None
    for block in blocks:
        if block.level:
            levels[block.start if lead is None else lead] = block.level
        lead = (block.start if lead is None else lead) if block.kind == "lead" else None
    return [
        (
            _DEEPEST - levels[chunk.start] if chunk.start in levels else 0,
            _hash("\0".join(chunk.heading_path)) if chunk.start in levels else b"",
            _hash(chunk.text),
        )
        for chunk in chunks
    ]


def _tokens(chunks: Sequence[Chunk]) -> int:
    return sum(chunk.tokens for chunk in chunks) + len(chunks) - 1


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8]
