"""Embeddings by an OpenAI-compatible endpoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctx_pipeline.embedding.protocol import Embedder
from ctx_pipeline.errors import FatalError, TransientError
from ctx_pipeline.http_api import MESSAGE_CHARS, JsonApi, Remedies

if TYPE_CHECKING:
    from pydantic import SecretStr

_ENCODING = "cl100k_base"


class ApiEmbedder(Embedder):
    """`POST {base_url}/embeddings` with `{"model", "input"}`, `batch_size` texts a request.

    `dimension` declares the length of the vectors, and every answer is checked against it; without one the first
    answer sets it. Passages and queries are sent as they are, without a prefix. Tokens are counted by tiktoken's
    `cl100k_base`, whatever the model.

    Status 408, 429, 5xx and connection errors are tried again up to 5 times, after what `Retry-After` says but no
    longer than 60 s. The vectors of a call come from several requests: an error means none of them is returned.
    Raises FatalError for a refused key, address or model, PermanentError for a text the server refuses, TransientError
    when retries are used up or the answer is malformed. No message holds the key.
    """

    tokenizer = f"tiktoken:{_ENCODING}"
    remedies = Remedies(
        key="CTX_EMBEDDING__API_KEY",
        address="embedding.base_url",
        model="embedding.model",
        refused="the text may be too long: see embedding.window_tokens",
    )

    def __init__(
        self,
        model: str,
        base_url: str,
        api_key: SecretStr | str | None,
        window_tokens: int,
        batch_size: int = 64,
        dimension: int | None = None,
    ) -> None:
        self.name = model
        self.window_tokens = window_tokens
        key = api_key if api_key is None or isinstance(api_key, str) else api_key.get_secret_value()
        self._api = JsonApi(f"{base_url.rstrip('/')}/embeddings", key or "", model, self.remedies)
        self.fingerprint = f"{model}:{self._api.server}:{dimension}"
        self._batch_size = batch_size
        self._dimension = dimension

    def __repr__(self) -> str:
        return f"ApiEmbedder(model={self.name!r}, server={self._api.server!r})"

    @property
    def dimension(self) -> int:
        """The declared length, else that of the first answer; asks the server when there was none."""
        if self._dimension is None:
            self._embed(["dimension"])
        assert self._dimension is not None
        return self._dimension

    @property
    def usage_usd(self) -> float | None:
        return None

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        from ctx_pipeline.chunking.tokens import count_tokens

        return count_tokens(texts, _ENCODING)

    def embed_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        return np.concatenate([self._embed(batch) for batch in self._batches(texts)])

    def embed_query(self, text: str) -> NDArray[np.float32]:
        vector: NDArray[np.float32] = self._embed([text], is_query=True)[0]
        return vector

    def _batches(self, texts: Sequence[str]) -> Iterable[Sequence[str]]:
        return (texts[at : at + self._batch_size] for at in range(0, len(texts), self._batch_size))

    def _answer(self, texts: Sequence[str], is_query: bool) -> Any:
        return self._api.post({"model": self.name, "input": list(texts)})

    def _embed(self, texts: Sequence[str], *, is_query: bool = False) -> NDArray[np.float32]:
        answer = self._answer(texts, is_query)
        vectors = unit_vectors(answer, len(texts), self._api.server)
        if self._dimension is None:
            self._dimension = vectors.shape[1]
        if vectors.shape[1] != self._dimension:
            raise FatalError(
                f"{self._api.server} answered with vectors of {vectors.shape[1]} dimensions "
                f"instead of {self._dimension}; correct embedding.dimension or embedding.model"
            )
        return vectors


def unit_vectors(answer: Any, count: int, server: str) -> NDArray[np.float32]:
    """The `count` vectors of an answer `{"data": [{"index", "embedding"}]}`, by index, scaled to length 1.

    Raises TransientError when they are not all there, or not vectors.
    """
    try:
        by_index = {item["index"]: item["embedding"] for item in answer["data"]}
        found = sorted(by_index)
        if found != list(range(count)) or len(answer["data"]) != count:
            raise TransientError(f"{server} answered {len(answer['data'])} vectors for {count} texts: {found}")
        vectors = np.array([by_index[index] for index in found], np.float32)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    except (KeyError, TypeError, ValueError, np.exceptions.AxisError) as error:
        reason = f"{type(error).__name__}: {error}"[:MESSAGE_CHARS]
        raise TransientError(f"{server} answered with a malformed body: {reason}") from error
    if not np.isfinite(norms).all() or not norms.all():
        raise TransientError(f"{server} answered with a vector of zeros, infinite or undefined numbers")
    unit: NDArray[np.float32] = vectors / norms
    return unit
