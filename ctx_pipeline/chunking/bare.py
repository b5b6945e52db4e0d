"""Chunks that say nothing alone: of headings, anchors, imports or tags without what they belong to."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from ctx_pipeline.chunking.units import Range, Unit


class _Sizes(Protocol):
    def fit(self, first: int, last: int) -> bool: ...


def joined(
    sections: Sequence[Sequence[Range]], units: Sequence[Unit], sizes: _Sizes, breaks: Collection[int]
) -> list[list[Range]]:
    """The chunks by sections, in which none is bare that has room beside the next, or else beside the one before.

    A neighbour of the same section is preferred; where it has no room, one of the next or the last section is taken.
    """
    waiting = [(number, chunk) for number, section in enumerate(sections) for chunk in section]
    if not any(_is_bare(units, chunk) for _, chunk in waiting):
        return [list(section) for section in sections]
    done: list[list[Range]] = [[] for _ in sections]
    before: int | None = None
    """The section of the last chunk that is done."""
    for position, (section, chunk) in enumerate(waiting):
        follower = waiting[position + 1] if position + 1 < len(waiting) else None
        if _is_bare(units, chunk):
            goes_on = follower and _have_room(chunk, follower[1], sizes, breaks)
            goes_back = before is not None and _have_room(done[before][-1], chunk, sizes, breaks)
            if follower and goes_on and (follower[0] == section or not (goes_back and before == section)):
                waiting[position + 1] = follower[0], (chunk[0], follower[1][1])
                continue
            if before is not None and goes_back:
                done[before][-1] = done[before][-1][0], chunk[1]
                continue
        done[section].append(chunk)
        before = section
    return done


def _have_room(chunk: Range, following: Range, sizes: _Sizes, breaks: Collection[int]) -> bool:
    return following[0] not in breaks and sizes.fit(chunk[0], following[1])


def _is_bare(units: Sequence[Unit], chunk: Range) -> bool:
    return all(not units[position].is_content or units[position].kind == "rule" for position in range(*chunk))
