"""The client of the Claude API: one call with its retries, its deadline and its bill."""

from __future__ import annotations

import asyncio
import math
import os
import random
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pydantic import SecretStr, TypeAdapter, ValidationError

from ctx_pipeline.claude.limits import Attempt, Limiter, NoLimit
from ctx_pipeline.claude.outcome import (
    Answered,
    CallRemedies,
    Failed,
    FatalCallError,
    Kind,
    Outcome,
    PermanentCallError,
    Reason,
    classify,
    no_key,
)
from ctx_pipeline.claude.pricing import Prices
from ctx_pipeline.claude.request import Request
from ctx_pipeline.claude.response import Received
from ctx_pipeline.claude.usage import Usage
from ctx_pipeline.errors import SettingsError
from ctx_pipeline.http_api import key_problem

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

T = TypeVar("T")

_BASE_URL = "https://api.anthropic.com"
_CONNECT_TIMEOUT_S = 5.0
_RATE_LIMIT_PREFIX = "anthropic-ratelimit-"


@dataclass(frozen=True)
class Reply:
    """An answer, and what its response cost. `model` is the one that the server names (an emulator says so)."""

    text: str
    usage: Usage
    usd: Decimal
    model: str
    stop_reason: str
    request_id: str | None

    def parsed(self, kind: type[T]) -> T:
        """The text as JSON of a type that pydantic understands. Raises PermanentCallError for anything else."""
        try:
            return TypeAdapter(kind).validate_json(self.text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            message = f"the model's JSON is not what was asked for: {where}: {first['msg']}"
        raise PermanentCallError(message, Reason.NOT_JSON)


@dataclass(frozen=True)
class RetryPolicy:
    """Attempts of one call. A wait is `first_wait_s * 2**n` up to `longest_wait_s`, half of it at random, or what
    the server asks for up to `longest_retry_after_s`. `unusable_attempts` bounds answers that are paid for and useless.
    """

    attempts: int = 8
    unusable_attempts: int = 3
    first_wait_s: float = 1.0
    longest_wait_s: float = 30.0
    longest_retry_after_s: float = 60.0
    attempt_s: float = 120.0


class ClaudeClient:
    """Calls of the Messages API by the official SDK, over one pool of connections.

    The key is `api_key`, else ANTHROPIC_API_KEY; the address `base_url`, else ANTHROPIC_BASE_URL, else the public one.
    No other place is looked at: the SDK's profiles on disk are not used. `count_usage(request, usage, usd)` is called
    exactly once for each response that costs money, whether it was of use or not: the one place where usage is counted.
    Use it with `async with`, inside the coroutine given to `run_sync`.

    Raises FatalCallError without a usable key, SettingsError for an address that is none. Neither `repr` nor any
    message holds the key.
    """

    def __init__(
        self,
        prices: Prices,
        remedies: CallRemedies,
        *,
        api_key: SecretStr | str | None = None,
        base_url: str | None = None,
        count_usage: Callable[[Request, Usage, Decimal], None] | None = None,
        limiter: Limiter | None = None,
        retry: RetryPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._prices, self._remedies = prices, remedies
        self._key = _usable_key(api_key)
        self._base_url = base_url or os.environ.get("ANTHROPIC_BASE_URL") or _BASE_URL
        if not self._base_url.startswith(("https://", "http://")):
            raise SettingsError(
                "the address of the Claude API (ANTHROPIC_BASE_URL) must begin with https:// or http://"
            )
        self._count_usage = count_usage
        self._limiter = limiter or NoLimit()
        self._retry = retry or RetryPolicy()
        self._clock, self._sleep, self._jitter = clock, sleep, jitter
        self._sdk: AsyncAnthropic | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._sdk is not None:
            await self._sdk.close()
        self._sdk = None

    async def call(
        self, request: Request, *, on_first_event: Callable[[], None] | None = None, deadline_s: float = 300.0
    ) -> Reply:
        """The answer to a request, asked again while that can help.

        `on_first_event` is called once, when a response first begins: what the request writes to the cache can be read
        from then. `deadline_s` runs from the first admission and covers every attempt and wait.

        Raises PermanentCallError, TransientCallError or FatalCallError with the reason; SettingsError for a model
        without prices (before anything is sent).
        """
        self._prices.model(request.model)
        # The first import of the SDK takes seconds, which belong to no deadline.
        self._open_sdk()
        begun = _Once(on_first_event)
        started = deadline = math.inf
        unusable = 0
        attempt = 0
        while True:
            async with self._limiter.admit(request):
                if attempt == 0:
                    started = self._clock()
                    deadline = started + deadline_s
                attempt += 1
                limit_s = min(self._retry.attempt_s, deadline - self._clock())
                received, outcome = await self._attempt(request, begun, limit_s)
                self._tell_limiter(received, outcome)
            if isinstance(outcome, Answered):
                usd = self._prices.cost(received.usage, request.model)
                stop_reason = received.stop_reason or ""
                return Reply(
                    self._redacted(outcome.text), received.usage, usd, received.model, stop_reason, received.request_id
                )
            unusable += outcome.kind is Kind.UNUSABLE
            wait_s = self._wait_s(outcome, attempt)
            if not self._worth_another(outcome, attempt, unusable) or self._clock() + wait_s >= deadline:
                raise outcome.error(attempt, self._clock() - started)
            await self._sleep(wait_s)

    def _worth_another(self, failed: Failed, attempts: int, unusable: int) -> bool:
        if failed.kind not in (Kind.TRANSIENT, Kind.UNUSABLE):
            return False
        return attempts < self._retry.attempts and unusable < self._retry.unusable_attempts

    def _wait_s(self, failed: Failed, attempts: int) -> float:
        backoff_s = min(self._retry.first_wait_s * 2.0 ** (attempts - 1), self._retry.longest_wait_s)
        if failed.retry_after_s is None:
            return backoff_s * (1 + self._jitter()) / 2
        # All callers are told the same moment, so they are spread after it.
        return min(failed.retry_after_s, self._retry.longest_retry_after_s) + self._jitter() * self._retry.first_wait_s

    async def _attempt(self, request: Request, begun: _Once, limit_s: float) -> tuple[Received, Outcome]:
        received = Received()
        error: Exception | None = None
        try:
            async with asyncio.timeout(limit_s):
                stream = await self._open_sdk().messages.create(**request.params(), stream=True)
                received.open(stream.response.headers)
                async with stream:
                    async for event in stream:
                        received.take(event)
                        if received.started:
                            begun()
        except Exception as caught:
            # Classified after this block, so that what is raised has no context that could hold the key.
            error = caught
            if (response := getattr(caught, "response", None)) is not None:
                received.open(response.headers)
        finally:
            # Here, so that a cancelled call is counted too.
            if received.billed and self._count_usage is not None:
                usage = received.usage
                self._count_usage(request, usage, self._prices.cost(usage, request.model))
        wants_json = request.json_schema is not None
        outcome = classify(received, error, wants_json=wants_json, redacted=self._redacted, remedies=self._remedies)
        return received, outcome

    def _tell_limiter(self, received: Received, outcome: Outcome) -> None:
        rate_limits = {
            name.lower(): value
            for name, value in received.headers.items()
            if name.lower().startswith(_RATE_LIMIT_PREFIX)
        }
        if isinstance(outcome, Failed):
            self._limiter.observe(Attempt(outcome.reason, outcome.retry_after_s, rate_limits))
        else:
            self._limiter.observe(Attempt(None, None, rate_limits))

    def _open_sdk(self) -> AsyncAnthropic:
        from anthropic import AsyncAnthropic, Timeout

        # Connections belong to the event loop that opened them.
        loop = asyncio.get_running_loop()
        if self._sdk is None or self._loop is not loop:
            timeout = Timeout(self._retry.attempt_s, connect=_CONNECT_TIMEOUT_S)
            self._sdk = AsyncAnthropic(
                api_key=self._key.get_secret_value(), base_url=self._base_url, max_retries=0, timeout=timeout
            )
            self._loop = loop
        return self._sdk

    def _redacted(self, text: str) -> str:
        return text.replace(self._key.get_secret_value(), "***")


class _Once:
    """A callback that is called the first time only."""

    def __init__(self, callback: Callable[[], None] | None) -> None:
        self._callback = callback

    def __call__(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


def _usable_key(given: SecretStr | str | None) -> SecretStr:
    if isinstance(given, SecretStr):
        given = given.get_secret_value()
    key = (given or os.environ.get("ANTHROPIC_API_KEY") or "").strip()
    if not key:
        raise no_key()
    if problem := key_problem("ANTHROPIC_API_KEY", key):
        raise FatalCallError(problem, Reason.AUTH)
    return SecretStr(key)


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end from code that is not asynchronous, also below a running event loop (a notebook).

    A signal whose handler raises (Dagster's do) cancels the coroutine, and reaches the handler when that has ended. The
    handler alone would raise in whatever callback happens to run, where asyncio takes it for an error of that call.
    """
    if _in_event_loop():
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, coroutine).result()
    handlers, received = _signal_handlers(), list[int]()

    async def run() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def interrupt(number: int, frame: object) -> None:
            received.append(number)
            loop.call_soon_threadsafe(task.cancel)

        for number in handlers:
            signal.signal(number, interrupt)
        return await coroutine

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        if not received:
            raise
        raise KeyboardInterrupt from None
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in received:
            handlers[number](number, None)


def _signal_handlers() -> dict[int, Callable[[int, FrameType | None], Any]]:
    """Handlers of this process's own; asyncio itself takes care of Python's."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    return {
        number: handler
        for number, handler in handlers.items()
        if callable(handler) and handler is not signal.default_int_handler
    }


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
