"""`corpus_refresh`: the unpartitioned asset that finds what changed and drives the four partitioned ones."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import dagster as dg

from ctx_pipeline.contexts.model import Progress
from ctx_pipeline.contexts.planning import ContextPlan
from ctx_pipeline.defs.assets import OWNERS
from ctx_pipeline.defs.checks import index_checks
from ctx_pipeline.defs.events import DagsterSink, PartitionKeys, bullets, cost_metadata
from ctx_pipeline.defs.resources import PipelineResource, fail_dead_runs, process_tags
from ctx_pipeline.defs.sqlite import held_open
from ctx_pipeline.errors import CtxError, counted
from ctx_pipeline.escaping import one_line
from ctx_pipeline.index.lock import storage_lock
from ctx_pipeline.refresh import Pipeline
from ctx_pipeline.summary import RefreshOptions, Summary

NAME = "corpus_refresh"
JOB = "refresh"
LISTED = 50
"""Documents named in metadata and messages; the rest are counted."""


class RefreshConfig(dg.Config):
    """Options of one refresh, as on the command line."""

    verify: bool = False
    retry: bool = False
    renew: bool = False
    allow_mass_delete: bool = False


@dataclass
class Report:
    """What the command line wants back from a refresh that ran in its own process."""

    progress: Callable[[int, int], None] = lambda done, total: None
    contexts_progress: Callable[[Progress], None] = lambda progress: None
    planned: Callable[[ContextPlan], None] = lambda plan: None
    summary: Summary | None = None
    error: CtxError | None = None
    unforeseen: str = ""
    """First line of an error without a message for people; the run's log has the rest."""


def refresh_asset(report: Report | None = None) -> dg.AssetsDefinition:
    """The asset; `report` receives the progress and the summary of a run in this process."""
    report = report or Report()

    # No dependency edge to raw_documents: it would make every partition stale after each refresh.
    @dg.multi_asset(
        name=NAME,
        specs=[
            dg.AssetSpec(
                NAME,
                description="Scans the sources and brings every owed document and the index up to date.",
                group_name="refresh",
                owners=OWNERS,
                kinds={"python", "lancedb"},
                skippable=True,
            )
        ],
    )
    def corpus_refresh(
        context: dg.AssetExecutionContext, config: RefreshConfig, pipeline: PipelineResource
    ) -> Iterator[dg.MaterializeResult[Any]]:
        if context.has_partition_key or context.has_partition_key_range:
            context.log.info("inside a partitioned run: a refresh runs in the job of its own")
            return
        options = RefreshOptions(**config.model_dump())
        try:
            summary, metadata = _refresh(context, pipeline.open(), options, report)
        except CtxError as error:
            report.error = error
            raise dg.Failure(description=one_line(str(error)), allow_retries=False) from error
        report.summary = summary
        if summary.failures:
            # The totals first: the good documents of this run are done, whatever the others met.
            context.log_event(dg.AssetMaterialization(NAME, metadata=metadata))
            raise dg.Failure(_failed_message(summary), allow_retries=False)
        yield dg.MaterializeResult(asset_key=NAME, metadata=metadata)

    return corpus_refresh


def refresh_job() -> Any:
    """The job of the command line, the sensor and the schedule."""
    return dg.define_asset_job(
        JOB,
        selection=[NAME],
        description="One refresh: whatever is owed, nothing else.",
        executor_def=dg.in_process_executor,
    )


def _refresh(
    context: dg.AssetExecutionContext, pipeline: Pipeline, options: RefreshOptions, report: Report
) -> tuple[Summary, dict[str, Any]]:
    context.instance.add_run_tags(context.run_id, process_tags(context.run_id))
    sink = _RefreshSink(context, PartitionKeys(context.instance, pipeline.settings.dagster.partitions), report)
    uri = pipeline.settings.storage.uri
    with storage_lock(uri, f"the refresh {context.run_id}"), held_open(context.instance, context.run_id):
        for run_id in fail_dead_runs(context.instance):
            context.log.warning(f"run {run_id} was marked as failed: its process is gone")
        if pipeline.method_note:
            context.log.info(pipeline.method_note)
        try:
            summary = pipeline.refresh(context.run_id, sink, options)
        except BaseException:
            if sink.spent.usage.total_input:
                usage, usd = sink.spent.usage, sink.spent.usd
                context.log.warning(
                    f"at least {usd:.4f} USD were paid before the end, for {usage.total_input + usage.output:,} "
                    "tokens; the contexts are kept, and are not asked for again"
                )
            raise
        for warning in summary.warnings:
            context.log.warning(one_line(warning))
        for check in index_checks(pipeline, quick=True):
            context.log_event(check)
        return summary, _metadata(summary, pipeline)


class _RefreshSink(DagsterSink):
    """Events go to Dagster, progress to its log and to whoever started the refresh."""

    def __init__(self, context: dg.AssetExecutionContext, keys: PartitionKeys, report: Report) -> None:
        super().__init__(context, keys)
        self._report = report

    def planned(self, plan: ContextPlan) -> None:
        """See Sink."""
        self._context.log.info(plan.line())
        self._report.planned(plan)

    def progress(self, done: int, total: int) -> None:
        """See Sink."""
        self._context.log.info(f"{done} of {total} documents")
        self._report.progress(done, total)

    def contexts_progress(self, progress: Progress) -> None:
        """See Sink."""
        super().contexts_progress(progress)
        self._report.contexts_progress(progress)


def _metadata(summary: Summary, pipeline: Pipeline) -> dict[str, Any]:
    """Totals as numbers, so that the UI plots them over time; lists as text."""
    tables = pipeline.search_tables()
    return {
        "documents_added": summary.added,
        "documents_changed": summary.changed,
        "documents_removed": summary.removed,
        "documents_unchanged": summary.unchanged,
        "documents_failed": len(summary.failures),
        "documents_failed_before": len(summary.standing),
        "files_skipped": summary.skipped,
        "files_not_indexed": summary.not_indexed.files,
        "chunks_indexed": summary.chunks_indexed,
        "tokens_indexed": summary.tokens,
        **{f"contexts_{status}": count for status, count in summary.contexts.items()},
        "vectors_embedded": summary.embedded,
        "vectors_reused": summary.reused,
        "chunks_truncated": summary.truncated,
        **{f"contexts_pending_{reason}": count for reason, count in summary.pending.items()},
        **_planned_metadata(summary.planned),
        **cost_metadata(summary.usage, summary.usd, summary.calls),
        "seconds": round(summary.seconds, 3),
        "context_method": pipeline.method_note or pipeline.contextualizer.method,
        "embedding_model": pipeline.embedder.name,
        "search_table": tables.live,
        "rows_searchable": pipeline.store.count(tables.live),
        **({"not_indexed": summary.not_indexed.words()} if summary.not_indexed.files else {}),
        **({"removed": bullets(_removed_lines(summary))} if summary.removed else {}),
        **({"warnings": bullets(summary.warnings)} if summary.warnings else {}),
        **({"failures": bullets(_failure_lines(summary))} if summary.failures or summary.standing else {}),
    }


def _planned_metadata(planned: ContextPlan | None) -> dict[str, Any]:
    if planned is None or not planned.is_priced:
        return {}
    return {"usd_planned_low": float(planned.chosen.low.usd), "usd_planned_high": float(planned.chosen.high.usd)}


def _failed_message(summary: Summary) -> str:
    failed = counted(len(summary.failures), "document")
    listed = "\n".join(f"- {one_line(line)}" for line in _failure_lines(summary))
    return f"{failed} failed in this run; the others are indexed\n{listed}"


def _failure_lines(summary: Summary) -> list[str]:
    every = {**summary.standing, **summary.failures}
    lines = [f"{doc_id}: {reason}" for doc_id, reason in list(every.items())[:LISTED]]
    return [*lines, f"… and {len(every) - LISTED} more"] if len(every) > LISTED else lines


def _removed_lines(summary: Summary) -> list[str]:
    more = [f"… and {summary.removed - LISTED} more"] if summary.removed > LISTED else []
    return [*summary.removed_documents[:LISTED], *more]
