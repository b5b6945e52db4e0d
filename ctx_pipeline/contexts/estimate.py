"""What the calls about views cost, from sizes: the arithmetic of a plan.

A range is as wide as what is not known before the calls: how many tokens Claude's tokenizer makes of a text, and how
long the answers are. Left out, because they are the exception: attempts that are paid for and fail, chunks that a
grouped answer leaves out, and cache entries that lapse under a narrow rate limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Literal

from ctx_pipeline.claude.pricing import ModelPrices
from ctx_pipeline.claude.usage import Usage
from ctx_pipeline.contexts.model import NO_USAGE


@dataclass(frozen=True, slots=True)
class Tokens:
    """A number of tokens, estimated low and high."""

    low: int = 0
    high: int = 0

    @classmethod
    def exactly(cls, count: int) -> Tokens:
        """A number that is known."""
        return cls(count, count)

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(self.low + other.low, self.high + other.high)


@dataclass(frozen=True, slots=True)
class ViewSize:
    """The calls about one view. `rest` and `output` are sums over all of them; `largest` is the largest prompt."""

    calls: int
    shared: Tokens
    """What each prompt begins with: system text and view."""
    rest: Tokens
    output: Tokens
    largest: Tokens
    marked: bool
    """Whether the view is sent with a cache mark where the way to ask uses them."""


@dataclass(frozen=True, slots=True)
class Way:
    """How calls are sent. Of the calls after the first of a marked view, `hits` find the cache entry (the better share
    first); the others write it again."""

    caching: bool = True
    lifetime: Literal["5m", "1h"] = "5m"
    batch: bool = False
    hits: tuple[Decimal, Decimal] = (Decimal(1), Decimal(1))


NO_CACHING = Way(caching=False)
CACHING = Way()
BATCHES = Way(lifetime="1h", batch=True, hits=(Decimal("0.98"), Decimal("0.30")))
"""Anthropic tells of hit rates from 30 % to 98 % in batches; an entry has to outlive the batch's waiting time."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Tokens by kind, and USD."""

    usage: Usage = NO_USAGE
    usd: Decimal = Decimal(0)

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.usage + other.usage, self.usd + other.usd)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Calls, and what they cost at least and at most."""

    calls: int = 0
    low: Cost = Cost()
    high: Cost = Cost()

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(self.calls + other.calls, self.low + other.low, self.high + other.high)

    def tokens(self) -> dict[str, tuple[int, int]]:
        """The tokens of each kind in the cheapest and the dearest case, the smaller number first."""
        kinds = ("input", "cache_write", "cache_read", "output")
        found = {kind: (getattr(self.low.usage, kind), getattr(self.high.usage, kind)) for kind in kinds}
        # Where a view may be too short for the cache, the cheapest case has more of some kinds.
        return {kind: (min(pair), max(pair)) for kind, pair in found.items()}


def total(estimates: Sequence[Estimate]) -> Estimate:
    """The sum."""
    return sum(estimates, Estimate())


def usd_range(of: Estimate) -> str:
    """`0.1200-0.1800`."""
    return f"{of.low.usd:,.4f}-{of.high.usd:,.4f}"


def estimate(size: ViewSize, prices: ModelPrices, way: Way) -> Estimate:
    """What the calls about a view cost.

    All are priced at the rates of the largest prompt. A view may be cached by the high estimate of its tokens and not
    by the low one, and then cost less by the high one: the sizes next to that limit are tried too.
    """
    shared, limit = size.shared, prices.min_cacheable_tokens
    sizes = [shared.low, shared.high]
    if size.marked and way.caching and shared.low < limit <= shared.high:
        sizes += [limit - 1, limit]
    lows = [_cost(size, at, size.rest.low, size.output.low, size.largest.low, prices, way, 0) for at in sizes]
    highs = [_cost(size, at, size.rest.high, size.output.high, size.largest.high, prices, way, 1) for at in sizes]
    return Estimate(size.calls, min(lows, key=_order), max(highs, key=_order))


def _cost(
    size: ViewSize, shared: int, rest: int, output: int, largest: int, prices: ModelPrices, way: Way, which: int
) -> Cost:
    if way.caching and size.marked and shared >= prices.min_cacheable_tokens:
        later = shared * (size.calls - 1)
        read = round(later * way.hits[which])
        written = shared + later - read
        usage = Usage(input=rest, cache_read=read, output=output, **{f"cache_write_{way.lifetime}": written})
    else:
        usage = Usage(input=rest + shared * size.calls, output=output)
    usd = prices.rates(largest).usd(usage)
    return Cost(usage, usd * prices.batch_factor if way.batch else usd)


def _order(cost: Cost) -> tuple[Decimal, int]:
    return cost.usd, sum(getattr(cost.usage, field.name) for field in fields(cost.usage))
