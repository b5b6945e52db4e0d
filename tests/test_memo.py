"""The memo: what was paid for is found again, whatever happened to the document, the process or the settings."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctx_pipeline.claude.usage import Usage
from ctx_pipeline.context_settings import ContextSettings
from ctx_pipeline.contexts import open_contextualizer
from ctx_pipeline.contexts.memo import Memo, Paid, drift, place_of, set_digest
from ctx_pipeline.index.schemas import MEMO
from ctx_pipeline.index.tables import Store
from tests.contexts_support import EMBEDDER, Desk, document, prose, store_at, written
from tests.emulators.messages import KEY, MessagesEmulator
from tests.emulators.process import emulator_process

ROOT = Path(__file__).parents[1]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return store_at(tmp_path / "index")


@pytest.fixture
def api() -> Iterator[MessagesEmulator]:
    with MessagesEmulator() as emulator:
        yield emulator


@pytest.fixture
def desk(tmp_path: Path, api: MessagesEmulator, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path / "index", api, monkeypatch)


def paid(key: str, doc_id: str = "docs/a.md", members: frozenset[bytes] = frozenset({b"01234567"})) -> Paid:
    return Paid(
        memo_key=key,
        context=f"context of {key}",
        method="claude",
        model="claude-haiku-5-5",
        doc_id=doc_id,
        place=f"place of {key}",
        shape="shape",
        chunk_set=set_digest(members),
        members=members,
        written_at=datetime(2026, 11, 2, tzinfo=UTC),
        usage=Usage(input=1, cache_read=2, output=3),
    )


# --- The table -------------------------------------------------------------------------------------------------------


def test_looking_makes_no_table_and_adding_makes_one(store: Store) -> None:
    memo = Memo(store)
    assert memo.find(["a"]) == {}
    assert memo.of_documents(["docs/a.md"]) == {}
    memo.flush()
    assert MEMO not in store.names()
    memo.add(paid("a"))
    assert MEMO not in store.names()
    memo.flush()
    assert store.count(MEMO) == 1
    version = store.table(MEMO).version
    memo.flush()
    assert store.table(MEMO).version == version


def test_rows_are_found_by_key_before_and_after_they_are_stored(store: Store) -> None:
    memo = Memo(store)
    for key in "abc":
        memo.add(paid(key))
    assert {key: row.context for key, row in memo.find(["a", "c", "x", "a"]).items()} == {
        "a": "context of a",
        "c": "context of c",
    }
    assert Memo(store).find(["b"])["b"].written_at == datetime(2026, 11, 2, tzinfo=UTC)


def test_thousands_of_keys_are_looked_up_at_once(store: Store) -> None:
    memo = Memo(store)
    keys = [f"{number:064d}" for number in range(12_000)]
    for key in keys[::2]:
        memo.add(paid(key))
    assert memo.find(keys).keys() == set(keys[::2])


def test_a_row_tells_what_it_cost(store: Store) -> None:
    memo = Memo(store)
    memo.add(paid("a"))
    memo.flush()
    [row] = store.table(MEMO).to_arrow().to_pylist()
    assert (row["input_tokens"], row["cache_read_tokens"], row["output_tokens"], row["usd"]) == (1, 2, 3, 0.0)


def test_the_chunks_of_a_document_are_stored_once_for_each_of_its_versions(store: Store) -> None:
    memo = Memo(store)
    one, two = frozenset({b"aaaaaaaa", b"bbbbbbbb"}), frozenset({b"aaaaaaaa", b"cccccccc"})
    for number in range(10):
        memo.add(paid(f"one {number}", members=one))
        memo.add(paid(f"two {number}", members=two))
        memo.flush()
    stored = store.table(MEMO).to_arrow().to_pylist()
    assert sum(row["members"] is not None for row in stored) == 2
    rows = Memo(store).of_documents(["docs/a.md", "docs/b.md"])
    assert {row.memo_key.split()[0]: row.members for row in rows["docs/a.md"]} == {"one": one, "two": two}
    assert rows.keys() == {"docs/a.md"}


def test_what_could_not_be_stored_waits_for_the_next_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    memo = Memo(store)
    memo.add(paid("a"))

    def fails(*_: Any) -> Any:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(store, "names", fails)
        with pytest.raises(OSError, match="disk full"):
            memo.flush()
    memo.add(paid("b"))
    memo.flush()
    assert Memo(store).find(["a", "b"]).keys() == {"a", "b"}
    assert Memo(store).of_documents(["docs/a.md"])["docs/a.md"][0].members == frozenset({b"01234567"})


def test_an_index_that_was_made_before_there_was_a_memo_gets_one(tmp_path: Path, desk: Desk) -> None:
    assert MEMO not in desk.store.names()
    desk.write([document(prose("quotas", 4))])
    assert desk.store.count(MEMO) == 4
    assert Store(desk.store.uri).state()["schema_version"] == "1"


def test_contexts_without_a_model_make_no_memo(desk: Desk) -> None:
    for method in ("outline", "none"):
        written(desk.open(method=method), [document(prose("quotas", 4))])
    assert MEMO not in desk.store.names()


# --- A process that dies ---------------------------------------------------------------------------------------------

KILLED = """
import os, sys, threading
from pathlib import Path
import ctx_pipeline.contexts.calls as calls
from tests.contexts_support import *
from ctx_pipeline.context_settings import ContextSettings
import ctx_pipeline.contexts.claude as claude

claude.FLUSH_S = 0.01
store = Store(Path(sys.argv[1]))
store.connect()
original = calls._notes
answered = []

def notes(reply, sheet, group):
    answered.append(group)
    if len(answered) == int(sys.argv[2]):
        os.kill(os.getpid(), 9)
    return original(reply, sheet, group)

calls._notes = notes
settings = ContextSettings(method="claude", concurrency=4)
open_contextualizer(settings, EMBEDDER, store).write([document(prose("quotas", 40), "quotas.md")])
"""


def test_a_killed_process_pays_again_only_for_what_was_under_way_or_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_at(tmp_path / "index")
    with emulator_process("--per-token-s", "0.002") as api:
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", api.url)
        command = [sys.executable, "-c", KILLED, str(store.uri)]
        stored = [0]
        for at in (8, 15):
            ended = subprocess.run([*command, str(at)], cwd=ROOT, capture_output=True, text=True, check=False)
            assert ended.returncode == -9, ended.stderr
            stored.append(Store(store.uri).count(MEMO))
        contextualizer = open_contextualizer(ContextSettings(method="claude"), EMBEDDER, Store(store.uri))
        written(contextualizer, [document(prose("quotas", 40), "quotas.md")])
        answered = len(api.bill().answered)
    chunks = len(document(prose("quotas", 40))[1])
    assert store.count(MEMO) == chunks
    assert stored[0] < stored[1] < stored[2] < chunks
    lost = (8 - stored[1]) + (15 - (stored[2] - stored[1]))
    assert answered <= chunks + lost + 2 * 4


# --- Reuse by chunk --------------------------------------------------------------------------------------------------


def edited(sections: int, *changed: int) -> str:
    text = prose("quotas", sections)
    for section in changed:
        text = text.replace(f"quotas {section} 0 applies", f"quotas {section} 0 is void")
    return text


def test_unchanged_chunks_of_an_edited_document_keep_their_contexts_within_the_drift(desk: Desk) -> None:
    desk.write([document(edited(10))])
    before = len(desk.api.bill.entries)
    [result] = desk.write([document(edited(10, 3))], reuse="chunk", reuse_max_drift=0.2)
    assert len(desk.api.bill.entries) == before + 1
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    reasons = [context.reason for context in result.contexts]
    assert reasons == ["" if at == 3 else f"reused, written {today}, drift 0.10" for at in range(10)]
    assert {context.status for context in result.contexts} == {"written"}
    assert result.reused == 9


def test_exact_reuse_asks_again_about_every_chunk_of_an_edited_view(desk: Desk) -> None:
    desk.write([document(edited(10))])
    before = len(desk.api.bill.entries)
    [result] = desk.write([document(edited(10, 3))])
    assert len(desk.api.bill.entries) == before + 10
    assert {context.reason for context in result.contexts} == {""}


def test_drift_adds_up_from_the_version_that_a_context_was_written_for(desk: Desk) -> None:
    options: dict[str, Any] = {"reuse": "chunk", "reuse_max_drift": 0.2}
    calls = []
    for changed in ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3)):
        before = len(desk.api.bill.entries)
        [result] = desk.write([document(edited(10, *changed))], **options)
        calls.append(len(desk.api.bill.entries) - before)
    # The third edit is beyond 20 % of what the seven untouched chunks saw. The edited ones are younger: chunk 1 was
    # asked about in the first edit, and 30 % - 10 % is within the bound.
    assert calls == [10, 1, 1, 8, 0]
    assert sum("reused" in context.reason for context in result.contexts) == 2


def test_a_chunk_under_another_heading_title_or_instruction_is_asked_about_again(desk: Desk) -> None:
    options: dict[str, Any] = {"reuse": "chunk", "reuse_max_drift": 1.0}
    desk.write([document(edited(6))])

    def calls(text: str, **more: Any) -> int:
        before = len(desk.api.bill.entries)
        desk.write([document(text)], **options, **more)
        return len(desk.api.bill.entries) - before

    assert calls(edited(6).replace("# Guide to", "# Manual of", 1)) == 6
    assert calls(edited(6) + "\nMore.", prompt="Other words.") == 6
    assert calls(edited(6) + "\nMore.", glossary={"RPM": "rate"}) == 6
    assert calls(edited(6) + "\nMore.", model="claude-haiku-4-5") == 6
    assert calls(edited(6) + "\nMuch more.") == 1


def test_another_document_lends_no_context(desk: Desk) -> None:
    desk.write([document(edited(6), "a.md")])
    before = len(desk.api.bill.entries)
    desk.write([document(edited(6, 2), "b.md")], reuse="chunk", reuse_max_drift=1.0)
    assert len(desk.api.bill.entries) == before + 6


hashes = st.frozensets(st.integers(0, 30).map(lambda n: n.to_bytes(8)), max_size=30)


@given(hashes, hashes)
def test_drift_is_a_share_that_is_0_for_equal_and_1_for_different_chunks(
    one: frozenset[bytes], two: frozenset[bytes]
) -> None:
    assert 0 <= drift(one, two) <= 1
    assert drift(one, two) == drift(two, one)
    assert (drift(one, two) == 0) == (one == two)
    if one | two:
        assert (drift(one, two) == 1) == (not one & two)


def test_a_place_is_what_situates_a_chunk_without_its_position() -> None:
    chunks = document(prose("quotas", 3))[1]
    moved = document("# Guide to quotas\n\nNew.\n\n" + prose("quotas", 3).partition("\n\n")[2])[1]
    assert place_of("T", chunks[1]) == place_of("T", moved[-2])
    assert len({place_of("T", chunk) for chunk in chunks} | {place_of("U", chunks[0])}) == 4
