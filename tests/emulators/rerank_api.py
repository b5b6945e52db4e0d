"""The HTTP APIs of Voyage (rerank, embeddings) and Cohere (rerank) on the loopback address.

A passage scores the share of the query's words that it holds; a text embeds as [1 + its length, 1, 0, ...]. Every
answer says `"model": "emulator"`.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "emulated-key-0123456789"


@dataclass
class Fault:
    """An answer in place of the right one; without a body the connection is closed without a word."""

    status: int = 200
    body: str | None = "{}"
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0


@dataclass
class Received:
    path: str
    authorization: str | None
    body: dict[str, Any]


@dataclass
class RerankApi:
    """Gives its faults in turn, then answers rightly. `edit` changes right answers."""

    url: str = ""
    faults: list[Fault] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    edit: Callable[[dict[str, Any]], Any] = lambda answer: answer

    def answer(self, request: Received) -> Fault:
        if self.faults:
            return self.faults.pop(0)
        if request.authorization != f"Bearer {KEY}":
            return Fault(401, json.dumps({"detail": f"Provided API key is invalid: {request.authorization}"}))
        if request.path.endswith("/embeddings"):
            return Fault(body=json.dumps(self.edit(_embeddings(request.body))))
        if request.path.endswith("/v2/rerank"):
            return Fault(body=json.dumps(self.edit(_cohere(request.body))))
        return Fault(body=json.dumps(self.edit(_voyage(request.body))))


@contextmanager
def rerank_api() -> Iterator[RerankApi]:
    """A running emulator; `url` has no version in its path."""
    api = RerankApi()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            request = Received(self.path, self.headers["Authorization"], body)
            api.received.append(request)
            fault = api.answer(request)
            time.sleep(fault.delay_s)
            if fault.body is None:
                self.close_connection = True
                return
            data = fault.body.encode()
            self.send_response(fault.status)
            for name, value in {"Content-Length": str(len(data)), **fault.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    api.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _ranked(body: dict[str, Any], most: int) -> list[dict[str, Any]]:
    query = set(_words(body["query"]))
    scores = [len(query & set(_words(text))) / len(query) for text in body["documents"]]
    best = sorted(range(len(scores)), key=lambda at: -scores[at])[:most]
    return [{"index": at, "relevance_score": scores[at]} for at in best]


def _voyage(body: dict[str, Any]) -> dict[str, Any]:
    documents = body["documents"]
    tokens = len(_words(body["query"])) * len(documents) + sum(len(_words(text)) for text in documents)
    data = _ranked(body, body["top_k"])
    return {"object": "list", "data": data, "model": "emulator", "usage": {"total_tokens": tokens}}


def _cohere(body: dict[str, Any]) -> dict[str, Any]:
    units = -(-len(body["documents"]) // 100)
    meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": units}}
    return {"id": "0", "results": _ranked(body, body["top_n"]), "meta": meta, "model": "emulator"}


def _embeddings(body: dict[str, Any]) -> dict[str, Any]:
    length = body.get("output_dimension", 1024)
    data = [
        {"object": "embedding", "embedding": [1 + len(text), 1] + [0] * (length - 2), "index": at}
        for at, text in enumerate(body["input"])
    ]
    usage = {"total_tokens": sum(len(_words(text)) for text in body["input"])}
    return {"object": "list", "data": data, "model": "emulator", "usage": usage}
