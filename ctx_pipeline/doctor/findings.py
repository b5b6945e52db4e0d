"""All findings, in the order of the flow. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from ctx_pipeline.doctor.comparison import Comparison, compare
from ctx_pipeline.doctor.finding import FIX, MEMO_REMEDY, READ_AGAIN, REFRESH, Finding
from ctx_pipeline.errors import CtxError, DagsterStorageError, StorageError, counted
from ctx_pipeline.index.awaited import not_written
from ctx_pipeline.index.ledger import Ledger
from ctx_pipeline.index.lock import holder, is_locked
from ctx_pipeline.index.maintenance import unindexed_rows, unindexed_text_columns
from ctx_pipeline.index.schemas import LEDGER, MEMO, SCHEMAS, STATE
from ctx_pipeline.index.table_health import TableProblem, index_problems, table_problems
from ctx_pipeline.index.versions import Stage
from ctx_pipeline.refresh import Pipeline
from ctx_pipeline.summary import RefreshOptions


def diagnose(
    pipeline: Pipeline, partition_doc_ids: Callable[[], Collection[str]] | None, *, verify: bool = False
) -> list[Finding]:
    """All findings. `partition_doc_ids` asks Dagster for its keys; None leaves them out.

    While a writer holds the lock, what it is changing is left out, and a note says so.
    """
    store = pipeline.store
    is_busy = is_locked(store.uri)
    found = _notes(pipeline) if is_busy else []
    try:
        problems = table_problems(store)
    except StorageError as error:
        return [*found, Finding("storage", "error", str(error), READ_AGAIN)]
    found += [_table_finding(problem) for problem in problems]
    if {problem.table for problem in problems} - {MEMO}:
        return [*found, *_keys(None, partition_doc_ids)]
    if not store.folders().keys() & SCHEMAS.keys():
        message = f"there is no index at {store.uri}"
        return found if is_busy else [*found, Finding("storage", "error", message, REFRESH)]
    if not is_busy:
        found += _missing(store.names())
    if not {LEDGER, STATE} <= store.names():
        return [*found, *_keys(None, partition_doc_ids)]
    ledger = Ledger.read(store)
    comparison = compare(pipeline, ledger)
    if is_busy:
        comparison = comparison.without(_in_flux(ledger, Ledger.read(store), comparison))
    found += [] if is_busy else _sources(pipeline, verify)
    found += _ledger(ledger, is_busy)
    found += _rows(pipeline, comparison, is_busy)
    found += _indexes(pipeline, is_busy)
    found += _keys(None if is_busy else ledger, partition_doc_ids)
    return found


def _notes(pipeline: Pipeline) -> list[Finding]:
    message = f"{holder(pipeline.store.uri)} is at work: the documents that it is changing were not looked at"
    return [Finding("lock", "note", message, "run `ctx-pipeline doctor` again when it has ended")]


def _in_flux(before: Ledger, after: Ledger, comparison: Comparison) -> set[str]:
    """Documents that a writer is changing, or has changed between two looks at the ledger."""
    compared = {*before.rows, *after.rows, *comparison.damage.orphans}
    return {
        doc_id
        for doc_id in compared
        if (row := before.rows.get(doc_id)) is None or row.writing or row != after.rows.get(doc_id)
    }


def _table_finding(problem: TableProblem) -> Finding:
    what = f"table {problem.table}" if problem.table != MEMO else "the memo of paid contexts"
    if not problem.is_proven:
        return Finding("storage", "error", f"{what} cannot be read now: {problem.why}", READ_AGAIN)
    remedy = MEMO_REMEDY if problem.table == MEMO else FIX
    return Finding("storage", "error", f"{what} is damaged: {problem.why}", remedy)


def _missing(names: Collection[str]) -> Iterator[Finding]:
    for name in SCHEMAS:
        if name in names:
            continue
        if name == STATE:
            yield Finding("storage", "error", "table state is missing: what is live is not known", FIX)
        elif name == LEDGER:
            message = "the ledger is missing; it is made again from the other tables, where these agree"
            yield Finding("storage", "error", message, FIX)
        else:
            yield Finding("storage", "error", f"table {name} is missing", REFRESH)


def _sources(pipeline: Pipeline, verify: bool) -> Iterator[Finding]:
    try:
        plan = pipeline.plan(RefreshOptions(verify=verify))
    except CtxError as error:
        yield Finding("sources", "warning", str(error), "make the source readable, or correct it in the settings")
        return
    for warning in plan.warnings:
        yield Finding("sources", "warning", warning, "make the source readable, or correct it in the settings")
    for problem, remedy in not_written(plan.contexts):
        yield Finding("contexts", "warning", problem, remedy)
    if plan.work or plan.removed:
        names = [*(work.doc_id for work in plan.work), *plan.removed]
        yield Finding("sources", "warning", f"{counted(len(names), 'document')} owed work, such as {names[0]}", REFRESH)
    if plan.build:
        yield Finding("search table", "warning", f"the settings ask for another search table ({plan.build})", REFRESH)


def _ledger(ledger: Ledger, is_busy: bool) -> Iterator[Finding]:
    interrupted = [row.doc_id for row in ledger.rows.values() if row.writing and row.failure is None]
    if interrupted and not is_busy:
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


def _rows(pipeline: Pipeline, comparison: Comparison, is_busy: bool) -> Iterator[Finding]:
    if not pipeline.search_tables().live and not is_busy:
        yield Finding("search table", "error", "no search table is live", REFRESH)
    damage = comparison.damage
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
    for name, keys in comparison.twice.items():
        if keys:
            yield Finding("ids", "error", f"{counted(len(keys), 'id')} twice in {name}, such as {keys[0]}", FIX)
    altered = [("whose stored text was altered", comparison.altered)]
    altered += [(f"in {name} of another content than the ledger's", d) for name, d in comparison.other_content.items()]
    altered += [
        (f"with chunks in {name} that are not what stands in their text", doc_ids)
        for name, doc_ids in comparison.cut_elsewhere.items()
    ]
    for what, doc_ids in altered:
        if doc_ids:
            message = f"{counted(len(doc_ids), 'document')} {what}, such as {doc_ids[0]}"
            yield Finding("hashes", "error", message, FIX)


def _indexes(pipeline: Pipeline, is_busy: bool) -> Iterator[Finding]:
    store = pipeline.store
    for name, spec in store.search_tables().items():
        table = store.table(name)
        rows = table.count_rows()
        for column in unindexed_text_columns(table, spec.languages) if rows and not is_busy else ():
            yield Finding("full text", "error", f"{name} has no full-text index on {column}", FIX)
        for problem in index_problems(store, name):
            state = "is damaged" if problem.is_proven else "cannot be read now"
            message = f"the index of {name} on {problem.column} {state}: {problem.why}"
            yield Finding("indexes", "error", message, FIX if problem.is_proven else READ_AGAIN)
        behind = unindexed_rows(table)
        if behind > max(1_000, rows // 4) and not is_busy:
            yield Finding(
                "full text", "warning", f"{behind} of {rows} rows of {name} are in no index: queries slow down", FIX
            )


def _keys(ledger: Ledger | None, partition_doc_ids: Callable[[], Collection[str]] | None) -> Iterator[Finding]:
    """Keys against the ledger; without one only whether Dagster's storage can be used."""
    if partition_doc_ids is None:
        return
    try:
        keys = set(partition_doc_ids())
    except DagsterStorageError as error:
        yield Finding("dagster", "error", error.problem, error.remedy)
        return
    if ledger is None:
        return
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
