"""Rerankers that score every passage by itself, over HTTP."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from ctx_pipeline.errors import FatalError, TransientError
from ctx_pipeline.http_api import MESSAGE_CHARS, JsonApi, Patience, Remedies
from ctx_pipeline.rerank.model import Reranked, Reranker, complete

# Somebody waits for the answer, and the fused order is there when it takes too long.
_PATIENCE = Patience(retries=2, max_wait_s=5, read_timeout_s=20)


class ScoringApi(Reranker, ABC):
    """`POST {base_url}/rerank`; the answer lists `{"index", "relevance_score"}`.

    Passages that exceed one request go in several: a score does not depend on the other passages. Status 408, 429,
    5xx and connection errors are tried again twice, after at most 5 s. A missing key is a FatalError before anything
    is sent, unless an address is given.
    """

    key_variable: ClassVar[str]
    default_model: ClassVar[str]
    default_base_url: ClassVar[str]

    def __init__(
        self, api_key: str, model: str | None = None, base_url: str | None = None, patience: Patience = _PATIENCE
    ) -> None:
        self.model = model or self.default_model
        remedies = Remedies(
            key=self.key_variable,
            address="search.rerank_base_url",
            model="search.rerank_model",
            refused="lower search.candidates or shorten the query",
        )
        url = f"{(base_url or self.default_base_url).rstrip('/')}/rerank"
        self._api = JsonApi(url, api_key, self.model, remedies, patience)
        self._lacks_key = not api_key.strip() and base_url is None

    def rerank(self, query: str, passages: Sequence[str], k: int) -> Reranked:
        """See Reranker. Ties keep the order of the passages."""
        if self._lacks_key:
            raise FatalError(f"{self.key_variable} is not set; set it, or choose another search.rerank")
        started = time.monotonic()
        answers: list[Any] = []
        scores: list[tuple[int, float]] = []
        first = 0
        for batch in self._batches(query, passages):
            answer = self._api.post(self._body(query, batch, min(k, len(batch))))
            scores += [(first + index, score) for index, score in self._scores(answer, len(batch))]
            answers.append(answer)
            first += len(batch)
        scores.sort(key=lambda pair: (-pair[1], pair[0]))
        order, kept = complete(scores, len(passages), k)
        usd, tokens = self._cost(answers)
        return Reranked(order, kept, self._answering_model(answers), time.monotonic() - started, usd, tokens)

    @abstractmethod
    def _batches(self, query: str, passages: Sequence[str]) -> Iterable[Sequence[str]]:
        """Consecutive passages, as many as one request takes."""

    @abstractmethod
    def _body(self, query: str, passages: Sequence[str], k: int) -> dict[str, Any]:
        """The request."""

    @abstractmethod
    def _listed(self, answer: Any) -> Any:
        """The part of an answer that lists indexes and scores."""

    @abstractmethod
    def _cost(self, answers: Sequence[Any]) -> tuple[float | None, int | None]:
        """USD and tokens of a query's answers."""

    def _scores(self, answer: Any, count: int) -> list[tuple[int, float]]:
        """Index and score of each listed passage."""
        try:
            pairs = [(item["index"], float(item["relevance_score"])) for item in self._listed(answer)]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"[:MESSAGE_CHARS]
            raise TransientError(f"{self._api.server} answered with a malformed body: {reason}") from error
        indexes = [index for index, _ in pairs]
        if not all(type(index) is int and 0 <= index < count for index in indexes) or len(set(indexes)) != len(pairs):
            raise TransientError(f"{self._api.server} answered with indexes that {count} passages do not have")
        if not pairs or not all(math.isfinite(score) for _, score in pairs):
            raise TransientError(f"{self._api.server} answered without scores")
        return pairs

    def _answering_model(self, answers: Sequence[Any]) -> str:
        named = answers[0].get("model") if answers else None
        return named if isinstance(named, str) else self.model
