"""What is evaluated: documents, one set of chunks for all arms, and the contexts of these chunks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ctx_pipeline.chunking.model import Chunk
from ctx_pipeline.chunking.tokens import count_tokens
from ctx_pipeline.contexts.model import Context
from ctx_pipeline.documents.blocks import line_starts
from ctx_pipeline.documents.model import Document
from ctx_pipeline.documents.structure import document_blocks
from ctx_pipeline.embedding.protocol import Embedder
from ctx_pipeline.errors import CtxError, QueryError, counted
from ctx_pipeline.evaluation.metrics import DEPTH, Judged
from ctx_pipeline.evaluation.queries import Boundary, Query, Span
from ctx_pipeline.index import rows
from ctx_pipeline.index.ledger import Ledger
from ctx_pipeline.index.lock import storage_lock
from ctx_pipeline.index.reading import document_of, read, roots
from ctx_pipeline.index.schemas import CHUNKS, CONTEXTS, DOCUMENTS
from ctx_pipeline.index.search import Hit
from ctx_pipeline.refresh import Pipeline

LISTED = 5
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents with the chunks that every arm of an evaluation shares."""

    documents: Mapping[str, Document]
    """By doc_id."""
    chunks: Mapping[str, Sequence[Chunk]]
    """Of each document, in order."""
    contexts: Mapping[str, Sequence[Context]] | None = None
    """One for each chunk, where they are stored already; None when they are still to be written."""
    warnings: list[str] = field(default_factory=list)
    table: tuple[str, int] | None = None
    """The search table that holds just these chunks with these contexts, and its version, where there is one."""

    @property
    def size(self) -> int:
        """Chunks of all documents."""
        return sum(map(len, self.chunks.values()))

    def resolve(self, queries: Sequence[Query], *, unknown_is_wrong: bool = True) -> list[Query]:
        """The queries with every span's `doc` as a doc_id; spans of unknown documents keep their name.

        Raises QueryError when a path belongs to several sources, and when no query names a known document unless
        `unknown_is_wrong` is false.
        """
        by_path: dict[str, list[str]] = {}
        for doc_id in self.documents:
            by_path.setdefault(doc_id.partition("/")[2], []).append(doc_id)
        unknown: dict[str, None] = {}

        def doc_id_of(doc: str) -> str:
            found = [doc] if doc in self.documents else by_path.get(doc, [])
            if len(found) > 1:
                raise QueryError(f"{doc!r} is in several sources ({', '.join(found)}); write its source before it")
            if not found:
                unknown[doc] = None
            return found[0] if found else doc

        resolved = [
            replace(query, spans=tuple(replace(span, doc=doc_id_of(span.doc)) for span in query.spans))
            for query in queries
        ]
        if unknown:
            named = ", ".join(list(unknown)[:LISTED])
            if unknown_is_wrong and not any(span.doc in self.documents for query in resolved for span in query.spans):
                raise QueryError(
                    f"no document of the queries is here (they name {named}); is the source the right one?"
                )
            self.warnings.append(
                f"{counted(len(unknown), 'document')} of the queries not here: {named}; their spans count as failed"
            )
        return resolved

    def stale(self, queries: Sequence[Query]) -> list[str]:
        """A warning when passages of resolved queries are not where the query set has them."""
        spans = [span for query in queries for span in query.spans if span.doc in self.documents]
        moved = sum(bool(where_it_went(span, self.documents[span.doc].parsed.text)) for span in spans)
        if not moved:
            return []
        return [
            f"{counted(moved, 'passage')} of the queries moved or changed since it was marked: correct the query file, "
            "the figures are not reliable (`ctx-pipeline diagnose` names them)"
        ]

    def relevant(self, query: Query) -> set[tuple[str, int, int]]:
        """Chunks (doc_id, start, end) that cover some span of the query."""
        return {
            (span.doc, chunk.start, chunk.end)
            for span in query.spans
            for chunk in self.chunks.get(span.doc, ())
            if span.is_covered_by(chunk.start, chunk.end)
        }

    def judge(self, query: Query, hits: Sequence[Hit]) -> Judged:
        """The first 20 hits against the query's spans."""
        shown = hits[:DEPTH]
        return Judged(
            qid=query.qid,
            span_ranks=tuple(rank_of(span, shown) for span in query.spans),
            relevant_ranks=tuple(
                rank for rank, hit in enumerate(shown, start=1) if any(covers(hit, span) for span in query.spans)
            ),
            relevant_total=len(self.relevant(query)),
        )


def covers(hit: Hit, span: Span) -> bool:
    """Whether a hit answers for a span whose `doc` is a doc_id."""
    return hit.doc_id == span.doc and span.is_covered_by(hit.start, hit.end)


def rank_of(span: Span, hits: Sequence[Hit]) -> int | None:
    """Rank, from 1, of the first hit that covers the span."""
    return next((rank for rank, hit in enumerate(hits, start=1) if covers(hit, span)), None)


def where_it_went(span: Span, text: str) -> str:
    """Where the passage is now when it no longer stands at its offsets; empty when it does, or nobody can tell."""
    written = span.text.strip()
    if not written:
        beyond = f"the document has only {len(text)} characters, the span ends at {span.end}: correct the query file"
        return beyond if span.end > len(text) else ""
    if written in text[span.start : span.end]:
        return ""
    position = text.find(written)
    if position < 0:
        return "the document was edited: the passage is not in it any more; mark what answers the query now"
    return (
        f"the document was edited: the passage now is at characters {position}-{position + len(written)}; "
        "correct the query file"
    )


def indexed_corpus(pipeline: Pipeline) -> Corpus:
    """What the index holds: stored documents, chunks and contexts, as the last refresh left them.

    Raises StorageError when there is no index, CtxError when it is empty or its tables do not belong together.
    """
    pipeline.store.connect()
    # Several tables are read, which belong together only while nobody writes.
    with storage_lock(pipeline.store.uri, "the beginning of an evaluation"):
        return _indexed_corpus(pipeline)


def _indexed_corpus(pipeline: Pipeline) -> Corpus:
    store = pipeline.store
    ledger = Ledger.read(store)
    indexed = [doc_id for doc_id, row in ledger.rows.items() if row.indexed and not row.writing]
    if not indexed:
        raise CtxError("the index holds no document yet; run `ctx-pipeline refresh` first, or name files by --source")
    documents = {row["doc_id"]: rows.document_from_row(row) for row in store.rows(DOCUMENTS, indexed)}
    chunks = _by_document(store.rows(CHUNKS, indexed), rows.chunk_from_row)
    contexts = _by_document(store.rows(CONTEXTS, indexed), rows.context_from_row)
    for doc_id in indexed:
        if doc_id not in documents or len(chunks.get(doc_id, ())) != len(contexts.get(doc_id, ())):
            raise CtxError(f"{doc_id}: its rows do not belong together; `ctx-pipeline doctor --fix` tells more")
    tables = pipeline.search_tables()
    left_out = len(ledger.rows) - len(indexed)
    warnings = [f"{counted(left_out, 'document')} not indexed as a whole, left out"] if left_out else []
    hashes = pipeline.hashes
    current = (hashes.parse, hashes.chunk, hashes.context)
    others = sum((ledger.rows[d].parse, ledger.rows[d].chunk, ledger.rows[d].context) != current for d in indexed)
    if others:
        warnings.append(
            f"{counted(others, 'document')} indexed with other settings than these: the figures are of what is indexed "
            "(`ctx-pipeline refresh` brings it up to date)"
        )
    is_whole = tables.is_current and not left_out
    return Corpus(
        documents,
        {doc_id: chunks.get(doc_id, []) for doc_id in documents},
        {doc_id: contexts.get(doc_id, []) for doc_id in documents},
        warnings,
        (tables.live, int(store.table(tables.live).version)) if is_whole else None,
    )


def corpus_of_files(pipeline: Pipeline, boundaries: Mapping[str, Sequence[Boundary]] | None = None) -> Corpus:
    """The files of the sources, read and cut now; `boundaries` replace what the chunker would cut.

    Raises QueryError for boundaries of a document that is not here, or beyond its text.
    """
    documents: dict[str, Document] = {}
    warnings = []
    places = roots(pipeline.settings)
    for found in pipeline.scan_sources(Ledger.read(pipeline.store)):
        if found.unreachable:
            warnings.append(f"source {found.name!r} cannot be read ({found.unreachable})")
        for file in found.files.values():
            try:
                documents[file.doc_id] = document_of(file, *read(file, places))
            except CtxError as error:
                warnings.append(f"{file.doc_id}: {error}")
    if not documents:
        raise CtxError("the sources hold no document that can be read; check their paths and include patterns")
    if boundaries is None:
        chunks = {doc_id: pipeline.chunker.split(document.parsed) for doc_id, document in documents.items()}
    else:
        chunks = _given_chunks(documents, boundaries, pipeline.embedder)
        without = sum(not own for own in chunks.values())
        if without:
            warnings.append(f"no chunk is given of {counted(without, 'document')}: nothing of them can be found")
    return Corpus(documents, chunks, warnings=warnings)


def _given_chunks(
    documents: Mapping[str, Document], boundaries: Mapping[str, Sequence[Boundary]], embedder: Embedder
) -> dict[str, list[Chunk]]:
    by_path: dict[str, list[str]] = {}
    for doc_id in documents:
        by_path.setdefault(doc_id.partition("/")[2], []).append(doc_id)
    chunks: dict[str, list[Chunk]] = {doc_id: [] for doc_id in documents}
    for doc, given in boundaries.items():
        found = [doc] if doc in documents else by_path.get(doc, [])
        if not found:
            raise QueryError(f"the given chunks are of {doc!r}, which is in no source")
        if len(found) > 1:
            raise QueryError(f"{doc!r} is in several sources ({', '.join(found)}); write its source before it")
        doc_id = found[0]
        if chunks[doc_id]:
            raise QueryError(f"the given chunks name {doc_id} in two ways; write all of them alike")
        text = documents[doc_id].parsed.text
        if given[-1].end > len(text):
            raise QueryError(f"{doc}: a given chunk ends at {given[-1].end}, its text has {len(text)} characters")
        texts = [text[chunk.start : chunk.end] for chunk in given]
        paths = _heading_paths(documents[doc_id], [chunk.start for chunk in given])
        lines = line_starts(text)
        sizes = zip(count_tokens(texts), embedder.count_tokens(texts), strict=True)
        chunks[doc_id] = [
            Chunk(chunk.start, chunk.end, bisect_right(lines, chunk.start), own, path, *size)
            for chunk, own, path, size in zip(given, texts, paths, sizes, strict=True)
        ]
    return chunks


def _heading_paths(document: Document, starts: Sequence[int]) -> list[tuple[str, ...]]:
    """Headings in force at increasing offsets of a document."""
    blocks = document_blocks(document.parsed.text, document.parsed.media_type)
    headings = [block for block in blocks if block.kind == "heading"]
    paths, open_headings, position = [], list(headings[:0]), 0
    for start in starts:
        while position < len(headings) and headings[position].start <= start:
            level = headings[position].level
            open_headings = [heading for heading in open_headings if heading.level < level]
            open_headings.append(headings[position])
            position += 1
        paths.append(tuple(heading.title for heading in open_headings if heading.title))
    return paths


def _by_document(found: Iterable[dict[str, Any]], make: Callable[[dict[str, Any]], T]) -> dict[str, list[T]]:
    by_document: dict[str, list[T]] = {}
    for row in sorted(found, key=lambda row: (row["doc_id"], row["ordinal"])):
        by_document.setdefault(row["doc_id"], []).append(make(row))
    return by_document
