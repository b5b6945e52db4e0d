"""Why queries fail: for each passage that the first 20 hits do not cover, the causes that hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from ctx_pipeline.chunking.model import Chunk
from ctx_pipeline.contexts.model import Context
from ctx_pipeline.documents.model import Document
from ctx_pipeline.evaluation.arms import ArmIndex, Contexts, NotMeasuredError, contexts_to_measure, plain_contexts
from ctx_pipeline.evaluation.corpus import Corpus, rank_of, where_it_went
from ctx_pipeline.evaluation.evaluation import open_corpus
from ctx_pipeline.evaluation.findings import CAUSES, Cause, Diagnosis, FailedQuery, Finding, MissingName, Piece
from ctx_pipeline.evaluation.metrics import DEPTH
from ctx_pipeline.evaluation.missing import missing_documents
from ctx_pipeline.evaluation.queries import Query, Span, read_queries
from ctx_pipeline.evaluation.query_terms import Term, Vocabulary, Words, shared_words
from ctx_pipeline.index.lock import storage_lock
from ctx_pipeline.index.schemas import chunk_id
from ctx_pipeline.index.search import Hit, SearchIndex
from ctx_pipeline.refresh import Pipeline

PIECE_SHARE = 0.2
"""Of the answer: what a retrieved piece must hold to show that the answer was cut."""
RARE_WORDS = 3
"""Looked at where a question has no name."""
COPY_MIN_CHARS = 40
"""Shorter answers stand in other chunks by chance."""


def diagnose_queries(
    pipeline: Pipeline,
    queries: Path,
    *,
    files: bool = False,
    chunks: Path | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Diagnosis:
    """Diagnose on the index, or on the sources' files when `files` or given `chunks` ask for it.

    Raises QueryError for files that cannot be read, StorageError when there is no index.
    """
    asked = read_queries(queries)
    corpus, folder = open_corpus(pipeline, files=files, chunks=chunks)
    asked = corpus.resolve(asked, unknown_is_wrong=False)
    with storage_lock(folder, "a diagnosis"):
        index, contexts = _open_search(pipeline, corpus, folder, progress)
        progress(f"searching {len(asked)} queries")
        return _Diagnostician(pipeline, corpus, contexts, index, asked).run(given_chunks=chunks is not None)


def _open_search(
    pipeline: Pipeline, corpus: Corpus, folder: Path, progress: Callable[[str], None]
) -> tuple[SearchIndex, Contexts]:
    """The live index, or the contextual arm of the files."""
    if corpus.contexts is not None and corpus.table is not None:
        index = SearchIndex(pipeline.store, pipeline.settings, pipeline.embedder, pinned=corpus.table)
        return index, corpus.contexts
    arm = "contextual"
    try:
        contexts = contexts_to_measure(pipeline, corpus)
    except NotMeasuredError as reason:
        arm, contexts = "plain", plain_contexts(corpus)
        corpus.warnings.append(f"diagnosed without contexts: {reason}")
    progress(f"indexing {corpus.size} chunks")
    own = ArmIndex(folder / arm, pipeline.settings, pipeline.embedder, pipeline.hashes)
    return own.update(corpus, contexts), contexts


@dataclass(frozen=True, slots=True)
class _Found:
    """What a query found: hits after fusion, and each leg's ranks."""

    hits: Sequence[Hit]
    fused: Mapping[str, int]
    vector: Mapping[str, int]
    keyword: Mapping[str, int]

    def best_rank(self, chunk: str) -> tuple[int, int]:
        """Sorts chunks by how near they came to being found."""
        never = 10**9
        leg = min(self.vector.get(chunk, never), self.keyword.get(chunk, never))
        return self.fused.get(chunk, never), leg


class _Diagnostician:
    """The corpus and its index, asked query by query."""

    def __init__(
        self, pipeline: Pipeline, corpus: Corpus, contexts: Contexts, index: SearchIndex, queries: Sequence[Query]
    ) -> None:
        self._pipeline, self._corpus, self._contexts, self._index = pipeline, corpus, contexts, index
        self._queries = queries
        self._depth = max(pipeline.settings.search.candidates, DEPTH)
        texts = (chunk.text for chunks in corpus.chunks.values() for chunk in chunks)
        self._vocabulary = Vocabulary(texts, (query.text for query in queries))
        self._document_words: dict[str, Words] = {}
        self._missing: Mapping[str, str] = {}

    def run(self, *, given_chunks: bool) -> Diagnosis:
        """Search every query, and look into those that fail."""
        known = self._corpus.documents
        spans = [span for query in self._queries for span in query.spans]
        self._missing = missing_documents(self._pipeline, self._corpus, {span.doc for span in spans} - known.keys())
        recalls, reachable, failed = [], [], []
        for query in self._queries:
            hits = self._index.search(query.text, k=self._depth, rerank="none")
            ranks = [rank_of(span, hits) for span in query.spans]
            found = [rank is not None and rank <= DEPTH for rank in ranks]
            recalls.append(fmean(found))
            reachable.append(fmean(rank is not None for rank in ranks))
            if not all(found):
                not_found = [span for span, is_found in zip(query.spans, found, strict=True) if not is_found]
                failed.append(FailedQuery(query, recalls[-1], self._findings(query, not_found, hits)))
        chunks = [chunk for own in self._corpus.chunks.values() for chunk in own]
        return Diagnosis(
            failed=failed,
            queries=len(self._queries),
            recall=fmean(recalls),
            recall_candidates=fmean(reachable),
            candidates=self._depth,
            documents=len(known),
            chunks=len(chunks),
            longest_chunk=max((chunk.end - chunk.start for chunk in chunks), default=0),
            given_chunks=given_chunks,
            embedding_model=self._pipeline.embedder.name,
            context_method=self._pipeline.contextualizer.method,
            warnings=[*self._corpus.warnings, *self._corpus.stale(self._queries)],
        )

    def _findings(self, query: Query, spans: Sequence[Span], hits: Sequence[Hit]) -> tuple[Finding, ...]:
        vector = self._index.search(query.text, k=self._depth, mode="vector", rerank="none")
        keyword = self._index.search(query.text, k=self._depth, mode="keyword", rerank="none")
        found = _Found(hits, *(_ranks(leg) for leg in (hits, vector, keyword)))
        return tuple(self._finding(query, span, found) for span in spans)

    def _finding(self, query: Query, span: Span, found: _Found) -> Finding:
        document = self._corpus.documents.get(span.doc)
        if document is None:
            return Finding(span, ("document_missing",), reason=self._missing[span.doc])
        line = document.parsed.text.count("\n", 0, span.start) + 1
        stale = where_it_went(span, document.parsed.text)
        parts = self._parts(span, found)
        if stale or not parts:
            nothing = f"no chunk holds anything of it: characters {span.start}-{span.end} of the document are empty"
            return Finding(span, ("stale_span",), line=line, reason=stale or nothing)
        covering = [part for part in parts if span.is_covered_by(part.chunk.start, part.chunk.end)]
        if covering:
            target = min(covering, key=lambda part: (found.best_rank(part.chunk_id), -part.share))
        else:
            target = max(parts, key=lambda part: part.share)
        name = target.chunk_id
        copy = self._copy(span, document, target.chunk, found.hits)
        pieces = tuple(Piece(part.chunk_id, part.share, found.fused.get(part.chunk_id)) for part in parts)
        words, context = Words(target.chunk.text), Words(f"{target.context.text}\n{target.context.keywords}")
        named, unsaid = self._named(query.text, document)
        missing = tuple(MissingName(term.text, term.word in context) for term in named if term.word not in words)
        if len(missing) < len(named):
            missing = ()
        vector, keyword = found.vector.get(name), found.keyword.get(name)
        near = [rank for rank in (vector, keyword) if rank is not None and rank <= DEPTH]
        holds: dict[Cause, bool] = {
            "duplicate": copy is not None,
            "cut": not covering or _piece_found(pieces, name),
            "orphan": bool(missing),
            "one_leg": len(near) == 1,
            "ranked_low": vector is not None or keyword is not None,
            "absent": vector is None and keyword is None,
        }
        causes = [cause for cause in CAUSES if holds.get(cause)]
        if causes[0] == "orphan" and all(missed.in_context for missed in missing):
            causes = [*causes[1:], "orphan"]  # its context already says what the chunk does not
        return Finding(
            span,
            tuple(causes),
            line=line,
            chunk_id=name,
            rank=found.fused.get(name),
            vector_rank=vector,
            keyword_rank=keyword,
            pieces=pieces if holds["cut"] else (),
            missing=missing,
            shared=tuple(shared_words(query.text, words)),
            named=tuple(term.text for term in named),
            unsaid=tuple(term.text for term in unsaid),
            document_rank=next((rank for rank, hit in enumerate(found.hits, start=1) if hit.doc_id == span.doc), None),
            copy=copy.chunk_id if copy else None,
            copy_rank=found.fused[copy.chunk_id] if copy else None,
        )

    def _parts(self, span: Span, found: _Found) -> list[_Part]:
        """The chunks that hold something of the span, in order."""
        parts = []
        chunks, contexts = self._corpus.chunks[span.doc], self._contexts[span.doc]
        for ordinal, (chunk, context) in enumerate(zip(chunks, contexts, strict=True)):
            common = min(span.end, chunk.end) - max(span.start, chunk.start)
            if common > 0:
                parts.append(_Part(chunk_id(span.doc, ordinal), chunk, context, common / (span.end - span.start)))
        return parts

    def _named(self, question: str, document: Document) -> tuple[list[Term], list[Term]]:
        """Names of the question that the document has and lacks; of a question without a name, rare words."""
        words = self._document_words.get(document.doc_id)
        if words is None:
            words = Words(f"{document.parsed.title}\n{document.parsed.text}")
            self._document_words[document.doc_id] = words
        names = self._vocabulary.names(question)
        terms = names or self._vocabulary.rare_words(question)
        named = [term for term in terms if words.say(term)]
        return named if names else named[:RARE_WORDS], [term for term in terms if not words.say(term)]

    def _copy(self, span: Span, document: Document, chunk: Chunk, hits: Sequence[Hit]) -> Hit | None:
        """The first hit elsewhere that holds the same passage, or is the same chunk."""
        passage = " ".join(document.parsed.text[span.start : span.end].split())
        same = " ".join(chunk.text.split())
        for hit in hits[:DEPTH]:
            if hit.doc_id == span.doc and hit.start < span.end and span.start < hit.end:
                continue
            text = " ".join(hit.text.split())
            if text == same or (len(passage) >= COPY_MIN_CHARS and passage in text):
                return hit
        return None


@dataclass(frozen=True, slots=True)
class _Part:
    chunk_id: str
    chunk: Chunk
    context: Context
    share: float


def _ranks(hits: Sequence[Hit]) -> dict[str, int]:
    return {hit.chunk_id: rank for rank, hit in enumerate(hits, start=1)}


def _piece_found(pieces: Sequence[Piece], covering: str) -> bool:
    """Whether another chunk with a good part of the answer was found, although the covering one was not."""
    return any(
        piece.rank is not None and piece.rank <= DEPTH and piece.share >= PIECE_SHARE and piece.chunk_id != covering
        for piece in pieces
    )
