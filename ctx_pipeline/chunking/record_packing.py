"""Packing of messages and lines of data: chunks end where the content says, not where counting from the top says.

Every record has a priority, a hash of itself and its neighbours. A long run is cut at the highest ones into segments of
one to six chunks, and each segment at the highest ones that leave it no more chunks than it needs. A record that is
added, changed or removed therefore moves the cuts of its own segment at most. (See contexts/view.py, which cuts windows
in the same way.)
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from itertools import pairwise

_SEGMENT_CHUNKS = 6
_FEWEST_CHUNKS = 1
_MOST_UNUSED = 0.6
"""Of a chunk, on each side of a cut inside a segment, where there is a choice."""

Fits = Callable[[int, int, float], bool]
"""(first, last, times): whether the elements are no more than `times` the room of a chunk."""


def priorities(texts: Sequence[str]) -> list[int]:
    """A number for each record, by its text and that of the two beside it; alike ones differ by how often they came."""
    codes = [zlib.crc32(text.encode("utf-8", "surrogatepass")) for text in texts]
    before, after = [0, *codes], [*codes[1:], 0]
    seen: dict[tuple[int, int, int], int] = {}
    found = []
    for around in zip(before, codes, after, strict=False):
        seen[around] = count = seen.get(around, 0) + 1
        found.append(zlib.crc32(repr((around, count)).encode()))
    return found


def record_ranges(
    first: int, last: int, priority: Sequence[int], fits: Fits, breaks: set[int]
) -> list[tuple[int, int]]:
    """Chunks of the elements from `first` to `last` (exclusive); none reaches over one of the `breaks`.

    `priority` is that of cutting before an element, by its position from `first`; a negative one is a last resort.
    """
    forced = sorted(position for position in breaks if first < position < last)
    found = []
    for start, end in pairwise([first, *forced, last]):
        for segment in _segments(start, end, first, priority, fits):
            found += _divided(*segment, first, priority, fits)
    return found


def _segments(start: int, end: int, origin: int, priority: Sequence[int], fits: Fits) -> list[tuple[int, int]]:
    found = []
    waiting = [(start, end)]
    while waiting:
        first, last = waiting.pop()
        cut = None if fits(first, last, _SEGMENT_CHUNKS) else _highest(_inner(first, last, fits), origin, priority)
        if cut is None:
            found.append((first, last))
        else:
            waiting += [(cut, last), (first, cut)]
    return found


def _inner(first: int, last: int, fits: Fits) -> Sequence[int]:
    """Where to cut so that each side has more than a chunk."""
    low, high = first + 1, last - 1
    while low < high and fits(first, low, _FEWEST_CHUNKS):
        low += 1
    while high > low and fits(high, last, _FEWEST_CHUNKS):
        high -= 1
    return range(low, high + 1)


def _divided(first: int, last: int, origin: int, priority: Sequence[int], fits: Fits) -> list[tuple[int, int]]:
    """The fewest chunks, cut at the highest priorities that allow as few."""
    found = []
    waiting = [(first, last)]
    while waiting:
        first, last = waiting.pop()
        if last - first == 1 or fits(first, last, 1):
            found.append((first, last))
            continue
        before, after = _counts(first, last, fits)
        possible = [
            first + offset
            for offset in range(1, last - first)
            if before[offset] + after[offset] == before[-1] and priority[first + offset - origin] >= 0
        ]
        filled = [
            cut
            for cut in possible
            if not fits(first, cut, before[cut - first] - _MOST_UNUSED)
            and not fits(cut, last, after[cut - first] - _MOST_UNUSED)
        ]
        cut = _highest(filled or possible or range(first + 1, last), origin, priority)
        assert cut
        waiting += [(cut, last), (first, cut)]
    return found


def _counts(first: int, last: int, fits: Fits) -> tuple[list[int], list[int]]:
    """For each place from `first` to `last` the fewest chunks before it, and after it."""
    before, start, count = [0], first, 1
    for position in range(first + 1, last + 1):
        if position - start > 1 and not fits(start, position, 1):
            start, count = position - 1, count + 1
        before.append(count)
    after, end, count = [0], last, 1
    for position in range(last - 1, first - 1, -1):
        if end - position > 1 and not fits(position, end, 1):
            end, count = position + 1, count + 1
        after.append(count)
    return before, after[::-1]


def _highest(positions: Sequence[int], origin: int, priority: Sequence[int]) -> int | None:
    return max(positions, key=lambda position: priority[position - origin], default=None)
