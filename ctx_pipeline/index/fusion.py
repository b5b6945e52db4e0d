"""Fusion of ranked lists: pure functions over ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

Leg = tuple[Sequence[str], float]
"""Items best first, and the leg's weight."""


def reciprocal_rank_fusion(legs: Iterable[Leg], k: int) -> dict[str, float]:
    """Score of each item: the sum over the legs of weight / (k + rank), ranks from 1 (Cormack et al. 2009, K = 60).

    A leg of weight 0 contributes no item.
    """
    scores: dict[str, float] = {}
    for items, weight in legs:
        if weight:
            for rank, item in enumerate(items, start=1):
                scores[item] = scores.get(item, 0.0) + weight / (k + rank)
    return scores


def add_document_ranks(
    scores: Mapping[str, float], document_of: Callable[[str], str], weight: float, k: int
) -> dict[str, float]:
    """`scores` plus weight / (k + rank of the item's document), documents ranked by their best item.

    The best item stays the best; among the next ones, those of documents that were found well come first.
    """
    ranks: dict[str, int] = {}
    for item in ranked(scores):
        ranks.setdefault(document_of(item), len(ranks) + 1)
    return {item: score + weight / (k + ranks[document_of(item)]) for item, score in scores.items()}


def ranked(scores: Mapping[str, float]) -> list[str]:
    """The items, best first; equal ones by id."""
    return sorted(scores, key=lambda item: (-scores[item], item))
