"""One evaluation from a query set to its results, as the command and the asset run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ctx_pipeline.evaluation.corpus import Corpus, corpus_of_files, indexed_corpus
from ctx_pipeline.evaluation.ladder import Ladder, run_ladder
from ctx_pipeline.evaluation.metrics import DEPTH
from ctx_pipeline.evaluation.queries import read_boundaries, read_queries
from ctx_pipeline.evaluation.report import write_per_query
from ctx_pipeline.index.lock import storage_lock
from ctx_pipeline.index.versions import digest
from ctx_pipeline.refresh import Pipeline
from ctx_pipeline.settings import Rerank

FOLDER = "evaluation"
"""Below the storage: the arms' tables, and the results of each query. Deleting it costs time only."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What came of it."""

    ladder: Ladder
    results: Path
    """The file with every arm's answer to every query."""
    shortfall: str
    """Why the result is below `evaluation.min_recall`; empty when it is not."""


def evaluate_corpus(
    pipeline: Pipeline,
    queries: Path,
    *,
    files: bool = False,
    chunks: Path | None = None,
    results: Path | None = None,
    rerank: Rerank | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Evaluation:
    """Run the ladder on the index, or on the sources' files when `files` or given `chunks` ask for it.

    Raises QueryError for files that cannot be read, StorageError when there is no index to measure.
    """
    asked = read_queries(queries)
    corpus, folder = open_corpus(pipeline, files=files, chunks=chunks)
    with storage_lock(folder, "an evaluation"):
        ladder = run_ladder(pipeline, corpus, asked, folder, rerank=rerank, progress=progress)
        results = results or folder / "per_query.jsonl"
        write_per_query(ladder, asked, results)
    return Evaluation(ladder, results, _shortfall(ladder, pipeline.settings.evaluation.min_recall))


def open_corpus(pipeline: Pipeline, *, files: bool, chunks: Path | None) -> tuple[Corpus, Path]:
    """What is to be measured, and the folder that keeps its arms."""
    base = pipeline.store.uri / FOLDER
    if not files and chunks is None:
        return indexed_corpus(pipeline), base / "index"
    corpus = corpus_of_files(pipeline, read_boundaries(chunks) if chunks else None)
    roots = [str(source.path) for source in pipeline.settings.source]
    return corpus, base / f"files-{digest(roots, chunks and str(chunks.absolute()))[:12]}"


def _shortfall(ladder: Ladder, min_recall: float | None) -> str:
    if min_recall is None:
        return ""
    served = ladder.served
    if served is None or served.measures is None:
        reasons = {row.not_measured for row in ladder.rows if row.not_measured}
        return (
            f"evaluation.min_recall = {min_recall}: what searches get was not measured ({'; '.join(sorted(reasons))})"
        )
    recall = served.measures.recall[DEPTH]
    if recall >= min_recall:
        return ""
    return f"recall@{DEPTH} of `{served.name}` is {recall:.3f}, below evaluation.min_recall = {min_recall}"
