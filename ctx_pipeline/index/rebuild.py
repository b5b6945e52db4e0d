"""The ledger and the state, made again from the tables where these agree."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ctx_pipeline.contexts.model import FREE_METHODS
from ctx_pipeline.index.ledger import LedgerRow
from ctx_pipeline.index.schemas import CHUNKS, CONTEXT_METHOD, CONTEXTS, DOCUMENTS
from ctx_pipeline.index.search_tables import ACTIVE, LAST
from ctx_pipeline.index.tables import Store
from ctx_pipeline.index.versions import Stage, StageHashes

REBUILT = "doctor"
"""What stands for a run in rows that were made from the tables, and marks those that are to be done again."""


@dataclass(slots=True)
class _Rows:
    """What one table holds of a document."""

    versions: set[str] = field(default_factory=set)
    ordinals: list[int] = field(default_factory=list)

    def are(self, version: str) -> bool:
        """Whether these are all rows, in order and of that version; none are."""
        return self.versions <= {version} and sorted(self.ordinals) == list(range(len(self.ordinals)))


def rebuilt_rows(store: Store, hashes: StageHashes, search_table: str) -> dict[str, LedgerRow]:
    """A ledger row for every document that any table holds rows of.

    Where documents, chunks and contexts agree with each other and with the settings, nothing is owed but what
    `search_table` lacks. Other documents are marked, to be done again once their source can be read, and stay as they
    are stored until then.
    """
    names = store.names()
    columns = ["doc_id", "size", "mtime_ns", "read_at_ns", "content_hash", "version"]
    stored = _by_document(store, DOCUMENTS, columns) if DOCUMENTS in names else {}
    chunks = _by_document(store, CHUNKS, ["doc_id", "ordinal", "version", "tokens"]) if CHUNKS in names else {}
    contexts = (
        _by_document(store, CONTEXTS, ["doc_id", "ordinal", "version", "status", "reason"]) if CONTEXTS in names else {}
    )
    search = _by_document(store, search_table, ["doc_id", "ordinal", "version"]) if search_table in names else {}
    found = {}
    for doc_id in sorted({*stored, *chunks, *contexts, *search}):
        own, pieces, written = stored.get(doc_id, []), chunks.get(doc_id, []), contexts.get(doc_id, [])
        row = LedgerRow(doc_id, run_id=REBUILT, writing=REBUILT)
        if len(own) == 1:
            row = _row(own[0], pieces, written, _rows(search.get(doc_id, [])), hashes, search_table)
        found[doc_id] = row
    return found


def _row(
    document: Mapping[str, Any],
    chunks: list[dict[str, Any]],
    contexts: list[dict[str, Any]],
    search: _Rows,
    hashes: StageHashes,
    search_table: str,
) -> LedgerRow:
    content_hash = document["content_hash"]
    agree = (
        document["version"] == hashes.version(Stage.DOCUMENTS, content_hash)
        and _rows(chunks).are(hashes.version(Stage.CHUNKS, content_hash))
        and _rows(contexts).are(hashes.version(Stage.CONTEXTS, content_hash))
        and len(chunks) == len(contexts)
    )
    version = hashes.version(Stage.SEARCH, content_hash)
    is_indexed = search.are(version) and len(search.ordinals) == len(chunks)
    counts = Counter[str](row["status"] for row in contexts)
    counts.update(f"pending:{row['reason']}" for row in contexts if row["status"] == "pending")
    return LedgerRow(
        document["doc_id"],
        size=document["size"],
        mtime_ns=document["mtime_ns"],
        read_at_ns=document["read_at_ns"],
        content_hash=content_hash,
        parse=hashes.parse,
        chunk=hashes.chunk,
        context=hashes.context,
        settings=hashes.settings,
        chunks=len(chunks),
        tokens=sum(row["tokens"] for row in chunks),
        context_counts=dict(counts),
        indexed={search_table: version} if agree and is_indexed else {},
        writing="" if agree else REBUILT,
        run_id=REBUILT,
        indexed_at=datetime.now(UTC),
    )


def rebuilt_state(store: Store) -> dict[str, str]:
    """The entries of a lost state table: the search table with the most rows is the live one, and the method of stored
    contexts is what `auto` was resolved to."""
    # Of one that was half built beside the live one, rows are missing.
    live = max(reversed(store.search_tables()), key=store.count, default="")
    methods = set(store.all_rows(CONTEXTS, ["method"])["method"].to_pylist()) if store.count(CONTEXTS) else set()
    paid = sorted(methods - FREE_METHODS)
    found = {LAST: live.removeprefix("search_"), ACTIVE: live} if live and store.count(live) else {}
    if methods:
        found[CONTEXT_METHOD] = paid[0] if paid else "outline"
    return found


def _rows(rows: list[dict[str, Any]]) -> _Rows:
    return _Rows({row["version"] for row in rows}, [row["ordinal"] for row in rows])


def _by_document(store: Store, name: str, columns: list[str]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in store.all_rows(name, columns).to_pylist():
        found[row["doc_id"]].append(row)
    return found
