"""Reranking by Voyage AI."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ctx_pipeline.embedding.voyage import BASE_URL, batches, billed_tokens, estimated_tokens
from ctx_pipeline.prices import tokens_usd
from ctx_pipeline.rerank.scoring_api import ScoringApi

_PASSAGES_PER_REQUEST = 1_000
_TOKENS_PER_REQUEST = {"rerank-1": 100_000, "rerank-lite-1": 300_000}
_CURRENT_TOKENS_PER_REQUEST = 600_000
"""Query tokens x passages + tokens of the passages, by Voyage's documentation of the endpoint, November 2026."""


class VoyageReranker(ScoringApi):
    """Voyage's rerankers, multilingual, 32,000 tokens for query and passage; longer passages are cut by the service.

    Billed by tokens: those of the query count once for every passage.
    """

    name = "voyage"
    key_variable = "VOYAGE_API_KEY"
    default_model = "rerank-2.5"
    default_base_url = BASE_URL

    def _batches(self, query: str, passages: Sequence[str]) -> Iterable[Sequence[str]]:
        of_query, *of_passages = estimated_tokens([query, *passages])
        most = _TOKENS_PER_REQUEST.get(self.model, _CURRENT_TOKENS_PER_REQUEST)
        return batches(passages, [of_query + tokens for tokens in of_passages], _PASSAGES_PER_REQUEST, most)

    def _body(self, query: str, passages: Sequence[str], k: int) -> dict[str, Any]:
        return {"query": query, "documents": list(passages), "model": self.model, "top_k": k, "truncation": True}

    def _listed(self, answer: Any) -> Any:
        return answer["data"]

    def _cost(self, answers: Sequence[Any]) -> tuple[float | None, int | None]:
        counts = [billed_tokens(answer) for answer in answers]
        known = [count for count in counts if count is not None]
        tokens = sum(known) if len(known) == len(counts) else None
        return tokens_usd(self.model, tokens), tokens
