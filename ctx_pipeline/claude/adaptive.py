"""An adaptive limiter: how many attempts may be under way, which one is next, and when a view's first call is alone.

The number grows by one after as many answers as it is, up to a ceiling, and halves when the server says that it is too
much. Requests about a view with a cache mark wait until one of them, alone, has begun to be answered: from then its
cache entry can be read. When the entry may have lapsed, one goes alone again. A further view is opened only when the
opened ones do not hold enough calls to keep all slots busy, so that each view's calls stay close together in time.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ctx_pipeline.claude.limits import Attempt
from ctx_pipeline.claude.outcome import CallError, Reason
from ctx_pipeline.claude.request import Request

START = 4
AHEAD = 2
"""Views are opened until they hold so many times the calls that may be under way."""
LIFETIME_S = 300.0
"""Of a cache entry, from the start of the request that wrote or read it last."""
MARGIN_S = 30.0
LONGEST_PAUSE_S = 60.0
_FATAL = frozenset({Reason.NO_KEY, Reason.AUTH, Reason.SPEND_LIMIT, Reason.NOT_FOUND})
_LIMIT_KINDS = ("requests", "tokens", "input-tokens", "output-tokens")
_PAUSE_SHARE = 50
"""After a limit is used up, a fiftieth of it is waited for (or one request, where that is more)."""


@dataclass(eq=False)
class _Admission:
    request: Request
    granted: asyncio.Future[None]
    started: float = 0.0
    warms: bool = False
    """Goes alone, so that the others of its view find the cache entry."""


@dataclass
class _View:
    waiting: deque[_Admission] = field(default_factory=deque)
    in_flight: int = 0
    warming: bool = False
    fresh_until: float = -math.inf
    opened: bool = False


class AdaptiveLimiter:
    """See Limiter. Views are told apart by `Request.view`; those with lower numbers come first.

    `begun` and `stop` are for the caller: when a response begins, and when no attempt may be sent any more. What was
    learned about the server stays from one event loop to the next; `reset` forgets the views.
    """

    def __init__(
        self,
        most: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._most = most
        self._limit = min(START, most)
        self._clock, self._sleep = clock, sleep
        self._answers = self._in_flight = self._outdated = 0
        self._paused_until = -math.inf
        self._halted = False
        self._error: CallError | None = None
        self.reset()

    @property
    def limit(self) -> int:
        """Attempts that may be under way now."""
        return self._limit

    @property
    def stopped(self) -> CallError | None:
        """What `stop` was told."""
        return self._error

    def reset(self) -> None:
        """Before the calls of another event loop; none is under way."""
        self._views: dict[int, _View] = defaultdict(_View)
        self._unopened: list[int] = []
        self._open: set[int] = set()
        self._under_way: dict[int, _Admission] = {}
        self._waking: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def admit(self, request: Request) -> AsyncIterator[None]:
        """See Limiter. Raises the error given to `stop`."""
        if self._error is not None:
            raise self._error
        view = self._views[request.view]
        admission = _Admission(request, asyncio.get_running_loop().create_future())
        if view.opened:
            self._open.add(request.view)
        elif not view.waiting:
            heapq.heappush(self._unopened, request.view)
        view.waiting.append(admission)
        self._dispatch()
        try:
            await admission.granted
            yield
        finally:
            if self._under_way.get(id(request)) is admission:
                self._leave(admission)
            elif admission in view.waiting:
                view.waiting.remove(admission)

    def begun(self, request: Request) -> None:
        """The response to a request that is under way has begun: its view's cache entry can be read."""
        admission = self._under_way.get(id(request))
        if admission is None:
            return
        view = self._views[request.view]
        view.fresh_until = max(view.fresh_until, admission.started + LIFETIME_S - MARGIN_S)
        self._dispatch()

    def stop(self, error: CallError) -> None:
        """Admit nothing any more; what waits is told why. What is under way may end."""
        self._error = self._error or error
        for view in self._views.values():
            while view.waiting:
                _fail(view.waiting.popleft().granted, self._error)

    def observe(self, attempt: Attempt) -> None:
        """See Limiter."""
        # Whoever made the attempt calls `stop`; nothing is sent until then.
        self._halted |= attempt.reason in _FATAL
        crowded = attempt.reason in (Reason.RATE_LIMIT, Reason.OVERLOADED)
        if self._outdated:
            # Sent before the last halving: tells nothing about the number that holds now.
            self._outdated -= 1
        elif crowded:
            self._limit, self._answers = max(1, self._limit // 2), 0
            self._outdated = max(0, self._in_flight - 1)
        elif attempt.reason is None:
            self._answers += 1
            if self._answers >= self._limit:
                self._limit, self._answers = min(self._most, self._limit + 1), 0
        asked_s = attempt.retry_after_s if crowded else None
        pause_s = max(asked_s or 0.0, _used_up_s(attempt.rate_limits, datetime.now(UTC)))
        self._paused_until = max(self._paused_until, self._clock() + min(pause_s, LONGEST_PAUSE_S))

    def _dispatch(self) -> None:
        while self._in_flight < self._limit and not self._halted:
            wait_s = self._paused_until - self._clock()
            if wait_s > 0:
                self._wake_after(wait_s)
                return
            number = self._next()
            if number is None:
                return
            view = self._views[number]
            admission = view.waiting.popleft()
            if admission.granted.done():
                continue  # given up meanwhile
            marked = admission.request.content[0].cache_ttl is not None
            admission.started = self._clock()
            admission.warms = marked and view.fresh_until <= admission.started
            view.warming |= admission.warms
            view.in_flight += 1
            self._in_flight += 1
            self._under_way[id(admission.request)] = admission
            admission.granted.set_result(None)

    def _next(self) -> int | None:
        """The view whose first waiting call may be sent now."""
        held = sum(len(self._views[number].waiting) + self._views[number].in_flight for number in self._open)
        while self._unopened and held < AHEAD * self._limit - 1:
            number = heapq.heappop(self._unopened)
            view = self._views[number]
            if not view.opened and view.waiting:
                view.opened = True
                self._open.add(number)
                return number
        ready = (number for number in sorted(self._open) if self._is_ready(self._views[number]))
        return next(ready, None)

    def _is_ready(self, view: _View) -> bool:
        if not view.waiting:
            return False
        unmarked = view.waiting[0].request.content[0].cache_ttl is None
        return unmarked or view.fresh_until > self._clock() or not view.warming

    def _leave(self, admission: _Admission) -> None:
        del self._under_way[id(admission.request)]
        view = self._views[admission.request.view]
        if admission.warms:
            view.warming = False
        view.in_flight -= 1
        self._in_flight -= 1
        if not view.in_flight and not view.waiting:
            self._open.discard(admission.request.view)
        self._dispatch()

    def _wake_after(self, wait_s: float) -> None:
        if self._waking is None or self._waking.done():
            self._waking = asyncio.get_running_loop().create_task(self._wake(wait_s))

    async def _wake(self, wait_s: float) -> None:
        await self._sleep(wait_s)
        self._waking = None
        self._dispatch()


def _fail(granted: asyncio.Future[None], error: CallError) -> None:
    if not granted.done():
        granted.set_exception(error)


def _used_up_s(headers: Mapping[str, str], now: datetime) -> float:
    """Seconds until something is left again of each limit that is used up; 0 when none is.

    Limits fill all the time, and `reset` is when they are full.
    """
    waits = [0.0]
    for kind in _LIMIT_KINDS:
        try:
            limit = int(headers[f"anthropic-ratelimit-{kind}-limit"])
            remaining = int(headers[f"anthropic-ratelimit-{kind}-remaining"])
            full_s = (datetime.fromisoformat(headers[f"anthropic-ratelimit-{kind}-reset"]) - now).total_seconds()
        except (KeyError, ValueError, TypeError):
            continue
        if remaining <= 0 < limit:
            waits.append(full_s / min(limit, _PAUSE_SHARE))
    return max(waits)
