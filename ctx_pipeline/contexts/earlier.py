"""Which contexts of an earlier version of this program belong to the chunks that it makes today.

Another version may cut a document otherwise and see another title or language, so that no request is the same. What was
paid for stays: a chunk keeps the context of that earlier chunk with which it shares most characters.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby
from typing import TypeVar

from ctx_pipeline.contexts.memo import drift, members_of
from ctx_pipeline.contexts.model import Context, Earlier
from ctx_pipeline.contexts.requests import Place

T = TypeVar("T")


def kept_contexts(earlier: Earlier, places: Sequence[Place], max_drift: float | None) -> dict[str, Context | None]:
    """By the keys of the places, what stands in the way of a new request; keys that may be asked for are left out.

    A `written` context is kept. One that fell back stays so. None, or one that cost nothing, means that nothing was
    ever asked for the text, although the document's bytes are the same. In an edited document, contexts are kept in
    the views (or, up to `max_drift`, for the chunks) whose text was in it before.
    """
    text, spans = _text(earlier)
    found: dict[str, Context | None] = {}
    texts = [place.chunk.text for place in places if place.chunk is not None]
    before = members_of(own for _, _, own, _ in earlier.chunks)
    within = max_drift is not None and drift(members_of(texts), before) <= max_drift
    position = 0
    for _, group in groupby(places, key=lambda place: place.view.first):
        of_view = list(group)
        starts: list[int] = []
        for place in of_view:
            own = place.chunk.text if place.chunk else place.view.text
            start = place.chunk.start if place.chunk else place.view.chunks[0].start
            if not earlier.same_content:
                start = text.find(own, position)
                start = start if start >= 0 else text.find(own)
            starts.append(start)
            position = start + 1 if start >= 0 else position
        if not within and min(starts) < 0:
            continue
        for place, start in zip(of_view, starts, strict=True):
            if start < 0:
                continue
            size = len(place.chunk.text if place.chunk else place.view.text)
            context = nearest(spans, start, start + size)
            if context is not None and context.status == "pending":
                continue
            if earlier.same_content or (context is not None and (context.memo_key or context.status == "fallback")):
                found.setdefault(place.key, context)
    return found


def _text(earlier: Earlier) -> tuple[str, list[tuple[int, int, Context]]]:
    """The earlier chunks put together, and the span of each in that: what was in no chunk is blank."""
    parts: list[str] = []
    spans: list[tuple[int, int, Context]] = []
    end = 0
    for start, stop, own, context in earlier.chunks:
        if start > end:
            parts.append("\n" * (start - end))
        parts.append(own[max(0, end - start) :])
        end = max(end, stop)
        spans.append((start, stop, context))
    return "".join(parts), spans


def nearest(spans: Sequence[tuple[int, int, T]], start: int, end: int) -> T | None:
    """What belongs to the span that shares most characters with `start` to `end`, the first of equals; None for none.

    `spans` are in order of their starts, each with what belongs to it.
    """
    best, most = None, 0
    for first, last, own in spans[bisect_right(spans, start, key=lambda span: span[1]) :]:
        if first >= end:
            break
        shared = min(last, end) - max(first, start)
        if shared > most:
            best, most = own, shared
    return best
