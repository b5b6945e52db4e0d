"""What is stored of a document, and how the whole index stands: the data behind `show` and `status`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ctx_pipeline.errors import CtxError
from ctx_pipeline.index.awaited import context_warnings, fallback_reasons, pending_by_reason
from ctx_pipeline.index.ledger import Ledger
from ctx_pipeline.index.maintenance import table_bytes
from ctx_pipeline.index.plan import plan_counts
from ctx_pipeline.index.rows import document_from_row
from ctx_pipeline.index.schemas import CHUNKS, CONTEXTS, DOCUMENTS
from ctx_pipeline.refresh import Pipeline

SUGGESTED = 3


def find_document(ledger: Ledger, doc: str) -> str:
    """The doc_id meant by `doc`: itself, or the only document whose path below its source, or its end, is `doc`.

    Raises CtxError naming what comes near.
    """
    if doc in ledger.rows:
        return doc
    below = [doc_id for doc_id in ledger.rows if doc_id.partition("/")[2] == doc]
    ending = below or [doc_id for doc_id in ledger.rows if doc_id.endswith("/" + doc)]
    if len(ending) == 1:
        return ending[0]
    import difflib

    near = ending[:SUGGESTED] or difflib.get_close_matches(doc, ledger.rows, SUGGESTED, cutoff=0.5)
    hint = f"; did you mean {', '.join(near)}?" if near else "; `ctx-pipeline documents` lists what is indexed"
    raise CtxError(f"{doc}: {'several documents end so' if ending else 'no such document in the index'}{hint}")


def document_rows(pipeline: Pipeline, doc: str) -> list[dict[str, Any]]:
    """The document's chunks in order, each with its context. Raises CtxError when there is no such document."""
    pipeline.store.connect()
    doc_id = find_document(Ledger.read(pipeline.store), doc)
    contexts = {row["chunk_id"]: row for row in pipeline.store.rows(CONTEXTS, [doc_id])}
    rows = []
    for row in sorted(pipeline.store.rows(CHUNKS, [doc_id]), key=lambda row: row["ordinal"]):
        context = contexts.get(row["chunk_id"], {})
        rows.append(
            {
                **{
                    name: row.get(name)
                    for name in ("chunk_id", "doc_id", "start", "end", "line", "page", "tokens", "heading_path", "text")
                },
                "context": context.get("context"),
                "keywords": context.get("keywords"),
                "status": context.get("status"),
                "reason": context.get("reason"),
                "method": context.get("method"),
            }
        )
    return rows


def indexed_documents(pipeline: Pipeline) -> list[dict[str, Any]]:
    """What is indexed, by doc_id: title, language, sizes, when it was indexed, and why it failed, if it did."""
    pipeline.store.connect()
    ledger = Ledger.read(pipeline.store)
    stored = pipeline.store.all_rows(DOCUMENTS, ["doc_id", "title", "language"]).to_pylist()
    of = {row["doc_id"]: row for row in stored}
    return [
        {
            "doc_id": doc_id,
            "title": of.get(doc_id, {}).get("title", ""),
            "language": of.get(doc_id, {}).get("language", "und"),
            "chunks": row.chunks,
            "tokens": row.tokens,
            "indexed_at": row.indexed_at.isoformat(timespec="seconds") if row.indexed_at else None,
            "failure": row.failure.reason if row.failure else None,
        }
        for doc_id, row in sorted(ledger.rows.items())
    ]


def document_warnings(pipeline: Pipeline, doc: str) -> tuple[str, ...]:
    """What a person should know of how the document was read. Raises CtxError when there is no such document."""
    pipeline.store.connect()
    doc_id = find_document(Ledger.read(pipeline.store), doc)
    stored = pipeline.store.rows(DOCUMENTS, [doc_id])
    return tuple(warning for row in stored for warning in document_from_row(row).parsed.warnings)


def index_status(pipeline: Pipeline) -> dict[str, Any]:
    """The ledger against the sources and the index, in counts. Reads only."""
    ledger, tables, plan = Ledger.read(pipeline.store), pipeline.search_tables(), pipeline.plan()
    rows = ledger.rows.values()
    sources = Counter(row.doc_id.partition("/")[0] for row in rows)
    names = sorted(pipeline.store.names()) if pipeline.store.exists() else []
    return {
        "storage": str(pipeline.store.uri),
        "documents": len(ledger.rows),
        "by_source": dict(sources),
        "chunks": sum(row.chunks for row in rows),
        "tokens": sum(row.tokens for row in rows),
        "contexts": {name: count for name, count in plan.contexts.items() if ":" not in name},
        "contexts_pending": pending_by_reason(plan.contexts),
        "contexts_fallback": fallback_reasons(pipeline.store, plan.contexts),
        "search_table": tables.live or None,
        "rows_searchable": pipeline.store.count(tables.live) if tables.live else 0,
        "embedding_model": pipeline.embedder.name,
        "context_method": pipeline.contextualizer.method,
        "context_method_note": pipeline.method_note,
        "last_indexed": max(
            (row.indexed_at.isoformat(timespec="seconds") for row in rows if row.indexed_at), default=None
        ),
        "bytes": sum(table_bytes(pipeline.store, name) for name in names),
        "owed": plan_counts(plan, ledger.indexed()) if plan.owed else {},
        "failed": plan.failed,
        "skipped": plan.skipped,
        "not_indexed": plan.not_indexed.to_json(),
        "ignored": plan.ignored,
        "held_back": plan.held,
        "warnings": plan.warnings + context_warnings(plan.contexts),
    }
