"""Reranking by Cohere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ctx_pipeline.prices import search_units_usd
from ctx_pipeline.rerank.scoring_api import ScoringApi

_PASSAGES_PER_REQUEST = 1_000


class CohereReranker(ScoringApi):
    """Cohere's rerankers by the v2 endpoint, multilingual; the service cuts a passage to 4,096 tokens.

    Billed by search units: one query with up to 100 passages, of which long ones count more than once.
    """

    name = "cohere"
    key_variable = "COHERE_API_KEY"
    default_model = "rerank-v3.5"
    default_base_url = "https://api.cohere.com/v2"

    def _batches(self, query: str, passages: Sequence[str]) -> Iterable[Sequence[str]]:
        step = _PASSAGES_PER_REQUEST
        return (passages[first : first + step] for first in range(0, len(passages), step))

    def _body(self, query: str, passages: Sequence[str], k: int) -> dict[str, Any]:
        return {"model": self.model, "query": query, "documents": list(passages), "top_n": k}

    def _listed(self, answer: Any) -> Any:
        return answer["results"]

    def _cost(self, answers: Sequence[Any]) -> tuple[float | None, int | None]:
        counts = [_search_units(answer) for answer in answers]
        known = [count for count in counts if count is not None]
        return search_units_usd(self.model, sum(known) if len(known) == len(counts) else None), None


def _search_units(answer: Any) -> float | None:
    try:
        return float(answer["meta"]["billed_units"]["search_units"])
    except (KeyError, TypeError, ValueError):
        return None
