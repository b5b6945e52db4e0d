"""The HTTP side of the emulator: one thread a connection, answers as JSON or as a stream of events."""

from __future__ import annotations

import json
import select
import socket
import sys
import traceback
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from tests.emulators.answer import Answer, write_answer
from tests.emulators.api_error import ApiError
from tests.emulators.bill import Entry
from tests.emulators.faults import Fault
from tests.emulators.models import count_tokens
from tests.emulators.prompt import blocks, check, prompt_tokens, rest_digest, shape_digest, texts, view_digest

if TYPE_CHECKING:
    from tests.emulators.messages import MessagesEmulator

_PIECE_CHARS = 24
_PING_S = 0.02


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024
    emulator: MessagesEmulator

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):
            self.emulator.defects.append(traceback.format_exc())


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server
    _entry = Entry(0)

    def log_message(self, *args: Any) -> None:
        pass

    @property
    def emulator(self) -> MessagesEmulator:
        return self.server.emulator

    def _request_id(self) -> str:
        return f"req_{self._entry.number:08d}"

    def do_GET(self) -> None:
        if self.path == "/emulator/bill":
            with self.emulator.lock:
                self._json(200, self.emulator.bill.to_json())
        else:
            self._json(404, ApiError(404, "Not found").body())

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.emulator.entry() as entry:
            self._entry = entry
            try:
                self._serve(raw, entry)
            except ApiError as error:
                self._refuse(error, entry)

    def _serve(self, raw: bytes, entry: Entry) -> None:
        body = self._checked(raw)
        if self.path == "/v1/messages/count_tokens":
            return self._json(200, {"input_tokens": prompt_tokens(body)})
        view = blocks(body)[len(blocks(body)) - len(texts(body))]
        entry.model, entry.view, entry.rest = body["model"], view_digest(body), rest_digest(body)
        entry.shape, entry.view_tokens, entry.marked = shape_digest(body), view.tokens, view.ttl is not None
        with self.emulator.lock:
            self.emulator.bodies.append(body)
            self.emulator.headers.append(dict(self.headers))
        fault = self.emulator.fault_for(body, entry.number)
        entry.fault = fault.kind if fault is not None else ""
        if entry.crowded:
            raise ApiError(529, "Overloaded")
        if fault is not None and self._fails_before_response(fault, entry):
            return None
        with self.emulator.lock:
            plan = self.emulator.cache.plan(body)
            fresh = plan.usage["input_tokens"] + plan.usage["cache_creation_input_tokens"]
            self.emulator.limits.take(requests=1, input_tokens=fresh, output_tokens=1)
        slow_s = fault.seconds if fault is not None else 0.0
        self.emulator.closing.wait(self.emulator.first_token_s + slow_s)
        with self.emulator.lock:
            self.emulator.cache.publish(plan)
            entry.status, entry.began_at = 200, self.emulator.clock()
        answer = write_answer(body, fault, self.emulator.answer, self.emulator.structured)
        usage = {**plan.usage, "output_tokens": answer.output_tokens}
        with self.emulator.lock:
            self.emulator.limits.use({"output-tokens": answer.output_tokens - 1})
        if body.get("stream"):
            return self._stream(entry, answer, usage, fault)
        self.emulator.closing.wait(self.emulator.per_token_s * answer.output_tokens)
        entry.billed, entry.usage, entry.complete = answer.billed, usage, True
        return self._json(200, _message(entry, _content(answer), answer.stop_reason, usage), self._limit_headers())

    def _checked(self, raw: bytes) -> dict[str, Any]:
        if self.path not in ("/v1/messages", "/v1/messages/count_tokens"):
            raise ApiError(404, "Not found")
        if self.headers.get("Authorization") != f"Bearer {self.emulator.key}":
            raise ApiError(401, "invalid bearer token")
        if not self.headers.get("anthropic-version"):
            raise ApiError(400, "anthropic-version: header is required")
        try:
            body = json.loads(raw)
        except ValueError:
            raise ApiError(400, "The request body is not valid JSON") from None
        check(body, counting=self.path.endswith("count_tokens"))
        return dict(body)

    def _refuse(self, error: ApiError, entry: Entry) -> None:
        entry.status, entry.reason = error.status, error.message
        self._json(error.status, {**error.body(), "request_id": self._request_id()}, error.headers)

    def _fails_before_response(self, fault: Fault, entry: Entry) -> bool:
        """Whether the fault has already answered, or never will; none of this is billed."""
        if fault.after_output:
            return False
        if fault.kind == "status":
            assert fault.error is not None
            raise fault.error
        if fault.kind == "web_page":
            entry.status = 200
            self._send(200, b"<html><body>Sign in to the network</body></html>", "text/html", {})
        elif fault.kind == "hang":
            while not self.emulator.closing.wait(_PING_S) and not self._client_left():
                pass
            self.close_connection = True
        elif fault.kind == "keep_alive":
            entry.status = 200
            self._open_stream()
            self._ping_for_ever()
        elif fault.kind == "disconnect":
            self.close_connection = True
        elif fault.kind == "sse_error":
            assert fault.error is not None
            entry.status = 200
            self._open_stream()
            self._event("error", fault.error.body())
            self._chunk(b"")
        else:
            return False
        return True

    def _stream(self, entry: Entry, answer: Answer, usage: dict[str, Any], fault: Fault | None) -> None:
        broken = fault.kind if fault is not None and fault.kind in ("disconnect", "keep_alive", "sse_error") else ""
        entry.billed = answer.billed
        entry.usage = {**usage, "output_tokens": 1}
        self._open_stream()
        self._event("message_start", {"message": _message(entry, [], None, entry.usage)})
        pieces = 0
        for index, block in enumerate(_content(answer)):
            kind = block["type"]
            text = block[kind]
            start = {"content_block": {**block, kind: ""}, "index": index}
            self._event("content_block_start", start)
            if index == 0:
                self._event("ping", {})
            for at in range(0, len(text), _PIECE_CHARS):
                if broken and pieces:
                    return self._break(broken, fault)
                piece = text[at : at + _PIECE_CHARS]
                self.emulator.closing.wait(self.emulator.per_token_s * count_tokens(piece))
                self._event("content_block_delta", {"index": index, "delta": {"type": f"{kind}_delta", kind: piece}})
                pieces += 1
            self._event("content_block_stop", {"index": index})
        if broken:
            return self._break(broken, fault)
        # On the bill before the client can have read it.
        entry.usage, entry.complete = usage, True
        delta = {"stop_reason": answer.stop_reason, "stop_sequence": None}
        told = {name: value for name, value in usage.items() if name not in ("cache_creation", "service_tier")}
        self._event("message_delta", {"delta": delta, "usage": told})
        self.emulator.leave(entry)
        self._event("message_stop", {})
        return self._chunk(b"")

    def _break(self, kind: str, fault: Fault | None) -> None:
        if kind == "keep_alive":
            self._ping_for_ever()
        elif kind == "sse_error":
            assert fault is not None and fault.error is not None
            self._event("error", fault.error.body())
            self._chunk(b"")
        self.close_connection = True

    def _ping_for_ever(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            while not self.emulator.closing.wait(_PING_S):
                self._event("ping", {})

    def _client_left(self) -> bool:
        if not select.select([self.connection], [], [], 0)[0]:
            return False
        with suppress(OSError):
            return not self.connection.recv(1, socket.MSG_PEEK)
        return True

    def _limit_headers(self) -> dict[str, str]:
        with self.emulator.lock:
            return self.emulator.limits.headers()

    def _open_stream(self) -> None:
        self.send_response(200)
        headers = {"Content-Type": "text/event-stream; charset=utf-8", "Transfer-Encoding": "chunked"}
        self._send_headers({**headers, **self._limit_headers()})

    def _event(self, name: str, data: dict[str, Any]) -> None:
        text = json.dumps({"type": name, **data}, ensure_ascii=False)
        self._chunk(f"event: {name}\ndata: {text}\n\n".encode())

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _json(self, status: int, values: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        self._send(status, json.dumps(values).encode(), "application/json", headers or {})

    def _send(self, status: int, data: bytes, content_type: str, headers: dict[str, str]) -> None:
        self.emulator.leave(self._entry)
        self.send_response(status)
        self._send_headers({"Content-Type": content_type, "Content-Length": str(len(data)), **headers})
        self.wfile.write(data)

    def _send_headers(self, headers: dict[str, str]) -> None:
        for name, value in {"x-emulator": "1", "request-id": self._request_id(), **headers}.items():
            self.send_header(name, value)
        self.end_headers()


def _content(answer: Answer) -> list[dict[str, Any]]:
    return [
        {"type": kind, kind: text, **({"signature": "emulated"} if kind == "thinking" else {})}
        for kind, text in answer.blocks
    ]


def _message(
    entry: Entry, content: list[dict[str, Any]], stop_reason: str | None, usage: dict[str, Any]
) -> dict[str, Any]:
    return {
        "id": f"msg_{entry.number:08d}",
        "type": "message",
        "role": "assistant",
        "model": "emulator",
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": usage,
    }
