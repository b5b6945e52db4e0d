"""The four partitioned assets: one multi-asset over the stages, one event per document and asset."""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from ctx_pipeline.defs.events import DagsterSink, PartitionKeys, search_columns
from ctx_pipeline.defs.resources import PipelineResource, fail_dead_runs, process_tags, run_or_fail
from ctx_pipeline.defs.sqlite import held_open
from ctx_pipeline.documents.model import doc_id_of
from ctx_pipeline.escaping import one_line
from ctx_pipeline.index.lock import storage_lock
from ctx_pipeline.index.stages import ASSETS
from ctx_pipeline.refresh import Pipeline
from ctx_pipeline.settings import Settings

GROUP = "documents"
OWNERS = ["team:data-platform"]

DESCRIPTIONS = {
    "raw_documents": "The document as it was read: decoded text, title, language, metadata, content hash.",
    "chunks": "Spans of the document's text under the token limits, with their heading path and exact offsets.",
    "contexts": "The note that situates each chunk in its document, with its status: written, fallback or pending.",
    "search_index": "Rows of the search table: chunk, context, vector and full-text columns of the document.",
}
KINDS = {
    "raw_documents": {"file", "lancedb"},
    "chunks": {"python", "lancedb"},
    "contexts": {"python", "lancedb"},
    "search_index": {"lancedb", "onnx"},
}


def documents_partitions(settings: Settings) -> dg.DynamicPartitionsDefinition:
    """One partition per document."""
    return dg.DynamicPartitionsDefinition(name=settings.dagster.partitions)


def document_assets(settings: Settings) -> dg.AssetsDefinition:
    """The four assets, to be materialized for a document, a range or a backfill."""
    names = list(ASSETS.values())
    columns = search_columns(settings.search.languages)
    specs = [
        dg.AssetSpec(
            name,
            deps=names[max(0, position - 1) : position],
            description=DESCRIPTIONS[name],
            group_name=GROUP,
            owners=OWNERS,
            kinds=KINDS[name],
            metadata={"dagster/column_schema": columns} if name == "search_index" else {},
            skippable=True,
        )
        for position, name in enumerate(names)
    ]

    @dg.multi_asset(
        name="document_pipeline",
        specs=specs,
        can_subset=True,
        partitions_def=documents_partitions(settings),
        backfill_policy=dg.BackfillPolicy.multi_run(settings.dagster.max_documents_per_run),
    )
    def document_pipeline(
        context: dg.AssetExecutionContext, pipeline: PipelineResource
    ) -> Iterator[dg.MaterializeResult[Any]]:
        yield from ()  # every event is logged explicitly: one per document and asset, good ones kept when others fail
        selected = {key.to_user_string() for key in context.selected_asset_keys}
        doc_ids = [doc_id_of(key) for key in context.partition_keys]
        if not doc_ids:
            raise dg.Failure("the range holds no document: its first key was removed", allow_retries=False)
        failures = run_or_fail(lambda: _materialize(context, pipeline.open(), doc_ids, selected))
        if failures:
            reasons = "\n".join(one_line(f"{doc_id}: {reason}") for doc_id, reason in failures.items())
            raise dg.Failure(
                f"{len(failures)} of {len(doc_ids)} documents failed\n{reasons}",
                metadata={
                    one_line(doc_id): dg.MetadataValue.text(one_line(reason))
                    for doc_id, reason in list(failures.items())[:50]
                },
                allow_retries=False,
            )

    return document_pipeline


def _materialize(
    context: dg.AssetExecutionContext, pipeline: Pipeline, doc_ids: list[str], selected: set[str]
) -> dict[str, str]:
    """Run the selected stages for some documents, under the lock; the failed ones with their reasons."""
    context.instance.add_run_tags(context.run_id, process_tags(context.run_id))
    stages = frozenset(stage for stage, name in ASSETS.items() if name in selected)
    sink = DagsterSink(context, PartitionKeys(context.instance, pipeline.settings.dagster.partitions))
    uri = pipeline.settings.storage.uri
    with storage_lock(uri, f"the Dagster run {context.run_id}"), held_open(context.instance, context.run_id):
        fail_dead_runs(context.instance)
        failures = pipeline.materialize(doc_ids, stages, context.run_id, sink)
    for warning in pipeline.contextualizer.warnings:
        context.log.warning(one_line(warning))
    return failures
