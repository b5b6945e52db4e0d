"""From units to chunks: ranges of units planned by a strategy, counted exactly, extended by overlap.

Plans add up estimates (tokens of the parts and of the whitespace between them); each chunk is then counted exactly,
and the plan is made again, with breaks, when the estimate was too low.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from ctx_pipeline.chunking.model import Chunk, SizeLimit
from ctx_pipeline.chunking.overlap import overlapping_spans
from ctx_pipeline.chunking.record_packing import record_ranges
from ctx_pipeline.chunking.sections import joined
from ctx_pipeline.chunking.tokens import count_tokens
from ctx_pipeline.chunking.units import Range, Unit, fitting_units
from ctx_pipeline.documents.blocks import Block, line_starts, page_at, page_breaks
from ctx_pipeline.documents.left_out import clipped, indexed_part, left_out_spans

_MAX_LEVEL = 6
_LEAD_SHARE = 4
"""What stands before a run of records is in its first chunk where a chunk has room for this many of its size."""

Plan = Callable[[set[int]], list[list[Range]]]
"""From places where a chunk has to end (positions of units) to chunks, grouped by section, in order."""


class Packing:
    """The units of a text, on their way into chunks of at most `limit`."""

    def __init__(self, text: str, blocks: Sequence[Block], limit: SizeLimit, overlap: int = 0) -> None:
        """Chunks of one section share up to `overlap` tokens of o200k_base, less than half of the limit."""
        self._text, self._limit, self._overlap = text, limit, overlap
        room = limit.beside_overlap(overlap)
        self.units = fitting_units(text, blocks, room, limit)
        self.estimates = Estimates(self.units, room)
        self._left_out = list(left_out_spans(blocks))

    def _seen(self, start: int, end: int) -> str:
        """What the embedder sees of a span."""
        return indexed_part(self._text, start, end, self._left_out)

    def chunks(
        self,
        plan: Plan,
        *,
        seams: frozenset[int] = frozenset(),
        paths: Callable[[Sequence[int]], Iterable[tuple[str, ...]]] | None = None,
    ) -> list[Chunk]:
        """The chunks of a plan, which is made again with breaks until all of them fit.

        Chunks end at `seams` rather than elsewhere. `paths` gives the heading path of each chunk from the offset at
        which its own text begins; by default it is that of the headings.
        """
        if not self.units:
            return []
        text, units = self._text, self.units
        exact = {(position, position + 1): (unit.tokens, unit.embedder_tokens) for position, unit in enumerate(units)}
        breaks = {position for position, unit in enumerate(units) if position and unit.apart}
        while True:
            sections = joined(plan(breaks), units, self.estimates, breaks)
            ranges = [chunk for section in sections for chunk in section]
            new = [chunk for chunk in ranges if chunk not in exact]
            if new:
                texts = [text[units[first].start : units[last - 1].end] for first, last in new]
                seen = [self._seen(units[first].start, units[last - 1].end) for first, last in new]
                counts = zip(count_tokens(texts), self._limit.count_embedder_tokens(seen), strict=True)
                exact.update(zip(new, counts, strict=True))
            room = self.estimates.limit
            too_large = [chunk for chunk in ranges if chunk[1] - chunk[0] > 1 and not room.allows(*exact[chunk])]
            if not too_large:
                break
            for first, last in too_large:
                seam = next((position for position in range(last - 1, first, -1) if position in seams), None)
                breaks.add(seam or _break_inside(units, (first, last), exact[first, last], self.estimates))

        spans = [(units[first].start, units[last - 1].end, *exact[first, last]) for first, last in ranges]
        own_starts = [span[0] for span in spans]
        if self._overlap:
            spans = overlapping_spans(text, units, sections, spans, self._limit, self._overlap, self._seen)
        lines, pages, ends = line_starts(text), page_breaks(text), [unit.end for unit in units]
        return [
            Chunk(
                start=start,
                end=end,
                line=bisect_right(lines, start),
                text=text[start:end],
                heading_path=path,
                tokens=tokens,
                embedder_tokens=embedder_tokens,
                page=page_at(pages, start),
                table_head=_table_head(units[bisect_right(ends, start)], start),
                left_out=clipped(self._left_out, start, end),
            )
            for (start, end, tokens, embedder_tokens), path in zip(
                spans, paths(own_starts) if paths else _heading_paths(units, ranges), strict=True
            )
        ]


def _table_head(first: Unit, start: int) -> tuple[str, ...]:
    """The head of the table that a chunk begins inside of; of one that begins in the chunk it is in the text."""
    return first.table.head if first.table and first.table.start < start else ()


class Estimates:
    """Sizes of ranges of units, added up from the sizes of the units and of the whitespace between them."""

    def __init__(self, units: Sequence[Unit], limit: SizeLimit) -> None:
        self._units = units
        self.limit = limit
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

    def within(self, first: int, last: int, chunks: float) -> bool:
        """Whether the range is no larger than so many chunks."""
        tokens, embedder_tokens = self.size(first, last)
        return tokens <= chunks * self.limit.max_tokens and embedder_tokens <= chunks * self.limit.embedder_tokens

    def fit(self, first: int, last: int, times: int = 1) -> bool:
        """Whether a chunk has room for `times` as much as the range."""
        tokens, embedder_tokens = self.size(first, last)
        return self.limit.allows(times * tokens, times * embedder_tokens)


def pack(units: Sequence[Unit], section: Range, estimates: Estimates, breaks: set[int]) -> list[Range]:
    """The section's chunks: greedy, but runs of records that exceed a chunk are cut by their priorities."""
    chunks = []
    start = section[0]
    for first, records_first, last in _record_runs(units, section, estimates):
        if start < first:
            chunks += _packed(units, (start, first), estimates, breaks)
        cuts = [-2 if units[max(cut - 1, 0)].sticky else -1 for cut in range(first, records_first)]
        cuts += [unit.priority for unit in units[records_first:last]]
        if first < records_first:
            cuts[records_first - first] = -1 - units[records_first - 1].sticky
        chunks += record_ranges(first, last, cuts, estimates.within, breaks)
        start = last
    return chunks + (_packed(units, (start, section[1]), estimates, breaks) if start < section[1] else [])


def _record_runs(units: Sequence[Unit], section: Range, estimates: Estimates) -> Iterator[tuple[int, int, int]]:
    """Runs of records that exceed a chunk: where what leads to one begins, where it does itself, and where it ends."""
    start, position = section
    while start < section[1]:
        position = start
        while position < section[1] and units[position].kind != "record":
            position += 1
        last = position
        while last < section[1] and units[last].kind == "record":
            last += 1
        if position < last and not estimates.fit(position, last):
            first = position
            while first > start and units[first - 1].sticky:
                first -= 1
            if first > start == section[0] and estimates.fit(start, position, _LEAD_SHARE):
                first = start
            yield first, position, last
        start = max(last, start + 1)


def _packed(units: Sequence[Unit], section: Range, estimates: Estimates, breaks: set[int]) -> list[Range]:
    """Greedy, but broken at `breaks` and, rather than inside a subsection, before its heading."""
    chunks = []
    start, end = section
    together = bundles(units, section, estimates, breaks)
    for (first, last), subsection_end in zip(together, _subsection_ends(units, together, end), strict=True):
        if first > start and (
            first in breaks
            or not estimates.fit(start, last)
            or (
                not estimates.fit(start, subsection_end)
                and (estimates.fit(first, subsection_end) or not estimates.fit(start, first, 2))
            )
        ):
            chunks.append((start, first))
            start = first
    return [*chunks, (start, end)]


def bundles(units: Sequence[Unit], section: Range, estimates: Estimates, breaks: set[int]) -> list[Range]:
    """Ranges that stay together: content with the headings and leads before it, as many of the last ones as fit."""
    found: list[Range] = []
    start, end = section
    for position in range(start, end):
        is_tail = units[position].kind == "tail"
        if (units[position].sticky or (is_tail and start < position)) and position + 1 < end:
            continue
        first = position
        while first > start and first not in breaks and estimates.fit(first - 1, position + 1):
            first -= 1
        found += [(alone, alone + 1) for alone in range(start, first)]
        found.append((first, position + 1))
        start = position + 1
    return found


def _subsection_ends(units: Sequence[Unit], bundles: Sequence[Range], section_end: int) -> list[int]:
    """For a bundle with a heading, where the next heading of its level or above begins; else the bundle's end."""
    next_starts = [section_end] * (_MAX_LEVEL + 1)
    ends = []
    for first, last in reversed(bundles):
        level = min((unit.level for unit in units[first:last] if unit.level), default=0)
        ends.append(min(next_starts[: level + 1]) if level else last)
        if level:
            next_starts[level] = first
    return ends[::-1]


def _break_inside(units: Sequence[Unit], chunk: Range, size: tuple[int, int], estimates: Estimates) -> int:
    """Where to end a chunk that turned out too large: as late as its excess allows, not after a heading if possible."""
    first, last = chunk
    limit = estimates.limit
    excess = size[0] - limit.max_tokens, size[1] - limit.embedder_tokens
    for position in range(last - 1, first, -1):
        tokens, embedder_tokens = estimates.size(first, position)
        if not units[position - 1].sticky and limit.allows(
            tokens + max(excess[0], 0), embedder_tokens + max(excess[1], 0)
        ):
            return position
    return last - 1


def _heading_paths(units: Sequence[Unit], chunks: Sequence[Range]) -> Iterator[tuple[str, ...]]:
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
