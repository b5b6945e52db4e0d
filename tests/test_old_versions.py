"""Upkeep removes old versions of a table once there are many, not at each commit, and never those still in use."""

from __future__ import annotations

from pathlib import Path

import pytest

from ctx_pipeline.index.ledger import Ledger, LedgerRow
from ctx_pipeline.index.maintenance import maintain
from ctx_pipeline.index.tables import Store

DELETIONS, EVERY = 240, 5
"""A deletion writes a version and next to no bytes: nothing but the number of versions asks for upkeep."""


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    store = Store(tmp_path / "index")
    store.create()
    made = Ledger.read(store)
    made.put([LedgerRow(f"docs/{number}.md") for number in range(DELETIONS + 1)])
    return made


def test_a_table_of_many_small_commits_keeps_a_bounded_number_of_versions(ledger: Ledger, tmp_path: Path) -> None:
    store, most, upkeep = Store(tmp_path / "index"), 0, 0
    for number in range(DELETIONS):
        ledger.remove([f"docs/{number}.md"])
        if number % EVERY == 0:
            most = max(most, len(store.table("ledger").list_versions()))
            upkeep += len(maintain(store, [], retention_s=0))
    assert most < DELETIONS / 2, "old ones go"
    assert 0 < upkeep < DELETIONS / EVERY / 4, "now and then, not at every commit"
    assert list(Ledger.read(store).rows) == [f"docs/{DELETIONS}.md"]


def test_a_version_within_the_retention_can_still_be_read(ledger: Ledger, tmp_path: Path) -> None:
    store = Store(tmp_path / "index")
    pinned = store.table("ledger").version
    for number in range(DELETIONS // 2):
        ledger.remove([f"docs/{number}.md"])
    maintain(store, [], retention_s=3_600, force=True)
    assert store.table("ledger", pinned).count_rows() == DELETIONS + 1
