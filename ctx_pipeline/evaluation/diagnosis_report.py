"""A diagnosis for people and programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ctx_pipeline.errors import counted
from ctx_pipeline.escaping import one_line
from ctx_pipeline.evaluation.advice import Advisor
from ctx_pipeline.evaluation.findings import Cause, Diagnosis, FailedQuery, Finding
from ctx_pipeline.evaluation.metrics import DEPTH

SHOWN = 20
QUESTION_CHARACTERS = 200


def text(diagnosis: Diagnosis, advisor: Advisor, *, all_queries: bool = False) -> str:
    """A block for each failed query, the first 20 unless `all_queries`, and the summary below them."""
    return "\n".join(map(one_line, _lines(diagnosis, advisor, all_queries)))


def _lines(diagnosis: Diagnosis, advisor: Advisor, all_queries: bool) -> Iterator[str]:
    shown = diagnosis.failed if all_queries else diagnosis.failed[:SHOWN]
    for failed in shown:
        yield from (*_block(failed, advisor), "")
    if len(shown) < len(diagnosis.failed):
        left = len(diagnosis.failed) - len(shown)
        yield from (f"… and {left} more (--all shows them, and so does --json)", "")
    yield from _summary_lines(diagnosis, advisor)


def _block(failed: FailedQuery, advisor: Advisor) -> Iterator[str]:
    question = " ".join(failed.query.text.split())
    cut = "…" if len(question) > QUESTION_CHARACTERS else ""
    yield f"{failed.query.qid}  {question[:QUESTION_CHARACTERS]}{cut}"
    if len(failed.query.spans) > 1:
        yield f"  {len(failed.findings)} of its {len(failed.query.spans)} passages not found"
    advice = [advisor.of(finding) for finding in failed.findings]
    for position, finding in enumerate(failed.findings):
        where = f"{finding.span.doc}:{finding.line}" if finding.line else finding.span.doc
        also = f"  (also {', '.join(finding.causes[1:])})" if finding.causes[1:] else ""
        yield f"  {finding.cause}{also}"
        yield f"    answer   {where}" + (f"  in {finding.chunk_id}" if finding.chunk_id else "")
        if finding.chunk_id:
            yield (
                f"    ranks    fused {_rank(finding.rank)}, vector {_rank(finding.vector_rank)}, "
                f"keyword {_rank(finding.keyword_rank)}; best of its document {_rank(finding.document_rank)}"
            )
        if finding.pieces:
            pieces = (
                f"{piece.chunk_id.rpartition('#')[2]} {piece.share:.0%} rank {_rank(piece.rank)}"
                for piece in finding.pieces
            )
            yield f"    pieces   {', '.join(pieces)}"
        if finding.missing:
            names = (name.name + (" (its context has it)" if name.in_context else "") for name in finding.missing)
            yield f"    missing  {', '.join(names)}"
        if finding.unsaid:
            yield f"    unsaid   {', '.join(finding.unsaid)}"
        if advice[position] not in advice[position + 1 :]:
            yield f"    try      {advice[position]}"


def _rank(rank: int | None) -> str:
    return "-" if rank is None else str(rank)


def _summary_lines(diagnosis: Diagnosis, advisor: Advisor) -> Iterator[str]:
    fine = diagnosis.queries - len(diagnosis.failed)
    spans = sum(len(failed.findings) for failed in diagnosis.failed)
    yield (
        f"{diagnosis.queries} {'query' if diagnosis.queries == 1 else 'queries'}: {fine} fine, "
        f"{len(diagnosis.failed)} failed ({counted(spans, 'passage')}); "
        f"{diagnosis.documents} documents, {diagnosis.chunks} chunks, contexts {diagnosis.context_method}, "
        f"embedder {diagnosis.embedding_model}"
    )
    yield (
        f"recall@{DEPTH} {diagnosis.recall:.3f}; within {diagnosis.candidates} candidates "
        f"{diagnosis.recall_candidates:.3f}: a perfect reranker would mend {diagnosis.mendable:.0%} of the failures"
    )
    first, every = _counts(diagnosis)
    if every:
        yield ""
        yield f"{'cause':16} first  also  try"
    for cause, count in _most_frequent(first, every):
        yield f"{cause:16} {first[cause]:5} {count - first[cause]:5}  {advisor.of_cause(cause)}"


def _counts(diagnosis: Diagnosis) -> tuple[Counter[Cause], Counter[Cause]]:
    """Findings by primary cause, and by every cause that holds."""
    findings = [finding for failed in diagnosis.failed for finding in failed.findings]
    first = Counter(finding.cause for finding in findings)
    return first, Counter(cause for finding in findings for cause in finding.causes)


def _most_frequent(first: Counter[Cause], every: Counter[Cause]) -> list[tuple[Cause, int]]:
    """Causes with how often they hold; the one that is most often the primary one comes first."""
    return sorted(every.items(), key=lambda item: (-first[item[0]], -item[1]))


def to_json(diagnosis: Diagnosis, advisor: Advisor) -> dict[str, Any]:
    """The contract of `ctx-pipeline diagnose --json`."""
    first, every = _counts(diagnosis)
    return {
        "failed": [
            {
                "qid": failed.query.qid,
                "query": failed.query.text,
                f"recall@{DEPTH}": failed.recall,
                "findings": [_finding(finding, advisor) for finding in failed.findings],
            }
            for failed in diagnosis.failed
        ],
        "summary": {
            "queries": diagnosis.queries,
            "fine": diagnosis.queries - len(diagnosis.failed),
            "failed": len(diagnosis.failed),
            "documents": diagnosis.documents,
            "chunks": diagnosis.chunks,
            "context_method": diagnosis.context_method,
            "embedding_model": diagnosis.embedding_model,
            f"recall@{DEPTH}": diagnosis.recall,
            "candidates": diagnosis.candidates,
            "recall@candidates": diagnosis.recall_candidates,
            "reranker_could_mend": diagnosis.mendable,
            "causes": [
                {
                    "cause": cause,
                    "primary": first[cause],
                    "holds": count,
                    "advice": advisor.of_cause(cause),
                }
                for cause, count in _most_frequent(first, every)
            ],
        },
        "warnings": diagnosis.warnings,
    }


def _finding(finding: Finding, advisor: Advisor) -> dict[str, Any]:
    return {
        "doc": finding.span.doc,
        "start": finding.span.start,
        "end": finding.span.end,
        "line": finding.line,
        "cause": finding.cause,
        "causes": list(finding.causes),
        "chunk_id": finding.chunk_id,
        "rank": finding.rank,
        "vector_rank": finding.vector_rank,
        "keyword_rank": finding.keyword_rank,
        "document_rank": finding.document_rank,
        "pieces": [{"chunk_id": piece.chunk_id, "share": piece.share, "rank": piece.rank} for piece in finding.pieces],
        "missing": [{"name": missing.name, "in_context": missing.in_context} for missing in finding.missing],
        "unsaid": list(finding.unsaid),
        "shared": list(finding.shared),
        "copy": finding.copy,
        "advice": advisor.of(finding),
    }
