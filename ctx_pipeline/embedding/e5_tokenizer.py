"""The SentencePiece-unigram tokenizer of multilingual-e5-small.

Text is split at white space, every word is normalized, prefixed with U+2581 and cut by the unigram model on its own,
so token counts add up over words, and one table of known words serves every text: 8 million tokens/s for words met
before, 1 million for new ones. Control pieces such as `</s>` never match text.
"""

from __future__ import annotations

import threading
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

TOKENIZER_VERSION = 1
"""Part of the tokenizer's identity and of the cached vocabulary's name."""

MAX_WORD_CHARS = 2_000
"""A longer run without white space is cut into several words. Its first 2,000 characters mostly fill the window of 510
tokens, and normalization is quadratic in the length of a run of combining marks."""

_KNOWN_WORDS, _KNOWN_WORD_CHARS = 65_536, 64
_SUBSET_CHARS = 10_000
_WORD_START = "\u2581"


def sorted_vocabulary(pieces: list[bytes], scores: NDArray[np.float32]) -> bytes:
    """The text pieces in byte order, for bisection: their number (u32), their ids (u32 each), the pieces by lines."""
    order = sorted((piece, id_) for id_, piece in enumerate(pieces) if scores[id_] != 0)
    ids = np.array([id_ for _, id_ in order], "<u4")
    return len(order).to_bytes(4, "little") + ids.tobytes() + b"\n".join(piece for piece, _ in order)


class UnigramTokenizer:
    """Token ids and counts. Safe to use from several threads.

    The complete model takes 0.5 s to build, a query has a dozen words. A unigram model that knows only the pieces
    occurring in a word cuts this word in the same way, so the first 10,000 characters (0.3 s) are tokenized by such
    small models, and the complete one is built when more text comes.
    """

    def __init__(
        self, vocabulary: bytes, scores: NDArray[np.float32], normalization: Mapping[int, str], unk_id: int
    ) -> None:
        count = int.from_bytes(vocabulary[:4], "little")
        self._ids = np.frombuffer(vocabulary, "<u4", count, 4)
        self._scores = scores[self._ids]
        self._pieces = vocabulary[4 + 4 * count :]
        ends = np.flatnonzero(np.frombuffer(self._pieces, np.uint8) == ord("\n"))
        self._starts = np.concatenate([[0], ends + 1, [len(self._pieces) + 1]])
        # The unknown piece scores 10 less than the rarest piece, so a small model has to know that one, too.
        self._rarest = int(self._scores.argmin())
        self._unk_id = unk_id
        self._normalization = {**dict.fromkeys(range(0xD800, 0xE000), " "), **normalization}
        self._known = _KnownWords(self._word_ids)
        self._complete: _Unigram | None = None
        self._subset_chars = 0
        self._lock = threading.Lock()

    def count(self, text: str) -> int:
        """Number of tokens of the whole text."""
        return sum(map(len, map(self._known.__getitem__, _words(text))))

    def ids(self, text: str, limit: int) -> list[int]:
        """The first `limit` token ids, without special tokens."""
        result: list[int] = []
        for word in _words(text):
            result.extend(self._known[word])
            if len(result) >= limit:
                break
        return result[:limit]

    def _word_ids(self, word: str) -> tuple[int, ...]:
        parts = unicodedata.normalize("NFC", word.translate(self._normalization)).split()
        ids = {part: self._unigram_for(part).ids(_WORD_START + part) for part in set(parts)}
        return tuple(id_ for part in parts for id_ in ids[part])

    def _unigram_for(self, part: str) -> _Unigram:
        if self._complete is None:
            self._subset_chars += len(part)
            if self._subset_chars <= _SUBSET_CHARS:
                return self._unigram(sorted({self._rarest, *self._ranks_in((_WORD_START + part).encode())}))
            with self._lock:
                if self._complete is None:
                    self._complete = self._unigram(range(len(self._ids)))
        return self._complete

    def _unigram(self, ranks: Iterable[int]) -> _Unigram:
        chosen = np.fromiter(ranks, np.int64)
        pieces = [self._piece(rank).decode() for rank in chosen.tolist()]
        return _Unigram(pieces, self._scores[chosen].tolist(), [self._unk_id, *self._ids[chosen].tolist()])

    def _piece(self, rank: int) -> bytes:
        return self._pieces[self._starts[rank] : self._starts[rank + 1] - 1]

    def _ranks_in(self, word: bytes) -> Iterable[int]:
        ranks = range(len(self._ids))
        for start in range(len(word)):
            rank = 0
            for end in range(start + 1, len(word) + 1):
                candidate = word[start:end]
                rank = bisect_left(ranks, candidate, rank, key=self._piece)
                if rank == len(ranks) or not (piece := self._piece(rank)).startswith(candidate):
                    break
                if piece == candidate:
                    yield rank


class _Unigram:
    """A unigram model over some pieces; `ids` gives the id of the unknown piece, then those of the pieces."""

    def __init__(self, pieces: list[str], scores: list[float], ids: list[int]) -> None:
        from tokenizers import models

        # Normalized words hold no line break, so the placeholder of the unknown piece cannot match.
        unknown = ("\n", 0.0)
        self._model: Any = models.Unigram([unknown, *zip(pieces, scores, strict=True)], unk_id=0)
        self._ids = ids

    def ids(self, word: str) -> list[int]:
        # Word by word through the model, not `encode_batch`: as fast (18,000 words in 0.09 s), and no thread pool that
        # a forked process would have to be warned of.
        return [self._ids[token.id] for token in self._model.tokenize(word)]


class _KnownWords(dict[str, tuple[int, ...]]):
    """Ids of words met before, emptied when full (about 20 MB)."""

    def __init__(self, compute: Callable[[str], tuple[int, ...]]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, word: str) -> tuple[int, ...]:
        ids = self._compute(word)
        if len(word) <= _KNOWN_WORD_CHARS:
            if len(self) >= _KNOWN_WORDS:
                self.clear()
            self[word] = ids
        return ids


def _words(text: str) -> list[str]:
    words = text.split()
    if len(text) <= MAX_WORD_CHARS or max(map(len, words), default=0) <= MAX_WORD_CHARS:
        return words
    return [word[at : at + MAX_WORD_CHARS] for word in words for at in range(0, len(word), MAX_WORD_CHARS)]
