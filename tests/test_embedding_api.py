"""The embedder behind an OpenAI-compatible endpoint, against a scripted server on the loopback address."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ctx_pipeline.embedding.api import ApiEmbedder
from ctx_pipeline.errors import CtxError, FatalError, PermanentError, TransientError

KEY = "sk-secret-0123456789"


@dataclass
class Reply:
    """An answer; without a body the connection is closed without a word."""

    status: int = 200
    body: str | None = "{}"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Server:
    """Gives its replies in turn, then embeds every text as [1 + its length, 1]."""

    url: str = ""
    replies: list[Reply] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def reply(self, request: dict[str, Any]) -> Reply:
        return self.replies.pop(0) if self.replies else vectors([[1 + len(text), 1] for text in request["input"]])


def vectors(values: list[Any], *, indexes: list[Any] | None = None) -> Reply:
    data = [{"index": index, "embedding": value} for index, value in zip(indexes or range(99), values, strict=False)]
    return Reply(body=json.dumps({"object": "list", "data": data}))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    script = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            script.requests.append(request)
            script.authorizations.append(self.headers["Authorization"])
            script.paths.append(self.path)
            reply = script.reply(request)
            if reply.body is None:
                self.close_connection = True
                return
            body = reply.body.encode()
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(body)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    script.url = f"http://127.0.0.1:{http.server_port}/v1"
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    yield script
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds waited between attempts; nothing really waits."""
    waited: list[float] = []
    monkeypatch.setattr("urllib3.util.retry.time", SimpleNamespace(sleep=waited.append, time=time.time))
    return waited


@pytest.fixture
def make(server: Server) -> Callable[..., ApiEmbedder]:
    def embedder(**changes: Any) -> ApiEmbedder:
        settings = {"model": "small", "base_url": server.url, "api_key": KEY, "window_tokens": 8191, **changes}
        return ApiEmbedder(**settings)

    return embedder


def test_texts_are_sent_in_batches_and_come_back_as_unit_rows(server: Server, make: Callable[..., ApiEmbedder]) -> None:
    found = make(batch_size=2).embed_passages(["a", "bb", "ccc", "dddd", "eeeee"])
    assert [request["input"] for request in server.requests] == [["a", "bb"], ["ccc", "dddd"], ["eeeee"]]
    assert server.requests[0] == {"model": "small", "input": ["a", "bb"]}
    assert set(server.paths) == {"/v1/embeddings"}
    assert set(server.authorizations) == {f"Bearer {KEY}"}
    expected = np.array([[length + 1, 1] for length in range(1, 6)], np.float32)
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected, axis=1, keepdims=True), rtol=1e-6)
    assert found.dtype == np.float32


def test_vectors_are_matched_by_index(server: Server, make: Callable[..., ApiEmbedder]) -> None:
    server.replies = [vectors([[0, 2], [3, 0]], indexes=[1, 0])]
    np.testing.assert_array_equal(make().embed_passages(["first", "second"]), [[1, 0], [0, 1]])


def test_a_query_is_one_vector(make: Callable[..., ApiEmbedder]) -> None:
    assert make().embed_query("question").shape == (2,)


def test_no_text_no_request(server: Server, make: Callable[..., ApiEmbedder]) -> None:
    assert make(dimension=7).embed_passages([]).shape == (0, 7)
    assert server.requests == []


def test_a_declared_dimension_is_believed_and_another_is_asked_for_once(
    server: Server, make: Callable[..., ApiEmbedder]
) -> None:
    assert make(dimension=1536).dimension == 1536
    assert server.requests == []
    embedder = make()
    assert [embedder.dimension, embedder.dimension] == [2, 2]
    assert len(server.requests) == 1


def test_no_key_no_header(server: Server, make: Callable[..., ApiEmbedder]) -> None:
    make(api_key=None).embed_query("text")
    assert server.authorizations == [None]


def test_a_wrapped_key_is_unwrapped(server: Server, make: Callable[..., ApiEmbedder]) -> None:
    make(api_key=SimpleNamespace(get_secret_value=lambda: f"{KEY}\n")).embed_query("text")
    assert server.authorizations == [f"Bearer {KEY}"]


def test_an_entry_in_netrc_does_not_replace_the_key(
    server: Server, make: Callable[..., ApiEmbedder], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login someone password other\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    make().embed_query("text")
    assert server.authorizations == [f"Bearer {KEY}"]


@pytest.mark.parametrize(("said_s", "waited_s"), [("7", 7), ("86400", 60)])
def test_a_busy_server_is_asked_again_when_it_says(
    server: Server, make: Callable[..., ApiEmbedder], waits: list[float], said_s: str, waited_s: float
) -> None:
    server.replies = [Reply(429, "slow down", {"Retry-After": said_s})]
    assert make().embed_query("text").shape == (2,)
    assert waits == [waited_s]


@pytest.mark.parametrize("failure", [Reply(500), Reply(503), Reply(529), Reply(body=None)], ids=str)
def test_a_failing_server_is_asked_again(
    server: Server, make: Callable[..., ApiEmbedder], waits: list[float], failure: Reply
) -> None:
    server.replies = [failure] * 3
    assert make().embed_query("text").shape == (2,)
    assert len(server.requests) == 4
    assert waits == sorted(waits)
    assert 0 < sum(waits) < 60


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_keeps_failing_is_a_transient_error(
    server: Server, make: Callable[..., ApiEmbedder], status: int
) -> None:
    server.replies = [Reply(status, '{"error": {"message": "overloaded"}}')] * 20
    with pytest.raises(TransientError, match=f"{status}: overloaded, after 5 retries"):
        make().embed_query("text")
    assert len(server.requests) == 6


def test_no_server_is_a_transient_error(make: Callable[..., ApiEmbedder], waits: list[float]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        with pytest.raises(TransientError, match=f"no answer from {address}/embeddings after 5 retries"):
            make(base_url=address).embed_query("text")
    assert len(waits) == 4


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_fatal_and_stays_secret(server: Server, make: Callable[..., ApiEmbedder], status: int) -> None:
    server.replies = [Reply(status, json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}"}}))]
    with pytest.raises(FatalError, match=r"Incorrect API key provided: \*\*\*; set CTX_EMBEDDING__API_KEY"):
        make().embed_query("text")
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_refused_text_is_permanent_and_its_message_is_cut(
    server: Server, make: Callable[..., ApiEmbedder], status: int
) -> None:
    server.replies = [Reply(status, "x" * 5_000)]
    with pytest.raises(PermanentError, match=f"{status}: x{{300}};"):
        make().embed_passages(["text"])
    assert len(server.requests) == 1


@pytest.mark.parametrize("reply", [Reply(404, "no such model"), Reply(302, "", {"Location": "http://127.0.0.1:1/"})])
def test_a_wrong_address_or_model_is_fatal(server: Server, make: Callable[..., ApiEmbedder], reply: Reply) -> None:
    server.replies = [reply]
    with pytest.raises(FatalError, match=rf"{reply.status}: .*embedding\.base_url and embedding\.model"):
        make().embed_query("text")
    assert len(server.requests) == 1


@pytest.mark.parametrize("address", ["127.0.0.1:80/v1", "ftp://127.0.0.1/v1", "http://"])
def test_an_address_that_is_none_is_fatal(make: Callable[..., ApiEmbedder], address: str) -> None:
    with pytest.raises(FatalError, match=r"embedding\.base_url"):
        make(base_url=address).embed_query("text")


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(body="<html>maintenance</html>"), "not answer with JSON: <html>maintenance"),
        (Reply(body="[]"), "malformed"),
        (Reply(body='{"error": "none"}'), "malformed body: KeyError: 'data'"),
        (Reply(body='{"data": null}'), "malformed"),
        (Reply(body='{"data": [{"embedding": [1, 2]}, {"embedding": [1, 2]}]}'), "KeyError: 'index'"),
        (vectors([[1, 2]]), "1 vectors for 2 texts"),
        (vectors([[1, 2]] * 3), "3 vectors for 2 texts"),
        (vectors([[1, 2]] * 2, indexes=[1, 2]), r"2 vectors for 2 texts: \[1, 2\]"),
        (vectors([[1, 2]] * 3, indexes=[0, 1, 1]), "3 vectors for 2 texts"),
        (vectors([[1, 2], [1, 2, 3]]), "malformed"),
        (vectors(["AACAPw==", "AACAPw=="]), "malformed"),
        (vectors([1.0, 2.0]), "malformed"),
        (vectors([[1, float("nan")], [1, 2]]), "undefined numbers"),
        (vectors([[1, float("inf")], [1, 2]]), "infinite"),
        (vectors([[1, None], [1, 2]]), "undefined numbers"),
        (vectors([[0, 0], [1, 2]]), "zeros"),
        (vectors([[], []]), "zeros"),
    ],
)
def test_a_malformed_answer_says_what_is_wrong(
    server: Server, make: Callable[..., ApiEmbedder], reply: Reply, reason: str
) -> None:
    server.replies = [reply]
    with pytest.raises(TransientError, match=reason):
        make().embed_passages(["one", "two"])


def test_vectors_of_another_dimension_are_refused(server: Server, make: Callable[..., ApiEmbedder]) -> None:
    with pytest.raises(FatalError, match=r"2 dimensions instead of 3; correct embedding\.dimension"):
        make(dimension=3).embed_query("text")
    embedder = make()
    embedder.embed_query("text")
    server.replies = [vectors([[1, 2, 3]])]
    with pytest.raises(FatalError, match="3 dimensions instead of 2"):
        embedder.embed_query("text")


@pytest.mark.parametrize("reply", [Reply(500, KEY), Reply(200, KEY), Reply(400, KEY), Reply(401, KEY), Reply(404, KEY)])
def test_no_message_holds_the_key(server: Server, make: Callable[..., ApiEmbedder], reply: Reply) -> None:
    server.replies = [reply] * 9
    embedder = make()
    with pytest.raises(CtxError) as raised:
        embedder.embed_query("text")
    assert KEY not in str(raised.value)
    assert KEY not in repr(embedder)
    assert KEY not in embedder.fingerprint


def test_a_key_that_cannot_be_sent_is_fatal(server: Server, make: Callable[..., ApiEmbedder]) -> None:
    with pytest.raises(FatalError, match="CTX_EMBEDDING__API_KEY holds line breaks") as raised:
        make(api_key="sk-one\nsk-two").embed_query("text")
    assert "sk-one" not in str(raised.value)
    assert server.requests == []


def test_the_fingerprint_tells_spaces_apart_and_holds_no_secret() -> None:
    def fingerprint(model: str, base_url: str, dimension: int | None = None, key: str = "k") -> str:
        return ApiEmbedder(model, base_url, key, 8191, dimension=dimension).fingerprint

    first = fingerprint("m", "https://host/v1")
    others = [("n", "https://host/v1", None), ("m", "https://other/v1", None), ("m", "https://host/v1", 256)]
    assert len({first, *(fingerprint(*other) for other in others)}) == 4
    assert fingerprint("m", "https://host/v1/", None, "another key") == first
    assert fingerprint("m", "https://user:password@host/v1") == first


def test_tokens_are_counted_by_cl100k(make: Callable[..., ApiEmbedder]) -> None:
    assert make().count_tokens(["", "hello world", "tiktoken is great!"]) == [0, 2, 6]
