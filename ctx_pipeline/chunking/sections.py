"""Sections of the top level, and chunks that say nothing without what they belong to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Protocol

from ctx_pipeline.chunking.units import Range, Unit


def top_sections(units: Sequence[Unit]) -> list[Range]:
    """Ranges of units that chunks never cross."""
    counts = Counter(unit.level for unit in units if unit.level)
    top = min((level for level, count in counts.items() if count > 1), default=min(counts, default=0))
    starts = [0]
    has_content = False
    for position, unit in enumerate(units):
        if has_content and 0 < unit.level <= top:
            starts.append(with_leads(units, position))
            has_content = False
        has_content |= unit.is_content
    return list(pairwise([*starts, len(units)]))


def with_leads(units: Sequence[Unit], position: int) -> int:
    """The first of the leads directly before a heading, such as its anchor, or the heading itself."""
    while position and units[position - 1].kind == "lead":
        position -= 1
    return position


class _Sizes(Protocol):
    def fit(self, first: int, last: int) -> bool: ...


def joined(
    groups: Sequence[Sequence[Range]], units: Sequence[Unit], sizes: _Sizes, breaks: Collection[int]
) -> list[list[Range]]:
    """The chunks by groups, in which none is bare that has room beside the next one, or else beside the one before.

    Chunks of different sections of the top level are not joined, except at the beginning and the end of the document.
    """
    waiting = [(number, chunk) for number, group in enumerate(groups) for chunk in group]
    if not any(_is_bare(units, chunk) for _, chunk in waiting):
        return [list(group) for group in groups]
    section_starts = {start for start, _ in top_sections(units)}
    done: list[list[Range]] = [[] for _ in groups]
    before: int | None = None
    """The group of the last chunk that is done."""
    for position, (group, chunk) in enumerate(waiting):
        if _is_bare(units, chunk):
            following = waiting[position + 1] if position + 1 < len(waiting) else None
            goes_on = chunk[1] not in breaks and (before is None or chunk[1] not in section_starts)
            if following and goes_on and sizes.fit(chunk[0], following[1][1]):
                waiting[position + 1] = following[0], (chunk[0], following[1][1])
                continue
            goes_back = chunk[0] not in breaks and (following is None or chunk[0] not in section_starts)
            if before is not None and goes_back and sizes.fit(done[before][-1][0], chunk[1]):
                done[before][-1] = done[before][-1][0], chunk[1]
                continue
        done[group].append(chunk)
        before = group
    return done


def _is_bare(units: Sequence[Unit], chunk: Range) -> bool:
    return all(not units[position].is_content or units[position].kind == "rule" for position in range(*chunk))
