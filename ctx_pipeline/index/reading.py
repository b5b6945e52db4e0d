"""From files to documents and chunks: the same for the stages, which store them, and for planning, which does not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ctx_pipeline.chunking.model import Chunk, Chunker
from ctx_pipeline.contexts.model import Earlier
from ctx_pipeline.documents.files import content_hash, read_bytes
from ctx_pipeline.documents.model import Document
from ctx_pipeline.documents.parse import parse
from ctx_pipeline.documents.source import FoundFile
from ctx_pipeline.index import rows
from ctx_pipeline.index.batches import batches, tasks_of
from ctx_pipeline.index.ledger import Ledger, LedgerRow, Met
from ctx_pipeline.index.outcome import Outcome, isolated
from ctx_pipeline.index.plan import Work
from ctx_pipeline.index.schemas import CHUNKS, CONTEXTS, DOCUMENTS
from ctx_pipeline.index.tables import Store
from ctx_pipeline.index.versions import Stage, StageHashes
from ctx_pipeline.settings import Settings


def roots(settings: Settings) -> dict[str, Path]:
    """The root of each source."""
    return {source.name: source.path for source in settings.source}


def read(file: FoundFile, roots: Mapping[str, Path]) -> tuple[bytes, Met]:
    """The bytes of a document's file, and what was met in reading them. Raises PermanentError and TransientError."""
    data, status, read_at_ns = read_bytes(file, roots[file.doc_id.partition("/")[0]])
    return data, Met(status.st_size, status.st_mtime_ns, read_at_ns, content_hash(data), status.st_ctime_ns)


def document_of(file: FoundFile, data: bytes, met: Met) -> Document:
    """The document that the bytes of its file make. Raises PermanentError when they are not text."""
    return Document(
        doc_id=file.doc_id,
        uri=Path(file.path).absolute().as_uri(),
        size=met.size,
        mtime_ns=met.mtime_ns,
        read_at_ns=met.read_at_ns,
        content_hash=met.content_hash,
        parsed=parse(data, file.doc_id.partition("/")[2]),
    )


def earlier_documents(
    store: Store, ledger: Ledger, hashes: StageHashes, content_hashes: Mapping[str, str]
) -> dict[str, Earlier]:
    """Chunks and contexts that an earlier version of this program made of documents.

    Of those documents for which the user's settings are those of now. `content_hashes` are what documents hold now.
    """
    known = {doc_id: row for doc_id in content_hashes if (row := ledger.rows.get(doc_id))}
    rows_of = {doc_id: row for doc_id, row in known.items() if is_earlier(row, hashes)}
    if not rows_of:
        return {}
    chunks, contexts = (_stored(store, name, list(rows_of)) for name in (CHUNKS, CONTEXTS))
    found = {}
    for doc_id, row in rows_of.items():
        then = replace(hashes, parse=row.parse, chunk=row.chunk, context=row.context)
        own, written = chunks.get(doc_id, []), contexts.get(doc_id, [])
        # A refresh that was killed may have replaced the chunks: then the memo has their contexts already.
        whole = {r["version"] for r in own} == {then.version(Stage.CHUNKS, row.content_hash)} and {
            r["version"] for r in written
        } == {then.version(Stage.CONTEXTS, row.content_hash)}
        if whole and len(own) == len(written):
            found[doc_id] = Earlier(
                tuple(
                    (chunk["start"], chunk["end"], chunk["text"], rows.context_from_row(context))
                    for chunk, context in zip(own, written, strict=True)
                ),
                same_content=row.content_hash == content_hashes[doc_id],
                same_settings=row.settings == hashes.settings,
            )
    return found


def is_earlier(row: LedgerRow, hashes: StageHashes) -> bool:
    """Whether a document was indexed with these settings of the user's, by a version that would do so otherwise."""
    of_now = (row.parse, row.chunk, row.context) == (hashes.parse, hashes.chunk, hashes.context)
    return bool(row.content_hash) and not of_now and row.settings in (None, hashes.settings)


def owed_documents(
    work: Iterable[Work], settings: Settings, store: Store, ledger: Ledger, chunker: Chunker, hashes: StageHashes
) -> Iterator[tuple[list[tuple[Document, list[Chunk]]], dict[str, Earlier]]]:
    """The documents that are owed contexts, with their chunks as a refresh would cut them, batch by batch, and what an
    earlier version of this program made of them.

    Reads only. What cannot be read, parsed or cut is left out: a refresh reports it as failed.
    """
    places = roots(settings)
    for batch in batches(tasks_of(item for item in work if item.stage <= Stage.CONTEXTS), ledger):
        documents = _stored_documents(store, [t.doc_id for t in batch if Stage.DOCUMENTS not in t.stages])
        chunks = _stored_chunks(store, [t.doc_id for t in batch if Stage.CHUNKS not in t.stages])
        found = []
        for task in batch:
            outcome = Outcome(task)
            with isolated(outcome):
                if Stage.DOCUMENTS not in task.stages:
                    document = documents[task.doc_id]
                elif task.file is not None:
                    document = document_of(task.file, *read(task.file, places))
                else:
                    continue
                own = chunks.get(task.doc_id, []) if Stage.CHUNKS not in task.stages else chunker.split(document.parsed)
                found.append((document, own))
        of_now = {document.doc_id: document.content_hash for document, _ in found}
        yield found, earlier_documents(store, ledger, hashes, of_now)


def _stored_documents(store: Store, doc_ids: Sequence[str]) -> dict[str, Document]:
    found = map(rows.document_from_row, store.rows(DOCUMENTS, doc_ids) if doc_ids else ())
    return {document.doc_id: document for document in found}


def _stored_chunks(store: Store, doc_ids: Sequence[str]) -> dict[str, list[Chunk]]:
    found: dict[str, list[Chunk]] = {}
    for doc_id, own in _stored(store, CHUNKS, doc_ids).items():
        found[doc_id] = [rows.chunk_from_row(row) for row in own]
    return found


def _stored(store: Store, table: str, doc_ids: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each document in order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(store.rows(table, doc_ids) if doc_ids else (), key=lambda row: row["ordinal"]):
        found.setdefault(row["doc_id"], []).append(row)
    return found
