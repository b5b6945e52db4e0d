"""`retrieval_evaluation`: the ladder over the configured query set, as an asset with its history in the UI."""

import base64
from collections.abc import Iterator
from typing import Any

import dagster as dg

from ctx_pipeline.defs.assets import OWNERS
from ctx_pipeline.defs.resources import PipelineResource, run_or_fail
from ctx_pipeline.errors import CtxError, SettingsError
from ctx_pipeline.escaping import one_line
from ctx_pipeline.evaluation.evaluation import Evaluation, evaluate_corpus
from ctx_pipeline.evaluation.ladder import Row
from ctx_pipeline.evaluation.metrics import CUTOFFS, DEPTH
from ctx_pipeline.evaluation.report import markdown, plot_png
from ctx_pipeline.refresh import Pipeline

NAME = "retrieval_evaluation"
JOB = "evaluate"
CHECK = "recall_is_high_enough"


def evaluation_asset() -> dg.AssetsDefinition:
    """The asset with its check."""

    @dg.multi_asset(
        name=NAME,
        specs=[
            dg.AssetSpec(
                NAME,
                description="Recall, MRR and nDCG of every step of contextual retrieval on `evaluation.queries`.",
                group_name="evaluation",
                owners=OWNERS,
                kinds={"python", "lancedb"},
                skippable=True,
            )
        ],
        check_specs=[
            dg.AssetCheckSpec(
                CHECK, asset=NAME, description="recall@20 of what searches get is at least `evaluation.min_recall`."
            )
        ],
    )
    def retrieval_evaluation(
        context: dg.AssetExecutionContext, pipeline: PipelineResource
    ) -> Iterator[dg.MaterializeResult[Any]]:
        if context.has_partition_key or context.has_partition_key_range:
            context.log.info("inside a partitioned run: the evaluation runs in the job of its own")
            return
        opened = pipeline.open()
        evaluation = run_or_fail(lambda: _evaluate(opened, context.log.info))
        for warning in evaluation.ladder.warnings:
            context.log.warning(one_line(warning))
        yield dg.MaterializeResult(
            asset_key=NAME, metadata=_metadata(evaluation), check_results=[_check(evaluation, opened)]
        )

    return retrieval_evaluation


def evaluation_job() -> Any:
    """The job that evaluates, and does nothing else."""
    return dg.define_asset_job(
        JOB,
        selection=[NAME],
        description="Measures retrieval on the configured query set.",
        executor_def=dg.in_process_executor,
    )


def _evaluate(pipeline: Pipeline, log: Any) -> Evaluation:
    queries = pipeline.settings.evaluation.queries
    if queries is None:
        raise SettingsError("no query set: name a file of JSON lines by evaluation.queries")
    return evaluate_corpus(pipeline, queries, progress=log)


def _metadata(evaluation: Evaluation) -> dict[str, Any]:
    """Numbers, which the UI plots over time, of what searches get and of every arm; the table; the drawing."""
    ladder = evaluation.ladder
    return {
        "ladder": dg.MetadataValue.md(markdown(ladder)),
        "plot": _plot(evaluation),
        **(_of_served(ladder.served) if ladder.served else {}),
        **{f"recall_at_{DEPTH}: {row.name}": row.measures.recall[DEPTH] for row in ladder.rows if row.measures},
        "queries": ladder.queries,
        "documents": ladder.documents,
        "chunks": ladder.chunks,
        "context_method": ladder.context_method,
        "embedding_model": ladder.embedding_model,
        "per_query_results": dg.MetadataValue.path(str(evaluation.results)),
    }


def _of_served(row: Row) -> dict[str, Any]:
    assert row.measures is not None
    return {
        "served_arm": row.name,
        **{f"recall_at_{k}": row.measures.recall[k] for k in CUTOFFS},
        "failure_rate": row.measures.failure_rate,
        "mrr": row.measures.mrr,
        "ndcg_at_10": row.measures.ndcg_at_10,
        "chunks_truncated": row.truncated,
        "seconds_per_query": row.seconds_per_query,
        **({} if row.usd_per_query is None else {"usd_per_query": row.usd_per_query}),
    }


def _plot(evaluation: Evaluation) -> Any:
    try:
        picture = base64.b64encode(plot_png(evaluation.ladder)).decode()
    except CtxError as missing:
        return dg.MetadataValue.text(one_line(str(missing)))
    return dg.MetadataValue.md(f"![recall of each arm](data:image/png;base64,{picture})")


def _check(evaluation: Evaluation, pipeline: Pipeline) -> dg.AssetCheckResult:
    served, minimum = evaluation.ladder.served, pipeline.settings.evaluation.min_recall
    return dg.AssetCheckResult(
        check_name=CHECK,
        passed=not evaluation.shortfall,
        description=evaluation.shortfall or None,
        metadata={
            **({f"recall_at_{DEPTH}": served.measures.recall[DEPTH]} if served and served.measures else {}),
            "arm": served.name if served else "not measured",
            "min_recall": dg.MetadataValue.text("not set") if minimum is None else minimum,
        },
    )
