"""From files to documents and chunks: the same for the stages, which store them, and for planning, which does not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ctx_pipeline.chunking.model import Chunk, Chunker
from ctx_pipeline.documents.files import content_hash, read_bytes
from ctx_pipeline.documents.model import Document
from ctx_pipeline.documents.parse import parse
from ctx_pipeline.documents.source import FoundFile
from ctx_pipeline.index import rows
from ctx_pipeline.index.batches import batches, tasks_of
from ctx_pipeline.index.ledger import Ledger, Met
from ctx_pipeline.index.outcome import Outcome, isolated
from ctx_pipeline.index.plan import Work
from ctx_pipeline.index.schemas import CHUNKS, DOCUMENTS
from ctx_pipeline.index.tables import Store
from ctx_pipeline.index.versions import Stage
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


def owed_documents(
    work: Iterable[Work], settings: Settings, store: Store, ledger: Ledger, chunker: Chunker
) -> Iterator[list[tuple[Document, list[Chunk]]]]:
    """The documents that are owed contexts, with their chunks as a refresh would cut them, batch by batch.

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
        yield found


def _stored_documents(store: Store, doc_ids: Sequence[str]) -> dict[str, Document]:
    found = map(rows.document_from_row, store.rows(DOCUMENTS, doc_ids) if doc_ids else ())
    return {document.doc_id: document for document in found}


def _stored_chunks(store: Store, doc_ids: Sequence[str]) -> dict[str, list[Chunk]]:
    found: dict[str, list[Chunk]] = {}
    for row in sorted(store.rows(CHUNKS, doc_ids) if doc_ids else (), key=lambda row: row["ordinal"]):
        found.setdefault(row["doc_id"], []).append(rows.chunk_from_row(row))
    return found
