"""An embedder without a model: texts that share words are near each other. For tests, trials and benchmarks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ctx_pipeline.embedding.protocol import Embedder

_DIMENSION = 64
_WORD = re.compile(r"\w+")
_TOKEN = re.compile(r"\w+|[^\w\s]")
_KNOWN_WORDS = 100_000


class HashingEmbedder(Embedder):
    """Feature-hashed bag of words: each lower-cased word adds +1 or -1 to one of 64 components (Weinberger et al.,
    2009). No word order, no meaning, no window; a text without words, or whose words cancel out, has a fixed vector.
    """

    name = "hashing"
    fingerprint = f"hashing:blake2b:{_DIMENSION}:v1"
    tokenizer = "hashing:words:v1"
    window_tokens = 512
    usage_usd = 0.0

    def __init__(self) -> None:
        self._features = _Features()

    @property
    def dimension(self) -> int:
        return _DIMENSION

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Words and punctuation marks of each text."""
        return [len(_TOKEN.findall(text)) for text in texts]

    def embed_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors of shape (len(texts), 64), the same in every process. Never fails."""
        counts = np.zeros((len(texts), 2 * _DIMENSION), np.float32)
        for row, text in enumerate(texts):
            features = list(map(self._features.__getitem__, _WORD.findall(text.lower())))
            counts[row] = np.bincount(np.array(features, np.intp), minlength=2 * _DIMENSION)
        vectors = counts[:, :_DIMENSION] - counts[:, _DIMENSION:]
        vectors[~vectors.any(axis=1), 0] = 1
        unit: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return unit

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Unit vector of shape (64,): that of the passage with this text."""
        vector: NDArray[np.float32] = self.embed_passages([text])[0]
        return vector


class _Features(dict[str, int]):
    """Feature of a word: its component, plus 64 when it counts negatively. Emptied when full."""

    def __missing__(self, word: str) -> int:
        digest = hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest()
        feature = int.from_bytes(digest, "little") % (2 * _DIMENSION)
        if len(self) >= _KNOWN_WORDS:
            self.clear()
        self[word] = feature
        return feature
