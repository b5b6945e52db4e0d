"""What the pipeline asks of an embedder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Span: TypeAlias = tuple[int, int]
"""Characters [start, end) of a text."""


class Embedder(Protocol):
    """Turns passages and queries into unit vectors of one space.

    Making an embedder loads nothing: model files, networks and vocabularies are touched by the first call
    that needs them, so a refresh with nothing to do can still ask for `fingerprint` and `window_tokens`.
    """

    name: str
    """The model as settings name it."""

    fingerprint: str
    """Identity of everything that affects a vector (weights, quantization, prefixes); part of every `embed_key`."""

    tokenizer: str
    """Identity of the tokenizer behind `count_tokens`; part of the chunk hash."""

    window_tokens: int
    """Tokens of one passage that reach the model, without special tokens and prefix."""

    @property
    def dimension(self) -> int:
        """Length of a vector. May ask the model."""
        ...

    @property
    def usage_usd(self) -> float | None:
        """USD that all calls so far cost: 0.0 for a model on this machine, None when the price is not known."""
        ...

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text by the model's own tokenizer, without special tokens and prefix."""
        ...

    def embed_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of shape (len(texts), dimension), each of length 1.

        Raises TransientError when a later try may succeed, FatalError when none will.
        """
        ...

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Vector of shape (dimension,), of length 1."""
        ...


class SpanEmbedder(Embedder, Protocol):
    """An embedder that can give a vector to a part of a text, having read all of it."""

    def embed_spans(self, windows: Sequence[str], spans: Sequence[Span]) -> NDArray[np.float32]:
        """Vectors of shape (len(windows), dimension), each of length 1: of one span in each window.

        A vector is the mean of the span's tokens, which have seen the window up to `window_tokens`.
        Raises TransientError when a later try may succeed, FatalError when none will.
        """
        ...
