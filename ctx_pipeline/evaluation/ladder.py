"""The ladder: what each step of contextual retrieval is worth on a user's own queries."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from ctx_pipeline.contexts.model import EMULATOR
from ctx_pipeline.embedding.protocol import Embedder
from ctx_pipeline.errors import counted
from ctx_pipeline.evaluation.arms import (
    ArmIndex,
    Contexts,
    NotMeasuredError,
    contexts_to_measure,
    heading_prefixes,
    method_of,
    plain_contexts,
    truncated_texts,
)
from ctx_pipeline.evaluation.corpus import Corpus
from ctx_pipeline.evaluation.metrics import DEPTH, Judged, Measures, SignTest, measure, sign_test
from ctx_pipeline.evaluation.queries import Query
from ctx_pipeline.index.search import Mode, SearchIndex
from ctx_pipeline.refresh import Pipeline
from ctx_pipeline.settings import Rerank

EMBEDDINGS = "embeddings"
BM25 = "BM25"
HYBRID = "embeddings + BM25"
HEADINGS = "embeddings + BM25, heading prefix"
CONTEXTUAL_EMBEDDINGS = "+ contextual embeddings"
CONTEXTUAL_BM25 = "+ contextual BM25"
RERANKING = "+ reranking"

GIVE_UP_AFTER = 3
"""Queries that a reranker may fail before it counts as not usable, from the first on."""


@dataclass(frozen=True, slots=True)
class Step:
    """One row of the ladder to be run."""

    name: str
    table: str
    """Whose contexts: `plain`, `headings` or `contextual`."""
    mode: Mode
    against: str | None
    """The arm that differs in this step only."""
    rerank: bool = False


STEPS = (
    Step(EMBEDDINGS, "plain", "vector", None),
    Step(BM25, "plain", "keyword", EMBEDDINGS),
    Step(HYBRID, "plain", "hybrid", EMBEDDINGS),
    Step(HEADINGS, "headings", "hybrid", HYBRID),
    Step(CONTEXTUAL_EMBEDDINGS, "contextual", "vector", EMBEDDINGS),
    Step(CONTEXTUAL_BM25, "contextual", "hybrid", HYBRID),
    Step(RERANKING, "contextual", "hybrid", CONTEXTUAL_BM25, rerank=True),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One arm as it was measured, or why it was not."""

    name: str
    not_measured: str = ""
    measures: Measures | None = None
    against: str | None = None
    test: SignTest | None = None
    """Recall@20 of the same queries, compared with `against`."""
    truncated: int = 0
    seconds_per_query: float = 0.0
    usd_per_query: float | None = 0.0
    """Of embedding the query and of reranking; None when the price of a service is not known."""
    judged: Sequence[Judged] = ()
    found: Sequence[Sequence[str]] = ()
    """Of each query, the chunk_ids that were retrieved, best first."""
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Ladder:
    """The rows, and what they were measured on."""

    rows: Sequence[Row]
    documents: int
    chunks: int
    queries: int
    context_method: str
    embedding_model: str
    warnings: list[str] = field(default_factory=list)

    def row(self, name: str) -> Row | None:
        """A measured row, None when it is not there or was not measured."""
        return next((row for row in self.rows if row.name == name and row.measures), None)

    @property
    def served(self) -> Row | None:
        """What searches get with these settings, None when that was not measured."""
        contextual = HYBRID if self.context_method == "none" else CONTEXTUAL_BM25
        return self.row(RERANKING) or self.row(contextual)


def run_ladder(
    pipeline: Pipeline,
    corpus: Corpus,
    queries: Sequence[Query],
    folder: Path,
    *,
    rerank: Rerank | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Ladder:
    """Measure every arm that these settings allow. All arms search the same chunks through the product's own search.

    `folder` keeps the arms' tables, so that another run embeds only what changed. `rerank` names the reranker of the
    last row, in place of `search.rerank`. Raises QueryError when the queries are of other documents, FatalError when
    the embedder cannot be used.
    """
    queries = corpus.resolve(queries)
    tables = {"plain": plain_contexts(corpus), "headings": heading_prefixes(corpus)}
    problem = ""
    try:
        tables["contextual"] = contexts_to_measure(pipeline, corpus, progress)
    except NotMeasuredError as reason:
        problem = str(reason)
    indexes: dict[str, SearchIndex] = {}
    truncated: dict[str, int] = {}
    for name, contexts in tables.items():
        progress(f"indexing {counted(corpus.size, 'chunk')}: {name}")
        if name == "contextual" and corpus.table is not None:
            indexes[name] = SearchIndex(pipeline.store, pipeline.settings, pipeline.embedder, pinned=corpus.table)
        else:
            arm = ArmIndex(folder / name, pipeline.settings, pipeline.embedder, pipeline.hashes)
            indexes[name] = arm.update(corpus, contexts)
        truncated[name] = truncated_texts(corpus, contexts, pipeline.embedder)
    rows: list[Row] = []
    for step in STEPS:
        progress(f"{len(queries)} queries: {step.name}")
        if step.table not in indexes:
            rows.append(Row(step.name, not_measured=problem))
            continue
        try:
            row = _run(
                step,
                indexes[step.table],
                pipeline.embedder,
                corpus,
                queries,
                rerank or pipeline.settings.search.rerank,
            )
        except NotMeasuredError as reason:
            rows.append(Row(step.name, not_measured=str(reason)))
            continue
        before = next((other for other in rows if other.name == step.against and other.measures), None)
        rows.append(
            replace(
                row,
                truncated=truncated[step.table],
                against=before.name if before else None,
                test=sign_test(before.judged, row.judged) if before else None,
            )
        )
    return Ladder(
        rows=rows,
        documents=len(corpus.documents),
        chunks=corpus.size,
        queries=len(queries),
        context_method=_method(pipeline, corpus, tables.get("contextual")),
        embedding_model=pipeline.embedder.name,
        warnings=[
            *corpus.warnings,
            *corpus.stale(queries),
            *pipeline.contextualizer.warnings,
            *_not_written(pipeline, tables.get("contextual", {})),
            *(warning for row in rows for warning in row.warnings),
        ],
    )


def _method(pipeline: Pipeline, corpus: Corpus, measured: Contexts | None) -> str:
    """What wrote the contexts; where they are stored, not what the settings would have it."""
    contexts = measured if measured is not None else corpus.contexts
    return pipeline.contextualizer.method if contexts is None else method_of(contexts)


def _not_written(pipeline: Pipeline, contexts: Contexts) -> list[str]:
    """A warning when the contextual arms are not, or not all, what the method's name promises."""
    statuses = Counter(context.status for own in contexts.values() for context in own)
    missing = {status: statuses[status] for status in ("fallback", "pending") if statuses[status]}
    if not missing:
        return []
    kinds = ", ".join(f"{count} {status}" for status, count in missing.items())
    return [
        f"{sum(missing.values())} of {statuses.total()} contexts are not written by {pipeline.contextualizer.method} "
        f"({kinds}): the contextual arms have the outline in their place; `ctx-pipeline status` tells why"
    ]


def _run(
    step: Step, index: SearchIndex, embedder: Embedder, corpus: Corpus, queries: Sequence[Query], rerank: Rerank
) -> Row:
    if not step.rerank:
        rerank = "none"
    elif rerank == "none":
        raise NotMeasuredError("search.rerank is none")
    judged, found, seconds, reports = [], [], [], []
    index.search("warm-up", k=1, mode=step.mode, rerank="none")
    before_usd = embedder.usage_usd
    for query in queries:
        started = time.perf_counter()
        result = index.search_with_warnings(query.text, DEPTH, step.mode, rerank=rerank)
        seconds.append(time.perf_counter() - started)
        judged.append(corpus.judge(query, result.hits))
        found.append([hit.chunk_id for hit in result.hits])
        if result.rerank:
            reports.append(result.rerank)
        if step.rerank and not reports and len(judged) == min(GIVE_UP_AFTER, len(queries)):
            raise NotMeasuredError(" ".join(result.warnings))
        if reports and reports[-1].model == EMULATOR:
            raise NotMeasuredError("an emulator answered for the reranker")
    # The keyword leg embeds nothing, so its price is known whatever the embedder.
    embedding_usd = 0.0 if step.mode == "keyword" else _difference(before_usd, embedder.usage_usd)
    prices = [embedding_usd, *(report.usd for report in reports)]
    known = [price for price in prices if price is not None]
    usd = sum(known) / len(queries) if len(known) == len(prices) else None
    fell_back = len(queries) - len(reports) if step.rerank else 0
    warnings = [f"{step.name}: {fell_back} of {len(queries)} queries kept the fused order"] if fell_back else []
    return Row(
        step.name,
        measures=measure(judged),
        seconds_per_query=fmean(seconds),
        usd_per_query=usd,
        judged=judged,
        found=found,
        warnings=warnings,
    )


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
