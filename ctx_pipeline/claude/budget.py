"""A ceiling on what calls may cost: what each may cost at most is set aside before it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal

from ctx_pipeline.claude.outcome import FatalCallError, Reason
from ctx_pipeline.claude.pricing import Prices
from ctx_pipeline.claude.request import Request
from ctx_pipeline.claude.usage import Usage

_AROUND_TOKENS = 256
"""What the API adds to a prompt, and to an answer."""


class Budget:
    """`max_usd` for all calls; `spent` grows by what is told to `spend` and never exceeds it.

    No tokenizer of bytes makes more tokens of a text than it has bytes: so many are set aside as if all were written to
    the cache, beside an answer of full length. When that does not fit, it is waited for calls under way, which cost
    far less. `setting` is the key of `max_usd` in the settings, for messages.
    """

    def __init__(self, max_usd: Decimal, prices: Prices, setting: str) -> None:
        self.spent = Decimal(0)
        self._max_usd, self._prices, self._setting = max_usd, prices, setting
        self._reserved = Decimal(0)
        self._held = 0
        self._changed: asyncio.Event | None = None

    @asynccontextmanager
    async def hold(self, request: Request) -> AsyncIterator[None]:
        """Set aside the worst case of an attempt. Raises FatalCallError when it does not fit what is left."""
        usd = self.worst_usd(request)
        while self.spent + self._reserved + usd > self._max_usd:
            if not self._held:
                raise FatalCallError(
                    f"{self._setting} is used up: {self.spent:.4f} of {self._max_usd} USD were spent, and the next "
                    f"call may cost {usd:.4f}; raise {self._setting}, or run again to go on with as much",
                    Reason.BUDGET,
                )
            self._changed = self._changed or asyncio.Event()
            await self._changed.wait()
        self._reserved += usd
        self._held += 1
        try:
            yield
        finally:
            self._reserved -= usd
            self._held -= 1
            if self._changed is not None:
                self._changed.set()
                self._changed = None

    def spend(self, usd: Decimal) -> None:
        """Count what a response cost, while its attempt is still held."""
        self.spent += usd

    def worst_usd(self, request: Request) -> Decimal:
        """More than one attempt can cost."""
        text_bytes = len(str(request.params()).encode("utf-8", "surrogatepass"))
        usage = Usage(output=request.max_tokens + _AROUND_TOKENS)
        if any(block.cache_ttl == "1h" for block in request.content):
            usage += Usage(cache_write_1h=text_bytes + _AROUND_TOKENS)
        elif any(block.cache_ttl for block in request.content):
            usage += Usage(cache_write_5m=text_bytes + _AROUND_TOKENS)
        else:
            usage += Usage(input=text_bytes + _AROUND_TOKENS)
        return self._prices.cost(usage, request.model)
