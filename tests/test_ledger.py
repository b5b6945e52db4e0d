"""The ledger: rows come back as they were stored, a mark survives its writer, and failures are told apart."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctx_pipeline.errors import FatalError, PermanentError, StorageError, TransientError
from ctx_pipeline.index.ledger import BACKOFF_FIRST_S, BACKOFF_MAX_S, Failure, Ledger, LedgerRow, Met, failure_of
from ctx_pipeline.index.schemas import LEDGER
from ctx_pipeline.index.tables import Store

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(0, 2**31 - 1)
TEXT = st.text(max_size=30)
FAILURES = st.builds(
    Failure,
    kind=st.sampled_from(["permanent", "transient"]),
    reason=TEXT,
    attempts=INT32,
    next_try=st.floats(0, 4e9),
    size=INT64,
    mtime_ns=INT64,
    ctime_ns=st.none() | INT64,
    content_hash=TEXT,
    settings=TEXT,
)
ROWS = st.builds(
    LedgerRow,
    doc_id=st.text(min_size=1, max_size=30),
    size=INT64,
    mtime_ns=INT64,
    ctime_ns=st.none() | INT64,
    read_at_ns=INT64,
    content_hash=TEXT,
    parse=TEXT,
    chunk=TEXT,
    context=TEXT,
    chunks=INT32,
    tokens=INT64,
    context_counts=st.dictionaries(TEXT, INT32, max_size=3),
    indexed=st.dictionaries(TEXT, TEXT, max_size=3),
    failure=st.none() | FAILURES,
    writing=TEXT,
    run_id=TEXT,
    indexed_at=st.none() | st.datetimes(datetime(1970, 1, 1), timezones=st.just(UTC)),
)
MET, SETTINGS = Met(size=10, mtime_ns=1, read_at_ns=2, content_hash="A"), "S"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "index")
    made.create()
    return made


def version(store: Store) -> int:
    return int(store.table(LEDGER).version)


@settings(deadline=None)
@given(ROWS)
def test_a_row_comes_back_as_it_was(row: LedgerRow) -> None:
    assert LedgerRow.from_row(row.to_row()) == row


def test_a_failure_that_a_version_without_ctime_met_comes_back() -> None:
    met = Failure("transient", "gone", 2, 1.8e9, 1, 2, 3, "", "S", ctime_ns=4)
    stored = LedgerRow("docs/a.md", failure=met).to_row()
    older = {name: value for name, value in json.loads(stored["failure"]).items() if name != "ctime_ns"}
    row = LedgerRow.from_row({**stored, "failure": json.dumps(older)})
    assert row.failure == replace(met, ctime_ns=None)


def test_rows_of_any_names_come_back_from_the_table(store: Store) -> None:
    names = [
        "a.md",
        'it\'s "quoted".md',
        "new\nline.md",
        "100%, [a...b].md",
        "🦉.md",
        "'; DROP TABLE ledger; --",
        "a" * 4_000,
    ]
    rows = {
        f"docs/{name}": LedgerRow(
            f"docs/{name}", size=number, mtime_ns=1_795_992_223_908_308_283, content_hash="A",
            indexed={"search_1": "v"}, context_counts={"written": 3, "pending:no_key": 1},
            failure=Failure("transient", "línea 1\n'línea' 2", 2, 1.8e9, 1, 2, 3, "", "S"),
            indexed_at=datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC),
        )
        for number, name in enumerate(names)
    }  # fmt: skip
    Ledger.read(store).put(list(rows.values()))
    assert Ledger.read(store).rows == rows


def test_a_storage_without_an_index_has_an_empty_ledger_and_stays_as_it_is(tmp_path: Path) -> None:
    assert Ledger.read(Store(tmp_path / "none")).rows == {}
    assert not (tmp_path / "none").exists()


def test_rows_are_inserted_and_updated_in_one_commit(store: Store) -> None:
    ledger = Ledger.read(store)
    ledger.put([LedgerRow("docs/a.md", size=1), LedgerRow("docs/b.md", size=2)])
    before = version(store)
    ledger.put([LedgerRow("docs/b.md", size=3), LedgerRow("docs/c.md", size=4)])
    assert version(store) == before + 1
    assert {name: row.size for name, row in Ledger.read(store).rows.items()} == {
        "docs/a.md": 1, "docs/b.md": 3, "docs/c.md": 4,
    }  # fmt: skip
    assert Ledger.read(store).rows == ledger.rows


def test_nothing_to_store_or_remove_makes_no_commit(store: Store) -> None:
    ledger = Ledger.read(store)
    before = version(store)
    ledger.put([])
    ledger.mark([], "run-1")
    ledger.remove([])
    ledger.remove(["docs/unknown.md"])
    assert version(store) == before


def test_a_mark_is_seen_by_others_and_keeps_what_is_indexed(store: Store) -> None:
    ledger = Ledger.read(store)
    row = LedgerRow("docs/a.md", size=1, content_hash="A", indexed={"search_1": "v"}, run_id="run-1")
    ledger.put([row])
    ledger.mark(["docs/a.md", "docs/new.md"], "run-2")
    assert Ledger.read(store).rows == {
        "docs/a.md": replace(row, writing="run-2"),
        "docs/new.md": LedgerRow("docs/new.md", writing="run-2"),
    }
    assert Ledger.read(store).indexed() == {"docs/a.md"}


def test_removed_documents_are_forgotten(store: Store) -> None:
    ledger = Ledger.read(store)
    names = [f"docs/it's {number}.md" for number in range(10)]
    ledger.put([LedgerRow(name) for name in names])
    ledger.remove(names[:9])
    assert set(ledger.rows) == set(Ledger.read(store).rows) == {names[9]}


# Failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (PermanentError("not valid UTF-8"), "permanent", "not valid UTF-8"),
        (TransientError("cannot be read"), "transient", "cannot be read"),
        (StorageError("the table is locked"), "transient", "the table is locked"),
        (FatalError("no key"), "transient", "no key"),
        (ZeroDivisionError("division by zero"), "permanent", "ZeroDivisionError: division by zero"),
        (RecursionError(), "permanent", "RecursionError:"),
    ],
)
def test_errors_are_permanent_or_transient_and_tell_their_reason(error: Exception, kind: str, reason: str) -> None:
    met = failure_of(error, None, MET, SETTINGS)
    assert (met.kind, met.reason, met.attempts) == (kind, reason, 1)
    assert (met.size, met.mtime_ns, met.content_hash, met.settings) == (10, 1, "A", "S")


def test_a_transient_failure_is_tried_later_and_later_up_to_a_limit() -> None:
    assert (BACKOFF_FIRST_S, BACKOFF_MAX_S) == (60, 3_600)
    met: Failure | None = None
    for delay in (60, 120, 240, 480, 960, 1_920, 3_600, 3_600):
        before = datetime.now(UTC).timestamp()
        met = failure_of(TransientError("busy"), met, MET, SETTINGS)
        assert before + delay <= met.next_try <= datetime.now(UTC).timestamp() + delay


def test_attempts_count_transient_failures_in_a_row() -> None:
    def met(error: Exception, previous: Failure | None) -> Failure:
        return failure_of(error, previous, MET, SETTINGS)

    first = met(TransientError("busy"), None)
    second = met(TransientError("busy"), first)
    permanent = met(PermanentError("bad"), second)
    again = met(TransientError("busy"), permanent)
    assert [f.attempts for f in (first, second, permanent, again)] == [1, 2, 1, 1]
    assert permanent.next_try == 0


def test_a_reason_is_one_line() -> None:
    met = failure_of(ValueError("first\nsecond\r\n\tthird"), None, MET, SETTINGS)
    assert met.reason == "ValueError: first second third"


def test_a_very_long_reason_is_cut() -> None:
    assert len(failure_of(PermanentError("x" * 100_000), None, MET, SETTINGS).reason) == 1_000
