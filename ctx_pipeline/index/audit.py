"""Comparing the ledger with the rows: which documents are not stored as the ledger says."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctx_pipeline.index.ledger import Ledger
from ctx_pipeline.index.plan import Damage
from ctx_pipeline.index.schemas import CHUNKS, CONTEXTS, DOCUMENTS, SCHEMAS
from ctx_pipeline.index.tables import Store
from ctx_pipeline.index.versions import Stage

_STAGE_OF = {DOCUMENTS: Stage.DOCUMENTS, CHUNKS: Stage.CHUNKS, CONTEXTS: Stage.CONTEXTS}


def quick_damage(store: Store, ledger: Ledger, search_tables: Iterable[str]) -> Damage:
    """Damage, looked for in the rows only when the tables' row counts are not those of the ledger (milliseconds)."""
    settled = [row for row in ledger.rows.values() if row.content_hash]
    chunks = sum(row.chunks for row in settled)
    names = store.names()
    expected = {DOCUMENTS: len(settled), CHUNKS: chunks, CONTEXTS: chunks}
    for name in search_tables:
        expected[name] = sum(row.chunks for row in settled if name in row.indexed)
    if all(name in names and store.count(name) == count for name, count in expected.items()):
        return Damage()
    return audit(store, ledger, search_tables)


def audit(store: Store, ledger: Ledger, search_tables: Iterable[str]) -> Damage:
    """Compare tables with the ledger, document by document: counts, ordinals 0..n-1, one version, orphans.

    `search_tables` are those that the ledger tells of now; a superseded one is kept as it was. Documents that a run
    was changing are passed over: they are owed work anyway.
    """
    stages: dict[str, Stage] = {}
    orphans: set[str] = set()
    names = store.names()
    for name in (DOCUMENTS, CHUNKS, CONTEXTS, *search_tables):
        stage = _STAGE_OF.get(name, Stage.SEARCH)
        found = _documents_of(store, name) if name in names else {}
        orphans |= found.keys() - ledger.rows.keys()
        for doc_id, row in ledger.rows.items():
            if not row.content_hash or row.writing or (stage is Stage.SEARCH and name not in row.indexed):
                continue
            wanted = 1 if name == DOCUMENTS else row.chunks
            count, sound = found.get(doc_id, (0, True))
            if count != wanted or not sound:
                stages[doc_id] = min(stage, stages.get(doc_id, stage))
    return Damage(stages, tuple(sorted(orphans)))


def _documents_of(store: Store, name: str) -> dict[str, tuple[int, bool]]:
    """Rows of each document, and whether their ordinals are 0..n-1 and their version is one."""
    has_ordinals = name != DOCUMENTS
    table = store.all_rows(name, ["doc_id", "version", *(["ordinal"] if has_ordinals else [])])
    if not table.num_rows:
        return {}
    measures: list[tuple[str, str]] = [("version", "count_distinct"), ("doc_id", "count")]
    if has_ordinals:
        measures += [("ordinal", "max"), ("ordinal", "count_distinct")]
    grouped = table.group_by("doc_id").aggregate(measures)
    counts = grouped["doc_id_count"].to_numpy()
    sound = grouped["version_count_distinct"].to_numpy() == 1
    if has_ordinals:
        sound &= grouped["ordinal_max"].to_numpy() + 1 == counts
        sound &= grouped["ordinal_count_distinct"].to_numpy() == counts
    return dict(
        zip(grouped["doc_id"].to_pylist(), zip(counts.tolist(), np.asarray(sound).tolist(), strict=True), strict=True)
    )


def duplicate_ids(store: Store, name: str) -> list[str]:
    """Keys that a table holds more than once."""
    key = SCHEMAS[name].field(0).name if name in SCHEMAS else "chunk_id"
    column: pa.ChunkedArray = store.all_rows(name, [key])[key]
    counted = pc.value_counts(column)
    return [entry["values"] for entry in counted.to_pylist() if entry["counts"] > 1]


def unreadable_tables(store: Store) -> dict[str, str]:
    """Tables that cannot be read from beginning to end, with the reason."""
    problems = {}
    for name in sorted(store.names()):
        try:
            store.table(name).to_arrow()
        except Exception as error:  # LanceDB raises RuntimeError, ValueError and OSError for damaged files
            problems[name] = " ".join(str(error).split())[:200]
    return problems
