"""The emulator of the Messages API behaves as the API is documented to, seen through the real SDK over HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import anthropic
import httpx2
import pytest

from tests.emulators import faults
from tests.emulators.messages import KEY, MessagesEmulator
from tests.emulators.process import emulator_process
from tests.emulators.prompt import digest

HAIKU = "claude-haiku-5-5"
VIEW = "The limits of the plan are described here. " * 60
OFF = {"type": "disabled"}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def running(**options: Any) -> Iterator[tuple[MessagesEmulator, anthropic.Anthropic]]:
    with MessagesEmulator(**options) as api, sdk(api.url) as client:
        yield api, client


@contextmanager
def sdk(url: str) -> Iterator[anthropic.Anthropic]:
    # Plain HTTP needs no certificates, which take most of the time of opening a client.
    with httpx2.Client(trust_env=False, verify=False) as http:
        yield anthropic.Anthropic(api_key=KEY, base_url=url, max_retries=0, timeout=10, http_client=http)


def mark(ttl: str = "5m") -> dict[str, Any]:
    return {"cache_control": {"type": "ephemeral", "ttl": ttl}}


def block(text: str, ttl: str | None = None) -> dict[str, Any]:
    return {"type": "text", "text": text, **(mark(ttl) if ttl else {})}


def request(*blocks: dict[str, Any], **changes: Any) -> dict[str, Any]:
    content = list(blocks) or [block(VIEW, "5m"), block("the chunk")]
    messages = [{"role": "user", "content": content}]
    return {"model": HAIKU, "max_tokens": 100, "messages": messages, "thinking": OFF, **changes}


def about(chunk: str, *, view: str = VIEW, ttl: str | None = "5m", **changes: Any) -> dict[str, Any]:
    return request(block(view, ttl), block(chunk), **changes)


def counters(message: Any) -> tuple[int, int]:
    """Tokens written to the cache, and read."""
    return message.usage.cache_creation_input_tokens, message.usage.cache_read_input_tokens


# --- Answers ---------------------------------------------------------------------------------------------------------


def test_an_answer_names_what_it_was_asked_about_and_that_no_model_gave_it() -> None:
    with running() as (api, client):
        message = client.messages.create(**about("the chunk"))
        assert message.model == "emulator"
        assert message.stop_reason == "end_turn"
        assert digest(VIEW) in message.content[0].text
        assert digest("the chunk") in message.content[0].text
        entry = api.bill.entries[0]
        assert (entry.model, entry.view, entry.rest) == (HAIKU, digest(VIEW), digest("the chunk"))


def test_a_stream_has_the_events_of_the_api_in_order() -> None:
    with running() as (_, client), client.messages.create(**about("a"), stream=True) as stream:
        names = [event.type for event in stream]
    assert names[:2] == ["message_start", "content_block_start"]
    assert set(names[2:-3]) == {"content_block_delta"}
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_the_raw_stream_also_pings() -> None:
    with (
        running() as (_, client),
        client.messages.with_streaming_response.create(**about("a"), stream=True) as response,
    ):
        lines = list(response.iter_lines())
    events = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    assert events[:3] == ["message_start", "content_block_start", "ping"]


def test_a_stream_and_a_plain_answer_say_and_cost_the_same() -> None:
    with running() as (api, client):
        plain = client.messages.create(**about("a", ttl=None))
        with client.messages.stream(**about("a", ttl=None)) as stream:
            streamed = stream.get_final_message()
        assert streamed.content[0].text == plain.content[0].text
        assert streamed.usage.output_tokens == plain.usage.output_tokens
        assert api.bill.entries[0].usd == api.bill.entries[1].usd > 0


def test_scripted_answers_see_the_request() -> None:
    def answer(body: dict[str, Any]) -> str:
        return f"about {body['messages'][0]['content'][1]['text']}"

    schema = {"type": "json_schema", "schema": {"type": "object"}}
    with running(answer=answer, structured=lambda body: {"order": [2, 1]}) as (_, client):
        assert client.messages.create(**about("cats")).content[0].text == "about cats"
        formatted = client.messages.create(**about("cats", output_config={"format": schema}))
        assert json.loads(formatted.content[0].text) == {"order": [2, 1]}


def test_thinking_is_on_unless_switched_off_and_counts_toward_max_tokens() -> None:
    with running() as (_, client):
        thinking = client.messages.create(**request(thinking=anthropic.omit))
        assert [part.type for part in thinking.content] == ["thinking", "text"]
        cut = client.messages.create(**request(thinking=anthropic.omit, max_tokens=10))
        assert [part.type for part in cut.content] == ["thinking"]
        assert cut.stop_reason == "max_tokens"
        older = client.messages.create(**request(model="claude-haiku-4-5", thinking=anthropic.omit))
        assert [part.type for part in older.content] == ["text"]


def test_an_answer_longer_than_max_tokens_is_cut() -> None:
    with running(answer=lambda body: "words " * 100) as (_, client):
        message = client.messages.create(**request(max_tokens=20))
        assert message.stop_reason == "max_tokens"
        assert ("words " * 100).startswith(message.content[0].text)
        assert message.usage.output_tokens <= 21


def test_tokens_are_counted_without_a_bill() -> None:
    with running() as (api, client):
        asked = about("a", ttl=None)
        del asked["max_tokens"]
        counted = client.messages.count_tokens(**asked).input_tokens
        assert counted == client.messages.create(**about("a", ttl=None)).usage.input_tokens
        assert api.bill.total("input_tokens") == counted


def test_max_tokens_0_writes_the_cache_and_answers_nothing() -> None:
    with running() as (_, client):
        warmed = client.messages.create(**about("a", max_tokens=0))
        assert (warmed.content, warmed.stop_reason) == ([], "max_tokens")
        written, _ = counters(warmed)
        assert counters(client.messages.create(**about("b"))) == (0, written)
        with pytest.raises(anthropic.BadRequestError):
            client.messages.create(**about("a", max_tokens=0), stream=True)


# --- Caching ---------------------------------------------------------------------------------------------------------


def test_the_second_request_reads_what_the_first_wrote() -> None:
    with running() as (_, client):
        first, second = (client.messages.create(**about(chunk)) for chunk in ("a", "b"))
        written, read = counters(first)
        assert written > 512
        assert read == 0
        assert counters(second) == (0, written)
        assert first.usage.cache_creation.ephemeral_5m_input_tokens == written


@pytest.mark.parametrize(
    "change",
    [
        {"model": "claude-opus-5-5"},
        {"thinking": {"type": "adaptive"}},
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
        {"output_config": {"effort": "low"}},
        {"system": "Be brief."},
    ],
    ids=["model", "thinking", "format", "effort", "system"],
)
def test_another_request_shape_has_its_own_entry(change: dict[str, Any]) -> None:
    with running() as (_, client):
        client.messages.create(**about("a"))
        written, read = counters(client.messages.create(**about("b", **change)))
        assert written > 0
        assert read == 0


def test_naming_the_default_effort_changes_nothing() -> None:
    with running() as (_, client):
        written, _ = counters(client.messages.create(**about("a")))
        assert counters(client.messages.create(**about("b", output_config={"effort": "high"}))) == (0, written)


def test_an_edited_view_is_written_anew() -> None:
    with running() as (_, client):
        client.messages.create(**about("a"))
        written, read = counters(client.messages.create(**about("a", view=VIEW + "!")))
        assert (written > 0, read) == (True, 0)


def test_a_mark_on_the_last_block_caches_nothing_that_others_share() -> None:
    with running() as (_, client):
        whole = [client.messages.create(**about(c, ttl=None, cache_control={"type": "ephemeral"})) for c in "ab"]
        assert [counters(message)[1] for message in whole] == [0, 0]
        assert all(counters(message)[0] > 0 for message in whole)


@pytest.mark.parametrize(("model", "minimum"), [(HAIKU, 512), ("claude-haiku-4-5", 4096)])
def test_a_prefix_below_the_model_s_minimum_is_silently_not_cached(model: str, minimum: int) -> None:
    with running() as (_, client):
        least = "x" * int((minimum - 4) * 3.2)
        asked = [{"role": "user", "content": least}]
        assert client.messages.count_tokens(model=model, messages=asked).input_tokens == minimum
        for _ in range(2):
            assert counters(client.messages.create(**about("a", view=least[:-4], model=model))) == (0, 0)
        assert counters(client.messages.create(**about("a", view=least, model=model))) == (minimum, 0)


@pytest.mark.parametrize(("ttl", "seconds"), [("5m", 300), ("1h", 3600)])
def test_an_entry_ends_with_its_lifetime_which_reads_extend(ttl: str, seconds: int) -> None:
    clock = Clock()
    with running(clock=clock) as (_, client):
        written, _ = counters(client.messages.create(**about("a", ttl=ttl)))
        for _ in range(3):
            clock.now += seconds - 1
            assert counters(client.messages.create(**about("b", ttl=ttl))) == (0, written)
        clock.now += seconds
        assert counters(client.messages.create(**about("c", ttl=ttl))) == (written, 0)


def test_an_entry_is_readable_only_once_its_response_has_begun() -> None:
    with running(faults=[(faults.nth(1), faults.slow(60))]) as (api, client):
        first = threading.Thread(target=lambda: client.messages.create(**about("a")))
        first.start()
        while not api.bodies:
            time.sleep(0.005)
        early = client.messages.create(**about("b"))
        assert counters(early)[0] > 0
        assert api.bill.entries[0].began_at is None
        assert counters(client.messages.create(**about("c")))[1] == counters(early)[0]
        api.closing.set()
        first.join()


def test_a_failed_request_writes_nothing() -> None:
    with running(faults=[(faults.nth(1), faults.status(529))]) as (api, client):
        with pytest.raises(anthropic.InternalServerError):
            client.messages.create(**about("a"))
        assert counters(client.messages.create(**about("a")))[1] == 0
        assert api.bill.entries[0].usd == 0


def test_a_1h_part_and_a_5m_part_are_written_with_their_own_lifetimes() -> None:
    with running() as (_, client):
        usage = client.messages.create(**request(block(VIEW, "1h"), block(VIEW, "5m"), block("a"))).usage
        created = usage.cache_creation
        assert created.ephemeral_1h_input_tokens == created.ephemeral_5m_input_tokens > 512
        assert usage.cache_creation_input_tokens == 2 * created.ephemeral_5m_input_tokens


def test_an_entry_more_than_20_blocks_back_is_not_found() -> None:
    with running() as (_, client):
        client.messages.create(**about("a"))
        near = [block(VIEW), *(block(str(n)) for n in range(19)), block("end", "5m")]
        far = [block(VIEW), *(block(str(n)) for n in range(30)), block("end", "5m")]
        assert counters(client.messages.create(**request(*near)))[1] > 512
        assert counters(client.messages.create(**request(*far)))[1] == 0


# --- Refused requests ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"extra_body": {"temperature": 0.0}}, "temperature: Extra inputs"),
        ({"extra_body": {"top_p": 1.0}}, "top_p: Extra inputs"),
        ({"extra_body": {"top_k": 1}}, "top_k: Extra inputs"),
        ({"extra_body": {"colour": "red"}}, "colour: Extra inputs"),
        ({"extra_body": {"max_tokens": None}}, "max_tokens: Field required"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "{"}]}, "prefill"),
        ({"messages": [{"role": "user", "content": []}]}, "Field required"),
        ({"messages": [{"role": "user", "content": [block(" ")]}]}, "must be non-empty"),
        ({"messages": [{"role": "user", "content": [block("a", "5m")] * 5}]}, "maximum of 4"),
        ({"messages": [{"role": "user", "content": [block("a", "5m"), block("b", "1h")]}]}, "must not come after"),
        ({"messages": [{"role": "user", "content": [block("a", "2h")]}]}, "cache_control"),
        ({"model": "claude-haiku-4-5", "messages": [{"role": "user", "content": "x" * 700_000}]}, "too long"),
    ],
)
def test_a_malformed_request_is_a_400_that_names_the_reason(change: dict[str, Any], said: str) -> None:
    with running() as (api, client):
        with pytest.raises(anthropic.BadRequestError, match=said) as caught:
            client.messages.create(**request(**change))
        assert caught.value.type == "invalid_request_error"
        assert caught.value.request_id
        assert api.bill.usd == 0


def test_four_marks_and_1h_before_5m_are_allowed() -> None:
    with running() as (_, client):
        blocks = [block("a", "1h"), block("b", "1h"), block("c", "5m"), block("d", "5m"), block("e")]
        assert client.messages.create(**request(*blocks)).stop_reason == "end_turn"


def test_a_wrong_key_is_a_401_and_an_unknown_model_a_404() -> None:
    with running() as (_, client):
        with pytest.raises(anthropic.AuthenticationError):
            client.with_options(api_key="sk-other").messages.create(**request())
        with pytest.raises(anthropic.NotFoundError, match="claude-haiku-9"):
            client.messages.create(**request(model="claude-haiku-9"))


@pytest.mark.parametrize(
    ("headers", "data", "status"),
    [
        ({"anthropic-version": "2026-10-21"}, b"{}", 401),
        ({"anthropic-version": "2026-10-21", "x-api-key": KEY}, b"{}", 401),
        ({"Authorization": f"Bearer {KEY}"}, b"{}", 400),
        ({"Authorization": f"Bearer {KEY}", "anthropic-version": "2026-10-21"}, b"{not json", 400),
        ({"Authorization": f"Bearer {KEY}", "anthropic-version": "2026-10-21"}, b"[]", 400),
    ],
    ids=["no key", "key in an old header", "no version", "not JSON", "not an object"],
)
def test_what_the_sdk_never_sends_is_refused_too(headers: dict[str, str], data: bytes, status: int) -> None:
    with MessagesEmulator() as api, httpx2.Client(trust_env=False) as http:
        answer = http.post(f"{api.url}/v1/messages", headers=headers, content=data)
        assert answer.status_code == status
        assert answer.json()["type"] == "error"


# --- Limits ----------------------------------------------------------------------------------------------------------


def test_requests_per_minute_are_limited_and_refill() -> None:
    clock = Clock()
    with running(clock=clock, limits={"requests": 2}) as (_, client):
        raw = client.messages.with_raw_response.create(**about("a"))
        assert raw.headers["anthropic-ratelimit-requests-limit"] == "2"
        assert raw.headers["anthropic-ratelimit-requests-remaining"] == "1"
        assert raw.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
        client.messages.create(**about("b"))
        with pytest.raises(anthropic.RateLimitError) as caught:
            client.messages.create(**about("c"))
        assert caught.value.response.headers["retry-after"] == "30"
        clock.now += 30
        client.messages.create(**about("c"))


def test_cache_reads_do_not_count_against_the_limit_but_writes_do() -> None:
    clock = Clock()
    with running(clock=clock, limits={"input-tokens": 1_000}) as (_, client):
        for chunk in "abcdef":
            client.messages.create(**about(chunk))
        with pytest.raises(anthropic.RateLimitError, match="input-tokens"):
            client.messages.create(**about("a", view=VIEW + "other"))


def test_output_tokens_are_limited_after_the_fact() -> None:
    clock = Clock()
    with running(clock=clock, limits={"output-tokens": 30}, answer=lambda body: "words " * 30) as (_, client):
        client.messages.create(**about("a"))
        with pytest.raises(anthropic.RateLimitError, match="output-tokens"):
            client.messages.create(**about("b"))
        clock.now += 120
        client.messages.create(**about("b"))


def test_too_many_requests_at_once_are_answered_529() -> None:
    async def fan_out(url: str) -> list[Any]:
        async with anthropic.AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0) as client:
            calls = [client.messages.create(**about(str(n))) for n in range(8)]
            return await asyncio.gather(*calls, return_exceptions=True)

    with MessagesEmulator(max_in_flight=3, first_token_s=0.2) as api:
        answers = asyncio.run(fan_out(api.url))
        refused = [answer for answer in answers if isinstance(answer, anthropic.OverloadedError)]
        assert 1 <= len(refused) <= 5
        assert len(api.bill.answered) == 8 - len(refused)
        assert api.bill.most_in_flight > 3
        assert api.bill.in_flight == 0


# --- Faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "error", "code"),
    [
        (faults.status(429, retry_after="2"), anthropic.RateLimitError, None),
        (faults.status(529), anthropic.OverloadedError, None),
        (faults.status(413), anthropic.ContentTooLargeError, None),
        (faults.status(500), anthropic.InternalServerError, None),
        (faults.own_spend_limit(), anthropic.BadRequestError, None),
        (faults.monthly_spend_limit(), anthropic.RateLimitError, "enforced_spend_limit_reached"),
        (faults.CLOSE, anthropic.APIConnectionError, None),
    ],
)
def test_a_scripted_failure_is_what_the_sdk_makes_of_it(fault: Any, error: type[Exception], code: str | None) -> None:
    with running(faults=[(faults.always, fault)]) as (api, client):
        with pytest.raises(error) as caught:
            client.messages.create(**request())
        assert getattr(caught.value, "error_code", None) == code
        assert api.bill.usd == 0


def consume(client: anthropic.Anthropic) -> list[str]:
    return [event.type for event in client.messages.create(**request(), stream=True)]


def test_a_stream_breaks_or_reports_an_error_midway() -> None:
    script = [(faults.nth(1), faults.DISCONNECT), (faults.nth(2), faults.sse_error())]
    with running(faults=script) as (api, client):
        with pytest.raises(httpx2.RemoteProtocolError):
            consume(client)
        with pytest.raises(anthropic.APIStatusError) as caught:
            consume(client)
        assert (caught.value.status_code, caught.value.type) == (200, "overloaded_error")
        assert [entry.complete for entry in api.bill.entries] == [False, False]
        assert [entry.usage["output_tokens"] for entry in api.bill.entries] == [1, 1]
        assert api.bill.answered == []


@pytest.mark.parametrize("fault", [faults.HANG, faults.KEEP_ALIVE, faults.STALL], ids=["hang", "keep-alive", "stall"])
def test_a_request_that_is_never_answered_ends_when_the_client_leaves(fault: faults.Fault) -> None:
    async def give_up(url: str) -> None:
        async with anthropic.AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0) as client:
            async with asyncio.timeout(0.1):
                async for _ in await client.messages.create(**request(), stream=True):
                    pass

    with MessagesEmulator(faults=[(faults.always, fault)]) as api:
        with pytest.raises(TimeoutError):
            asyncio.run(give_up(api.url))
        ends = time.monotonic() + 5
        while api.bill.in_flight and time.monotonic() < ends:
            time.sleep(0.01)
        assert api.bill.in_flight == 0
        assert not api.bill.entries[0].complete


def test_a_refusal_is_billed_only_after_some_output() -> None:
    script = [(faults.nth(1), faults.REFUSAL), (faults.nth(2), faults.LATE_REFUSAL)]
    with running(faults=script) as (api, client):
        early, late = (client.messages.create(**about("a")) for _ in range(2))
        assert early.stop_reason == late.stop_reason == "refusal"
        assert early.content == []
        assert early.usage.output_tokens > 0
        assert [entry.usd > 0 for entry in api.bill.entries] == [False, True]


@pytest.mark.parametrize(
    ("fault", "kinds", "reason"),
    [
        (faults.EMPTY, [], "end_turn"),
        (faults.THINKING_FIRST, ["thinking", "text"], "end_turn"),
        (faults.THINKING_ONLY, ["thinking"], "end_turn"),
        (faults.TRUNCATED, ["text"], "max_tokens"),
        (faults.stop_reason("pause_turn"), ["text"], "pause_turn"),
    ],
)
def test_odd_answers_are_billed(fault: faults.Fault, kinds: list[str], reason: str) -> None:
    with running(faults=[(faults.always, fault)]) as (api, client):
        message = client.messages.create(**request())
        assert [part.type for part in message.content] == kinds
        assert message.stop_reason == reason
        assert api.bill.usd > 0


def test_a_share_of_faults_hits_the_same_requests_in_any_order() -> None:
    def refused(chunks: list[str]) -> set[str]:
        found = set()
        with running(faults=[(faults.share(0.3, seed=7), faults.status(529))]) as (_, client):
            for chunk in chunks:
                try:
                    client.messages.create(**about(chunk))
                except anthropic.OverloadedError:
                    found.add(chunk)
        return found

    chunks = [f"chunk {n}" for n in range(40)]
    hit = refused(chunks)
    assert 4 <= len(hit) <= 20
    assert refused(chunks[::-1]) == hit


# --- The bill --------------------------------------------------------------------------------------------------------


def test_the_bill_is_the_sum_of_its_tokens_at_the_listed_prices() -> None:
    with running() as (api, client):
        for chunk in "abc":
            client.messages.create(**about(chunk))
        total = api.bill.total
        expected = (
            total("input_tokens") * Decimal("0.10")
            + total("cache_creation_input_tokens") * Decimal("0.125")
            + total("cache_read_input_tokens") * Decimal("0.01")
            + total("output_tokens") * Decimal("0.50")
        ) / 1_000_000
        assert api.bill.usd == expected
        client.messages.create(**request(block("x" * 400_000), block("a")))
        assert (
            api.bill.entries[-1].usd
            == (
                api.bill.entries[-1].usage["input_tokens"] * Decimal("0.50")
                + api.bill.entries[-1].usage["output_tokens"] * Decimal("2.50")
            )
            / 1_000_000
        )


def fan_out(api: MessagesEmulator, requests: list[dict[str, Any]], *, first_alone: bool) -> None:
    async def run() -> None:
        async with anthropic.AsyncAnthropic(api_key=KEY, base_url=api.url, max_retries=0) as client:
            rest = requests
            if first_alone:
                stream = await client.messages.create(**requests[0], stream=True)
                async for event in stream:
                    if event.type == "message_start":
                        break
                rest = requests[1:]
                await stream.close()
            await asyncio.gather(*(client.messages.create(**request) for request in rest))

    asyncio.run(run())


CHUNKS = [f"chunk {n}" for n in range(6)]


def test_a_client_that_warms_the_cache_first_passes_every_assertion() -> None:
    with MessagesEmulator(first_token_s=0.05) as api:
        fan_out(api, [about(chunk) for chunk in CHUNKS], first_alone=True)
        api.bill.assert_disciplined()
        assert api.bill.most_in_flight > 1


@pytest.mark.parametrize(
    ("assertion", "requests", "first_alone", "said"),
    [
        ("assert_one_write_per_view", [about(c) for c in CHUNKS], False, "written to the cache by requests"),
        ("assert_first_call_alone", [about(c) for c in CHUNKS], False, "did not wait"),
        (
            "assert_one_shape_per_view",
            [about(c, system="Be brief." if n % 2 else "Be terse.") for n, c in enumerate(CHUNKS)],
            True,
            "2 request shapes",
        ),
        ("assert_views_marked", [about(c, ttl=None) for c in CHUNKS], True, "not marked"),
        (
            "assert_views_marked",
            [about(c, ttl=None, cache_control={"type": "ephemeral"}) for c in CHUNKS],
            True,
            "not marked",
        ),
    ],
    ids=["parallel first calls pay", "parallel first calls", "two shapes", "unmarked view", "last block marked"],
)
def test_a_wrong_client_is_caught(assertion: str, requests: list[dict[str, Any]], first_alone: bool, said: str) -> None:
    with MessagesEmulator(first_token_s=0.05) as api:
        fan_out(api, requests, first_alone=first_alone)
        check: Callable[[], None] = getattr(api.bill, assertion)
        with pytest.raises(AssertionError, match=said):
            check()
        with pytest.raises(AssertionError):
            api.bill.assert_disciplined()


def test_a_short_view_needs_no_mark() -> None:
    with running() as (api, client):
        for chunk in CHUNKS[:2]:
            client.messages.create(**about(chunk, view="short", ttl=None))
        api.bill.assert_disciplined()


def test_an_emulator_of_its_own_process_keeps_its_bill() -> None:
    with emulator_process("--fault", "529:1", "--seed", "3") as api, sdk(api.url) as client:
        for _ in range(2):
            with pytest.raises(anthropic.OverloadedError):
                client.messages.create(**about("a"))
        client.messages.create(**about("a"))
        bill = api.bill()
        assert [entry.status for entry in bill.entries] == [529, 529, 200]
        assert bill.entries[2].rest == digest("a")
        assert bill.usd > 0
