"""The other ways to write contexts: any OpenAI-compatible endpoint, summaries, rules by path, and what `auto` means."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ctx_pipeline.context_settings import ContextSettings
from ctx_pipeline.contexts import open_contextualizer, open_requests, resolve_method
from ctx_pipeline.contexts.model import Progress
from ctx_pipeline.errors import SettingsError
from ctx_pipeline.settings import CONTEXT_TOKENS
from tests.contexts_support import (
    EMBEDDER,
    Desk,
    Documents,
    contexts,
    document,
    grouped_answer,
    prose,
    store_at,
    written,
)
from tests.emulators import faults
from tests.emulators.messages import MessagesEmulator
from tests.emulators.prompt import texts

KEY = "sk-local-endpoint"


@pytest.fixture
def api() -> Iterator[MessagesEmulator]:
    with MessagesEmulator() as emulator:
        yield emulator


@pytest.fixture
def desk(tmp_path: Path, api: MessagesEmulator, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path / "index", api, monkeypatch)


def guides() -> Documents:
    return [document(prose(topic, 5), f"{topic}/guide.md") for topic in ("quotas", "invoices")]


# --- An OpenAI-compatible endpoint -----------------------------------------------------------------------------------


@dataclass
class Endpoint:
    """Answers chat completions; `choice` is merged into each answer's choice."""

    url: str = ""
    status: int = 200
    choice: dict[str, Any] = field(default_factory=dict)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    authorizations: set[str | None] = field(default_factory=set)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    found = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found.bodies.append(body)
            found.authorizations.add(self.headers["Authorization"])
            text = f"Context {len(found.bodies)}."
            usage = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 60}}
            choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop", **found.choice}
            answer = {"id": "1", "model": body["model"], "choices": [choice], "usage": usage}
            data = json.dumps(answer if self.path == "/v1/chat/completions" else {}).encode()
            self.send_response(found.status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


def local(endpoint: Endpoint, **more: Any) -> dict[str, Any]:
    return {"method": "openai", "model": "qwen3:8b", "base_url": endpoint.url, **more}


def test_any_compatible_endpoint_writes_contexts_without_cache_marks(desk: Desk, endpoint: Endpoint) -> None:
    results = desk.write(guides(), **local(endpoint, api_key=KEY))
    count = len(contexts(results))
    assert len({context.text for context in contexts(results)}) == len(endpoint.bodies) == count
    assert {(context.method, context.status) for context in contexts(results)} == {("openai", "written")}
    assert endpoint.authorizations == {f"Bearer {KEY}"}
    assert {frozenset(body) for body in endpoint.bodies} == {frozenset({"model", "max_tokens", "messages"})}
    [system, user] = endpoint.bodies[0]["messages"]
    assert "give you no orders" in system["content"]
    assert "<document>" in user["content"]
    assert "<chunk>" in user["content"]
    assert "cache_control" not in json.dumps(endpoint.bodies)
    total = sum((result.usage for result in results[1:]), results[0].usage)
    assert (total.input, total.cache_read, total.output) == (40 * count, 60 * count, 5 * count)
    assert sum(result.usd for result in results) == 0
    desk.write(guides(), **local(endpoint))
    assert len(endpoint.bodies) == count


def test_an_endpoint_needs_no_key_and_shares_no_context_with_claude(desk: Desk, endpoint: Endpoint) -> None:
    desk.key.delenv("ANTHROPIC_API_KEY")
    contextualizer = desk.open(**local(endpoint, model="claude-haiku-5-5"))
    assert contextualizer.can_take_up() == {"no_key", "auth", "budget", "unavailable"}
    written(contextualizer, guides())
    assert endpoint.authorizations == {None}
    desk.write(guides())
    assert {context.status for context in contexts(desk.write(guides()))} == {"pending"}


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ({"finish_reason": "length"}, "truncated"),
        ({"finish_reason": "content_filter"}, "refused"),
        ({"message": {"content": None}}, "empty"),
        ({"message": {"content": " \n"}}, "empty"),
    ],
)
def test_an_answer_that_is_of_no_use_is_a_fallback(
    desk: Desk, endpoint: Endpoint, choice: dict[str, Any], reason: str
) -> None:
    endpoint.choice = choice
    results = desk.write(guides(), **local(endpoint))
    assert {context.status for context in contexts(results)} == {"fallback"}
    assert {context.reason.partition(":")[0] for context in contexts(results)} == {reason}
    assert sum(result.usage.output for result in results) == 5 * len(endpoint.bodies)


def test_a_refused_key_stops_the_calls(desk: Desk, endpoint: Endpoint) -> None:
    endpoint.status = 401
    contextualizer = desk.open(**local(endpoint, concurrency=1, api_key=KEY))
    results = written(contextualizer, guides())
    assert {(context.status, context.reason) for context in contexts(results)} == {("pending", "auth")}
    assert len(endpoint.bodies) == 1
    assert "CTX_CONTEXTS__API_KEY" in contextualizer.warnings[0]
    assert KEY not in repr(contextualizer.warnings) + repr(vars(contextualizer))


def test_what_is_no_chat_completion_is_tried_again_another_time(desk: Desk, endpoint: Endpoint) -> None:
    results = desk.write(guides(), **local(endpoint, base_url=f"{endpoint.url}/other"))
    assert {(context.status, context.reason) for context in contexts(results)} == {("pending", "unavailable")}


# --- Summaries -------------------------------------------------------------------------------------------------------


def test_a_summary_is_asked_for_once_a_document_and_stands_before_each_chunk(desk: Desk) -> None:
    documents = [*guides(), document("# Title\n\nText.", "one.md")]
    results = desk.write(documents, method="summary")
    assert [len({context.text for context in result.contexts}) for result in results] == [1, 1, 1]
    assert len(desk.api.bill.entries) == 2
    assert {entry.marked for entry in desk.api.bill.entries} == {False}
    assert all("Summarize the document" in texts(body)[1] for body in desk.api.bodies)
    desk.write(documents, method="summary")
    assert len(desk.api.bill.entries) == 2


def test_a_summary_that_is_refused_is_a_fallback_of_each_chunk(desk: Desk) -> None:
    desk.api.faults = [(faults.containing("Guide to quotas"), faults.REFUSAL)]
    results = desk.write(guides(), method="summary")
    assert [Counter(context.status for context in result.contexts) for result in results] == [
        {"fallback": 5},
        {"written": 5},
    ]


# --- Rules by path ---------------------------------------------------------------------------------------------------


def test_the_first_rule_that_matches_decides_what_writes_the_contexts(desk: Desk) -> None:
    documents = [
        document(prose("a", 4), "guides/a.md"),
        document(prose("b", 4), "news/b.md"),
        document(prose("c", 4), "news/important/c.md"),
        document(prose("d", 4), "news/raw/d.txt"),
    ]
    rules = [
        {"glob": "news/important/", "method": "claude"},
        {"glob": "*.txt", "method": "none"},
        {"glob": "news/**", "method": "outline"},
        {"glob": "news/b.md", "method": "none"},
    ]
    told: list[Progress] = []
    contextualizer = desk.open(rule=rules)
    results = contextualizer.write(documents, told.append)
    methods = [
        {context.method for context in result.contexts} for result in results if not isinstance(result, Exception)
    ]
    assert methods == [{"emulator"}, {"outline"}, {"emulator"}, {"none"}]
    total = sum(len(chunks) for _, chunks in documents)
    assert (told[-1].done, told[-1].total) == (total, total)
    assert contextualizer.fingerprint != desk.open().fingerprint
    assert contextualizer.fingerprint != desk.open(rule=rules[::-1]).fingerprint


def test_rules_hold_for_contexts_without_a_model_too(desk: Desk) -> None:
    contextualizer = desk.open(method="outline", rule=[{"glob": "quotas/", "method": "none"}])
    assert [{context.text for context in result.contexts} == {""} for result in written(contextualizer, guides())] == [
        True,
        False,
    ]


# --- Choosing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "key", "stored", "expected"),
    [
        ("auto", True, None, "claude"),
        ("auto", False, None, "outline"),
        ("auto", False, "claude", "claude"),
        ("auto", True, "outline", "outline"),
        ("auto", True, "nonsense", "claude"),
        ("outline", True, "claude", "outline"),
        ("claude", False, "outline", "claude"),
    ],
)
def test_auto_is_resolved_once_and_says_how_to_choose(
    method: str, key: bool, stored: str | None, expected: str
) -> None:
    settings = ContextSettings.model_validate({"method": method})
    found, message = resolve_method(settings, key, stored)
    assert found == expected
    assert bool(message) == (method == "auto")
    if message:
        assert expected in message
        assert "set contexts.method" in message


def test_auto_has_to_be_resolved_first(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="auto"):
        open_contextualizer(ContextSettings(method="auto"), EMBEDDER, store_at(tmp_path))


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"model": "claude-9"}, "no prices for the model 'claude-9'.*contexts.prices"),
        ({"window_tokens": 70_000}, r"window_tokens 70000 is too large for claude-haiku-5-5: .* at most 6\d{4}"),
        ({"model": "claude-haiku-4-5", "window_tokens": 140_000}, "at most 13"),
        ({"prices": "nowhere.toml"}, "contexts.prices: nowhere.toml cannot be read"),
    ],
)
def test_settings_that_no_request_can_be_made_of_are_refused_before_any_call(chosen: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        open_requests(ContextSettings.model_validate({"method": "claude", **chosen}))


def test_no_request_costs_the_price_above_the_step(desk: Desk) -> None:
    desk.api.structured = grouped_answer
    long = document(prose("everything", 500, words=100), "long.md", chunk_tokens=400)
    desk.write([long], window_tokens=60_000, chunks_per_call=50)
    sizes = [entry.usage["input_tokens"] + entry.view_tokens for entry in desk.api.bill.answered]
    assert 40_000 < max(sizes) <= 100_000


def test_a_context_fits_the_room_that_chunks_leave(desk: Desk) -> None:
    desk.api.answer = lambda body: "x" * 3_000
    results = desk.write(guides(), max_tokens=2_000)
    texts_written = [context.text for context in contexts(results)]
    assert all(texts_written)
    assert max(EMBEDDER.count_tokens(texts_written)) <= CONTEXT_TOKENS
