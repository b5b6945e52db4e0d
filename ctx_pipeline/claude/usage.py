"""Tokens of one response, or of many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

MOST_TOKENS = 10**9
"""Of one response: more is a defect of the server, and must not overflow what adds it up."""


@dataclass(frozen=True)
class Usage:
    """Tokens by what they cost: `input` was neither written to the cache nor read from it."""

    input: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    cache_read: int = 0
    output: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    @classmethod
    def from_response(cls, usage: Mapping[str, Any]) -> Usage:
        """From the `usage` object of a response; a missing or null field, or one that is no count, is 0.

        A cache write whose lifetime is not told counts as 5 minutes, the default of the API.
        """
        told = usage.get("cache_creation")
        by_lifetime = told if isinstance(told, Mapping) else {}
        hour = _count(by_lifetime.get("ephemeral_1h_input_tokens"))
        five_minutes = _count(by_lifetime.get("ephemeral_5m_input_tokens"))
        written = _count(usage.get("cache_creation_input_tokens"))
        return cls(
            input=_count(usage.get("input_tokens")),
            cache_write_5m=max(five_minutes, written - hour),
            cache_write_1h=hour,
            cache_read=_count(usage.get("cache_read_input_tokens")),
            output=_count(usage.get("output_tokens")),
        )

    @property
    def cache_write(self) -> int:
        """Tokens written to the cache, of either lifetime."""
        return self.cache_write_5m + self.cache_write_1h

    @property
    def total_input(self) -> int:
        """All tokens of the prompts: uncached, written and read."""
        return self.input + self.cache_write + self.cache_read

    @property
    def cache_hit_rate(self) -> float:
        """Share of the prompt tokens that were read from the cache, in [0, 1]; 0 without any prompt."""
        return self.cache_read / self.total_input if self.total_input else 0.0


def _count(value: object) -> int:
    return min(value, MOST_TOKENS) if type(value) is int and value > 0 else 0
