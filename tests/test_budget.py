"""A ceiling on cost holds whatever is under way: what calls may cost is set aside before they are sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctx_pipeline.claude.budget import Budget
from ctx_pipeline.claude.outcome import FatalCallError, Reason
from ctx_pipeline.claude.pricing import Prices
from ctx_pipeline.claude.request import Block, Request
from ctx_pipeline.claude.usage import Usage
from tests.contexts_support import Desk, contexts, document, grouped_answer, prose
from tests.emulators.messages import MessagesEmulator

SETTING = "contexts.max_usd"
PRICES = Prices.load(None)
REQUEST = Request("claude-haiku-5-5", 100, (Block("A question of some words."),))


def budget(calls: float, request: Request = REQUEST) -> Budget:
    """One that pays for so many calls at their worst."""
    worst = Budget(Decimal(1), PRICES, SETTING).worst_usd(request)
    return Budget(worst * Decimal(str(calls)), PRICES, SETTING)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await coroutine

    asyncio.run(bounded())


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class Calls:
    """Calls that wait for `answer` once they are sent."""

    def __init__(self, own: Budget, share: Callable[[int], Decimal] = lambda number: Decimal(1)) -> None:
        self.budget, self.share = own, share
        self.under_way: list[tuple[int, asyncio.Future[None]]] = []
        self.refused: list[FatalCallError] = []
        self.most_promised = Decimal(0)

    async def call(self, number: int, request: Request = REQUEST) -> None:
        try:
            async with self.budget.hold(request):
                answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self.under_way.append((number, answered))
                worst = self.budget.worst_usd(request)
                self.most_promised = max(self.most_promised, self.budget.spent + worst * len(self.under_way))
                await answered
                self.budget.spend(worst * self.share(number))
        except FatalCallError as error:
            self.refused.append(error)

    def answer(self, error: Exception | None = None) -> None:
        _, answered = self.under_way.pop(0)
        answered.set_exception(error) if error else answered.set_result(None)


def test_calls_that_all_begin_before_the_first_answer_never_spend_more_than_the_ceiling() -> None:
    async def many() -> None:
        own = budget(3.5)
        calls = Calls(own)
        tasks = [asyncio.create_task(calls.call(number)) for number in range(20)]
        await settle()
        assert len(calls.under_way) == 3, "what three may cost is set aside; a fourth might not be paid"
        while calls.under_way:
            calls.answer()
            await settle()
        await asyncio.gather(*tasks)
        assert own.spent == 3 * own.worst_usd(REQUEST)
        assert len(calls.refused) == 17

    run(many())


def test_what_calls_did_not_need_lets_the_next_ones_go() -> None:
    async def cheap() -> None:
        own = budget(2)
        calls = Calls(own, lambda number: Decimal("0.1"))
        tasks = [asyncio.create_task(calls.call(number)) for number in range(8)]
        await settle()
        assert [number for number, _ in calls.under_way] == [0, 1]
        while calls.under_way:
            calls.answer()
            await settle()
        await asyncio.gather(*tasks)
        assert calls.refused == []
        assert own.spent == own.worst_usd(REQUEST) * Decimal("0.8")

    run(cheap())


def test_a_call_that_fails_gives_back_what_was_set_aside() -> None:
    async def failing() -> None:
        own = budget(1)
        calls = Calls(own)
        for _ in range(3):
            task = asyncio.create_task(calls.call(0))
            await settle()
            calls.answer(ConnectionError())
            with pytest.raises(ConnectionError):
                await task
        assert own.spent == 0

    run(failing())


def test_a_call_that_fits_exactly_is_made_and_one_that_cannot_fit_is_refused_at_once() -> None:
    async def exact() -> None:
        async with budget(1).hold(REQUEST):
            pass
        own = budget(0.999)
        with pytest.raises(FatalCallError, match=rf"{SETTING} is used up: 0\.0000 of .* raise {SETTING}") as refused:
            async with own.hold(REQUEST):
                pass
        assert refused.value.reason is Reason.BUDGET

    run(exact())


@settings(deadline=None, max_examples=60)
@given(
    st.floats(0, 6),
    st.lists(st.tuples(st.integers(1, 400), st.floats(0, 1)), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_no_order_of_answers_spends_more_than_the_ceiling(
    size: float, wanted: list[tuple[int, float]], dice: Any
) -> None:
    async def some() -> None:
        own = budget(size)
        ceiling = own._max_usd
        calls = Calls(own, lambda number: Decimal(str(wanted[number][1])))
        tasks = [
            asyncio.create_task(calls.call(number, replace(REQUEST, max_tokens=tokens)))
            for number, (tokens, _) in enumerate(wanted)
        ]
        await settle()
        while calls.under_way:
            dice.shuffle(calls.under_way)
            calls.answer()
            assert own.spent <= ceiling
            await settle()
        await asyncio.gather(*tasks)
        assert own.spent <= ceiling

    run(some())


@pytest.mark.parametrize("ttl", [None, "5m", "1h"])
@pytest.mark.parametrize("text", ["Plain words.", "漢字と絵文字🦉", "\x00\x01 odd", "'\"\\" * 50, "word " * 2_000])
def test_the_worst_case_is_a_token_for_each_byte_of_the_dearest_kind_and_a_full_answer(ttl: Any, text: str) -> None:
    request = Request("claude-haiku-5-5", 150, (Block(text, ttl), Block("And the chunk.")), system="Be brief.")
    size = len(f"{text}And the chunk.Be brief.".encode())
    kind = {None: "input", "5m": "cache_write_5m", "1h": "cache_write_1h"}[ttl]
    least = PRICES.cost(Usage(**{kind: size}, output=150), request.model)
    worst = Budget(Decimal(1), PRICES, SETTING).worst_usd(request)
    assert least < worst < least * 20


def test_slow_answers_of_many_calls_at_once_never_exceed_the_budget_of_a_refresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guides = [document(prose(f"quotas {number}", 4), f"{number}.md") for number in range(12)]
    with MessagesEmulator(first_token_s=0.1, answer=lambda body: "words that tell " * 15) as api:
        desk = Desk(tmp_path / "index", api, monkeypatch)
        results = desk.write(guides, max_usd=0.003, concurrency=16)
    assert api.bill.most_in_flight > 1
    assert 0 < api.bill.usd <= Decimal("0.003")
    assert {context.status for context in contexts(results)} == {"written", "pending"}


def test_the_memo_adds_up_to_the_bill_when_one_call_writes_several_contexts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MessagesEmulator(structured=grouped_answer) as api:
        desk = Desk(tmp_path / "index", api, monkeypatch)
        desk.write([document(prose("quotas", 9), "quotas.md")], chunks_per_call=4)
    rows = desk.store.table("memo").to_arrow().to_pylist()
    assert len(api.bill.answered) < len(rows)
    assert sum(row["usd"] for row in rows) == pytest.approx(float(api.bill.usd))
    assert sum(row["output_tokens"] for row in rows) == sum(entry.usage["output_tokens"] for entry in api.bill.answered)
