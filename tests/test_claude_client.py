"""The Claude client against the emulator: what each outcome becomes, retries, deadlines, the bill, and the key."""

from __future__ import annotations

import asyncio
import email.utils
import logging
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from ctx_pipeline.claude.client import ClaudeClient, Reply, RetryPolicy, run_sync
from ctx_pipeline.claude.limits import Attempt
from ctx_pipeline.claude.outcome import (
    CallError,
    CallRemedies,
    Failed,
    FatalCallError,
    PermanentCallError,
    Reason,
    TransientCallError,
    classify,
    retry_after_s,
)
from ctx_pipeline.claude.pricing import Prices
from ctx_pipeline.claude.request import Block, Request
from ctx_pipeline.claude.response import Received
from ctx_pipeline.claude.usage import Usage
from ctx_pipeline.errors import FatalError, PermanentError, SettingsError, TransientError
from tests.emulators import faults
from tests.emulators.faults import Fault
from tests.emulators.messages import KEY, MessagesEmulator
from tests.emulators.prompt import digest

HAIKU = "claude-haiku-5-5"
VIEW = "The limits of the plan are described here. " * 60
ASKED = Request(HAIKU, 100, (Block(VIEW, "5m"), Block("the chunk")))
SCHEMA = {"type": "object", "properties": {"order": {"type": "array", "items": {"type": "integer"}}}}
PRICES = Prices.load()
REMEDIES = CallRemedies(prompt="shorten it", answer="allow more", rate="slow down")
QUICK = RetryPolicy(attempt_s=0.5)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@dataclass
class Waits:
    """Time that passes only by waiting between attempts."""

    waits: list[float] = field(default_factory=list)

    def clock(self) -> float:
        return sum(self.waits)

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


@dataclass
class Counted:
    """What the client counts."""

    usages: list[Usage] = field(default_factory=list)
    usd: Decimal = Decimal(0)

    def __call__(self, request: Request, usage: Usage, usd: Decimal) -> None:
        self.usages.append(usage)
        self.usd += usd


def client_of(api: MessagesEmulator, waits: Waits, **options: Any) -> ClaudeClient:
    given = {"api_key": KEY, "base_url": api.url, "clock": waits.clock, "sleep": waits.sleep, "jitter": lambda: 1.0}
    return ClaudeClient(PRICES, REMEDIES, **{**given, **options})


def ask(
    api: MessagesEmulator,
    request: Request = ASKED,
    *,
    waits: Waits | None = None,
    deadline_s: float = 300,
    **options: Any,
) -> Reply:
    async def call() -> Reply:
        async with client_of(api, waits or Waits(), **options) as client:
            return await client.call(request, deadline_s=deadline_s)

    return run_sync(call())


def failure(*script: tuple[faults.When, Fault], request: Request = ASKED, **options: Any) -> tuple[CallError, Any]:
    """How a call ends, and the emulator's bill; what the client counted is what the emulator bills."""
    counted = Counted()
    with MessagesEmulator(faults=script) as api:
        with pytest.raises(CallError) as caught:
            ask(api, request, count_usage=counted, **options)
        assert counted.usd == api.bill.usd
        return caught.value, api.bill


# --- Answers ---------------------------------------------------------------------------------------------------------


def test_a_reply_says_what_it_cost_and_who_gave_it() -> None:
    with MessagesEmulator() as api:
        reply = ask(api)
        assert digest(VIEW) in reply.text
        assert (reply.model, reply.stop_reason, reply.request_id) == ("emulator", "end_turn", "req_00000001")
        assert reply.usage.cache_write_5m > 512
        assert reply.usd == api.bill.usd == PRICES.cost(reply.usage, HAIKU)


def test_the_request_has_one_shape_without_thinking_or_sampling_parameters() -> None:
    with MessagesEmulator() as api:
        ask(api, Request(HAIKU, 100, (Block(VIEW, "1h"), Block("the chunk")), system="Be brief.", label="docs/a.md"))
        assert api.bodies[0] == {
            "model": HAIKU,
            "max_tokens": 100,
            "thinking": {"type": "disabled"},
            "system": "Be brief.",
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": VIEW, "cache_control": {"type": "ephemeral", "ttl": "1h"}},
                        {"type": "text", "text": "the chunk"},
                    ],
                }
            ],
            "stream": True,
        }
        assert api.headers[0]["Authorization"] == f"Bearer {KEY}"


def test_a_first_call_alone_lets_the_others_read_the_cache() -> None:
    counted = Counted()

    async def fan_out(api: MessagesEmulator) -> None:
        async with client_of(api, Waits(), count_usage=counted) as client:
            begun = asyncio.Event()
            calls = [client.call(Request(HAIKU, 100, (Block(VIEW, "5m"), Block(f"chunk {n}")))) for n in range(1, 6)]
            first = asyncio.create_task(client.call(ASKED, on_first_event=begun.set))
            await begun.wait()
            await asyncio.gather(first, *calls)

    with MessagesEmulator(per_token_s=0.002) as api:
        run_sync(fan_out(api))
        api.bill.assert_disciplined()
        assert counted.usd == api.bill.usd
        total = sum(counted.usages, Usage())
        assert total.cache_read == 5 * total.cache_write_5m > 0


class Order(BaseModel):
    order: list[int]


def test_structured_output_is_asked_for_and_validated() -> None:
    request = Request(HAIKU, 100, (Block("a"), Block("b")), json_schema=SCHEMA)
    with MessagesEmulator(structured=lambda body: {"order": [2, 1]}) as api:
        reply = ask(api, request)
        assert api.bodies[0]["output_config"] == {"format": {"type": "json_schema", "schema": SCHEMA}}
        assert reply.parsed(Order) == Order(order=[2, 1])
    with MessagesEmulator(structured=lambda body: {"order": ["x"]}) as api:
        with pytest.raises(PermanentError, match=r"order\.0") as caught:
            ask(api, request).parsed(Order)
        assert caught.value.__context__ is None


def test_a_thinking_block_first_does_not_hide_the_text() -> None:
    with MessagesEmulator(faults=[(faults.always, faults.THINKING_FIRST)]) as api:
        assert digest(VIEW) in ask(api).text


def test_one_client_serves_several_runs_and_a_running_loop() -> None:
    async def twice(client: ClaudeClient) -> str:
        return run_sync(client.call(ASKED)).text

    with MessagesEmulator() as api:
        client = client_of(api, Waits())
        texts = {run_sync(client.call(ASKED)).text for _ in range(2)} | {asyncio.run(twice(client))}
        assert len(texts) == 1
        assert len(api.bill.entries) == 3


# --- Failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "reason", "said"),
    [
        (faults.REFUSAL, Reason.REFUSED, "refused"),
        (faults.LATE_REFUSAL, Reason.REFUSED, "refused"),
        (faults.TRUNCATED, Reason.TRUNCATED, "max_tokens; allow more"),
        (faults.stop_reason("model_context_window_exceeded"), Reason.CONTEXT_WINDOW, "; shorten it"),
        (faults.status(400, "messages: odd"), Reason.BAD_REQUEST, "messages: odd"),
        (
            faults.status(400, "prompt is too long: 3 tokens > 2 maximum"),
            Reason.CONTEXT_WINDOW,
            "; shorten it",
        ),
        (faults.status(404), Reason.NOT_FOUND, "model's name"),
        (faults.status(413), Reason.TOO_LARGE, "; shorten it"),
        (faults.status(422), Reason.BAD_REQUEST, "422"),
        (faults.sse_error(400), Reason.BAD_REQUEST, "400"),
        (faults.sse_error(413), Reason.TOO_LARGE, "413"),
    ],
)
def test_a_permanent_failure_is_asked_once(fault: Fault, reason: Reason, said: str) -> None:
    error, bill = failure((faults.always, fault))
    assert isinstance(error, PermanentError)
    assert error.reason is reason
    assert said in str(error)
    assert len(bill.entries) == 1


@pytest.mark.parametrize(
    ("fault", "reason", "said"),
    [
        (faults.status(401), Reason.AUTH, "ANTHROPIC_API_KEY"),
        (faults.status(403), Reason.AUTH, "ANTHROPIC_API_KEY"),
        (faults.status(402), Reason.SPEND_LIMIT, "Claude Console"),
        (faults.monthly_spend_limit(), Reason.SPEND_LIMIT, "Claude Console"),
        (faults.own_spend_limit(), Reason.SPEND_LIMIT, "regain access on 2026-12-01"),
        (faults.status(400, "Your credit balance is too low to access the API."), Reason.SPEND_LIMIT, "credit"),
    ],
)
def test_a_fatal_failure_is_asked_once_and_says_what_to_do(fault: Fault, reason: Reason, said: str) -> None:
    error, bill = failure((faults.always, fault))
    assert isinstance(error, FatalError)
    assert error.reason is reason
    assert said in str(error)
    assert len(bill.entries) == 1


def test_a_lasting_rate_limit_says_what_to_do() -> None:
    error, _ = failure((faults.always, faults.status(429)), retry=RetryPolicy(attempts=2))
    assert "; slow down if this goes on; gave up after 2 attempts" in str(error)


TRANSIENT = [
    (faults.status(408), Reason.TIMEOUT),
    (faults.status(409), Reason.CONFLICT),
    (faults.status(429), Reason.RATE_LIMIT),
    (faults.status(500), Reason.SERVER),
    (faults.status(503), Reason.SERVER),
    (faults.status(529), Reason.OVERLOADED),
    (faults.CLOSE, Reason.CONNECTION),
    (faults.DISCONNECT, Reason.BROKEN_STREAM),
    (faults.sse_error(529), Reason.OVERLOADED),
    (faults.sse_error(500, after_output=False), Reason.SERVER),
    (faults.WEB_PAGE, Reason.MALFORMED),
]


@pytest.mark.parametrize(("fault", "reason"), TRANSIENT)
def test_a_transient_failure_is_asked_again_at_least_six_times(fault: Fault, reason: Reason) -> None:
    counted = Counted()
    with MessagesEmulator(faults=[(faults.first_asks(5), fault)]) as api:
        reply = ask(api, count_usage=counted)
        assert digest(VIEW) in reply.text
        assert len(api.bill.entries) == 6
        assert counted.usd == api.bill.usd
    error, bill = failure((faults.always, fault))
    assert isinstance(error, TransientError)
    assert error.reason is reason
    assert f"gave up after {len(bill.entries)} attempts" in str(error)
    assert len(bill.entries) == RetryPolicy().attempts >= 6


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (faults.EMPTY, Reason.EMPTY),
        (faults.text(" \n"), Reason.EMPTY),
        (faults.THINKING_ONLY, Reason.NO_TEXT),
        (faults.stop_reason("pause_turn"), Reason.ODD_STOP_REASON),
        (faults.stop_reason("of_the_future"), Reason.ODD_STOP_REASON),
    ],
)
def test_a_useless_answer_is_paid_for_at_most_three_times(fault: Fault, reason: Reason) -> None:
    with MessagesEmulator(faults=[(faults.first_asks(2), fault)]) as api:
        assert digest(VIEW) in ask(api).text
    error, bill = failure((faults.always, fault))
    assert isinstance(error, PermanentError)
    assert error.reason is reason
    assert len(bill.entries) == 3
    assert bill.usd > 0


def test_text_instead_of_json_is_a_useless_answer() -> None:
    request = Request(HAIKU, 100, (Block("a"), Block("b")), json_schema=SCHEMA)
    error, bill = failure((faults.always, faults.text("Here you are: [1]")), request=request)
    assert (error.reason, len(bill.entries)) == (Reason.NOT_JSON, 3)


def test_an_unreachable_server_is_transient_and_says_where_to_look() -> None:
    with MessagesEmulator() as api:
        gone = api.url
    with pytest.raises(TransientError, match="ANTHROPIC_BASE_URL") as caught:
        ask(api, base_url=gone)
    assert isinstance(caught.value, TransientCallError)
    assert caught.value.reason is Reason.CONNECTION


def test_an_address_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(SettingsError, match="ANTHROPIC_BASE_URL"):
        ClaudeClient(PRICES, REMEDIES, api_key=KEY, base_url="api.example.org")


def test_a_model_without_prices_is_refused_before_anything_is_sent() -> None:
    with MessagesEmulator() as api:
        with pytest.raises(SettingsError, match="claude-haiku-9"):
            ask(api, Request("claude-haiku-9", 100, (Block("a"),)))
        assert api.bill.entries == []


# --- Waits and deadlines ---------------------------------------------------------------------------------------------


def test_waits_grow_to_a_bound_and_are_spread() -> None:
    def waited(jitter: float) -> list[float]:
        waits = Waits()
        failure((faults.always, faults.status(529)), waits=waits, jitter=lambda: jitter)
        return waits.waits

    assert waited(1.0) == [1, 2, 4, 8, 16, 30, 30]
    assert waited(0.0) == [0.5, 1, 2, 4, 8, 15, 15]


@pytest.mark.parametrize(
    ("header", "wait"),
    [
        ({"retry_after": "7"}, 7),
        ({"retry_after": "86400"}, 60),
        ({"retry_after": "inf"}, 60),
        ({"retry_after_ms": "250"}, 0.25),
    ],
)
def test_retry_after_is_honoured_up_to_a_cap(header: dict[str, str], wait: float) -> None:
    waits = Waits()
    with MessagesEmulator(faults=[(faults.nth(1), faults.status(429, **header))]) as api:
        ask(api, waits=waits, jitter=lambda: 0.0)
    assert waits.waits == [wait]


@pytest.mark.parametrize("value", ["", "soon", "nan", "-5", "Mon, 99 Foo 2026"])
def test_a_useless_retry_after_is_ignored(value: str) -> None:
    assert retry_after_s({"retry-after": value}) is None


def test_retry_after_may_be_a_date() -> None:
    found = retry_after_s({"retry-after": email.utils.formatdate(time.time() + 100, usegmt=True)})
    assert found is not None
    assert 90 < found <= 100


def test_waits_end_with_the_deadline() -> None:
    waits = Waits()
    script = (faults.always, faults.status(429, retry_after="50"))
    error, bill = failure(script, waits=waits, jitter=lambda: 0.0, deadline_s=120)
    assert (waits.waits, len(bill.entries)) == ([50, 50], 3)
    assert "gave up after 3 attempts and 100 s" in str(error)


@pytest.mark.parametrize("fault", [faults.HANG, faults.KEEP_ALIVE, faults.STALL], ids=["hang", "keep-alive", "stall"])
def test_a_response_that_never_ends_is_left_and_asked_again(fault: Fault) -> None:
    counted = Counted()
    with MessagesEmulator(faults=[(faults.nth(1), fault)]) as api:
        assert digest(VIEW) in ask(api, retry=QUICK, count_usage=counted).text
        assert [entry.complete for entry in api.bill.entries] == [False, True]
        assert counted.usd == api.bill.usd


@pytest.mark.parametrize("fault", [faults.HANG, faults.KEEP_ALIVE], ids=["hang", "keep-alive"])
def test_the_deadline_holds_against_a_response_that_never_ends(fault: Fault) -> None:
    error, bill = failure((faults.always, fault), deadline_s=0.3, clock=time.monotonic)
    assert isinstance(error, TransientError)
    assert error.reason is Reason.TIMEOUT
    assert "gave up after 1 attempt and" in str(error)
    assert not any(entry.complete for entry in bill.entries)


# --- Limiter and bill ------------------------------------------------------------------------------------------------


@dataclass
class OneAtATime:
    """A limiter that notes what it is told."""

    seen: list[Attempt] = field(default_factory=list)
    inside: int = 0
    most: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def admit(self, request: Request) -> AbstractAsyncContextManager[None]:
        @asynccontextmanager
        async def admitted() -> Any:
            async with self.lock:
                self.inside += 1
                self.most = max(self.most, self.inside)
                yield
                self.inside -= 1

        return admitted()

    def observe(self, attempt: Attempt) -> None:
        assert self.inside == 1
        self.seen.append(attempt)


def test_a_limiter_admits_each_attempt_and_learns_what_came_of_it() -> None:
    limiter = OneAtATime()

    async def run(api: MessagesEmulator) -> None:
        async with client_of(api, Waits(), limiter=limiter) as client:
            await asyncio.gather(*(client.call(Request(HAIKU, 100, (Block(f"chunk {n}"),))) for n in range(4)))

    script = [(faults.nth(1), faults.status(429, retry_after="3")), (faults.nth(2), faults.status(529))]
    with MessagesEmulator(faults=script, limits={"requests": 1000}) as api:
        run_sync(run(api))
        assert api.bill.most_in_flight == limiter.most == 1
    assert [seen.reason for seen in limiter.seen] == [Reason.RATE_LIMIT, Reason.OVERLOADED, None, None, None, None]
    assert limiter.seen[0].retry_after_s == 3
    assert limiter.seen[2].rate_limits["anthropic-ratelimit-requests-limit"] == "1000"
    assert set(limiter.seen[2].rate_limits) == {
        "anthropic-ratelimit-requests-limit",
        "anthropic-ratelimit-requests-remaining",
        "anthropic-ratelimit-requests-reset",
    }


def test_waiting_for_admission_is_not_part_of_the_deadline() -> None:
    waits = Waits()

    class Late:
        @asynccontextmanager
        async def admit(self, request: Request) -> Any:
            await waits.sleep(1_000)
            yield

        def observe(self, attempt: Attempt) -> None:
            pass

    with MessagesEmulator() as api:
        assert ask(api, waits=waits, limiter=Late(), deadline_s=10).text


def test_each_billed_response_is_counted_once() -> None:
    counted = Counted()
    script = [
        (faults.nth(1), faults.EMPTY),
        (faults.nth(2), faults.status(529)),
        (faults.nth(3), faults.DISCONNECT),
        (faults.nth(4), faults.sse_error()),
        (faults.nth(5), faults.CLOSE),
    ]
    with MessagesEmulator(faults=script) as api:
        ask(api, count_usage=counted)
        assert [entry.billed for entry in api.bill.entries] == [True, False, True, True, False, True]
        assert len(counted.usages) == 4
        assert counted.usd == api.bill.usd
        assert sum(counted.usages, Usage()).cache_read == api.bill.total("cache_read_input_tokens") > 0


@pytest.mark.parametrize(("fault", "times"), [(faults.REFUSAL, 0), (faults.LATE_REFUSAL, 1), (faults.TRUNCATED, 1)])
def test_a_useless_response_is_counted_if_it_is_billed(fault: Fault, times: int) -> None:
    counted = Counted()
    with MessagesEmulator(faults=[(faults.always, fault)]) as api:
        with pytest.raises(PermanentCallError):
            ask(api, count_usage=counted)
        assert len(counted.usages) == times
        assert counted.usd == api.bill.usd


def test_a_cancelled_call_is_counted_as_far_as_it_was_told() -> None:
    counted = Counted()

    async def cancel(api: MessagesEmulator) -> None:
        async with client_of(api, Waits(), count_usage=counted) as client:
            begun = asyncio.Event()
            call = asyncio.create_task(client.call(ASKED, on_first_event=begun.set))
            await begun.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    with MessagesEmulator(faults=[(faults.always, faults.STALL)]) as api:
        run_sync(cancel(api))
        assert len(counted.usages) == 1
        assert counted.usd == api.bill.usd > 0


def test_the_beginning_is_told_once_although_it_took_two_responses() -> None:
    begun: list[int] = []

    async def call(api: MessagesEmulator) -> None:
        async with client_of(api, Waits()) as client:
            await client.call(ASKED, on_first_event=lambda: begun.append(len(api.bill.entries)))

    with MessagesEmulator(faults=[(faults.nth(1), faults.status(529)), (faults.nth(2), faults.DISCONNECT)]) as api:
        run_sync(call(api))
        assert len(api.bill.entries) == 3
    assert begun == [2]


def test_mixed_faults_on_a_third_of_the_calls_cost_no_answer_and_no_needless_call() -> None:
    counted = Counted()
    kinds = ["429", "500", "529", "close", "disconnect", "sse_error", "empty", "web_page"]
    script = [(faults.share(0.05, seed), faults.named(kind)) for seed, kind in enumerate(kinds)]

    async def run(api: MessagesEmulator) -> list[Reply]:
        async with client_of(api, Waits(), count_usage=counted) as client:
            asked = [Request(HAIKU, 100, (Block(VIEW, "5m"), Block(f"chunk {n}"))) for n in range(80)]
            return await asyncio.gather(*(client.call(request, deadline_s=1e9) for request in asked))

    with MessagesEmulator(faults=script) as api:
        replies = run_sync(run(api))
        for number, reply in enumerate(replies):
            assert digest(f"chunk {number}") in reply.text
        assert len(api.bill.entries) == 80 + sum(entry.fault != "" for entry in api.bill.entries) > 100
        assert counted.usd == api.bill.usd
        assert sum((reply.usd for reply in replies), Decimal(0)) < api.bill.usd


# --- The key ---------------------------------------------------------------------------------------------------------


def test_without_a_key_the_error_says_how_to_set_one() -> None:
    for blank in (None, "", " \n", SecretStr("")):
        with pytest.raises(FatalCallError, match="set ANTHROPIC_API_KEY") as caught:
            ClaudeClient(PRICES, REMEDIES, api_key=blank)
        assert caught.value.reason is Reason.NO_KEY


def test_the_key_and_the_address_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with MessagesEmulator() as api:
        monkeypatch.setenv("ANTHROPIC_API_KEY", f"{KEY}\n")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", api.url)
        assert ask(api, api_key=None, base_url=None).model == "emulator"
        with pytest.raises(FatalError):
            ask(api, api_key="sk-another", base_url=None)


def test_a_key_that_no_header_can_carry_is_refused_without_showing_it() -> None:
    with pytest.raises(FatalCallError) as caught:
        ClaudeClient(PRICES, REMEDIES, api_key="sk-secret\nsk-second")
    assert "sk-s" not in str(caught.value)


@pytest.mark.parametrize(
    "fault",
    [
        faults.status(401, f"invalid key {KEY}"),
        faults.status(400, f"{KEY} is odd"),
        faults.status(529, KEY),
        faults.sse_error(400, f"not with {KEY}"),
        faults.CLOSE,
        faults.DISCONNECT,
        faults.WEB_PAGE,
        faults.HANG,
    ],
)
def test_the_key_is_in_no_error_traceback_or_log(fault: Fault, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    error, _ = failure((faults.always, fault), retry=RetryPolicy(attempts=2, attempt_s=0.15))
    shown = traceback.TracebackException.from_exception(error, capture_locals=True)
    frames = [line for line in shown.format() if "test_claude_client" not in line]
    assert any("client.py" in line for line in frames)
    for text in (str(error), repr(error), *frames, *(record.getMessage() for record in caplog.records)):
        assert KEY not in text
    assert error.__cause__ is error.__context__ is None


def test_the_key_is_not_in_the_repr_of_the_client() -> None:
    client = ClaudeClient(PRICES, REMEDIES, api_key=KEY)
    assert KEY not in f"{client!r} {vars(client)}"


class Interrupted(BaseException):
    """What Dagster's signal handlers raise is of no kind that asyncio knows."""


def test_a_signal_ends_all_calls_and_reaches_its_handler_when_they_have_ended() -> None:
    ended: list[int] = []

    async def call(number: int) -> None:
        try:
            if number == 7:
                os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)
        finally:
            ended.append(number)

    async def calls() -> None:
        await asyncio.gather(*map(call, range(20)), return_exceptions=True)

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted(len(ended))

    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(Interrupted, match="20"):
            run_sync(calls())
        assert signal.getsignal(signal.SIGINT) is interrupt
    finally:
        signal.signal(signal.SIGINT, previous)


def test_errors_survive_pickling() -> None:
    error, _ = failure((faults.always, faults.status(413)))
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.reason) == (PermanentCallError, str(error), Reason.TOO_LARGE)


def test_importing_the_package_does_not_import_the_sdk() -> None:
    code = "import sys, ctx_pipeline.claude.client; sys.exit('anthropic' in sys.modules or 'httpx2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("status", [400, 401, 429, 500])
@pytest.mark.parametrize(
    "error", [{"type": ["x"], "message": {"a": 1}}, {"type": None, "message": None}, {"error_code": [1]}, "text", None]
)
def test_an_error_whose_body_is_anything_is_still_classified(status: int, error: object) -> None:
    import anthropic
    import httpx2

    request = httpx2.Request("POST", "http://127.0.0.1/v1/messages")
    headers = {"retry-after": "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"}
    response = httpx2.Response(status, request=request, headers=headers)
    raised = anthropic.APIStatusError("wrong", response=response, body={"error": error})
    found = classify(Received(), raised, wants_json=False, redacted=str, remedies=REMEDIES)
    assert isinstance(found, Failed)
    assert found.retry_after_s is None


def test_a_usage_that_is_no_count_is_zero_and_cannot_raise_a_budget() -> None:
    told = {"input_tokens": "many", "output_tokens": -1_000_000, "cache_creation": "x", "cache_read_input_tokens": 1e19}
    assert Usage.from_response(told) == Usage()
    assert Usage.from_response({"input_tokens": 10**19}).input == 10**9
