"""The prompt cache: exact prefixes up to a marked block, readable once the response that wrote them has begun."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.emulators.models import MODELS
from tests.emulators.prompt import blocks

_LIFETIME_S = {"5m": 300.0, "1h": 3600.0}
_LOOK_BACK_BLOCKS = 20


@dataclass
class Plan:
    """What a request reads and writes; its entries become readable by `PromptCache.publish`."""

    usage: dict[str, Any]
    entries: dict[str, tuple[float, str]] = field(default_factory=dict)


class PromptCache:
    """Entries with the time when they end; a lifetime runs from the start of the request."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: dict[str, tuple[float, str]] = {}

    def plan(self, body: dict[str, Any]) -> Plan:
        """Look up, refresh what is read, and say what would be written."""
        now = self._clock()
        prompt = blocks(body)
        minimum = MODELS[body["model"]].minimum
        marked = [index for index, block in enumerate(prompt) if block.ttl and block.tokens >= minimum]
        hit = self._longest_hit(prompt, marked, now)
        done = read = prompt[hit].tokens if hit is not None else 0
        written = {"5m": 0, "1h": 0}
        entries: dict[str, tuple[float, str]] = {}
        for index in marked:
            ttl = prompt[index].ttl or "5m"
            if hit is None or index > hit:
                written[ttl] += prompt[index].tokens - done
                done = prompt[index].tokens
                entries[prompt[index].prefix] = (now + _LIFETIME_S[ttl], ttl)
        usage = {
            "input_tokens": prompt[-1].tokens - done,
            "cache_creation_input_tokens": sum(written.values()),
            "cache_read_input_tokens": read,
            "cache_creation": {
                "ephemeral_5m_input_tokens": written["5m"],
                "ephemeral_1h_input_tokens": written["1h"],
            },
            "output_tokens": 0,
            "service_tier": "standard",
        }
        return Plan(usage, entries)

    def _longest_hit(self, prompt: list[Any], marked: list[int], now: float) -> int | None:
        for mark in reversed(marked):
            for index in range(mark, max(mark - _LOOK_BACK_BLOCKS, 0) - 1, -1):
                ends, ttl = self._entries.get(prompt[index].prefix, (0.0, "5m"))
                if ends > now:
                    self._entries[prompt[index].prefix] = (now + _LIFETIME_S[ttl], ttl)
                    return index
        return None

    def publish(self, plan: Plan) -> None:
        """The response has begun."""
        self._entries.update(plan.entries)
