"""Reranking by Claude."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

from ctx_pipeline.claude.client import ClaudeClient, Reply, RetryPolicy, run_sync
from ctx_pipeline.claude.outcome import CallRemedies
from ctx_pipeline.claude.pricing import Prices
from ctx_pipeline.claude.request import DEFAULT_MODEL, Block, Request
from ctx_pipeline.claude.usage import Usage
from ctx_pipeline.errors import CtxError, TransientError
from ctx_pipeline.rerank.listwise import rank
from ctx_pipeline.rerank.model import Reranked, Reranker

# Somebody waits for the answer, and the fused order is there when it takes too long. An answer that is of no use was
# paid for, so it is not asked for again.
RETRY = RetryPolicy(
    attempts=3, unusable_attempts=1, first_wait_s=0.5, longest_wait_s=5, longest_retry_after_s=5, attempt_s=30
)
_DEADLINE_S = 60
REMEDIES = CallRemedies(
    prompt="lower search.candidates", answer="lower -k or search.candidates", rate="lower search.candidates"
)


@dataclass
class _Bill:
    """What the responses to a query cost, useless ones included, and the model that they name."""

    usd: Decimal = Decimal(0)
    tokens: int = 0
    model: str = "none"

    def add(self, request: Request, usage: Usage, usd: Decimal) -> None:
        self.usd += usd
        self.tokens += usage.total_input + usage.output


class ClaudeReranker(Reranker):
    """Claude reads all passages and lists the best, twice, in orders that cancel each other out (`listwise.rank`).

    A query costs at most `max_usd`, by the packaged prices or those of the file `prices`. The key is ANTHROPIC_API_KEY,
    the address `base_url`, else ANTHROPIC_BASE_URL.
    """

    name = "claude"

    def __init__(
        self,
        max_usd: float,
        model: str | None = None,
        base_url: str | None = None,
        retry: RetryPolicy = RETRY,
        prices: Path | None = None,
    ) -> None:
        self.model = model or DEFAULT_MODEL
        self._max_usd = max_usd
        self._base_url = base_url
        self._retry = retry
        self._prices_file = prices

    @cached_property
    def _prices(self) -> Prices:
        return Prices.load(self._prices_file)

    def rerank(self, query: str, passages: Sequence[str], k: int) -> Reranked:
        """See Reranker."""
        started = time.monotonic()
        bill = _Bill()
        try:
            best, warnings = run_sync(self._rank(query, passages, k, bill))
        except CtxError as error:
            if not bill.usd:
                raise
            raise TransientError(f"{error}; {bill.usd:.4f} USD were spent") from error
        return Reranked(
            order=[at for at, _ in best],
            scores=[score for _, score in best],
            model=bill.model,
            seconds=time.monotonic() - started,
            usd=float(bill.usd),
            tokens=bill.tokens,
            warnings=warnings,
        )

    async def _rank(
        self, query: str, passages: Sequence[str], k: int, bill: _Bill
    ) -> tuple[list[tuple[int, float]], list[str]]:
        def worst_usd(input_tokens: int, output_tokens: int) -> float:
            return float(self._prices.cost(Usage(input=input_tokens, output=output_tokens), self.model))

        async with ClaudeClient(
            self._prices, REMEDIES, base_url=self._base_url, count_usage=bill.add, retry=self._retry
        ) as client:

            async def call(system: str, content: str, schema: Mapping[str, Any], max_tokens: int) -> Reply:
                request = Request(self.model, max_tokens, (Block(content),), system, schema, label="rerank")
                reply = await client.call(request, deadline_s=_DEADLINE_S)
                bill.model = reply.model
                return reply

            return await rank(query, passages, k, call, worst_usd, self._max_usd)
