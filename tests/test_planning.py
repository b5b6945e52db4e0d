"""Planning: what contexts would cost, told before paying, and true afterwards."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctx_pipeline.claude.pricing import ModelPrices, Prices
from ctx_pipeline.context_settings import ContextSettings
from ctx_pipeline.contexts.estimate import (
    BATCHES,
    CACHING,
    NO_CACHING,
    Estimate,
    Tokens,
    ViewSize,
    Way,
    estimate,
    total,
)
from ctx_pipeline.contexts.planning import AS_SET, CACHED, GROUPED, NO_CACHE, ContextPlan, ContextPlanner
from ctx_pipeline.costs import refresh_costs
from ctx_pipeline.errors import SettingsError
from tests.contexts_support import Desk, Documents, corpus, document, prose
from tests.emulators.messages import KEY, MessagesEmulator
from tests.emulators.prompt import texts
from tests.project import Project
from tests.test_paid_contexts import command

HAIKU = Prices.load().model("claude-haiku-5-5")
HAIKU_3_OF_2024 = ModelPrices(
    input=Decimal("0.25"),
    output=Decimal("1.25"),
    cache_write_5m=Decimal("0.30"),
    cache_write_1h=Decimal("0.30"),
    cache_read=Decimal("0.03"),
    batch_factor=Decimal("0.5"),
    min_cacheable_tokens=2_048,
    context_window_tokens=200_000,
)
DOCUMENTS = 125


def view(calls: int, shared: int, rest: int, output: int, *, marked: bool = True) -> ViewSize:
    """A view of known sizes; `rest` and `output` of all its calls together."""
    return ViewSize(
        calls,
        Tokens.exactly(shared),
        Tokens.exactly(rest),
        Tokens.exactly(output),
        Tokens.exactly(shared + rest // calls),
        marked,
    )


def million(size: ViewSize, way: Way, prices: ModelPrices = HAIKU) -> Decimal:
    """USD of a million tokens of documents, which a plan of known sizes tells without a range."""
    found = total([estimate(size, prices, way)] * DOCUMENTS)
    assert found.low == found.high
    return found.low.usd


# --- The worked examples: documents of 8,000 tokens, chunks of 800, 50 tokens of instruction, 100 of answer -----------


def test_a_million_tokens_with_caching() -> None:
    assert million(view(10, 8_000, 8_500, 1_000), CACHING) == Decimal("0.38375")


def test_a_million_tokens_without_caching() -> None:
    assert million(view(10, 8_000, 8_500, 1_000), NO_CACHING) == Decimal("1.16875")
    assert million(view(10, 8_000, 8_500, 1_000, marked=False), CACHING) == Decimal("1.16875")


def test_a_million_tokens_with_ten_chunks_a_call() -> None:
    assert round(million(view(1, 8_000, 50, 1_000, marked=False), CACHING), 2) == Decimal("0.16")


def test_the_figure_of_2024_counts_all_ten_chunks_as_reads() -> None:
    warmed = view(11, 8_000, 8_500, 1_000)  # a call that only writes the cache entry comes first
    assert round(million(warmed, CACHING, HAIKU_3_OF_2024), 2) == Decimal("1.02")


def test_a_batch_is_half_price_and_its_range_is_that_of_its_cache_hits() -> None:
    size = view(10, 8_000, 8_500, 1_000)
    found = estimate(size, HAIKU, BATCHES)
    around = Decimal("0.10") * 8_500 + Decimal("0.50") * 1_000
    for cost, share in ((found.low, Decimal("0.98")), (found.high, Decimal("0.30"))):
        read = share * 72_000
        written = 80_000 - read
        expected = (around + Decimal("0.01") * read + Decimal("0.20") * written) / 2 / 1_000_000
        assert cost.usd == expected
    assert estimate(size, HAIKU, NO_CACHING).low.usd / 2 > found.low.usd


# --- Ranges ----------------------------------------------------------------------------------------------------------

_counts = st.integers(1, 3_000)


@given(_counts, _counts, st.integers(1, 30), st.data())
def test_any_sizes_within_the_ranges_cost_something_within_the_range(
    shared: int, rest: int, calls: int, data: st.DataObject
) -> None:
    """Also where the view is too short for the cache by one count, and long enough by another."""

    def within(low: int) -> tuple[Tokens, int]:
        return Tokens(low, low * 3 // 2), data.draw(st.integers(low, low * 3 // 2))

    (shared_range, shared_true), (rest_range, rest_true) = within(shared), within(rest)
    output_range, output_true = within(50 * calls)
    largest = shared_range + rest_range
    found = estimate(ViewSize(calls, shared_range, rest_range, output_range, largest, True), HAIKU, CACHING)
    actual = estimate(view(calls, shared_true, rest_true, output_true), HAIKU, CACHING)
    assert found.low.usd <= actual.low.usd == actual.high.usd <= found.high.usd


def test_prompts_above_the_price_step_are_priced_above_it() -> None:
    below, above = view(2, 90_000, 1_000, 100), view(2, 110_000, 1_000, 100)
    assert estimate(above, HAIKU, NO_CACHING).low.usd > 5 * estimate(below, HAIKU, NO_CACHING).low.usd


# --- Plans of documents ----------------------------------------------------------------------------------------------


def each_number(body: dict[str, Any]) -> Any:
    """A context for each number asked for, in Spanish or English."""
    asked = re.search(r": ([\d, ]+)\.\n", texts(body)[1])
    assert asked
    return {"contexts": [{"chunk": int(number), "context": _NOTE} for number in asked[1].split(", ")]}


_NOTE = "Trata de la guía avanzada, del apartado que describe las respuestas adicionales y sus códigos de estado. " * 2


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    with MessagesEmulator(answer=lambda body: _NOTE, structured=each_number) as api:
        yield Desk(tmp_path / "index", api, monkeypatch)


def planned(desk: Desk, documents: Documents, *, compare: bool = False, **settings: Any) -> ContextPlan:
    chosen = ContextSettings.model_validate({"method": "claude", **settings})
    planner = ContextPlanner(chosen, desk.store, compare=compare)
    planner.add(documents)
    return planner.plan


def paid(desk: Desk, documents: Documents, **settings: Any) -> Decimal:
    before = desk.api.bill.usd
    desk.write(documents, **settings)
    return desk.api.bill.usd - before


@pytest.mark.parametrize(
    "settings",
    [{}, {"chunks_per_call": 5}, {"window_tokens": 1_000}, {"method": "summary"}, {"glossary": {"RPM": "rate"}}],
    ids=["default", "grouped", "windows", "summary", "glossary"],
)
def test_the_bill_lies_in_the_planned_range(desk: Desk, corpora: Path, settings: dict[str, Any]) -> None:
    documents = corpus(corpora / "fastapi-es" / "base" / "advanced", 8)
    plan = planned(desk, documents, **settings)
    assert plan.chosen.low.usd <= paid(desk, documents, **settings) <= plan.chosen.high.usd
    assert plan.chosen.calls == len(desk.api.bill.entries)


def test_each_kind_of_token_lies_in_its_range(desk: Desk, corpora: Path) -> None:
    documents = corpus(corpora / "fastapi-es" / "base" / "tutorial", 4)
    plan = planned(desk, documents)
    paid(desk, documents)
    names = {
        "input": "input_tokens",
        "cache_write": "cache_creation_input_tokens",
        "cache_read": "cache_read_input_tokens",
    }
    for kind, (low, high) in plan.chosen.tokens().items():
        if kind != "output":  # the emulator answers more briefly than a model that is asked for 50 to 100 tokens
            assert low <= desk.api.bill.total(names[kind]) <= high, kind


def test_only_what_the_memo_lacks_is_planned(desk: Desk) -> None:
    first, second = document(prose("cats", 6), "a.md"), document(prose("dogs", 6), "b.md")
    paid(desk, [first])
    plan = planned(desk, [first, second])
    assert (plan.wanted, plan.paid) == (len(second[1]), len(first[1]))
    assert plan.chosen == planned(desk, [second]).chosen
    paid(desk, [second])
    done = planned(desk, [first, second], compare=True)
    assert (done.wanted, done.line()) == (0, "")
    assert set(done.strategies.values()) == {Estimate()}


def test_the_same_text_twice_is_planned_once_also_in_another_block(desk: Desk) -> None:
    text = prose("cats", 6)
    first, second = document(text, "a.md"), document(text, "b.md")
    planner = ContextPlanner(ContextSettings(method="claude"), desk.store, compare=False)
    planner.add([first])
    alone = planner.plan.chosen
    planner.add([second])
    assert (planner.plan.chosen, planner.plan.wanted) == (alone, len(first[1]))
    paid(desk, [first, second])
    assert len(desk.api.bill.entries) == alone.calls


def test_contexts_that_reuse_takes_over_are_not_planned(desk: Desk) -> None:
    before = document(prose("cats", 10), "a.md")
    paid(desk, [before])
    after = document(
        prose("cats", 10).replace("The rule cats 3 2 applies", "The rule cats 3 2 no longer applies"), "a.md"
    )
    chosen = planned(desk, [after], reuse="chunk")
    assert 0 < chosen.wanted < planned(desk, [after]).wanted == len(after[1])
    paid(desk, [after], reuse="chunk")
    assert len(desk.api.bill.entries) == len(before[1]) + chosen.wanted


def test_what_needs_no_call_costs_nothing(desk: Desk) -> None:
    short, ruled = document("# One\n\nOne chunk.\n", "one.md"), document(prose("cats", 6), "changes/a.md")
    plan = planned(desk, [short, ruled], compare=True, rule=[{"glob": "changes/", "method": "outline"}])
    assert (plan.wanted, plan.free) == (0, 1 + len(ruled[1]))
    assert set(plan.strategies.values()) == {Estimate()}


def test_strategies_compare_the_same_contexts(desk: Desk) -> None:
    documents = [document(prose("cats", 20), "a.md")]
    plan = planned(desk, documents, compare=True)
    found = {name: estimate.low.usd for name, estimate in plan.strategies.items()}
    assert found[GROUPED] < found[CACHED] < found[NO_CACHE]
    assert plan.strategies[AS_SET] == plan.strategies[CACHED]
    assert plan.strategies[GROUPED].calls == -(-plan.wanted // 10)
    several = planned(desk, documents, compare=True, chunks_per_call=10)
    assert several.strategies[AS_SET] == plan.strategies[GROUPED]


def test_the_curve_grows_with_the_window_until_documents_are_whole(desk: Desk) -> None:
    text = prose("cats", 60, words=120)
    plan = planned(desk, [document(text, "a.md")], compare=True)
    sizes = list(plan.curve)
    reads = [plan.curve[tokens].low.usage.cache_read for tokens in sizes]
    assert sizes[:5] == [2_000, 4_000, 8_000, 16_000, 32_000]
    assert reads == sorted(reads)
    assert reads[0] < reads[2]
    assert plan.curve[8_000] == plan.strategies[AS_SET]
    whole = planned(desk, [document(text, "a.md")], window_tokens=sizes[-1])
    assert plan.curve[sizes[-1]] == whole.chosen


def test_a_model_without_prices_is_named(desk: Desk) -> None:
    with pytest.raises(SettingsError, match="no prices for the model 'other'"):
        planned(desk, [], model="other")


def test_an_endpoint_without_prices_has_calls_and_tokens(desk: Desk) -> None:
    documents = [document(prose("cats", 6), "a.md")]
    plan = planned(desk, documents, compare=True, method="openai", model="m", base_url="http://127.0.0.1:9/v1")
    assert (plan.is_priced, plan.max_usd, plan.chosen.calls) == (False, None, len(documents[0][1]))
    assert plan.chosen.low.usage.input > 0
    assert "no known price" in plan.line()
    assert list(plan.strategies) == [AS_SET]


# --- Advice ----------------------------------------------------------------------------------------------------------


def test_a_small_corpus_is_said_to_fit_in_a_prompt(desk: Desk) -> None:
    plan = planned(desk, [document(prose("cats", 6), "a.md")])
    assert any("retrieval may not be needed" in line for line in plan.advice(120_000))
    assert any("may just fit" in line for line in plan.advice(190_000))
    assert not any("prompt" in line for line in plan.advice(200_000))


def test_outline_is_suggested_where_headings_name_the_chunks(desk: Desk) -> None:
    headed, plain = document(prose("cats", 8), "a.md"), document(prose("cats", 8).replace("#", ""), "b.txt")
    assert any("`outline` may be enough" in line for line in planned(desk, [headed]).advice(10**6))
    assert not any("`outline` may be enough" in line for line in planned(desk, [plain]).advice(10**6))


def test_what_a_ceiling_would_leave_pending_is_told(desk: Desk) -> None:
    documents = [document(prose("cats", 20), "a.md")]
    plan = planned(desk, documents, max_usd=0.0005)
    (line,) = [line for line in plan.advice(10**6) if "max_usd" in line]
    low, high = (int(plan.wanted * (1 - Decimal("0.0005") / cost.usd)) for cost in (plan.chosen.low, plan.chosen.high))
    assert f"about {low} to {high} of {plan.wanted} contexts" in line
    assert 0 < low < high < plan.wanted
    assert not any("max_usd" in line for line in planned(desk, documents).advice(10**6))


# --- The command, and the refresh -------------------------------------------------------------------------------------


def test_a_first_plan_needs_no_key_and_writes_nothing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cats", "dogs"):
        project.write(f"{name}.md", prose(name, 6))
    code, output, errors = command(project, monkeypatch, "plan")
    assert (code, errors) == (0, "")
    assert "contexts.method outline costs nothing; with contexts.method claude instead:" in output
    assert max(map(len, output.split("\n- ")[0].splitlines())) <= 120
    found = json.loads(command(project, monkeypatch, "plan", "--json")[1])
    assert found["documents"]["added"] == 2
    assert found["contexts"]["wanted"] == found["chunks"] > 2
    assert set(found["strategies"]) == {"no caching", "caching", "10 a call", "batches", "as set"}
    assert 0 < found["contexts"]["usd"][0] < found["contexts"]["usd"][1]
    assert not (project.root / "index").exists()


def test_what_the_outline_indexed_would_be_owed_to_claude(project: Project) -> None:
    project.write("cats.md", prose("cats", 6))
    project.refresh()
    costs = refresh_costs(project.pipeline())
    assert (costs.documents["changed"], costs.supposed_for) == (1, "outline")
    assert costs.contexts.wanted == costs.contexts.chunks == len(project.search_rows())
    assert costs.corpus_tokens == costs.contexts.tokens
    assert not project.pipeline().plan().owed


def test_an_unchanged_corpus_costs_nothing_and_an_edit_its_own_contexts(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write_settings(contexts={"method": "claude"})
    for name in ("cats", "dogs"):
        project.write(f"{name}.md", prose(name, 6))
    with MessagesEmulator() as api:
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", api.url)
        project.refresh()
        asked = len(api.bill.entries)
        unchanged = refresh_costs(project.pipeline())
        assert (unchanged.contexts.wanted, unchanged.contexts.documents) == (0, 0)
        project.write("cats.md", prose("cats", 6) + "\n## More\n\nAnd more.\n")
        versions = project.versions()
        edited = refresh_costs(project.pipeline())
        assert project.versions() == versions
        assert len(api.bill.entries) == asked
        assert edited.contexts.asked_documents == 1
        assert edited.corpus_tokens > edited.contexts.tokens
        summary = project.refresh()
        assert summary.calls == edited.contexts.chosen.calls
        assert summary.planned is not None
        assert summary.planned.chosen == edited.contexts.chosen


def test_a_paid_refresh_tells_its_plan_before_and_the_cost_after(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("cats.md", prose("cats", 6))
    project.write_settings(contexts={"method": "claude"})
    with MessagesEmulator(answer=lambda body: _NOTE) as api:
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", api.url)
        dry = json.loads(command(project, monkeypatch, "refresh", "--dry-run", "--json")[1])["contexts"]
        _, output, _ = command(project, monkeypatch, "refresh")
    first, *others = output.splitlines()
    planned = f"{dry['usd'][0]:.4f}-{dry['usd'][1]:.4f}"
    assert first == f"plan       about {planned} USD for {dry['wanted']} contexts of 1 document; max_usd 5"
    assert any(f"{api.bill.usd:.4f} USD (planned {planned})" in line for line in others)
    with project.instance() as instance:
        (record,) = instance.fetch_materializations(dg.AssetKey("corpus_refresh"), limit=1).records
    assert record.asset_materialization is not None
    metadata = {name: value.value for name, value in record.asset_materialization.metadata.items()}
    assert [metadata["usd_planned_low"], metadata["usd_planned_high"]] == dry["usd"]
    assert metadata["usd"] == float(api.bill.usd)
    assert dry["usd"][0] <= metadata["usd"] <= dry["usd"][1]


def test_a_document_that_cannot_be_read_is_left_out_of_the_plan(project: Project) -> None:
    project.write("cats.md", prose("cats", 6))
    alone = refresh_costs(project.pipeline()).contexts
    project.write("bad.md", b"\x80")
    assert refresh_costs(project.pipeline()).contexts == alone


def test_a_free_refresh_has_no_plan(project: Project) -> None:
    project.write("cats.md", prose("cats", 6))
    assert project.refresh().planned is None
