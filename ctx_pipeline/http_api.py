"""One JSON service over HTTP: retries, classified failures, and a key that stays secret."""

from __future__ import annotations

import re
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ctx_pipeline.errors import FatalError, PermanentError, TransientError

if TYPE_CHECKING:
    import requests

_RETRIED_STATUS = frozenset({408, 429, *range(500, 600)})
_BACKOFF_FACTOR_S, _BACKOFF_JITTER_S = 0.5, 1.0
_CONNECT_TIMEOUT_S = 5
MESSAGE_CHARS = 300
"""Length of a server's words in a message."""
_WRONG_MODEL = re.compile(r"\bmodel\b.{0,80}\b(not supported|not found|not exist|unsupported)\b", re.I | re.S)


@dataclass(frozen=True, slots=True)
class Patience:
    """How often a failed request is sent again, and how long anything is waited for (seconds)."""

    retries: int = 5
    max_wait_s: float = 60
    read_timeout_s: float = 60


@dataclass(frozen=True, slots=True)
class Remedies:
    """What messages tell the user to correct."""

    key: str
    """The environment variable that holds the key."""
    address: str
    """The setting that holds the address."""
    model: str
    """The setting that holds the model."""
    refused: str
    """What to do about a refused request."""


def key_problem(variable: str, key: str) -> str | None:
    """Why no header can carry the key of that variable; None when one can. Does not show the key."""
    if key.isascii() and key.isprintable():
        return None
    return f"{variable} holds line breaks or letters that no key has; set it again"


class JsonApi:
    """`POST url` with a JSON body and a bearer key; the answer is decoded JSON.

    Status 408, 429, 5xx and connection errors are tried again, after what `Retry-After` says but no longer than
    `patience` allows. Raises FatalError for a refused key, address or model, PermanentError for a refused request,
    TransientError when retries are used up or the answer is not JSON. No message holds the key.
    """

    def __init__(self, url: str, key: str, model: str, remedies: Remedies, patience: Patience | None = None) -> None:
        self.url = url
        self._key = key.strip()
        self._model = model
        self._remedies = remedies
        self._patience = patience or Patience()
        self._opening = threading.Lock()
        self._session: requests.Session | None = None

    @property
    def server(self) -> str:
        """The address without user, password and parameters, which may be secrets."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def post(self, body: dict[str, Any]) -> Any:
        """The decoded answer."""
        import requests

        try:
            response = self._open_session().post(
                self.url,
                json=body,
                timeout=(_CONNECT_TIMEOUT_S, self._patience.read_timeout_s),
                allow_redirects=False,
            )
        except (
            requests.exceptions.InvalidURL,
            requests.exceptions.MissingSchema,
            requests.exceptions.InvalidSchema,
        ):
            raise FatalError(f"{self._remedies.address} is not an http address: {self.server}") from None
        except requests.RequestException as error:
            reason = self._redacted(str(error))
            raise TransientError(
                f"no answer from {self.server} after {self._patience.retries} retries: {reason}"
            ) from None
        if response.status_code != 200:
            raise self._refusal(response)
        try:
            return response.json()
        except ValueError:
            raise TransientError(f"{self.server} did not answer with JSON: {self._excerpt(response)}") from None

    def _refusal(self, response: requests.Response) -> FatalError | PermanentError | TransientError:
        status = response.status_code
        excerpt = self._excerpt(response)
        said = f"{self.server} answered {status}: {excerpt}"
        if status in (401, 403):
            return FatalError(f"{said}; set {self._remedies.key} to a key that may use {self._model}")
        if status in (400, 413, 422) and not _WRONG_MODEL.search(excerpt):
            return PermanentError(f"{said}; {self._remedies.refused}")
        if status in _RETRIED_STATUS:
            return TransientError(f"{said}, after {self._patience.retries} retries")
        return FatalError(f"{said}; check {self._remedies.address} and {self._remedies.model}")

    def _open_session(self) -> requests.Session:
        import requests
        from requests.adapters import HTTPAdapter
        from urllib3.util import Retry

        if problem := key_problem(self._remedies.key, self._key):
            raise FatalError(problem)
        with self._opening:
            if self._session is None:
                retry = Retry(
                    total=self._patience.retries,
                    allowed_methods=None,
                    status_forcelist=_RETRIED_STATUS,
                    raise_on_status=False,
                    backoff_factor=_BACKOFF_FACTOR_S,
                    backoff_jitter=_BACKOFF_JITTER_S,
                    backoff_max=self._patience.max_wait_s,
                    retry_after_max=int(self._patience.max_wait_s),
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

    def _excerpt(self, response: requests.Response) -> str:
        """What the server says is wrong, wherever the service puts it."""
        text = response.text
        with suppress(ValueError):
            answer = response.json()
            for path in (("error", "message"), ("detail",), ("message",)):
                said = answer
                for name in path:
                    said = said.get(name) if isinstance(said, dict) else None
                if isinstance(said, str):
                    text = said
                    break
        return self._redacted(text)[:MESSAGE_CHARS]

    def _redacted(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text
