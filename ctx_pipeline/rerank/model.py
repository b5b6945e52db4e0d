"""What is reranked, what comes back, and what is asked of a reranker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Reranked:
    """Passages in a new order, and what that took."""

    order: list[int]
    """Positions in the sequence of passages, best first."""
    scores: list[float | None]
    """One for each of `order`, comparable within one query only; None for a passage that the model left out."""
    model: str
    """The model that answered, as it names itself: an emulator says `emulator`."""
    seconds: float
    usd: float | None = None
    """None when the price is not known."""
    tokens: int | None = None
    """Tokens that were billed; None when they are not counted."""
    warnings: list[str] = field(default_factory=list)


class Reranker(Protocol):
    """Orders passages by how well they answer a query.

    Making a reranker loads and connects nothing.
    """

    name: str
    """The method as settings name it."""

    def rerank(self, query: str, passages: Sequence[str], k: int) -> Reranked:
        """The `k` best of the passages, which come in the order to keep where the model is silent.

        Raises TransientError when a later try may succeed, PermanentError when the query or a passage is refused,
        FatalError when the key, the model, the package or the budget does not allow it.
        """
        ...


def complete(listed: Iterable[tuple[int, float]], count: int, k: int) -> tuple[list[int], list[float | None]]:
    """The first `k` positions and scores: the listed ones, then those left out in their own order.

    Positions outside 0..count-1 and repetitions are dropped.
    """
    scores: dict[int, float | None] = {}
    for position, score in listed:
        if 0 <= position < count:
            scores.setdefault(position, score)
    for position in range(count):
        scores.setdefault(position, None)
    return list(scores)[:k], list(scores.values())[:k]
