"""Chunks that end where the topic changes: where neighbouring sentences are least alike to an embedder.

Each sentence is embedded together with the one before and after it; a boundary lies where the distance from one to the
next exceeds a percentile of all distances in the document (so a document is cut at the same share of its sentences,
whatever the embedder's scale). What is larger than a chunk is packed as the recursive strategy packs a section; what is
smaller than an eighth of one is merged with the neighbour it is more alike to, if there is room.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from ctx_pipeline.chunking import recursive
from ctx_pipeline.chunking.boundaries import pieces, sentence_cuts
from ctx_pipeline.chunking.model import Chunk, SizeLimit
from ctx_pipeline.chunking.packing import Estimates, Packing, bundles, pack
from ctx_pipeline.chunking.units import Range
from ctx_pipeline.documents.blocks import Block, BlockKind
from ctx_pipeline.documents.left_out import clipped, indexed_spans
from ctx_pipeline.documents.model import Parsed
from ctx_pipeline.documents.structure import document_blocks
from ctx_pipeline.embedding.protocol import Embedder

VERSION = 2
"""Raised when the same text, vectors and settings would give other spans."""

_TINY_SHARE = 8
_DIVIDED: frozenset[BlockKind] = frozenset(["paragraph", "quote", "list", "item"])
_CONTAINERS: frozenset[BlockKind] = frozenset(["quote", "list", "item"])


class SemanticChunker:
    """Cuts between the sentences that differ most."""

    def __init__(self, limit: SizeLimit, percentile: int, embedder: Embedder, identity: str) -> None:
        """Boundaries lie where the distance exceeds `percentile` (1 to 99); `identity` tells the limit apart."""
        self.fingerprint = f"semantic/{VERSION}.{recursive.VERSION}/{percentile}/{identity}/{embedder.fingerprint}"
        self._limit, self._percentile, self._embedder = limit, percentile, embedder

    def split(self, parsed: Parsed) -> list[Chunk]:
        """See Chunker. Embeds all sentences in one call; raises what the embedder raises."""
        text = parsed.text
        blocks = document_blocks(text, parsed.media_type)
        packing = Packing(text, list(_sentences(text, blocks)), self._limit)
        if not packing.units:
            return []
        groups = self._groups(text, packing)
        return packing.chunks(
            lambda breaks: [pack(packing.units, group, packing.estimates, breaks) for group in groups]
        )

    def _groups(self, text: str, packing: Packing) -> list[Range]:
        """Ranges of units between boundaries."""
        import numpy as np

        units, estimates = packing.units, packing.estimates
        steps = bundles(units, (0, len(units)), estimates, set())
        if len(steps) == 1:
            return steps
        windows = []
        for number, (first, last) in enumerate(steps):
            around = steps[max(number - 1, 0)][0], steps[min(number + 1, len(steps) - 1)][1]
            is_whole = not any(unit.apart for unit in units[around[0] + 1 : around[1]])
            first, last = around if is_whole and estimates.fit(*around) else (first, last)
            windows.append(text[units[first].start : units[last - 1].end])
        distinct = {window: row for row, window in enumerate(dict.fromkeys(windows))}
        vectors = self._embedder.embed_passages(list(distinct))[[distinct[window] for window in windows]]
        # Rounded, because the last bits of a sum may differ from one machine to the next.
        distances = np.round(1 - np.einsum("ij,ij->i", vectors[:-1], vectors[1:]), 5)
        threshold = np.percentile(distances, self._percentile)
        boundaries = {
            steps[int(number) + 1][0]: float(distances[number]) for number in np.flatnonzero(distances > threshold)
        }
        return _merged(len(units), boundaries, estimates)


def _merged(unit_count: int, boundaries: Mapping[int, float], estimates: Estimates) -> list[Range]:
    """Groups between boundaries, given with their distances; tiny ones are joined over the shortest distance first."""
    groups = list(pairwise([0, *boundaries, unit_count]))
    end_of, start_of = dict(groups), {end: start for start, end in groups}
    for boundary in sorted(boundaries, key=lambda boundary: boundaries[boundary]):
        start, end = start_of[boundary], end_of[boundary]
        is_tiny = estimates.fit(start, boundary, _TINY_SHARE) or estimates.fit(boundary, end, _TINY_SHARE)
        if is_tiny and estimates.fit(start, end):
            end_of[start], start_of[end] = end, start
            del end_of[boundary], start_of[boundary]
    return sorted(end_of.items())


def _sentences(text: str, blocks: Sequence[Block], *, nested: bool = False) -> Iterator[Block]:
    """Paragraphs, also those in lists and quotes, as one block a sentence; other blocks as they are."""
    for block in blocks:
        if block.children and block.kind in _CONTAINERS:
            yield from _sentences(text, block.children, nested=True)
        elif block.kind in _DIVIDED:
            for span in indexed_spans(text, block):
                for start, end in pieces(text, *span, sentence_cuts, 1):
                    yield Block("paragraph", start, end, left_out=clipped(block.left_out, start, end))
        else:
            yield replace(block, level=0) if nested else block
