"""What a diagnosis says: causes, findings, and the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from ctx_pipeline.evaluation.queries import Query, Span

Cause = Literal[
    "document_missing", "stale_span", "duplicate", "cut", "orphan", "one_leg", "ranked_low", "absent"
]  # fmt: skip
CAUSES: tuple[Cause, ...] = get_args(Cause)
"""In the order in which the primary cause of a finding is chosen."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk with a part of the answer."""

    chunk_id: str
    share: float
    """Of the answer's characters."""
    rank: int | None
    """After fusion; None below the candidates."""


@dataclass(frozen=True, slots=True)
class MissingName:
    """A name of the question that the document has and the chunk lacks."""

    name: str
    in_context: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """One passage that was not found, and why. Ranks count from 1; None is below the candidates."""

    span: Span
    causes: tuple[Cause, ...]
    """The primary one first."""
    line: int | None = None
    chunk_id: str | None = None
    """The chunk that covers the passage, or holds most of it when none does."""
    rank: int | None = None
    vector_rank: int | None = None
    keyword_rank: int | None = None
    pieces: tuple[Piece, ...] = ()
    missing: tuple[MissingName, ...] = ()
    shared: tuple[str, ...] = ()
    """Words of the question that the chunk has."""
    named: tuple[str, ...] = ()
    """Names of the question that the document has; of a question without a name, rare words that it has."""
    unsaid: tuple[str, ...] = ()
    """Names of the question that the document lacks; of a question without a name, rare words that it lacks."""
    document_rank: int | None = None
    """After fusion, of the first chunk of the document, whatever it says."""
    copy: str | None = None
    """A chunk among the first 20 that holds the same passage."""
    copy_rank: int | None = None
    reason: str = ""
    """Why the document is missing, or where the passage went."""

    @property
    def cause(self) -> Cause:
        """The primary cause."""
        return self.causes[0]


@dataclass(frozen=True, slots=True)
class FailedQuery:
    """A query of which the first 20 hits do not cover every passage."""

    query: Query
    recall: float
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All failed queries, and what the whole set tells."""

    failed: Sequence[FailedQuery]
    queries: int
    recall: float
    """Mean recall@20."""
    recall_candidates: float
    """Mean recall over all fused candidates: what a perfect reranker would make of them."""
    candidates: int
    documents: int
    chunks: int
    longest_chunk: int
    """In characters."""
    given_chunks: bool
    embedding_model: str
    context_method: str
    warnings: list[str] = field(default_factory=list)

    @property
    def mendable(self) -> float:
        """Share of the failures (1 - recall@20) that a perfect reranker of the candidates would mend."""
        return (self.recall_candidates - self.recall) / (1 - self.recall) if self.recall < 1 else 0.0
