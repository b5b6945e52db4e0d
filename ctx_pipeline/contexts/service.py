"""The services that write contexts: Claude, or any OpenAI-compatible endpoint, behind one kind of call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from decimal import Decimal
from typing import Any, Protocol

from pydantic import SecretStr

from ctx_pipeline.claude.adaptive import AdaptiveLimiter
from ctx_pipeline.claude.budget import Budget
from ctx_pipeline.claude.client import ClaudeClient, Reply, RetryPolicy
from ctx_pipeline.claude.limits import Attempt
from ctx_pipeline.claude.outcome import (
    CallError,
    CallRemedies,
    FatalCallError,
    PermanentCallError,
    Reason,
    TransientCallError,
)
from ctx_pipeline.claude.pricing import Prices
from ctx_pipeline.claude.request import Request
from ctx_pipeline.claude.usage import Usage
from ctx_pipeline.errors import FatalError, PermanentError, TransientError
from ctx_pipeline.http_api import JsonApi, Patience, Remedies

DEADLINE_S = 900.0
"""Of one call with all its attempts and waits."""
_LOCAL_READ_TIMEOUT_S = 300.0

CountUsage = Callable[[Request, Usage, Decimal], None]
Ask = Callable[[Request], Awaitable[Reply]]


class Service(Protocol):
    """Opens the connection that the calls of one `write` share."""

    limiter: AdaptiveLimiter

    def open(self, count_usage: CountUsage) -> AbstractAsyncContextManager[Ask]:
        """Calls raise CallError. `count_usage` is told what is paid for.

        Raises FatalCallError without a usable key.
        """
        ...


class ClaudeService:
    """Claude within a budget. The key is ANTHROPIC_API_KEY, the address `base_url`, else ANTHROPIC_BASE_URL."""

    remedies = CallRemedies(
        prompt="lower contexts.window_tokens",
        answer="raise contexts.max_tokens",
        rate="lower contexts.concurrency",
    )

    def __init__(
        self,
        prices: Prices,
        budget: Budget,
        limiter: AdaptiveLimiter,
        *,
        base_url: str | None = None,
        retry: RetryPolicy | None = None,
        **timing: Any,
    ) -> None:
        """`timing` is the `clock`, `sleep` and `jitter` of ClaudeClient."""
        self.limiter = limiter
        self._prices, self._budget, self._base_url = prices, budget, base_url
        self._retry, self._timing = retry, timing

    @asynccontextmanager
    async def open(self, count_usage: CountUsage) -> AsyncIterator[Ask]:
        """See Service."""

        def count(request: Request, usage: Usage, usd: Decimal) -> None:
            self._budget.spend(usd)
            # Also for an attempt after the first, of whose beginning the client does not tell.
            self.limiter.begun(request)
            count_usage(request, usage, usd)

        async def ask(request: Request) -> Reply:
            return await client.call(request, on_first_event=lambda: self.limiter.begun(request), deadline_s=DEADLINE_S)

        client = ClaudeClient(
            self._prices,
            self.remedies,
            base_url=self._base_url,
            count_usage=count,
            limiter=self,
            retry=self._retry,
            **self._timing,
        )
        async with client:
            yield ask

    @asynccontextmanager
    async def admit(self, request: Request) -> AsyncIterator[None]:
        """See Limiter: a slot, then what the attempt may cost."""
        async with self.limiter.admit(request), self._budget.hold(request):
            if self.limiter.stopped is not None:
                raise self.limiter.stopped
            yield

    def observe(self, attempt: Attempt) -> None:
        """See Limiter."""
        self.limiter.observe(attempt)


class OpenAIService:
    """`POST {base_url}/chat/completions`; tokens are counted, money is not. JsonApi retries and classifies."""

    remedies = Remedies(
        key="CTX_CONTEXTS__API_KEY",
        address="contexts.base_url",
        model="contexts.model",
        refused="the text may be too long: see contexts.window_tokens",
    )

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: SecretStr | None,
        limiter: AdaptiveLimiter,
        concurrency: int,
        patience: Patience | None = None,
    ) -> None:
        key = api_key.get_secret_value() if api_key else ""
        patience = patience or Patience(read_timeout_s=_LOCAL_READ_TIMEOUT_S)
        self.limiter = limiter
        self._api = JsonApi(f"{base_url.rstrip('/')}/chat/completions", key, model, self.remedies, patience)
        self._concurrency = concurrency

    @asynccontextmanager
    async def open(self, count_usage: CountUsage) -> AsyncIterator[Ask]:
        """See Service."""

        async def ask(request: Request) -> Reply:
            async with self.limiter.admit(request):
                posted = asyncio.get_running_loop().run_in_executor(threads, self._api.post, _chat_body(request))
                try:
                    answer = await posted
                except (FatalError, PermanentError, TransientError) as error:
                    failed = _call_error(error)
                    self.limiter.observe(Attempt(failed.reason, None, {}))
                    raise failed from None
                self.limiter.observe(Attempt(None, None, {}))
            reply = _read(answer)
            count_usage(request, reply.usage, reply.usd)
            return _usable(reply)

        with ThreadPoolExecutor(self._concurrency) as threads:
            yield ask


def _chat_body(request: Request) -> dict[str, Any]:
    content = "\n\n".join(block.text for block in request.content)
    messages = [{"role": "system", "content": request.system}, {"role": "user", "content": content}]
    return {"model": request.model, "max_tokens": request.max_tokens, "messages": messages}


def _call_error(error: FatalError | PermanentError | TransientError) -> CallError:
    match error:
        case FatalError():
            return FatalCallError(str(error), Reason.AUTH)
        case PermanentError():
            return PermanentCallError(str(error), Reason.BAD_REQUEST)
        case TransientError():
            return TransientCallError(str(error), Reason.SERVER)


def _read(answer: Any) -> Reply:
    """Raises TransientCallError for what is no chat completion."""
    try:
        choice = answer["choices"][0]
        text, finished = choice["message"]["content"] or "", choice.get("finish_reason") or "stop"
        if not isinstance(text, str):
            raise TypeError("content in parts")
        told = answer.get("usage") or {}
        cached = (told.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        usage = Usage(
            input=(told.get("prompt_tokens") or 0) - cached,
            cache_read=cached,
            output=told.get("completion_tokens") or 0,
        )
        model = str(answer.get("model") or "")
    except (KeyError, IndexError, TypeError, AttributeError):
        message = "the answer is not a chat completion; check contexts.base_url"
        raise TransientCallError(message, Reason.MALFORMED) from None
    return Reply(text, usage, Decimal(0), model, finished, answer.get("id"))


def _usable(reply: Reply) -> Reply:
    match reply.stop_reason:
        case "length":
            raise PermanentCallError("the answer was cut at max_tokens; raise contexts.max_tokens", Reason.TRUNCATED)
        case "content_filter":
            raise PermanentCallError("the model refused to answer for safety reasons", Reason.REFUSED)
    if not reply.text.strip():
        raise PermanentCallError("the model answered with blank text", Reason.EMPTY)
    return reply
