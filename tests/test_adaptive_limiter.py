"""The adaptive limiter: how many at once, in which order, alone when a view must go to the cache first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctx_pipeline.claude.adaptive import AHEAD, LIFETIME_S, LONGEST_PAUSE_S, START, AdaptiveLimiter
from ctx_pipeline.claude.limits import Attempt
from ctx_pipeline.claude.outcome import FatalCallError, Reason
from ctx_pipeline.claude.request import Block, Request

ANSWERED = Attempt(None, None, {})
CROWDED = Attempt(Reason.RATE_LIMIT, None, {})


def request(view: int, *, marked: bool = False) -> Request:
    return Request("model", 10, (Block("view", "5m" if marked else None), Block("chunk")), view=view)


class Clock:
    """Time that passes by waiting."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class Floor:
    """Calls that are under way until they are let go."""

    def __init__(self, limiter: AdaptiveLimiter) -> None:
        self.limiter = limiter
        self.inside: list[Request] = []
        self._ends: dict[int, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.errors: list[Exception] = []

    async def enter(self, *requests: Request) -> None:
        self._tasks += [asyncio.create_task(self._call(one)) for one in requests]
        await settle()

    async def _call(self, one: Request) -> None:
        self._ends[id(one)] = asyncio.Event()
        try:
            async with self.limiter.admit(one):
                self.inside.append(one)
                await self._ends[id(one)].wait()
                self.inside = [other for other in self.inside if other is not one]
        except FatalCallError as error:
            self.errors.append(error)

    async def end(self, one: Request, attempt: Attempt = ANSWERED) -> None:
        self.limiter.observe(attempt)
        self._ends[id(one)].set()
        await settle()

    @property
    def views(self) -> list[int]:
        return [one.view for one in self.inside]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def on_floor(scene: Callable[[Floor, Clock], Awaitable[None]], most: int = 16) -> None:
    async def run() -> None:
        clock = Clock()
        floor = Floor(AdaptiveLimiter(most, clock=clock, sleep=clock.sleep))
        try:
            await scene(floor, clock)
        finally:
            await floor.close()

    asyncio.run(run())


def test_it_starts_low_and_grows_by_one_for_as_many_answers_as_it_is() -> None:
    limiter = AdaptiveLimiter(6)
    sizes = []
    for _ in range(20):
        sizes.append(limiter.limit)
        limiter.observe(ANSWERED)
    assert sizes == [4] * 4 + [5] * 5 + [6] * 11
    assert AdaptiveLimiter(2).limit == 2


@pytest.mark.parametrize("reason", [Reason.RATE_LIMIT, Reason.OVERLOADED])
def test_it_halves_when_the_server_has_too_much_down_to_one(reason: Reason) -> None:
    limiter = AdaptiveLimiter(16)
    sizes = [limiter.limit]
    for _ in range(3):
        limiter.observe(Attempt(reason, None, {}))
        sizes.append(limiter.limit)
    assert sizes == [4, 2, 1, 1]


@pytest.mark.parametrize("reason", [Reason.SERVER, Reason.TIMEOUT, Reason.CONNECTION, Reason.REFUSED])
def test_other_failures_say_nothing_about_the_number(reason: Reason) -> None:
    limiter = AdaptiveLimiter(16)
    limiter.observe(Attempt(reason, None, {}))
    assert limiter.limit == START


def test_attempts_that_were_under_way_at_a_halving_do_not_halve_again() -> None:
    async def scene(floor: Floor, clock: Clock) -> None:
        calls = [request(number) for number in range(4)]
        await floor.enter(*calls)
        assert len(floor.inside) == 4
        for one in calls:
            await floor.end(one, CROWDED)
        assert floor.limiter.limit == 2
        await floor.enter(last := request(9))
        await floor.end(last, CROWDED)
        assert floor.limiter.limit == 1

    on_floor(scene)


@given(st.lists(st.sampled_from([ANSWERED, CROWDED]), max_size=80), st.integers(1, 20))
def test_the_number_stays_between_one_and_the_ceiling(attempts: list[Attempt], most: int) -> None:
    limiter = AdaptiveLimiter(most)
    for attempt in attempts:
        limiter.observe(attempt)
        assert 1 <= limiter.limit <= most


def headers(kind: str, remaining: int, full_in_s: float, limit: int) -> Mapping[str, str]:
    reset = datetime.now(UTC) + timedelta(seconds=full_in_s)
    prefix = f"anthropic-ratelimit-{kind}"
    return {
        f"{prefix}-limit": str(limit),
        f"{prefix}-remaining": str(remaining),
        f"{prefix}-reset": reset.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }


@pytest.mark.parametrize(
    ("reason", "retry_after_s", "pause_s"),
    [
        (Reason.RATE_LIMIT, 7.0, 7),
        (Reason.OVERLOADED, 7.0, 7),
        (Reason.RATE_LIMIT, 86_400.0, LONGEST_PAUSE_S),
        (Reason.RATE_LIMIT, None, 0),
        (Reason.SERVER, 7.0, 0),
    ],
)
def test_it_pauses_for_what_the_server_asks_within_reason(
    reason: Reason, retry_after_s: float | None, pause_s: float
) -> None:
    async def scene(floor: Floor, clock: Clock) -> None:
        floor.limiter.observe(Attempt(reason, retry_after_s, {}))
        await floor.enter(request(0))
        assert len(floor.inside) == 1
        assert clock.now == pause_s

    on_floor(scene)


@pytest.mark.parametrize(
    ("kind", "remaining", "full_in_s", "limit", "pause_s"),
    [
        ("requests", 0, 60.0, 50, 60 / 50),
        ("requests", 1, 60.0, 50, 0),
        ("requests", 0, 60.0, 5, 60 / 5),
        ("input-tokens", 0, 60.0, 50_000, 60 / 50),
        ("output-tokens", 0, 60.0, 8_000, 60 / 50),
        ("requests", 0, 864_000.0, 50, LONGEST_PAUSE_S),
        ("requests", 0, -60.0, 50, 0),
        ("requests", 0, 60.0, 0, 0),
    ],
)
def test_it_waits_for_a_limit_that_is_used_up_to_fill_a_little(
    kind: str, remaining: int, full_in_s: float, limit: int, pause_s: float
) -> None:
    async def scene(floor: Floor, clock: Clock) -> None:
        floor.limiter.observe(Attempt(None, None, headers(kind, remaining, full_in_s, limit)))
        await floor.enter(request(0))
        assert len(floor.inside) == 1
        assert clock.now == pytest.approx(pause_s, abs=0.5)

    on_floor(scene)


def test_limits_that_cannot_be_read_are_no_limits() -> None:
    async def scene(floor: Floor, clock: Clock) -> None:
        told = {**headers("requests", 0, 60.0, 50), "anthropic-ratelimit-requests-reset": "soon"}
        floor.limiter.observe(Attempt(None, None, told))
        await floor.enter(request(0))
        assert clock.now == 0

    on_floor(scene)


def test_lower_views_come_first() -> None:
    async def scene(floor: Floor, clock: Clock) -> None:
        calls = [request(view) for view in (3, 1, 2, 1, 0, 2)]
        await floor.enter(request(9), *calls)
        assert floor.views == [9]
        order = []
        while floor.inside:
            order += floor.views
            await floor.end(floor.inside[0], CROWDED)  # the number stays at one
        assert order == [9, 0, 1, 1, 2, 2, 3]

    on_floor(scene, most=1)


def test_the_first_call_of_a_view_is_alone_until_its_response_begins() -> None:
    async def scene(floor: Floor, clock: Clock) -> None:
        calls = [request(0, marked=True) for _ in range(3)]
        await floor.enter(*calls)
        assert floor.inside == calls[:1]
        floor.limiter.begun(calls[0])
        await settle()
        assert floor.inside == calls

    on_floor(scene)


def test_when_the_first_call_fails_another_is_alone() -> None:
    async def scene(floor: Floor, clock: Clock) -> None:
        calls = [request(0, marked=True) for _ in range(3)]
        await floor.enter(*calls)
        await floor.end(calls[0], Attempt(Reason.SERVER, None, {}))
        assert floor.inside == [calls[1]]

    on_floor(scene)


@pytest.mark.parametrize(("later_s", "together"), [(LIFETIME_S / 2, True), (LIFETIME_S - 1, False)])
def test_a_view_whose_entry_may_have_lapsed_is_warmed_by_one_call_alone(later_s: float, together: bool) -> None:
    async def scene(floor: Floor, clock: Clock) -> None:
        calls = [request(0, marked=True) for _ in range(4)]
        await floor.enter(calls[0])
        floor.limiter.begun(calls[0])
        await floor.end(calls[0])
        clock.now += later_s
        await floor.enter(*calls[1:])
        assert len(floor.inside) == (3 if together else 1)
        floor.limiter.begun(floor.inside[0])
        await settle()
        assert len(floor.inside) == 3

    on_floor(scene)


def test_other_views_are_opened_only_as_far_as_there_is_use_for_them() -> None:
    async def scene(floor: Floor, clock: Clock) -> None:
        await floor.enter(*(request(view, marked=True) for view in range(40) for _ in range(5)))
        # Two views hold ten calls, at least twice the four that may be under way.
        assert floor.views == list(range(-(-AHEAD * START // 5)))
        floor.limiter.begun(floor.inside[0])
        await settle()
        assert floor.views == [0, 1, 0, 0]

    on_floor(scene)


def test_after_a_stop_what_waits_is_told_why_and_what_is_under_way_may_end() -> None:
    async def scene(floor: Floor, clock: Clock) -> None:
        calls = [request(number) for number in range(6)]
        await floor.enter(*calls)
        error = FatalCallError("no more", Reason.AUTH)
        floor.limiter.stop(error)
        await floor.enter(request(7))
        assert floor.errors == [error] * 3
        assert floor.inside == calls[:4]
        for one in calls[:4]:
            await floor.end(one)
        assert not floor.inside

    on_floor(scene)


@pytest.mark.parametrize("reason", [Reason.AUTH, Reason.NO_KEY, Reason.SPEND_LIMIT, Reason.NOT_FOUND])
def test_after_an_answer_that_no_call_can_succeed_nothing_is_sent_any_more(reason: Reason) -> None:
    async def scene(floor: Floor, clock: Clock) -> None:
        calls = [request(number) for number in range(6)]
        await floor.enter(*calls)
        for one in calls[:4]:
            await floor.end(one, Attempt(reason, None, {}))
        assert not floor.inside, "whoever made the calls has not said `stop` yet"

    on_floor(scene)


def test_a_call_that_is_given_up_takes_no_slot() -> None:
    async def scene(floor: Floor, clock: Clock) -> None:
        calls = [request(0, marked=True) for _ in range(3)]
        await floor.enter(*calls)
        floor._tasks[1].cancel()
        await settle()
        floor._tasks[0].cancel()
        await settle()
        floor.limiter.begun(calls[2])
        await floor.enter(more := request(0, marked=True))
        assert more in floor.inside

    on_floor(scene)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=40),
    st.integers(1, 6),
    st.lists(st.sampled_from(["answered", "begun", "crowded", "failed"]), max_size=200),
)
def test_everything_is_admitted_in_the_end_and_never_too_much_at_once(
    wanted: list[tuple[int, bool]], most: int, ends: list[str]
) -> None:
    async def scene(floor: Floor, clock: Clock) -> None:
        views = dict(wanted)
        calls = [request(view, marked=views[view]) for view, _ in wanted]
        await floor.enter(*calls)
        done: list[Any] = []
        script = iter(ends)
        while floor.inside:
            assert len(floor.inside) <= most
            one = floor.inside[-1]
            what = next(script, "answered")
            if what == "begun":
                floor.limiter.begun(one)
                await settle()
                continue
            reason = {"crowded": Reason.OVERLOADED, "failed": Reason.SERVER}.get(what)
            if reason is None:
                floor.limiter.begun(one)
            await floor.end(one, Attempt(reason, None, {}))
            done.append(one)
        assert len(done) == len(calls)

    on_floor(scene, most)
