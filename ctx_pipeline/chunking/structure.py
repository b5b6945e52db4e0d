"""Chunks that are the document's own parts: sections under headings, definitions of code.

A part begins at every heading (of Markdown or HTML) or definition that follows content. Parts of at most a quarter of a
chunk are merged with neighbours of the same kind and the same parent while they fit one; a part that does not fit is
packed as the recursive strategy packs a section. No chunk crosses the beginning of a section of the top level.

So an edit that keeps the headings changes the chunks of its own part, and of small parts beside it under the same
parent: never those of another section of the top level.

In code, a class (or another definition with definitions inside) that fits a chunk stays whole, and the outermost level
is no boundary: small functions side by side are merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from ctx_pipeline.chunking import recursive
from ctx_pipeline.chunking.code_sections import code_blocks, enclosing_names, find_definitions, is_code
from ctx_pipeline.chunking.html_sections import html_blocks, is_html
from ctx_pipeline.chunking.model import Chunk, SizeLimit
from ctx_pipeline.chunking.packing import Packing, pack
from ctx_pipeline.chunking.sections import top_sections, with_leads
from ctx_pipeline.chunking.units import Range, Unit
from ctx_pipeline.documents.left_out import with_left_out
from ctx_pipeline.documents.model import Parsed
from ctx_pipeline.documents.structure import document_blocks

VERSION = 2
"""Raised when the same text and settings would give other spans."""

_SMALL_SHARE = 4
"""A part is small when a chunk has room for this many of its size."""


class StructureChunker:
    """Cuts at headings and definitions."""

    def __init__(self, limit: SizeLimit, overlap: int, identity: str) -> None:
        """`identity` tells the limit and the overlap (tokens of o200k_base) apart from others."""
        self.fingerprint = f"structure/{VERSION}.{recursive.VERSION}/{identity}"
        self._limit, self._overlap = limit, overlap

    def split(self, parsed: Parsed) -> list[Chunk]:
        """See Chunker."""
        text = parsed.text
        if is_html(parsed):
            blocks = with_left_out(text, html_blocks(text), "text/html")
            return self._by_headings(Packing(text, blocks, self._limit, self._overlap))
        if is_code(parsed):
            return self._by_definitions(text)
        return self._by_headings(Packing(text, document_blocks(text, parsed.media_type), self._limit, self._overlap))

    def _by_headings(self, packing: Packing) -> list[Chunk]:
        if not packing.units:
            return []
        sections = [
            _Parts(packing, _heading_parts(packing.units, section), keep_whole=False)
            for section in top_sections(packing.units)
        ]
        seams = frozenset(first for section in sections for first, _ in section.parts)
        return packing.chunks(lambda breaks: [g for section in sections for g in section.groups(breaks)], seams=seams)

    def _by_definitions(self, text: str) -> list[Chunk]:
        definitions = find_definitions(text)
        blocks = with_left_out(text, code_blocks(text, definitions), "text/x-source")
        packing = Packing(text, blocks, self._limit, self._overlap)
        parts = _Parts(packing, _definition_parts(packing.units), keep_whole=True)
        seams = frozenset(first for first, _ in parts.parts)
        return packing.chunks(parts.groups, seams=seams, paths=lambda starts: enclosing_names(definitions, starts))


def _heading_parts(units: Sequence[Unit], section: Range) -> list[Range]:
    """The section cut at headings that follow content."""
    starts = [section[0]]
    has_content = False
    for position in range(*section):
        if has_content and units[position].level:
            starts.append(with_leads(units, position))
            has_content = False
        has_content |= units[position].is_content
    return list(pairwise([*starts, section[1]]))


def _definition_parts(units: Sequence[Unit]) -> list[Range]:
    starts = [position for position, unit in enumerate(units) if unit.level or not position]
    return list(pairwise([*starts, len(units)]))


class _Parts:
    """Parts in order, as a tree: a part of a larger level than the one before is below it."""

    def __init__(self, packing: Packing, parts: Sequence[Range], *, keep_whole: bool) -> None:
        self.parts = parts
        self._packing = packing
        self._keep_whole = keep_whole
        self._levels = [packing.units[first].level for first, _ in parts]

    def groups(self, breaks: set[int]) -> list[list[Range]]:
        """Chunks, those of a part that is divided together. See Plan."""
        merged = self._merged(list(self._siblings(0, len(self.parts))), breaks)
        return [self._chunks(first, last, breaks) for first, last in merged]

    def _chunks(self, first: int, last: int, breaks: set[int]) -> list[Range]:
        units = self._units(first, last)
        if last - first > 1:
            return [units]
        return pack(self._packing.units, units, self._packing.estimates, breaks)

    def _siblings(self, first: int, last: int) -> Iterator[Range]:
        """Each part that is not below one before it, with those below it."""
        start = first
        for position in range(first + 1, last + 1):
            if position == last or self._levels[position] <= self._levels[start]:
                yield start, position
                start = position

    def _merged(self, nodes: Sequence[Range], breaks: set[int]) -> Iterator[Range]:
        run: Range | None = None
        for first, last in nodes:
            if not self._fits(first, last, breaks, _SMALL_SHARE):
                if run:
                    yield run
                run = None
                yield from self._divided(first, last, breaks)
            elif run and self._fits(run[0], last, breaks):
                run = run[0], last
            else:
                if run:
                    yield run
                run = first, last
        if run:
            yield run

    def _divided(self, first: int, last: int, breaks: set[int]) -> Iterator[Range]:
        if last - first == 1 or (self._keep_whole and self._fits(first, last, breaks)):
            yield first, last
        else:
            yield from self._merged([(first, first + 1), *self._siblings(first + 1, last)], breaks)

    def _fits(self, first: int, last: int, breaks: set[int], times: int = 1) -> bool:
        start, end = self._units(first, last)
        return self._packing.estimates.fit(start, end, times) and breaks.isdisjoint(range(start + 1, end))

    def _units(self, first: int, last: int) -> Range:
        return self.parts[first][0], self.parts[last - 1][1]
