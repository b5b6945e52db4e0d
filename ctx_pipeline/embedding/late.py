"""Windows for late chunking: what an embedder reads around chunks when their vectors are pooled from token embeddings.

A window holds neighbouring chunks and, beside them, the text before and after as far as there is room, so that the
embeddings of a chunk's tokens have seen what its pronouns and ellipses refer to (Günther et al. 2024, "Late Chunking").

Windows are local. They stay inside a section (a heading of the outermost level at which headings differ), and which
chunks share one is decided afresh after about every eighth chunk, at those whose digest says so. An edit changes the
windows that hold the edited text and, where it changes the size of a chunk, those up to the next such place.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from ctx_pipeline.chunking.recursive import Chunk
from ctx_pipeline.embedding.protocol import Embedder, SpanEmbedder, Window

CHUNK_SHARE, BEFORE_SHARE = 0.75, 0.67
_RESTART_EVERY = 8
_WORD = re.compile(r"\S{1,32}")


VERSION = 1
"""Part of the fingerprint: raised when the same chunks would get other windows."""


class LateChunkingEmbedder(Embedder):
    """An embedder whose chunk vectors are to be pooled from windows; queries and everything else are as before."""

    def __init__(self, embedder: SpanEmbedder) -> None:
        self._embedder = embedder
        self.name = embedder.name
        self.fingerprint = f"{embedder.fingerprint}:late-chunking-v{VERSION}"
        self.tokenizer = embedder.tokenizer
        self.window_tokens = embedder.window_tokens

    @property
    def dimension(self) -> int:
        return self._embedder.dimension

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return self._embedder.count_tokens(texts)

    def embed_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self._embedder.embed_passages(texts)

    def embed_spans(self, windows: Sequence[Window]) -> NDArray[np.float32]:
        return self._embedder.embed_spans(windows)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        return self._embedder.embed_query(text)


@dataclass(frozen=True, slots=True)
class ChunkWindow:
    """Characters `start` to `end` of a document's text, read for its chunks `first` to `last`; ends are exclusive."""

    start: int
    end: int
    first: int
    last: int


def chunk_windows(
    text: str, chunks: Sequence[Chunk], window_tokens: int, count_tokens: Callable[[Sequence[str]], list[int]]
) -> list[ChunkWindow]:
    """Windows of at most `window_tokens` as `count_tokens` counts; each chunk, in the order of the text, is in one.

    A chunk that is larger than that has a window for itself, without anything beside it.
    """
    words = _Words(text, chunks, count_tokens)
    windows = []
    for first, last in _sections(chunks):
        section = chunks[first].start, max(chunk.end for chunk in chunks[first:last])
        for group in _groups(chunks, range(first, last), words, int(CHUNK_SHARE * window_tokens)):
            start, end = chunks[group[0]].start, max(chunks[position].end for position in group)
            room = max(window_tokens - words.tokens(start, end), 0)
            before = words.start_of(start, int(BEFORE_SHARE * room), section[0])
            after = words.end_of(end, room - words.tokens(before, start), section[1])
            before = words.start_of(start, room - words.tokens(end, after), section[0])
            windows.append(ChunkWindow(before, after, group[0], group[-1] + 1))
    return windows


class _Words:
    """Token counts of a text by its words, which end at white space, at the ends of chunks and after 32 characters."""

    def __init__(self, text: str, chunks: Sequence[Chunk], count_tokens: Callable[[Sequence[str]], list[int]]) -> None:
        cuts = sorted({0, len(text), *(chunk.start for chunk in chunks), *(chunk.end for chunk in chunks)})
        words = [word for start, end in pairwise(cuts) for word in _WORD.finditer(text, start, end)]
        self._starts = [word.start() for word in words]
        self._ends = [word.end() for word in words]
        self._before = list(accumulate(count_tokens([word[0] for word in words]), initial=0))
        """Tokens before each word."""

    def tokens(self, start: int, end: int) -> int:
        return self._before[bisect_left(self._starts, end)] - self._before[bisect_left(self._starts, start)]

    def start_of(self, end: int, tokens: int, least: int) -> int:
        """Where the last words before `end` begin that have at most so many tokens; not before `least`."""
        stop = bisect_left(self._starts, end)
        word = bisect_left(self._before, self._before[stop] - tokens)
        return max(self._starts[word], least) if word < stop else end

    def end_of(self, start: int, tokens: int, most: int) -> int:
        """Where the first words after `start` end that have at most so many tokens; not after `most`."""
        begin = bisect_left(self._starts, start)
        word = bisect_right(self._before, self._before[begin] + tokens) - 1
        return min(self._ends[word - 1], most) if word > begin else start


def _sections(chunks: Sequence[Chunk]) -> Iterator[tuple[int, int]]:
    paths = [chunk.heading_path for chunk in chunks]
    depth = next((n for n in range(max(map(len, paths), default=0)) if len({path[: n + 1] for path in paths}) > 1), 0)
    first = 0
    for _, same in groupby(paths, key=lambda path: path[: depth + 1]):
        last = first + len(list(same))
        yield first, last
        first = last


def _groups(chunks: Sequence[Chunk], section: range, words: _Words, tokens: int) -> list[list[int]]:
    groups: list[list[int]] = []
    for position in section:
        chunk = chunks[position]
        fits = groups and words.tokens(chunks[groups[-1][0]].start, chunk.end) <= tokens
        if fits and not _restarts(chunk):
            groups[-1].append(position)
        else:
            groups.append([position])
    return groups


def _restarts(chunk: Chunk) -> bool:
    return hashlib.sha256(chunk.text.encode("utf-8", "surrogatepass")).digest()[0] % _RESTART_EVERY == 0
