"""Embeddings by Voyage AI."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ctx_pipeline.embedding.api import ApiEmbedder
from ctx_pipeline.errors import FatalError
from ctx_pipeline.http_api import Remedies
from ctx_pipeline.prices import tokens_usd

BASE_URL = "https://api.voyageai.com/v1"
TOKEN_MARGIN = 1.5
_ENCODING = "cl100k_base"
_TEXTS_PER_REQUEST = 128
"""Accepted by every model and older versions of the service; current ones take 1,000."""


@dataclass(frozen=True, slots=True)
class _Model:
    window_tokens: int = 32_000
    request_tokens: int = 120_000
    dimension: int | None = 1024


# Voyage's documentation of models and of the endpoint, November 2026.
_MODELS = {
    "voyage-4-large": _Model(),
    "voyage-4": _Model(request_tokens=320_000),
    "voyage-4-lite": _Model(request_tokens=1_000_000),
    "voyage-3-large": _Model(),
    "voyage-3.5": _Model(request_tokens=320_000),
    "voyage-3.5-lite": _Model(request_tokens=1_000_000),
    "voyage-3": _Model(request_tokens=320_000),
    "voyage-3-lite": _Model(request_tokens=1_000_000, dimension=512),
    "voyage-code-3": _Model(),
    "voyage-finance-2": _Model(),
    "voyage-law-2": _Model(window_tokens=16_000),
    "voyage-multilingual-2": _Model(),
}
_UNKNOWN = _Model(window_tokens=16_000, dimension=None)
"""Assumed of a model that is not in the table: the smallest limits of those that are."""


class VoyageEmbedder(ApiEmbedder):
    """`POST {base_url}/embeddings` in Voyage's format: passages as `document`, queries as `query`, never truncated.

    A request holds at most 128 texts, and no more tokens than the model takes. Tokens are an estimate, because
    Voyage's tokenizers are a download: those of tiktoken's `cl100k_base` times 1.5, rounded up. Voyage states 1.1-1.2
    times tiktoken's count on average; the rest is for languages and code above that average.

    `usage_tokens` are those that the service billed so far. A text longer than the window is refused
    (PermanentError), and a missing key is a FatalError before anything is sent. Otherwise as `ApiEmbedder`.
    """

    tokenizer = f"tiktoken:{_ENCODING}x{TOKEN_MARGIN}"
    remedies = Remedies(
        key="VOYAGE_API_KEY",
        address="embedding.base_url",
        model="embedding.model",
        refused="a text may be longer than the model's window: lower chunking.max_tokens",
    )

    def __init__(
        self, model: str, api_key: str | None, base_url: str | None = None, dimension: int | None = None
    ) -> None:
        known = _MODELS.get(model, _UNKNOWN)
        super().__init__(
            model, base_url or BASE_URL, api_key, known.window_tokens, dimension=dimension or known.dimension
        )
        self.fingerprint = f"voyage:{self.fingerprint}:document|query"
        self.usage_tokens = 0
        self._counting = threading.Lock()
        self._requested_dimension = dimension
        self._request_tokens = known.request_tokens
        self._lacks_key = not api_key and base_url is None

    @property
    def usage_usd(self) -> float | None:
        """Price of `usage_tokens`; None when the model's price is not known."""
        return tokens_usd(self.name, self.usage_tokens)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """An estimate that is meant to be too high, see the class."""
        return estimated_tokens(texts)

    def _batches(self, texts: Sequence[str]) -> Iterator[Sequence[str]]:
        return batches(texts, estimated_tokens(texts), _TEXTS_PER_REQUEST, self._request_tokens)

    def _answer(self, texts: Sequence[str], is_query: bool) -> Any:
        if self._lacks_key:
            raise FatalError(f"{self.name} needs a key: set VOYAGE_API_KEY, or choose another embedding.model")
        body = {
            "model": self.name,
            "input": list(texts),
            "input_type": "query" if is_query else "document",
            "truncation": False,
        }
        if self._requested_dimension is not None:
            body["output_dimension"] = self._requested_dimension
        answer = self._api.post(body)
        with self._counting:
            self.usage_tokens += billed_tokens(answer) or 0
        return answer


def estimated_tokens(texts: Sequence[str]) -> list[int]:
    """Voyage's tokens of each text, estimated high: 1.5 times those of `cl100k_base`."""
    from ctx_pipeline.chunking.tokens import count_tokens

    return [math.ceil(TOKEN_MARGIN * count) for count in count_tokens(texts, _ENCODING)]


def batches(texts: Sequence[str], tokens: Sequence[int], most_texts: int, most_tokens: int) -> Iterator[Sequence[str]]:
    """Consecutive texts of at most that many and that many tokens; a text above the limit goes alone."""
    first, total = 0, 0
    for position, count in enumerate(tokens):
        if position > first and (position - first == most_texts or total + count > most_tokens):
            yield texts[first:position]
            first, total = position, 0
        total += count
    if first < len(texts):
        yield texts[first:]


def billed_tokens(answer: Any) -> int | None:
    """Tokens that an answer of Voyage says it used; None when it does not say."""
    usage = answer.get("usage") if isinstance(answer, dict) else None
    tokens = usage.get("total_tokens") if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) else None
