"""Chunks of equal size: windows of words, whatever is in them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ctx_pipeline.chunking.boundaries import character_cuts, pieces
from ctx_pipeline.chunking.model import Chunk, SizeLimit
from ctx_pipeline.chunking.tokens import count_tokens
from ctx_pipeline.documents.blocks import NO_CONTENT, Block, Span, line_starts, page_at, page_breaks
from ctx_pipeline.documents.left_out import clipped, indexed_part, is_long, left_out_spans
from ctx_pipeline.documents.model import Parsed
from ctx_pipeline.documents.structure import document_blocks
from ctx_pipeline.documents.template_tags import TAG_OR_WORD

VERSION = 2
"""Raised when the same text and settings would give other spans."""

# No ordinary word is longer; what is (addresses, scripts without spaces) may be cut inside.
_MOST_WORD_CHARS = 32
# Whitespace up to this length is counted with the word after it, for it often shares a token with it.
_MOST_GAP_CHARS = 16

_Word = tuple[int, int]
"""Start and end of a word or piece of one."""


class FixedChunker:
    """Cuts into windows of the same number of tokens, the last one shorter, each beginning inside the one before."""

    def __init__(self, limit: SizeLimit, overlap: int, identity: str) -> None:
        """`identity` tells the limit and the overlap (tokens of o200k_base) apart from others."""
        self.fingerprint = f"fixed/{VERSION}/{identity}"
        self._limit, self._overlap = limit, overlap

    def split(self, parsed: Parsed) -> list[Chunk]:
        """See Chunker."""
        text = parsed.text
        lines, pages = line_starts(text), page_breaks(text)
        blocks = document_blocks(text, parsed.media_type)
        left_out = list(left_out_spans(blocks))
        windows = [
            window
            for part in _parts(text, blocks, left_out)
            for window in _Windows(text, _words(text, part, self._limit), self._limit, self._overlap)
        ]
        seen = [indexed_part(text, window.start, window.end, left_out) for window in windows]
        return [
            Chunk(
                start=w.start,
                end=w.end,
                line=bisect_right(lines, w.start),
                text=text[w.start : w.end],
                heading_path=path,
                tokens=w.tokens,
                embedder_tokens=embedder_tokens,
                page=page_at(pages, w.start),
                left_out=clipped(left_out, w.start, w.end),
            )
            for w, path, embedder_tokens in zip(
                windows, _heading_paths(blocks, windows), self._limit.count_embedder_tokens(seen), strict=True
            )
        ]


@dataclass(frozen=True, slots=True)
class _Window:
    start: int
    own_start: int
    """Where what is not in the window before begins."""
    end: int
    tokens: int
    embedder_tokens: int


def _parts(text: str, blocks: Sequence[Block], left_out: Sequence[Span]) -> Iterator[Span]:
    """The text between what is not indexed and too long to lie inside a chunk."""
    position = 0
    matter = {block.start for block in blocks if block.kind == "front_matter"}
    for start, end in left_out:
        if is_long((start, end)) or start in matter or not text[position:start].strip():
            yield position, start
            position = end
    yield position, len(text)


def _words(text: str, part: Span, limit: SizeLimit) -> list[_Word]:
    """Words and tags, and pieces of what is longer than a word or a chunk."""
    words = []
    for word in TAG_OR_WORD.finditer(text, *part):
        if word["tag"] or word.end() - word.start() <= _MOST_WORD_CHARS:
            words.append(word.span())
        else:
            words += pieces(text, word.start(), word.end(), character_cuts, _MOST_WORD_CHARS)
    distinct = sorted({text[start:end] for start, end in words})
    sizes = zip(count_tokens(distinct), limit.count_embedder_tokens(distinct), strict=True)
    too_large = {word for word, size in zip(distinct, sizes, strict=True) if not limit.allows(*size)}
    return [
        piece
        for start, end in words
        for piece in (pieces(text, start, end, character_cuts, 1) if text[start:end] in too_large else [(start, end)])
    ]


class _Windows:
    """The windows over the words of a text, in order.

    Ends are found by adding up the sizes of words; each window is then counted, and shortened where that was too low.
    """

    def __init__(self, text: str, words: list[_Word], limit: SizeLimit, overlap: int) -> None:
        self._text, self._words, self._limit, self._overlap = text, words, limit, overlap
        self._tokens, self._embedder_tokens = self._sums()

    def __iter__(self) -> Iterator[_Window]:
        first = done = 0
        while done < len(self._words):
            last, size = self._window(first)
            while last <= done and first < done:  # the overlap left no room for another word
                first = (first + done + 1) // 2
                last, size = self._window(first)
            yield _Window(self._words[first][0], self._words[done][0], self._words[last - 1][1], *size)
            first, done = self._next(first, last), last

    def _sums(self) -> tuple[list[int], list[int]]:
        gap_ends = [0, *(end for _, end in self._words)]
        parts: list[tuple[str, ...]] = []
        for gap_start, (start, end) in zip(gap_ends, self._words, strict=False):
            text = self._text
            joined = start - gap_start <= _MOST_GAP_CHARS
            parts.append((text[gap_start:end],) if joined else (text[gap_start:start], text[start:end]))
        distinct = sorted({part for own in parts for part in own})
        tokens = dict(zip(distinct, count_tokens(distinct), strict=True))
        embedder_tokens = dict(zip(distinct, self._limit.count_embedder_tokens(distinct), strict=True))
        return (
            list(accumulate((sum(tokens[part] for part in own) for own in parts), initial=0)),
            list(accumulate((sum(embedder_tokens[part] for part in own) for own in parts), initial=0)),
        )

    def _window(self, first: int) -> tuple[int, tuple[int, int]]:
        """Where a window that begins with a word ends, and its size."""
        # The gap before the first word is not in the window: the first word counts as free, and the count corrects it.
        tokens, embedder_tokens = self._tokens[first + 1], self._embedder_tokens[first + 1]
        last = min(
            bisect_right(self._tokens, tokens + self._limit.max_tokens),
            bisect_right(self._embedder_tokens, embedder_tokens + self._limit.embedder_tokens),
        )
        last = max(last - 1, first + 1)
        step = 1
        while True:
            size = self._size(first, last)
            if self._limit.allows(*size) or last == first + 1:
                return last, size
            target = self._tokens[last] - max(size[0] - self._limit.max_tokens, 0)
            embedder_target = self._embedder_tokens[last] - max(size[1] - self._limit.embedder_tokens, 0)
            by_excess = min(bisect_right(self._tokens, target), bisect_right(self._embedder_tokens, embedder_target))
            last = max(min(by_excess - 1, last - step), first + 1)
            step *= 2

    def _next(self, first: int, last: int) -> int:
        """The word with which the window after `first` to `last` begins; at least half of a window is new."""
        if not self._overlap or last == len(self._words):
            return last
        start = bisect_right(self._tokens, self._tokens[last] - self._overlap - 1)
        start = min(max(start, (first + last + 1) // 2), last)
        while start < last and count_tokens([self._text_of(start, last)])[0] > self._overlap:
            start += 1
        return start

    def _size(self, first: int, last: int) -> tuple[int, int]:
        texts = [self._text_of(first, last)]
        return count_tokens(texts)[0], self._limit.count_embedder_tokens(texts)[0]

    def _text_of(self, first: int, last: int) -> str:
        return self._text[self._words[first][0] : self._words[last - 1][1]]


def _heading_paths(blocks: Sequence[Block], windows: Sequence[_Window]) -> Iterator[tuple[str, ...]]:
    headings = [block for block in blocks if block.kind == "heading"]
    content = [block for block in blocks if block.kind not in NO_CONTENT]
    path: list[Block] = []
    next_heading = next_content = 0
    for window in windows:
        while next_content < len(content) and content[next_content].end <= window.own_start:
            next_content += 1
        begins = content[next_content].start if next_content < len(content) else window.end
        position = min(max(begins, window.own_start), window.end)
        while next_heading < len(headings) and headings[next_heading].start < position:
            heading = headings[next_heading]
            path = [*(above for above in path if above.level < heading.level), heading]
            next_heading += 1
        yield tuple(heading.title for heading in path if heading.title)
