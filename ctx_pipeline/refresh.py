"""A refresh: scan the sources, plan, and bring the index up to date in batches. Knows nothing of Dagster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ctx_pipeline.chunking import open_chunker
from ctx_pipeline.contexts import CLAUDE_KEY, open_contextualizer, resolve_method
from ctx_pipeline.contexts.model import FREE_METHODS, Contextualizer, Progress
from ctx_pipeline.documents.source import Known, SourceScan, scan
from ctx_pipeline.embedding import open_embedder
from ctx_pipeline.embedding.protocol import Embedder
from ctx_pipeline.errors import LockHeldError, SettingsError, StorageError, counted
from ctx_pipeline.index import mounts
from ctx_pipeline.index.audit import quick_damage
from ctx_pipeline.index.awaited import context_totals, context_warnings
from ctx_pipeline.index.batches import batches, tasks_of
from ctx_pipeline.index.ledger import Ledger, LedgerRow
from ctx_pipeline.index.lock import storage_lock
from ctx_pipeline.index.maintenance import maintain
from ctx_pipeline.index.outcome import Outcome, Task
from ctx_pipeline.index.plan import Damage, Plan, make_plan, stored_work
from ctx_pipeline.index.rebuild import rebuilt_rows
from ctx_pipeline.index.schemas import CONTEXT_METHOD, DOCUMENTS, LEDGER, SEARCH_SETTINGS
from ctx_pipeline.index.search_tables import SearchTables
from ctx_pipeline.index.stages import StageRunner
from ctx_pipeline.index.tables import Store, blocks
from ctx_pipeline.index.versions import Stage, StageHashes, stage_hashes
from ctx_pipeline.settings import Settings, SourceSettings
from ctx_pipeline.settings_file import settings_file
from ctx_pipeline.summary import NullSink, RefreshOptions, Sink, Summary

if TYPE_CHECKING:
    from ctx_pipeline.contexts.planning import ContextPlan

REMOVAL_BLOCK = 5_000
_NOTED = ("mtime_ns", "ctime_ns", "read_at_ns", "failure")
"""What a note changes of a ledger row."""


class Pipeline:
    """The pipeline of some settings over its storage.

    Making one loads nothing, and reads no more than what `contexts.method = "auto"` was resolved to before.
    """

    def __init__(
        self, settings: Settings, *, embedder: Embedder | None = None, contextualizer: Contextualizer | None = None
    ) -> None:
        self.store = Store(settings.storage.uri)
        self._given = (settings, embedder, contextualizer)
        kept = self._kept_method() if settings.contexts.method == "auto" else None
        has_key = bool(os.environ.get(CLAUDE_KEY, "").strip())
        method, self.method_note = resolve_method(settings.contexts, has_key, kept)
        self._new_method = method if settings.contexts.method == "auto" and kept is None else ""
        contexts = settings.contexts.model_copy(update={"method": method})
        self.settings = settings = settings.model_copy(update={"contexts": contexts})
        self.embedder = embedder or open_embedder(settings.embedding)
        self.chunker = open_chunker(settings.chunking, self.embedder)
        self.contextualizer = contextualizer or open_contextualizer(settings.contexts, self.embedder, self.store)
        self.hashes: StageHashes = stage_hashes(settings, self.embedder, self.chunker, self.contextualizer)

    def plan(self, options: RefreshOptions | None = None, *, take_up: bool = True) -> Plan:
        """What a refresh would do. Reads only: sources, ledger and row counts.

        `take_up` counts pending contexts whose reason no longer holds; the sensor fires for none of them.
        """
        return self._plan(Ledger.read(self.store), self.search_tables(), options or RefreshOptions(), take_up)

    def reopened(self) -> Pipeline:
        """The pipeline of the same settings over the storage as it is now: the state table may tell otherwise."""
        settings, embedder, contextualizer = self._given
        return Pipeline(settings, embedder=embedder, contextualizer=contextualizer)

    def _kept_method(self) -> str | None:
        try:
            return self.store.state().get(CONTEXT_METHOD) if self.store.exists() else None
        except StorageError:
            return None  # whatever writes comes upon it again, and stops; `doctor` must get as far as telling of it

    def _create(self) -> list[str]:
        """Create what is missing of the storage, and keep what `auto` was resolved to (a key that comes or goes later
        changes no context by itself) and how to search. What was moved aside or made again, one line each."""
        is_lost = self.store.exists() and LEDGER not in self.store.names()
        told = self.store.create()
        if self._new_method and self._kept_method() is None:
            self.store.set_state(**{CONTEXT_METHOD: self._new_method})
        search = self.settings.search.model_dump_json()
        if self.store.state().get(SEARCH_SETTINGS) != search:
            self.store.set_state(**{SEARCH_SETTINGS: search})
        if is_lost and self.store.count(DOCUMENTS):
            told.append(self.restore_ledger())
        return told

    def restore_ledger(self) -> str:
        """Complete the ledger from the other tables, where these agree; the caller holds the lock. In words."""
        ledger, tables = Ledger.read(self.store), self.search_tables()
        rebuilt = rebuilt_rows(self.store, self.hashes, next(iter(tables.audited), tables.live))
        put = [row for doc_id, row in rebuilt.items() if _is_better(row, ledger.rows.get(doc_id))]
        ledger.put(put)
        again = sum(1 for row in put if row.writing)
        return f"the ledger was made again from the tables: {counted(len(put) - again, 'document')} as before" + (
            f", {counted(again, 'document')} to be indexed again" if again else ""
        )

    def context_plan(self, plan: Plan, *, compare: bool = False, renew: bool = False) -> ContextPlan | None:
        """What the contexts of a refresh would cost; None for methods that cost nothing. Reads only, and asks nobody.

        `compare` adds other ways to ask, and the curve over window_tokens; `renew` counts what it asks for again.
        """
        if self.settings.contexts.method in FREE_METHODS:
            return None
        from ctx_pipeline.contexts.planning import ContextPlanner
        from ctx_pipeline.index.reading import owed_documents

        planner = ContextPlanner(self.settings.contexts, self.store, compare=compare, renew=renew)
        ledger = Ledger.read(self.store)
        owed = owed_documents(plan.work, self.settings, self.store, ledger, self.chunker, self.hashes)
        for documents, earlier in owed:
            planner.add(documents, earlier)
        return planner.plan

    def settle(self, plan: Plan) -> None:
        """Without owed work, store that files moved without a change, and mount points, unless somebody is writing.

        The note only spares hashing the files again; whoever holds the lock may store it as well.
        """
        if plan.owed or not (plan.notes or mounts.differ(self.store, plan.mounts)):
            return
        try:
            with storage_lock(self.store.uri, "a note on touched files", wait_s=0):
                ledger = Ledger.read(self.store)
                same = [row for row in plan.notes if _is_current(ledger.rows.get(row.doc_id), row)]
                ledger.put(same)
                mounts.remember(self.store, plan.mounts)
        except (LockHeldError, StorageError):
            return

    def scan_sources(self, ledger: Ledger, *, verify: bool = False, orphans: Collection[str] = ()) -> list[SourceScan]:
        """Walk every source; `orphans` are stored documents that the ledger does not know.

        Raises SettingsError when nothing can be read and nothing is indexed either.
        """
        if not self.settings.source and not ledger.rows:
            file = settings_file()
            where = f"{file} names no [[source]]" if file.exists() else f"there is no settings file {file}"
            raise SettingsError(
                f"{where}; go to the folder of ctx.toml, set CTX_CONFIG, or name a folder of documents by --source PATH"
            )
        known: dict[str, dict[str, Known]] = {source.name: {} for source in self.settings.source}
        for doc_id, row in ledger.rows.items():
            source_name = doc_id.partition("/")[0]
            if source_name in known:
                known[source_name][doc_id] = row.failure or row
        before = mounts.known_mounts(self.store)
        scans = [
            scan(source, known[source.name], verify=verify, mounts=before.get(source.name, ()), orphans=orphans)
            for source in self.settings.source
        ]
        if not ledger.rows and all(found.unreachable for found in scans):
            raise SettingsError(f"source {scans[0].name!r} cannot be read ({scans[0].unreachable}); correct its path")
        return scans

    def refresh(
        self,
        run_id: str,
        sink: Sink | None = None,
        options: RefreshOptions | None = None,
        *,
        on_commit: Callable[[str], None] = lambda point: None,
    ) -> Summary:
        """Bring the index up to date; the caller holds the storage's lock.

        Safe to kill at any moment: the next refresh completes what this one began. Failures of single documents
        are in the summary. Raises FatalError when nothing more can be done; finished batches stay.
        """
        started = time.monotonic()
        sink, options = sink or NullSink(), options or RefreshOptions()
        told = self._create()
        ledger = Ledger.read(self.store)
        tables = self.search_tables()
        plan = self._plan(ledger, tables, options)
        known = ledger.indexed()
        summary = Summary(
            run_id=run_id,
            unchanged=plan.unchanged,
            skipped=len(plan.skipped),
            not_indexed=plan.not_indexed,
            standing=dict(plan.failed),
            warnings=[*told, *plan.warnings],
        )
        mounts.remember(self.store, plan.mounts, forget=False)  # before their documents, in case this run is killed
        tables.prepare()
        runner = self.runner(
            ledger, tables, run_id, on_commit=on_commit, on_contexts=sink.contexts_progress, renew=options.renew
        )
        planned = self.context_plan(plan, renew=options.renew)
        if planned is not None and planned.wanted:
            summary.planned = planned
            sink.planned(planned)
        sink.reconcile_keys([*ledger.rows, *(work.doc_id for work in plan.work)])
        on_commit("keys")
        done = 0
        for batch in self._batches(tasks_of(work for work in plan.work if not work.only_awaited), ledger):
            summary.count(_run_batch(runner, batch, sink, on_commit), known)
            done += len(batch)
            sink.progress(done, len(plan.work))
        awaited = [work for work in plan.work if work.only_awaited]
        for batch in self._batches(tasks_of(awaited), ledger):
            if summary.stopped:
                # What stopped the calls before stops them here: these rows stay as they are, nothing is written.
                for task in batch:
                    summary.leave(ledger.rows[task.doc_id])
            else:
                summary.count(_run_batch(runner, batch, sink, on_commit), known)
            done += len(batch)
            sink.progress(done, len(plan.work))
        # What cannot be read now still follows the settings, from its last good version.
        kept = stored_work(map(ledger.rows.get, summary.failures), self.hashes, tables.build, time.time())
        for batch in self._batches(tasks_of(kept), ledger):
            summary.count(_run_batch(runner, batch, sink, on_commit), known)
        for block in blocks(plan.removed, REMOVAL_BLOCK):
            runner.remove(block)
            sink.documents_removed(block)
            on_commit("keys removed")
            runner.forget(block)
            summary.count_removed(block)
        ledger.put([row for row in plan.notes if row.doc_id in ledger.rows])
        mounts.remember(self.store, plan.mounts)
        self._switch(plan, ledger, tables, summary)
        summary.upkeep = maintain(self.store, tables.names, self.settings.storage.retention)
        summary.warnings += [*sorted(tables.warnings), *self.contextualizer.warnings]
        summary.warnings += summary.reading_warnings
        summary.warnings += context_warnings(context_totals(ledger.rows.values()))
        summary.seconds = time.monotonic() - started
        return summary

    def materialize(self, doc_ids: Sequence[str], stages: frozenset[Stage], run_id: str, sink: Sink) -> dict[str, str]:
        """Run the given stages for the given documents, whether owed or not; failed documents with their reasons.

        The caller holds the storage's lock. A document whose later stages are then out of date stays owed.
        """
        self._create()
        ledger = Ledger.read(self.store)
        tables = self.search_tables()
        tables.prepare()
        runner = self.runner(ledger, tables, run_id, on_contexts=sink.contexts_progress)
        files = {doc_id: file for found in self.scan_sources(ledger) for doc_id, file in found.files.items()}
        outcomes: list[Outcome] = []
        for batch in self._batches([Task(doc_id, stages, files.get(doc_id)) for doc_id in doc_ids], ledger):
            outcomes += _run_batch(runner, batch, sink)
        if not tables.live and any(Stage.SEARCH in outcome.done for outcome in outcomes):
            tables.switch()
        maintain(self.store, tables.names, self.settings.storage.retention)
        return {o.doc_id: o.failure.reason for o in outcomes if o.failure is not None}

    def runner(
        self,
        ledger: Ledger,
        tables: SearchTables,
        run_id: str,
        *,
        on_commit: Callable[[str], None] = lambda point: None,
        on_contexts: Callable[[Progress], None] = lambda progress: None,
        renew: bool = False,
    ) -> StageRunner:
        """A stage runner of this pipeline."""
        return StageRunner(
            self.settings,
            self.store,
            ledger,
            self.chunker,
            self.contextualizer,
            self.hashes,
            tables,
            run_id,
            on_commit=on_commit,
            on_contexts=on_contexts,
            renew=renew,
        )

    def search_tables(self) -> SearchTables:
        """The search tables as these settings see them."""
        return SearchTables(self.store, self.settings, self.embedder, self.hashes)

    def _batches(self, tasks: Iterable[Task], ledger: Ledger) -> Iterator[list[Task]]:
        is_paid = self.contextualizer.method not in FREE_METHODS
        return batches(tasks, ledger, self.settings.contexts.concurrency if is_paid else 0)

    def _plan(self, ledger: Ledger, tables: SearchTables, options: RefreshOptions, take_up: bool = True) -> Plan:
        damage = quick_damage(self.store, ledger, tables.audited) if self.store.exists() else Damage()
        scans = self.scan_sources(ledger, verify=options.verify, orphans=damage.orphans)
        plan = make_plan(
            scans,
            ledger.rows,
            self.hashes,
            target=tables.build,
            live=tables.live,
            now=time.time(),
            safety=self.settings.safety,
            damage=damage,
            retry=options.retry,
            renew=options.renew,
            take_up=self.contextualizer.can_take_up() if take_up else (),
            allow_mass_delete=options.allow_mass_delete,
        )
        plan.warnings += [
            _no_document_message(source, found)
            for source, found in zip(self.settings.source, scans, strict=True)
            if not (found.files or found.unreachable or source.name in plan.held)
        ]
        return plan

    def _switch(self, plan: Plan, ledger: Ledger, tables: SearchTables, summary: Summary) -> None:
        """Point readers at the table that was built, once every document that can be in it is."""
        if tables.build == tables.live:
            return
        version = self.hashes.version
        rows = [row for row in ledger.rows.values() if row.content_hash]
        missing = [r for r in rows if r.indexed.get(tables.build) != version(Stage.SEARCH, r.content_hash)]
        owed = [row.doc_id for row in missing if row.failure is None]
        if owed and tables.live:
            summary.warnings.append(
                f"{counted(len(owed), 'document')} not yet in {tables.build}, such as {owed[0]}; "
                f"search stays on {tables.live} until then"
            )
            return
        if missing and tables.live:
            summary.warnings.append(
                f"{counted(len(missing), 'failed document')} could not be carried over to {tables.build}, such as "
                f"{missing[0].doc_id}, and cannot be found until mended"
            )
        replaced = tables.live
        tables.switch()
        if replaced:
            summary.switched_to = tables.build


def _is_better(rebuilt: LedgerRow, row: LedgerRow | None) -> bool:
    """Whether a row made from the tables is to stand in place of what an older version of the ledger holds."""
    if row is None:
        return True
    told = ("content_hash", "parse", "chunk", "context", "chunks", "indexed")
    return not rebuilt.writing and any(getattr(rebuilt, name) != getattr(row, name) for name in told)


def _is_current(now: LedgerRow | None, noted: LedgerRow) -> bool:
    return now is not None and replace(noted, **{name: getattr(now, name) for name in _NOTED}) == now


def _no_document_message(source: SourceSettings, found: SourceScan) -> str:
    place, why = next(iter(found.ignored.items()), ("", ""))
    ignored = f"; left out: {place}, {why}" if place else ""
    return (
        f"source {source.name!r}: no file below {source.path} is a document "
        f"(include: {', '.join(source.include)}{ignored})"
    )


def _run_batch(
    runner: StageRunner, batch: Sequence[Task], sink: Sink, on_commit: Callable[[str], None] = lambda point: None
) -> list[Outcome]:
    outcomes = runner.run(batch)
    sink.documents_done(outcomes)
    on_commit("events")
    runner.finish(outcomes)
    return outcomes
