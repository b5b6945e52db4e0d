"""What is wrong with an index, and the remedy: sources, ledger, tables, indexes and partition keys compared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from ctx_pipeline.errors import counted
from ctx_pipeline.index.audit import audit, duplicate_ids, unreadable_tables
from ctx_pipeline.index.awaited import not_written
from ctx_pipeline.index.ledger import Ledger
from ctx_pipeline.index.maintenance import ensure_text_indexes, maintain, unindexed_rows, unindexed_text_columns
from ctx_pipeline.index.schemas import CHUNKS, CONTEXTS, DOCUMENTS, LEDGER, MEMO, SCHEMAS
from ctx_pipeline.index.versions import Stage
from ctx_pipeline.refresh import Pipeline
from ctx_pipeline.summary import RefreshOptions

REFRESH = "run `ctx-pipeline refresh`"
FIX = "run `ctx-pipeline doctor --fix`, then `ctx-pipeline refresh`"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    check: str
    severity: Literal["warning", "error"]
    message: str
    remedy: str


def diagnose(
    pipeline: Pipeline, partition_doc_ids: Callable[[], Collection[str]] | None, *, verify: bool = False
) -> list[Finding]:
    """All findings, in the order of the flow. `partition_doc_ids` asks Dagster for its keys; None leaves them out."""
    if not pipeline.store.exists():
        return [Finding("storage", "error", f"there is no index at {pipeline.store.uri}", REFRESH)]
    unreadable = unreadable_tables(pipeline.store)
    if unreadable:
        return [
            Finding("storage", "error", f"table {name} cannot be read: {why}", FIX) for name, why in unreadable.items()
        ]
    missing = [name for name in SCHEMAS if name not in pipeline.store.names()]
    if LEDGER in missing:
        return [Finding("storage", "error", "the ledger is missing; every document will be indexed again", REFRESH)]
    ledger = Ledger.read(pipeline.store)
    return [
        *(Finding("storage", "error", f"table {name} is missing", REFRESH) for name in missing),
        *_sources(pipeline, verify),
        *_ledger(ledger),
        *_rows(pipeline, ledger),
        *_indexes(pipeline),
        *_keys(ledger, partition_doc_ids),
    ]


def fix(pipeline: Pipeline) -> list[str]:
    """Repair what needs no source: the caller holds the lock. What was done, one line each.

    Damaged documents are marked, so that the next refresh, which is still to be run, does them again.
    """
    done = []
    for name in unreadable_tables(pipeline.store):
        pipeline.store.drop(name)
        then = "documents that change are paid for anew" if name == MEMO else "the next refresh builds it again"
        done.append(f"table {name} dropped, since it cannot be read: {then}")
    pipeline.store.create()
    ledger, tables = Ledger.read(pipeline.store), pipeline.search_tables()
    damage = audit(pipeline.store, ledger, tables.audited)
    tables_with_rows = (DOCUMENTS, CHUNKS, CONTEXTS, *tables.names)
    twice = {name: _documents_with_duplicates(pipeline, name) for name in tables_with_rows}
    doubled = (doc_id for doc_ids in twice.values() for doc_id in doc_ids)
    damaged = {*damage.stages, *doubled, *_wrong_contents(pipeline, ledger, tables.live)} & ledger.rows.keys()
    if damaged:
        ledger.put([replace(ledger.rows[doc_id], writing="doctor") for doc_id in sorted(damaged)])
        for name, doc_ids in twice.items():
            pipeline.store.delete(name, doc_ids)
        done.append(f"{counted(len(damaged), 'document')} marked: the next refresh indexes them again")
    if damage.orphans:
        for name in tables_with_rows:
            pipeline.store.delete(name, damage.orphans)
        done.append(f"rows of {counted(len(damage.orphans), 'unknown document')} deleted")
    for name, spec in pipeline.store.search_tables().items():
        table = pipeline.store.table(name)
        if table.count_rows():
            ensure_text_indexes(table, spec.languages)
    done += [
        f"table {upkeep.table} optimized: {upkeep.reason}"
        for upkeep in maintain(pipeline.store, tables.names, pipeline.settings.storage.retention)
    ]
    return done


def _sources(pipeline: Pipeline, verify: bool) -> Iterator[Finding]:
    plan = pipeline.plan(RefreshOptions(verify=verify))
    for warning in plan.warnings:
        yield Finding("sources", "warning", warning, "make the source readable, or correct it in the settings")
    for problem, remedy in not_written(plan.contexts):
        yield Finding("contexts", "warning", problem, remedy)
    if plan.work or plan.removed:
        names = [*(work.doc_id for work in plan.work), *plan.removed]
        yield Finding("sources", "warning", f"{counted(len(names), 'document')} owed work, such as {names[0]}", REFRESH)
    if plan.build:
        yield Finding("search table", "warning", f"the settings ask for another search table ({plan.build})", REFRESH)


def _ledger(ledger: Ledger) -> Iterator[Finding]:
    interrupted = [row.doc_id for row in ledger.rows.values() if row.writing and row.failure is None]
    if interrupted:
        yield Finding(
            "ledger",
            "warning",
            f"{counted(len(interrupted), 'document')} interrupted, such as {interrupted[0]}",
            REFRESH,
        )
    for row in ledger.rows.values():
        if row.failure is not None:
            remedy = "correct the document, then " + REFRESH + "; `--retry` tries unchanged ones again"
            yield Finding("failures", "warning", f"{row.doc_id}: {row.failure.reason}", remedy)


def _rows(pipeline: Pipeline, ledger: Ledger) -> Iterator[Finding]:
    tables = pipeline.search_tables()
    if not tables.live:
        yield Finding("search table", "error", "no search table is live", REFRESH)
    damage = audit(pipeline.store, ledger, tables.audited)
    for stage in Stage:
        damaged = [doc_id for doc_id, first in damage.stages.items() if first is stage]
        if damaged:
            what = f"{counted(len(damaged), 'document')} with rows missing or mixed"
            message = f"{what} from {stage.name.lower()} on, such as {damaged[0]}"
            yield Finding("rows", "error", message, FIX)
    if damage.orphans:
        unknown = counted(len(damage.orphans), "document")
        message = f"rows of {unknown} that the ledger does not know, such as {damage.orphans[0]}"
        yield Finding("rows", "error", message, FIX)
    for name in (DOCUMENTS, CHUNKS, CONTEXTS, LEDGER, *tables.names):
        duplicates = duplicate_ids(pipeline.store, name) if name in pipeline.store.names() else []
        if duplicates:
            yield Finding(
                "ids", "error", f"{counted(len(duplicates), 'id')} twice in {name}, such as {duplicates[0]}", FIX
            )
    if tables.live:
        wrong = _wrong_contents(pipeline, ledger, tables.live)
        if wrong:
            message = f"{counted(len(wrong), 'document')} of another content than the ledger's, such as {wrong[0]}"
            yield Finding("hashes", "error", message, FIX)


def _wrong_contents(pipeline: Pipeline, ledger: Ledger, live: str) -> list[str]:
    """Documents whose live rows carry another content hash than the ledger."""
    if not live:
        return []
    pairs = pipeline.store.all_rows(live, ["doc_id", "content_hash"]).group_by(["doc_id", "content_hash"]).aggregate([])
    return [
        pair["doc_id"]
        for pair in pairs.to_pylist()
        if (row := ledger.rows.get(pair["doc_id"])) and not row.writing and row.content_hash != pair["content_hash"]
    ]


def _indexes(pipeline: Pipeline) -> Iterator[Finding]:
    for name, spec in pipeline.store.search_tables().items():
        table = pipeline.store.table(name)
        rows = table.count_rows()
        for column in unindexed_text_columns(table, spec.languages) if rows else ():
            yield Finding("full text", "error", f"{name} has no full-text index on {column}", FIX)
        behind = unindexed_rows(table)
        if behind > max(1_000, rows // 4):
            yield Finding(
                "full text", "warning", f"{behind} of {rows} rows of {name} are in no index: queries slow down", FIX
            )


def _keys(ledger: Ledger, partition_doc_ids: Callable[[], Collection[str]] | None) -> Iterator[Finding]:
    if partition_doc_ids is None:
        return
    keys = set(partition_doc_ids())
    without, stale = ledger.rows.keys() - keys, keys - ledger.rows.keys()
    remedy = "run `ctx-pipeline doctor --fix`"
    if without:
        yield Finding("partitions", "warning", f"{counted(len(without), 'document')} without a partition key", remedy)
    if stale:
        yield Finding(
            "partitions",
            "warning",
            f"{counted(len(stale), 'partition key')} without a document, such as {min(stale)}",
            remedy,
        )


def _documents_with_duplicates(pipeline: Pipeline, name: str) -> list[str]:
    if name not in pipeline.store.names():
        return []
    return sorted({key.rpartition("#")[0] if name != DOCUMENTS else key for key in duplicate_ids(pipeline.store, name)})
