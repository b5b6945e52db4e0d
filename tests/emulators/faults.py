"""What goes wrong, and for which requests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.emulators.api_error import ApiError


@dataclass(frozen=True)
class Call:
    """A request as faults choose it: its place in the order of arrival and how often this very body came, from 1."""

    number: int
    ask: int
    body: dict[str, Any]
    digest: str


When = Callable[[Call], bool]


@dataclass(frozen=True)
class Fault:
    """One of the ways below; `after_output` puts it behind the first words of the answer."""

    kind: str
    error: ApiError | None = None
    text: str = ""
    after_output: bool = False
    seconds: float = 0.0


def status(code: int, message: str = "emulated fault", **headers: str) -> Fault:
    """An HTTP status, with headers such as `retry_after="2"`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Fault("status", ApiError(code, message, headers=named))


def monthly_spend_limit() -> Fault:
    """The limit of the organization's tier: a 429 without retry-after."""
    message = "You have reached the monthly API usage threshold of your tier"
    return Fault("status", ApiError(429, message, error_code="enforced_spend_limit_reached"))


def own_spend_limit() -> Fault:
    """The limit that the user set: a 400."""
    message = "You have reached your specified API usage limits. You will regain access on 2026-12-01 at 00:00 UTC."
    return Fault("status", ApiError(400, message))


def sse_error(code: int = 529, message: str = "Overloaded", *, after_output: bool = True) -> Fault:
    """An `error` event in a response that is HTTP 200."""
    return Fault("sse_error", ApiError(code, message), after_output=after_output)


HANG = Fault("hang")
"""Nothing is ever answered."""
KEEP_ALIVE = Fault("keep_alive")
"""Pings for ever, before the response has begun."""
STALL = Fault("keep_alive", after_output=True)
"""The response begins, then pings for ever."""
CLOSE = Fault("disconnect")
"""The connection is closed before any answer."""
DISCONNECT = Fault("disconnect", after_output=True)
"""The connection breaks in the middle of the answer."""
WEB_PAGE = Fault("web_page")
"""HTTP 200 with a page instead of a response."""
EMPTY = Fault("empty")
THINKING_FIRST = Fault("thinking_first")
THINKING_ONLY = Fault("thinking_only")
REFUSAL = Fault("refusal")
"""Before any output: not billed, although usage shows tokens."""
LATE_REFUSAL = Fault("refusal", after_output=True)
TRUNCATED = Fault("truncated")


def stop_reason(reason: str) -> Fault:
    """The whole answer, with another stop reason."""
    return Fault("stop_reason", text=reason)


def slow(seconds: float) -> Fault:
    """The response begins later."""
    return Fault("slow", seconds=seconds)


def text(answer: str) -> Fault:
    """Another answer."""
    return Fault("text", text=answer)


NAMED = {
    "close": CLOSE,
    "disconnect": DISCONNECT,
    "empty": EMPTY,
    "late_refusal": LATE_REFUSAL,
    "refusal": REFUSAL,
    "sse_error": sse_error(),
    "thinking_first": THINKING_FIRST,
    "truncated": TRUNCATED,
    "web_page": WEB_PAGE,
}


def named(name: str) -> Fault:
    """`529`, or one of NAMED."""
    return status(int(name)) if name.isdecimal() else NAMED[name]


def nth(*numbers: int) -> When:
    """By the order of arrival, from 1."""
    return lambda call: call.number in numbers


def first_asks(count: int) -> When:
    """Every request until it was made that often."""
    return lambda call: call.ask <= count


def always(call: Call) -> bool:
    return True


def containing(words: str) -> When:
    """Requests whose messages contain these words."""
    return lambda call: words in str(call.body["messages"])


def share(part: float, seed: int = 0, times: int = 2) -> When:
    """A share of the requests in [0, 1], whatever their order; the same request at most so many times."""

    def chosen(call: Call) -> bool:
        draw = hashlib.sha256(f"{seed}:{call.digest}:{call.ask}".encode()).digest()
        return call.ask <= times and int.from_bytes(draw[:8]) / 2**64 < part

    return chosen
