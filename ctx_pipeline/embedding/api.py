"""Embeddings by an OpenAI-compatible endpoint."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from ctx_pipeline.embedding.protocol import Embedder
from ctx_pipeline.errors import FatalError, PermanentError, TransientError

if TYPE_CHECKING:
    import requests
    from pydantic import SecretStr

_ENCODING = "cl100k_base"
_RETRIES = 5
_RETRIED_STATUS = frozenset({408, 429, *range(500, 600)})
_BACKOFF_FACTOR_S, _BACKOFF_JITTER_S, _MAX_WAIT_S = 0.5, 1.0, 60
_CONNECT_TIMEOUT_S, _READ_TIMEOUT_S = 5, 60
_MESSAGE_CHARS = 300


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
        self._url = f"{base_url.rstrip('/')}/embeddings"
        self.fingerprint = f"{model}:{self._server}:{dimension}"
        key = api_key if api_key is None or isinstance(api_key, str) else api_key.get_secret_value()
        self._key = (key or "").strip()
        self._batch_size = batch_size
        self._dimension = dimension
        self._opening = threading.Lock()
        self._session: requests.Session | None = None

    def __repr__(self) -> str:
        return f"ApiEmbedder(model={self.name!r}, server={self._server!r})"

    @property
    def dimension(self) -> int:
        """The declared length, else that of the first answer; asks the server when there was none."""
        if self._dimension is None:
            self._embed(["dimension"])
        assert self._dimension is not None
        return self._dimension

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        from ctx_pipeline.chunking.tokens import count_tokens

        return count_tokens(texts, _ENCODING)

    def embed_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        batches = [texts[at : at + self._batch_size] for at in range(0, len(texts), self._batch_size)]
        return np.concatenate([self._embed(batch) for batch in batches])

    def embed_query(self, text: str) -> NDArray[np.float32]:
        vector: NDArray[np.float32] = self._embed([text])[0]
        return vector

    def _embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = self._vectors(self._post({"model": self.name, "input": list(texts)}), len(texts))
        if self._dimension is None:
            self._dimension = vectors.shape[1]
        if vectors.shape[1] != self._dimension:
            raise FatalError(
                f"{self._server} answered with vectors of {vectors.shape[1]} dimensions instead of {self._dimension}; "
                "correct embedding.dimension or embedding.model"
            )
        return vectors

    def _post(self, body: dict[str, Any]) -> Any:
        """The decoded answer."""
        import requests

        try:
            response = self._open_session().post(
                self._url, json=body, timeout=(_CONNECT_TIMEOUT_S, _READ_TIMEOUT_S), allow_redirects=False
            )
        except (
            requests.exceptions.InvalidURL,
            requests.exceptions.MissingSchema,
            requests.exceptions.InvalidSchema,
        ):
            raise FatalError(f"embedding.base_url is not an http address: {self._server}") from None
        except requests.RequestException as error:
            reason = self._redacted(str(error))
            raise TransientError(f"no answer from {self._server} after {_RETRIES} retries: {reason}") from None
        if response.status_code != 200:
            raise self._refusal(response)
        try:
            return response.json()
        except ValueError:
            raise TransientError(f"{self._server} did not answer with JSON: {self._excerpt(response)}") from None

    def _refusal(self, response: requests.Response) -> FatalError | PermanentError | TransientError:
        status = response.status_code
        said = f"{self._server} answered {status}: {self._excerpt(response)}"
        if status in (401, 403):
            return FatalError(f"{said}; set CTX_EMBEDDING__API_KEY to a key that may use {self.name}")
        if status in (400, 413, 422):
            return PermanentError(f"{said}; the text may be too long: see embedding.window_tokens")
        if status in _RETRIED_STATUS:
            return TransientError(f"{said}, after {_RETRIES} retries")
        return FatalError(f"{said}; check embedding.base_url and embedding.model")

    def _vectors(self, answer: Any, count: int) -> NDArray[np.float32]:
        try:
            by_index = {item["index"]: item["embedding"] for item in answer["data"]}
            found = sorted(by_index)
            if found != list(range(count)) or len(answer["data"]) != count:
                raise TransientError(
                    f"{self._server} answered {len(answer['data'])} vectors for {count} texts: {found}"
                )
            vectors = np.array([by_index[index] for index in found], np.float32)
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        except (KeyError, TypeError, ValueError, np.exceptions.AxisError) as error:
            reason = f"{type(error).__name__}: {error}"[:_MESSAGE_CHARS]
            raise TransientError(f"{self._server} answered with a malformed body: {reason}") from error
        if not np.isfinite(norms).all() or not norms.all():
            raise TransientError(f"{self._server} answered with a vector of zeros, infinite or undefined numbers")
        unit: NDArray[np.float32] = vectors / norms
        return unit

    def _open_session(self) -> requests.Session:
        import requests
        from requests.adapters import HTTPAdapter
        from urllib3.util import Retry

        if not (self._key.isascii() and self._key.isprintable()):
            raise FatalError("CTX_EMBEDDING__API_KEY holds line breaks or letters that no key has; set it again")
        with self._opening:
            if self._session is None:
                retry = Retry(
                    total=_RETRIES,
                    allowed_methods=None,
                    status_forcelist=_RETRIED_STATUS,
                    raise_on_status=False,
                    backoff_factor=_BACKOFF_FACTOR_S,
                    backoff_jitter=_BACKOFF_JITTER_S,
                    backoff_max=_MAX_WAIT_S,
                    retry_after_max=_MAX_WAIT_S,
                )
                session = requests.Session()
                session.mount("http://", HTTPAdapter(max_retries=retry))
                session.mount("https://", HTTPAdapter(max_retries=retry))
                if self._key:
                    # As `auth`, because a plain header gives way to an entry for the host in ~/.netrc.
                    session.auth = self._authorize
                self._session = session
            return self._session

    def _authorize(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._key}"
        return request

    @property
    def _server(self) -> str:
        """The address without user, password and parameters, which may be secrets."""
        parts = urlsplit(self._url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def _excerpt(self, response: requests.Response) -> str:
        text = response.text
        with suppress(ValueError, KeyError, TypeError):
            text = response.json()["error"]["message"]
        return self._redacted(str(text))[:_MESSAGE_CHARS]

    def _redacted(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text
