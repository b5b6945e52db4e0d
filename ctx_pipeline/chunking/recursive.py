"""Chunks that follow the structure of a document: sections, then blocks, then sentences, lines, words, characters.

Blocks are packed greedily up to the limit, afresh in every section, so that an edit changes the chunks of its own
section only. A section begins at each heading of the *top* level (the smallest level that occurs at least twice, else
the smallest that occurs) or above it, except where the section before holds nothing but headings.

Inside a section a chunk ends before a heading whose subsection would fit a chunk of its own but not what is left of
this one, or when the chunk is half full. A heading stays with what follows it: a paragraph or list that has no room
beside it is split. A heading ends a chunk only where that is impossible: above a table or code that fits a chunk alone
(those are never split then), when it takes up more than three quarters of a chunk itself, or when its section is empty.

Packing adds up estimates (tokens of the parts and of the whitespace between them); each chunk is then counted exactly,
and repacked when the estimate was too low.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ctx_pipeline.chunking.tokens import count_tokens
from ctx_pipeline.chunking.units import Unit, fitting_units
from ctx_pipeline.documents.markdown import line_starts, markdown_blocks, plain_blocks

VERSION = 1
"""Raised when the same text and settings would give other spans."""

_MAX_LEVEL = 6

_Range = tuple[int, int]
"""Positions in the list of units, end exclusive."""


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
    """Titles of the headings in force at the chunk's first content; headings that open the chunk count."""
    tokens: int
    """Tokens of `text` by o200k_base."""
    embedder_tokens: int
    """Tokens of `text` by the embedder's tokenizer."""


def split(text: str, *, markdown: bool, limit: SizeLimit) -> list[Chunk]:
    """Chunks in order: each non-whitespace character of `text` lies in exactly one, and both limits hold in each.

    The one exception is a single character (with its combining marks) that has more tokens than a limit allows.
    A blank text has no chunks.
    """
    units = fitting_units(text, markdown_blocks(text) if markdown else plain_blocks(text), limit)
    if not units:
        return []
    estimates = _Estimates(units, limit)
    sections = _sections(units)
    exact = {(position, position + 1): (unit.tokens, unit.embedder_tokens) for position, unit in enumerate(units)}
    breaks: set[int] = set()
    while True:
        ranges = [chunk for section in sections for chunk in _pack(units, section, estimates, breaks)]
        new = [chunk for chunk in ranges if chunk not in exact]
        if new:
            texts = [text[units[first].start : units[last - 1].end] for first, last in new]
            counts = zip(count_tokens(texts), limit.count_embedder_tokens(texts), strict=True)
            exact.update(zip(new, counts, strict=True))
        too_large = [chunk for chunk in ranges if chunk[1] - chunk[0] > 1 and not limit.allows(*exact[chunk])]
        if not too_large:
            break
        breaks.update(_break_inside(units, chunk, exact[chunk], estimates, limit) for chunk in too_large)

    lines = line_starts(text)
    chunks = []
    for (first, last), path in zip(ranges, _heading_paths(units, ranges), strict=True):
        start, end = units[first].start, units[last - 1].end
        chunks.append(Chunk(start, end, bisect_right(lines, start), text[start:end], path, *exact[first, last]))
    return chunks


class _Estimates:
    """Sizes of ranges of units, added up from the sizes of the units and of the whitespace between them."""

    def __init__(self, units: Sequence[Unit], limit: SizeLimit) -> None:
        self._units = units
        self._limit = limit
        self._tokens = list(accumulate((unit.gap_tokens + unit.tokens for unit in units), initial=0))
        self._embedder_tokens = list(
            accumulate((unit.gap_embedder_tokens + unit.embedder_tokens for unit in units), initial=0)
        )

    def size(self, first: int, last: int) -> tuple[int, int]:
        unit = self._units[first]
        return (
            self._tokens[last] - self._tokens[first] - unit.gap_tokens,
            self._embedder_tokens[last] - self._embedder_tokens[first] - unit.gap_embedder_tokens,
        )

    def fit(self, first: int, last: int) -> bool:
        return self._limit.allows(*self.size(first, last))

    def exceed_half(self, first: int, last: int) -> bool:
        tokens, embedder_tokens = self.size(first, last)
        return not self._limit.allows(2 * tokens, 2 * embedder_tokens)


def _sections(units: Sequence[Unit]) -> list[_Range]:
    counts = Counter(unit.level for unit in units if unit.level)
    top = min((level for level, count in counts.items() if count > 1), default=min(counts, default=0))
    starts = [0]
    has_content = False
    for position, unit in enumerate(units):
        if has_content and 0 < unit.level <= top:
            starts.append(position)
            has_content = False
        has_content |= unit.is_content
    return list(pairwise([*starts, len(units)]))


def _pack(units: Sequence[Unit], section: _Range, estimates: _Estimates, breaks: set[int]) -> list[_Range]:
    """The section's chunks: greedy, but broken at `breaks` and, rather than inside a subsection, before its heading."""
    chunks = []
    start, end = section
    bundles = _bundles(units, section, estimates, breaks)
    for (first, last), subsection_end in zip(bundles, _subsection_ends(units, bundles, end), strict=True):
        if first > start and (
            first in breaks
            or not estimates.fit(start, last)
            or (
                not estimates.fit(start, subsection_end)
                and (estimates.fit(first, subsection_end) or estimates.exceed_half(start, first))
            )
        ):
            chunks.append((start, first))
            start = first
    return [*chunks, (start, end)]


def _bundles(units: Sequence[Unit], section: _Range, estimates: _Estimates, breaks: set[int]) -> list[_Range]:
    """Ranges that stay together: content with the headings before it, as many of the last ones as fit."""
    bundles = []
    start, end = section
    for position in range(start, end):
        if units[position].sticky and position + 1 < end:
            continue
        first = position
        while first > start and first not in breaks and estimates.fit(first - 1, position + 1):
            first -= 1
        bundles += [(alone, alone + 1) for alone in range(start, first)]
        bundles.append((first, position + 1))
        start = position + 1
    return bundles


def _subsection_ends(units: Sequence[Unit], bundles: Sequence[_Range], section_end: int) -> list[int]:
    """For a bundle with a heading, where the next heading of its level or above begins; else the bundle's end."""
    next_starts = [section_end] * (_MAX_LEVEL + 1)
    ends = []
    for first, last in reversed(bundles):
        level = min((unit.level for unit in units[first:last] if unit.level), default=0)
        ends.append(min(next_starts[: level + 1]) if level else last)
        if level:
            next_starts[level] = first
    return ends[::-1]


def _break_inside(
    units: Sequence[Unit], chunk: _Range, size: tuple[int, int], estimates: _Estimates, limit: SizeLimit
) -> int:
    """Where to end a chunk that turned out too large: as late as its excess allows, not after a heading if possible."""
    first, last = chunk
    excess = size[0] - limit.max_tokens, size[1] - limit.embedder_tokens
    for position in range(last - 1, first, -1):
        tokens, embedder_tokens = estimates.size(first, position)
        if not units[position - 1].sticky and limit.allows(
            tokens + max(excess[0], 0), embedder_tokens + max(excess[1], 0)
        ):
            return position
    return last - 1


def _heading_paths(units: Sequence[Unit], chunks: Sequence[_Range]) -> Iterator[tuple[str, ...]]:
    headings: list[Unit] = []
    for first, last in chunks:
        path: tuple[str, ...] | None = None
        for unit in units[first:last]:
            if unit.level:
                while headings and headings[-1].level >= unit.level:
                    headings.pop()
                headings.append(unit)
            if path is None and unit.is_content:
                path = _path(headings)
        yield _path(headings) if path is None else path


def _path(headings: Sequence[Unit]) -> tuple[str, ...]:
    return tuple(heading.title for heading in headings if heading.title)
