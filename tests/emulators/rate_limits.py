"""Limits per minute as buckets that fill all the time, with the headers that tell of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from tests.emulators.api_error import ApiError

_MINUTE_S = 60.0


class RateLimits:
    """`limits` maps `requests`, `input-tokens`, `output-tokens` to what a minute allows. Cache reads are free."""

    def __init__(self, limits: dict[str, int], clock: Callable[[], float]) -> None:
        self._limits, self._clock = limits, clock
        self._left = {name: float(limit) for name, limit in limits.items()}
        self._filled_at = clock()

    def take(self, **amounts: int) -> None:
        """Take `requests`, `input_tokens`, `output_tokens`, or raise the 429 that says how long to wait."""
        self._fill()
        wanted = {name.replace("_", "-"): amount for name, amount in amounts.items()}
        for name, amount in wanted.items():
            # A request larger than the whole limit passes when the bucket is full.
            missing = min(amount, self._limits.get(name, amount)) - self._left.get(name, math.inf)
            if missing > 0:
                wait_s = missing / self._limits[name] * _MINUTE_S
                raise ApiError(
                    429,
                    f"This request would exceed the rate limit of {self._limits[name]} {name} per minute",
                    headers={"retry-after": str(math.ceil(wait_s)), **self.headers()},
                )
        self.use(wanted)

    def use(self, amounts: dict[str, int]) -> None:
        """Take without asking: the output of a response is known only at its end."""
        for name, amount in amounts.items():
            if name in self._left:
                self._left[name] -= amount

    def headers(self) -> dict[str, str]:
        found = {}
        for name, limit in self._limits.items():
            full_in_s = (limit - self._left[name]) / limit * _MINUTE_S
            reset = datetime.now(UTC) + timedelta(seconds=full_in_s)
            found[f"anthropic-ratelimit-{name}-limit"] = str(limit)
            found[f"anthropic-ratelimit-{name}-remaining"] = str(max(int(self._left[name]), 0))
            found[f"anthropic-ratelimit-{name}-reset"] = reset.strftime("%Y-%m-%dT%H:%M:%SZ")
        return found

    def _fill(self) -> None:
        now = self._clock()
        for name, limit in self._limits.items():
            self._left[name] = min(float(limit), self._left[name] + (now - self._filled_at) / _MINUTE_S * limit)
        self._filled_at = now
