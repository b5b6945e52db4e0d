"""A refresh: scan the sources, plan, and bring the index up to date in batches. Knows nothing of Dagster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ctx_pipeline.contexts import open_contextualizer
from ctx_pipeline.contexts.model import Contextualizer
from ctx_pipeline.documents.source import SourceScan, scan
from ctx_pipeline.embedding import open_embedder
from ctx_pipeline.embedding.protocol import Embedder
from ctx_pipeline.errors import SettingsError
from ctx_pipeline.index.audit import quick_damage
from ctx_pipeline.index.ledger import Ledger
from ctx_pipeline.index.maintenance import Upkeep, maintain
from ctx_pipeline.index.plan import Plan, Work, make_plan, stored_work
from ctx_pipeline.index.search_tables import SearchTables
from ctx_pipeline.index.stages import Outcome, StageRunner, Task
from ctx_pipeline.index.tables import Store, blocks
from ctx_pipeline.index.versions import Stage, StageHashes, stage_hashes
from ctx_pipeline.settings import Settings

BATCH_DOCUMENTS = 256
BATCH_CHUNKS = 512
BATCH_BYTES = 16_000_000
BYTES_PER_CHUNK = 1_000
"""A low guess, for documents that were never cut."""
REMOVAL_BLOCK = 5_000


class Sink(Protocol):
    """Where a refresh tells what it did: Dagster's partitions and events, or nothing."""

    def reconcile_keys(self, doc_ids: Iterable[str]) -> None:
        """Make the partition keys those of `doc_ids`: add in blocks, prune in blocks."""
        ...

    def documents_done(self, outcomes: Sequence[Outcome]) -> None:
        """Log the events of a batch; called between its rows and its final ledger rows."""
        ...

    def documents_removed(self, doc_ids: Sequence[str]) -> None:
        """Remove the partition keys of documents whose rows are gone."""
        ...

    def progress(self, done: int, total: int) -> None:
        """Documents done so far."""
        ...


class NullSink:
    """A sink that keeps nothing; base of others."""

    def reconcile_keys(self, doc_ids: Iterable[str]) -> None:
        """See Sink."""

    def documents_done(self, outcomes: Sequence[Outcome]) -> None:
        """See Sink."""

    def documents_removed(self, doc_ids: Sequence[str]) -> None:
        """See Sink."""

    def progress(self, done: int, total: int) -> None:
        """See Sink."""


@dataclass(frozen=True, slots=True)
class RefreshOptions:
    """What a caller may ask of one refresh."""

    verify: bool = False
    retry: bool = False
    allow_mass_delete: bool = False


@dataclass(slots=True)
class Summary:
    """Totals of one refresh, as the command line prints them."""

    run_id: str | None = None
    added: int = 0
    changed: int = 0
    removed: int = 0
    unchanged: int = 0
    skipped: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    """Documents that failed in this refresh, with the reason."""
    standing: dict[str, str] = field(default_factory=dict)
    """Documents that failed earlier and wait."""
    chunks_indexed: int = 0
    contexts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("written", "reused", "fallback", "pending"), 0)
    )
    embedded: int = 0
    reused: int = 0
    truncated: int = 0
    tokens: int = 0
    warnings: list[str] = field(default_factory=list)
    upkeep: list[Upkeep] = field(default_factory=list)
    switched_to: str = ""
    seconds: float = 0.0

    def to_json(self) -> dict[str, object]:
        """The contract of `ctx-pipeline refresh --json`."""
        return {
            "run_id": self.run_id,
            "documents": {
                "added": self.added,
                "changed": self.changed,
                "removed": self.removed,
                "unchanged": self.unchanged,
                "failed": len(self.failures) + len(self.standing),
                "skipped": self.skipped,
            },
            "chunks": {"indexed": self.chunks_indexed},
            "contexts": dict(self.contexts),
            "vectors": {"embedded": self.embedded, "reused": self.reused},
            "usage": {"input": 0, "cache_write": 0, "cache_read": 0, "output": 0, "usd": 0.0},
            "seconds": round(self.seconds, 3),
        }


class Pipeline:
    """The pipeline of some settings over its storage. Making one reads and loads nothing."""

    def __init__(
        self, settings: Settings, *, embedder: Embedder | None = None, contextualizer: Contextualizer | None = None
    ) -> None:
        self.settings = settings
        self.store = Store(settings.storage.uri)
        self.embedder = embedder or open_embedder(settings.embedding)
        self.contextualizer = contextualizer or open_contextualizer(settings.contexts, self.embedder)
        self.hashes: StageHashes = stage_hashes(settings, self.embedder, self.contextualizer)

    def plan(self, options: RefreshOptions = RefreshOptions()) -> Plan:
        """What a refresh would do. Reads only: sources, ledger and row counts."""
        return self._plan(Ledger.read(self.store), self.search_tables(), options)

    def note(self, plan: Plan) -> None:
        """Store the ledger rows of files that moved without a change; the caller holds the lock."""
        ledger = Ledger.read(self.store)
        fresh = [row for row in plan.notes if (now := ledger.rows.get(row.doc_id)) and now.run_id == row.run_id]
        ledger.put([row for row in fresh if not ledger.rows[row.doc_id].writing])

    def scan_sources(self, ledger: Ledger, *, verify: bool = False) -> list[SourceScan]:
        """Walk every source. Raises SettingsError when there is none and nothing is indexed either."""
        if not self.settings.source and not ledger.rows:
            raise SettingsError("no [[source]] in the settings; add one to ctx.toml, or name a folder by --source PATH")
        return [scan(source, ledger.rows, verify=verify) for source in self.settings.source]

    def refresh(
        self,
        run_id: str,
        sink: Sink | None = None,
        options: RefreshOptions = RefreshOptions(),
        *,
        on_commit: Callable[[str], None] = lambda point: None,
    ) -> Summary:
        """Bring the index up to date; the caller holds the storage's lock.

        Safe to kill at any moment: the next refresh completes what this one began. Failures of single documents
        are in the summary. Raises FatalError when nothing more can be done; finished batches stay.
        """
        started = time.monotonic()
        sink = sink or NullSink()
        self.store.create()
        ledger = Ledger.read(self.store)
        tables = self.search_tables()
        plan = self._plan(ledger, tables, options)
        known = ledger.indexed()
        summary = Summary(
            run_id=run_id,
            unchanged=plan.unchanged,
            skipped=len(plan.skipped),
            standing=dict(plan.failed),
            warnings=list(plan.warnings),
        )
        tables.prepare()
        runner = self.runner(ledger, tables, run_id, on_commit=on_commit)
        sink.reconcile_keys([*ledger.rows, *(work.doc_id for work in plan.work)])
        on_commit("keys")
        if plan.orphans:
            runner.remove(plan.orphans)
        done = 0
        for batch in _batches(plan.work, ledger):
            outcomes = runner.run(batch)
            sink.documents_done(outcomes)
            on_commit("events")
            runner.finish(outcomes)
            _count(summary, outcomes, known)
            done += len(batch)
            sink.progress(done, len(plan.work))
        # What cannot be read now still follows the settings, from its last good version.
        for batch in _batches(stored_work(map(ledger.rows.get, summary.failures), self.hashes, tables.build), ledger):
            outcomes = runner.run(batch)
            sink.documents_done(outcomes)
            runner.finish(outcomes)
        for block in blocks(plan.removed, REMOVAL_BLOCK):
            runner.remove(block)
            sink.documents_removed(block)
            on_commit("keys removed")
            runner.forget(block)
            summary.removed += len(block)
        ledger.put([row for row in plan.notes if row.doc_id in ledger.rows])
        self._switch(plan, ledger, tables, summary)
        summary.upkeep = maintain(self.store, tables.names, self.settings.storage.retention)
        summary.warnings += sorted(tables.warnings)
        summary.seconds = time.monotonic() - started
        return summary

    def materialize(self, doc_ids: Sequence[str], stages: frozenset[Stage], run_id: str, sink: Sink) -> dict[str, str]:
        """Run the given stages for the given documents, whether owed or not; failed documents with their reasons.

        The caller holds the storage's lock. A document whose later stages are then out of date stays owed.
        """
        self.store.create()
        ledger = Ledger.read(self.store)
        tables = self.search_tables()
        tables.prepare()
        runner = self.runner(ledger, tables, run_id)
        files = {doc_id: file for found in self.scan_sources(ledger) for doc_id, file in found.files.items()}
        failures: dict[str, str] = {}
        for block in blocks(doc_ids, BATCH_DOCUMENTS // 4):
            outcomes = runner.run([Task(doc_id, stages, files.get(doc_id)) for doc_id in block])
            sink.documents_done(outcomes)
            runner.finish(outcomes)
            failures |= {o.doc_id: o.failure.reason for o in outcomes if o.failure is not None}
        if not tables.live:
            tables.switch()
        maintain(self.store, tables.names, self.settings.storage.retention)
        return failures

    def runner(
        self,
        ledger: Ledger,
        tables: SearchTables,
        run_id: str,
        *,
        on_commit: Callable[[str], None] = lambda point: None,
    ) -> StageRunner:
        """A stage runner of this pipeline."""
        return StageRunner(
            self.settings,
            self.store,
            ledger,
            self.embedder,
            self.contextualizer,
            self.hashes,
            tables,
            run_id,
            on_commit=on_commit,
        )

    def search_tables(self) -> SearchTables:
        """The search tables as these settings see them."""
        return SearchTables(self.store, self.settings, self.embedder, self.hashes)

    def _plan(self, ledger: Ledger, tables: SearchTables, options: RefreshOptions) -> Plan:
        scans = self.scan_sources(ledger, verify=options.verify)
        damage = quick_damage(self.store, ledger, tables.names) if ledger.rows else None
        return make_plan(
            scans,
            ledger.rows,
            self.hashes,
            target=tables.build,
            live=tables.live,
            now=time.time(),
            safety=self.settings.safety,
            damage=damage,
            retry=options.retry,
            allow_mass_delete=options.allow_mass_delete,
        )

    def _switch(self, plan: Plan, ledger: Ledger, tables: SearchTables, summary: Summary) -> None:
        """Point readers at the table that was built, once every document that can be in it is."""
        if tables.build == tables.live:
            return
        missing = [
            row.doc_id
            for row in ledger.rows.values()
            if row.content_hash
            and row.failure is None
            and row.indexed.get(tables.build) != self.hashes.version(Stage.SEARCH, row.content_hash)
        ]
        if missing and tables.live:
            summary.warnings.append(
                f"{len(missing)} documents are not yet in {tables.build}, such as {missing[0]}; "
                f"search stays on {tables.live} until they are"
            )
            return
        replaced = tables.live
        tables.switch()
        if replaced:
            summary.switched_to = tables.build


def _batches(work: Sequence[Work], ledger: Ledger) -> Iterator[list[Task]]:
    """Cut the work into batches by documents, chunks (as known or guessed) and bytes."""
    batch: list[Task] = []
    chunks = size = 0
    for item in work:
        row = ledger.rows.get(item.doc_id)
        item_size = item.file.size if item.file else row.size if row else 0
        item_chunks = max(row.chunks if row else 0, item_size // BYTES_PER_CHUNK if item.stage <= Stage.CHUNKS else 0)
        full = len(batch) >= BATCH_DOCUMENTS or chunks + item_chunks > BATCH_CHUNKS or size + item_size > BATCH_BYTES
        if batch and full:
            yield batch
            batch, chunks, size = [], 0, 0
        stages = frozenset(stage for stage in Stage if stage >= item.stage)
        batch.append(Task(item.doc_id, stages, item.file, item.edited))
        chunks += item_chunks
        size += item_size
    if batch:
        yield batch


def _count(summary: Summary, outcomes: Sequence[Outcome], known: set[str]) -> None:
    for outcome in outcomes:
        if outcome.failure is not None:
            summary.failures[outcome.doc_id] = outcome.failure.reason
            continue
        if outcome.doc_id in known:
            summary.changed += 1
        else:
            summary.added += 1
        summary.chunks_indexed += len(outcome.chunks)
        summary.tokens += sum(chunk.tokens for chunk in outcome.chunks)
        summary.embedded += outcome.embedded
        summary.reused += outcome.reused
        summary.truncated += outcome.truncated
        for context in outcome.contexts:
            reused = Stage.CONTEXTS not in outcome.done
            summary.contexts["reused" if reused else context.status] += 1
