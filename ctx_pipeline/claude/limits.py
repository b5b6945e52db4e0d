"""Who may call when: the client asks before each attempt and tells what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from ctx_pipeline.claude.outcome import Reason
from ctx_pipeline.claude.request import Request


@dataclass(frozen=True)
class Attempt:
    """What a limiter learns of an attempt: no `reason` means that it was answered.

    `rate_limits` holds the `anthropic-ratelimit-*` headers by their names in lower case, where the response had any.
    """

    reason: Reason | None
    retry_after_s: float | None
    rate_limits: Mapping[str, str]


class Limiter(Protocol):
    """Admission control for attempts, retries included; a wait between attempts holds no admission."""

    def admit(self, request: Request) -> AbstractAsyncContextManager[None]:
        """Entered before an attempt, which may wait for it; left when the attempt has ended."""

    def observe(self, attempt: Attempt) -> None:
        """Called once for each attempt that ended, before its admission is left."""


class NoLimit:
    """Admits every attempt at once."""

    def admit(self, request: Request) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def observe(self, attempt: Attempt) -> None:
        pass
