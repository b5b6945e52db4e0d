"""The four stages over a batch of documents: compute and commit, in the order that a crash cannot spoil.

Refresh and partitioned runs both work through `StageRunner`. A batch goes: ledger rows marked, then one commit each
for `documents`, `chunks`, `contexts` and the search table(s), then the caller's events, then the final ledger rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from ctx_pipeline.chunking.model import Chunker
from ctx_pipeline.contexts.model import (
    EARLIER_VECTORS,
    FREE_METHODS,
    NOTHING_EARLIER,
    Contextualizer,
    Earlier,
    Progress,
)
from ctx_pipeline.documents.model import Document
from ctx_pipeline.documents.structure import has_indexed_text
from ctx_pipeline.errors import PermanentError
from ctx_pipeline.index import rows
from ctx_pipeline.index.ledger import Failure, Ledger, LedgerRow, Met, failure_of
from ctx_pipeline.index.outcome import Outcome, Task, isolated
from ctx_pipeline.index.reading import document_of, earlier_documents, is_earlier, read, roots
from ctx_pipeline.index.schemas import CHUNKS, CONTEXTS, DOCUMENTS
from ctx_pipeline.index.search_tables import SearchTables
from ctx_pipeline.index.tables import Store
from ctx_pipeline.index.versions import Stage, StageHashes, digest
from ctx_pipeline.settings import Settings

ASSETS = {
    Stage.DOCUMENTS: "raw_documents",
    Stage.CHUNKS: "chunks",
    Stage.CONTEXTS: "contexts",
    Stage.SEARCH: "search_index",
}
"""The Dagster asset of each stage; messages name the same."""


class StageRunner:
    """Runs batches of tasks against one storage; the caller holds the storage's lock."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        ledger: Ledger,
        chunker: Chunker,
        contextualizer: Contextualizer,
        hashes: StageHashes,
        search_tables: SearchTables,
        run_id: str,
        *,
        on_commit: Callable[[str], None] = lambda point: None,
        on_contexts: Callable[[Progress], None] = lambda progress: None,
        renew: bool = False,
    ) -> None:
        """`on_commit` is told of every durable step by its name, `on_contexts` how far all contexts so far are;
        `renew` asks again for contexts of an earlier wording."""
        self._store, self._ledger, self._hashes = store, ledger, hashes
        self._chunker, self._contextualizer = chunker, contextualizer
        self._search_tables, self._run_id, self._on_commit = search_tables, run_id, on_commit
        self._on_contexts, self._contexts_before = on_contexts, Progress()
        self._roots, self._renew, self._vectors_cost = roots(settings), renew, settings.embedding.is_paid

    def run(self, tasks: Sequence[Task]) -> list[Outcome]:
        """Mark and process a batch up to the search tables. One document's error never reaches another.

        Raises FatalError when nothing more can be done; the marked documents stay owed.
        """
        known = self._ledger.rows
        outcomes = [Outcome(task, known[task.doc_id].writing if task.doc_id in known else "") for task in tasks]
        if self._vectors_cost and not self._renew:
            for outcome in outcomes:
                row = known.get(outcome.doc_id)
                kept_before = row is not None and row.context_counts.get(EARLIER_VECTORS, 0) > 0
                outcome.keeps_vectors = row is not None and (kept_before or is_earlier(row, self._hashes))
        self._ledger.mark([task.doc_id for task in tasks], self._run_id)
        self._on_commit("marked")
        self._documents(outcomes)
        cut = [o for o in outcomes if o.error is None and max(o.task.stages) >= Stage.CHUNKS]
        self._chunks(cut)
        situated = [o for o in cut if o.error is None and max(o.task.stages) >= Stage.CONTEXTS]
        self._contexts(situated)
        # After the contexts: until they are paid for, or kept, the chunks of before tell what they belong to.
        fresh = [o for o in cut if Stage.CHUNKS in o.task.stages]
        self._write(CHUNKS, Stage.CHUNKS, fresh, lambda o, v: rows.chunk_rows(o.doc_id, o.chunks, v))
        fresh = [o for o in situated if Stage.CONTEXTS in o.task.stages]
        self._write(CONTEXTS, Stage.CONTEXTS, fresh, lambda o, v: rows.context_rows(o.doc_id, o.contexts, v))
        self._search([o for o in outcomes if o.error is None and Stage.SEARCH in o.task.stages])
        for outcome in outcomes:
            if outcome.error is not None:
                outcome.failure = self._classify(outcome)
        return outcomes

    def finish(self, outcomes: Sequence[Outcome]) -> None:
        """Write the final ledger rows of a batch, after its events were logged."""
        self._ledger.put([self._final_row(outcome) for outcome in outcomes])
        self._on_commit("ledger")

    def remove(self, doc_ids: Sequence[str]) -> None:
        """Delete documents' rows from every table; the caller removes keys, then `forget`s them."""
        known = [doc_id for doc_id in doc_ids if doc_id in self._ledger.rows]
        self._ledger.mark(known, self._run_id)
        self._on_commit("removal marked")
        for name in (*self._search_tables.names, CONTEXTS, CHUNKS, DOCUMENTS):
            self._store.delete(name, doc_ids)
            self._on_commit(f"removed from {'search' if name.startswith('search_') else name}")

    def forget(self, doc_ids: Sequence[str]) -> None:
        """Remove documents from the ledger: the last step of a deletion."""
        self._ledger.remove([doc_id for doc_id in doc_ids if doc_id in self._ledger.rows])
        self._on_commit("removal done")

    def _documents(self, outcomes: Sequence[Outcome]) -> None:
        fresh = [o for o in outcomes if Stage.DOCUMENTS in o.task.stages]
        for outcome in fresh:
            with isolated(outcome):
                outcome.document = self._read(outcome)
        self._write(DOCUMENTS, Stage.DOCUMENTS, fresh, lambda o, version: [rows.document_row(_document(o), version)])
        stored = [o for o in outcomes if Stage.DOCUMENTS not in o.task.stages]
        found = _by_document(self._store, DOCUMENTS, stored)
        for outcome in stored:
            with isolated(outcome):
                kept = found.get(outcome.doc_id, [])
                self._require(len(kept) == 1, outcome, Stage.DOCUMENTS)
                expected = self._hashes.version(Stage.DOCUMENTS, kept[0]["content_hash"])
                self._require(kept[0]["version"] == expected, outcome, Stage.DOCUMENTS)
                outcome.document = rows.document_from_row(kept[0])

    def _read(self, outcome: Outcome) -> Document:
        file = outcome.task.file
        if file is None:
            raise PermanentError(
                f"{outcome.doc_id} is in no source; `ctx-pipeline refresh` removes documents that are gone"
            )
        data, outcome.met = read(file, self._roots)
        return document_of(file, data, outcome.met)

    def _chunks(self, outcomes: Sequence[Outcome]) -> None:
        fresh = [o for o in outcomes if Stage.CHUNKS in o.task.stages]
        for outcome in fresh:
            with isolated(outcome):
                outcome.chunks = self._chunker.split(_document(outcome).parsed)
        stored = [o for o in outcomes if Stage.CHUNKS not in o.task.stages]
        found = _by_document(self._store, CHUNKS, stored)
        for outcome in stored:
            with isolated(outcome):
                kept = self._current(found.get(outcome.doc_id, []), outcome, Stage.CHUNKS)
                self._require(bool(kept) or not has_indexed_text(_document(outcome).parsed), outcome, Stage.CHUNKS)
                outcome.chunks = [rows.chunk_from_row(row) for row in kept]

    def _contexts(self, outcomes: Sequence[Outcome]) -> None:
        fresh = [o for o in outcomes if Stage.CONTEXTS in o.task.stages]
        if fresh:
            before = self._contexts_before
            documents = [(_document(o), o.chunks) for o in fresh]
            results = self._contextualizer.write(
                documents,
                lambda progress: self._on_contexts(before + progress),
                self._earlier(fresh),
                renew=self._renew,
            )
            for outcome, result in zip(fresh, results, strict=True):
                outcome.take(result)
                size = len(outcome.chunks)
                self._contexts_before += Progress(size, size, outcome.usage, outcome.usd)
        stored = [o for o in outcomes if Stage.CONTEXTS not in o.task.stages]
        found = _by_document(self._store, CONTEXTS, stored)
        for outcome in stored:
            with isolated(outcome):
                kept = self._current(found.get(outcome.doc_id, []), outcome, Stage.CONTEXTS)
                self._require(len(kept) == len(outcome.chunks), outcome, Stage.CONTEXTS)
                outcome.contexts = [rows.context_from_row(row) for row in kept]

    def _earlier(self, outcomes: Sequence[Outcome]) -> Mapping[str, Earlier]:
        if self._contextualizer.method in FREE_METHODS:
            return NOTHING_EARLIER
        of_now = {o.doc_id: _document(o).content_hash for o in outcomes}
        return earlier_documents(self._store, self._ledger, self._hashes, of_now)

    def _search(self, outcomes: Sequence[Outcome]) -> None:
        for target in self._search_tables.targets():
            wanted = [o for o in outcomes if o.error is None and (target.is_build or o.task.edited)]
            self._search_tables.embed_and_replace(target, wanted)
            if wanted:
                self._on_commit("search" if target.is_build else "search (live)")
        for outcome in outcomes:
            if outcome.error is None:
                self._done(outcome, Stage.SEARCH)

    def _write(
        self,
        table: str,
        stage: Stage,
        outcomes: Sequence[Outcome],
        make: Callable[[Outcome, str], list[dict[str, Any]]],
    ) -> None:
        """Make the rows of a stage, each document's apart, and commit them together."""
        made: dict[str, list[dict[str, Any]]] = {}
        for outcome in outcomes:
            if outcome.error is None:
                with isolated(outcome):
                    version = self._hashes.version(stage, _document(outcome).content_hash)
                    made[outcome.doc_id] = make(outcome, version)
        if not made:
            return
        new = [row for own in made.values() for row in own]
        if table == DOCUMENTS:
            self._store.upsert(table, new)
        else:
            self._store.replace(table, list(made), new)
        for outcome in outcomes:
            if outcome.doc_id in made:
                self._done(outcome, stage)
        self._on_commit(table)

    def _done(self, outcome: Outcome, stage: Stage) -> None:
        outcome.done.append(stage)
        outcome.versions[stage] = self._hashes.version(stage, _document(outcome).content_hash)

    def _current(self, found: list[dict[str, Any]], outcome: Outcome, stage: Stage) -> list[dict[str, Any]]:
        """The document's stored rows in order, provided that they are of the version the next stage expects."""
        expected = self._hashes.version(stage, _document(outcome).content_hash)
        kept = sorted(found, key=lambda row: row["ordinal"])
        whole = [row["ordinal"] for row in kept] == list(range(len(kept)))
        self._require(whole and all(row["version"] == expected for row in kept), outcome, stage)
        return kept

    def _require(self, condition: bool, outcome: Outcome, stage: Stage) -> None:
        if not condition:
            raise PermanentError(
                f"{outcome.doc_id}: its {ASSETS[stage]} are missing or of another version; "
                f"materialize `{ASSETS[stage]}` first"
            )

    def _classify(self, outcome: Outcome) -> Failure:
        assert outcome.error is not None
        row, file, document = self._ledger.rows[outcome.doc_id], outcome.task.file, outcome.document
        if outcome.met is not None:
            met = outcome.met
        elif document is not None:
            met = Met(document.size, document.mtime_ns, document.read_at_ns, document.content_hash)
        else:
            place = file or row
            read_at_ns = file.scanned_at_ns if file else row.read_at_ns
            met = Met(place.size, place.mtime_ns, read_at_ns, "", place.ctime_ns)
        # What was read is within max_bytes, which then is no reason to try again.
        settings = self._hashes.all if met.content_hash or not file else digest(self._hashes.all, file.max_bytes)
        return failure_of(outcome.error, row.failure, met, settings)

    def _final_row(self, outcome: Outcome) -> LedgerRow:
        row, hashes, document = self._ledger.rows[outcome.doc_id], self._hashes, outcome.document
        before = outcome.marked_before
        if outcome.failure is not None:
            if outcome.task.file is None and row.failure and row.failure.content_hash != outcome.failure.content_hash:
                # What newer content met stays; the mark says that the stored document is not to be tried again.
                return replace(row, writing=self._run_id)
            # Rows of a stage that passed are ahead of the ledger: the mark tells that, whatever the source does next.
            return replace(row, failure=outcome.failure, writing=self._run_id if outcome.done else before)
        assert document is not None
        if Stage.SEARCH not in outcome.done:
            as_indexed = (
                row.content_hash,
                row.parse,
                row.chunk,
                row.context,
                row.indexed.get(self._search_tables.build),
            )
            version = hashes.version(Stage.SEARCH, document.content_hash)
            consistent = as_indexed == (document.content_hash, hashes.parse, hashes.chunk, hashes.context, version)
            if Stage.CONTEXTS in outcome.done:  # rows of one version may still wait for a context, or have got it
                stored = {name: count for name, count in row.context_counts.items() if name != EARLIER_VECTORS}
                consistent &= stored == rows.context_counts(outcome.contexts)
            return replace(row, writing=before if consistent else self._run_id)
        read = Stage.DOCUMENTS in outcome.done
        failure = row.failure
        if read or (failure and failure.content_hash == document.content_hash):
            failure = None  # else it was met by newer content than the stored document, which was worked on here
        place = outcome.met if read and outcome.met else row
        return replace(
            row,
            size=place.size,
            mtime_ns=place.mtime_ns,
            ctime_ns=place.ctime_ns,
            read_at_ns=place.read_at_ns,
            content_hash=document.content_hash,
            parse=hashes.parse,
            chunk=hashes.chunk,
            context=hashes.context,
            settings=hashes.settings,
            chunks=len(outcome.chunks),
            tokens=sum(chunk.tokens for chunk in outcome.chunks),
            context_counts=_counts(outcome),
            indexed={**self._search_tables.kept(row.indexed), **outcome.indexed},
            failure=failure,
            writing="",
            run_id=self._run_id,
            indexed_at=datetime.now(UTC),
        )


def _document(outcome: Outcome) -> Document:
    assert outcome.document is not None
    return outcome.document


def _counts(outcome: Outcome) -> dict[str, int]:
    earlier = {EARLIER_VECTORS: outcome.earlier_vectors} if outcome.earlier_vectors else {}
    return {**rows.context_counts(outcome.contexts), **earlier}


def _by_document(store: Store, table: str, outcomes: Iterable[Outcome]) -> Mapping[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    doc_ids = [o.doc_id for o in outcomes if o.error is None]
    for row in store.rows(table, doc_ids) if doc_ids else ():
        found.setdefault(row["doc_id"], []).append(row)
    return found
