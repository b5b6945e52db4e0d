"""Repairs that need no source, and destroy nothing: the next refresh does what they leave owed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ctx_pipeline.doctor.comparison import Comparison, compare, document_of
from ctx_pipeline.doctor.finding import GIVE_UP_MEMO
from ctx_pipeline.errors import CtxError, counted
from ctx_pipeline.index.ledger import Ledger, LedgerRow
from ctx_pipeline.index.maintenance import ensure_text_indexes, ensure_vector_index, maintain
from ctx_pipeline.index.rebuild import REBUILT, rebuilt_state
from ctx_pipeline.index.repair import Mended, Remains, mend, remains_of
from ctx_pipeline.index.schemas import CHUNKS, CONTEXTS, DOCUMENTS, LEDGER, MEMO, STATE
from ctx_pipeline.index.table_health import TableProblem, index_problems, table_problems
from ctx_pipeline.index.tables import Store
from ctx_pipeline.index.versions import Stage
from ctx_pipeline.refresh import Pipeline


def fix(pipeline: Pipeline, *, give_up_memo: bool = False) -> list[str]:
    """Repair what needs no source: the caller holds the lock. What was done, one line each.

    Damaged documents become owed, so that the next refresh, which is still to be run, does them again. A memo that
    would lose rows is mended only with `give_up_memo`.
    """
    store = pipeline.store
    problems = table_problems(store)
    refused = [problem for problem in problems if not problem.is_proven]
    if refused:
        # What cannot be read cannot be compared with, and every repair rests on a comparison.
        return [f"nothing repaired: table {problem.table} cannot be read now: {problem.why}" for problem in refused]
    done, mended = _mend_tables(store, problems, give_up_memo)
    if STATE in mended or (STATE not in store.names() and store.folders()):
        done.append(_restore_state(store))
        pipeline = pipeline.reopened()
        store = pipeline.store
    is_lost = LEDGER not in store.names() or LEDGER in mended
    done += store.create()
    if is_lost:
        done.append(pipeline.restore_ledger())
    ledger = Ledger.read(store)
    comparison = compare(pipeline, ledger)
    done += _mend_documents(store, ledger, comparison)
    done += _delete_orphans(pipeline, comparison.damage.orphans)
    done += _mend_indexes(store)
    done += [
        f"table {upkeep.table} optimized: {upkeep.reason}"
        for upkeep in maintain(store, list(store.search_tables()), pipeline.settings.storage.retention)
    ]
    return done


def _mend_tables(store: Store, problems: list[TableProblem], give_up_memo: bool) -> tuple[list[str], set[str]]:
    """What was done, and the tables that were mended."""
    done, mended = [], set()
    for problem in problems:
        remains = remains_of(store, problem.table)
        if problem.table == MEMO and remains.lost_rows != 0 and not give_up_memo:
            done.append(
                f"the memo of paid contexts is left as it is: {_left(remains)}; restore its folder from a backup, or "
                f"run `ctx-pipeline doctor --fix {GIVE_UP_MEMO}`, after which the rest is paid for again when needed"
            )
            continue
        done.append(_told(mend(store, problem.table, remains)))
        mended.add(problem.table)
    store.reconnect()
    return done, mended


def _left(remains: Remains) -> str:
    if remains.rows is None and remains.older is None:
        return "none of it can be read"
    lost = f"{remains.lost_rows} of its rows" if remains.lost_rows is not None else "its newest rows"
    return f"{lost} cannot be read"


def _told(mended: Mended) -> str:
    if mended.is_empty:
        then = "it begins anew" if mended.table == MEMO else "the next refresh makes it again"
        return f"table {mended.table} was moved to {mended.kept_at}, since nothing of it can be read: {then}"
    lost = "" if not mended.lost_rows else f", without {counted(mended.lost_rows, 'row')}"
    return f"table {mended.table} was mended from what can be read{lost}; as it was found it is at {mended.kept_at}"


def _restore_state(store: Store) -> str:
    """Complete the state table from the others: it says which search table is live, and what `auto` stands for."""
    store.connect(create=True, check=False)
    left = store.state() if STATE in store.names() else {}
    store.create_state({**rebuilt_state(store), **left})
    store.reconnect()
    return "table state was made again from the other tables"


def _mend_documents(store: Store, ledger: Ledger, comparison: Comparison) -> list[str]:
    """Take what is not stored as the ledger says out of the ledger: from its first damaged stage on it is owed."""
    stages = {doc_id: stage for doc_id, stage in comparison.stages().items() if doc_id in ledger.rows}
    if not stages:
        return []
    rows = [_lowered(ledger.rows[doc_id], stage) for doc_id, stage in sorted(stages.items())]
    store.delete(LEDGER, comparison.twice.get(LEDGER, ()))
    ledger.put(rows)
    for name, keys in comparison.twice.items():
        if name != LEDGER:
            store.delete(name, sorted({document_of(key, name) for key in keys} & ledger.rows.keys()))
    return [f"{counted(len(stages), 'document')} marked: the next refresh indexes them again"]


def _lowered(row: LedgerRow, stage: Stage) -> LedgerRow:
    """The row without what follows from a damaged stage; work from a later one than documents needs no source."""
    if stage is Stage.DOCUMENTS:
        return replace(row, writing=REBUILT)
    if stage is Stage.CHUNKS:
        return replace(row, chunk="")
    return replace(row, context="") if stage is Stage.CONTEXTS else replace(row, indexed={})


def _delete_orphans(pipeline: Pipeline, orphans: Sequence[str]) -> list[str]:
    """Delete rows of documents that the ledger does not know, where a refresh would."""
    if not orphans:
        return []
    try:
        removed = sorted(set(orphans) & set(pipeline.plan().removed))
    except CtxError:
        removed = []  # no source can be read: nobody knows what is gone
    for name in (DOCUMENTS, CHUNKS, CONTEXTS, *pipeline.search_tables().names):
        pipeline.store.delete(name, removed)
    done = [f"rows of {counted(len(removed), 'unknown document')} deleted: they are in no source"] if removed else []
    kept = len(orphans) - len(removed)
    return done + (
        [f"rows of {counted(kept, 'unknown document')} kept: the next refresh decides, as for any deletion"]
        if kept
        else []
    )


def _mend_indexes(store: Store) -> list[str]:
    done = []
    for name, spec in store.search_tables().items():
        for problem in index_problems(store, name):
            if not problem.is_proven:
                done.append(f"the index of {name} on {problem.column} is left as it is: {problem.why}")
                continue
            store.table(name).drop_index(problem.index)
            done.append(f"the index of {name} on {problem.column} was made again: {problem.why}")
        table = store.table(name)
        if table.count_rows():
            ensure_text_indexes(table, spec.languages)
            ensure_vector_index(table)
    return done
