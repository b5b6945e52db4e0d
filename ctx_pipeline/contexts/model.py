"""A context, and what the pipeline asks of whatever writes contexts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ctx_pipeline.chunking.model import Chunk
from ctx_pipeline.documents.model import Document

Status = Literal["written", "fallback", "pending"]


@dataclass(frozen=True, slots=True)
class Context:
    """The note that situates one chunk in its document."""

    text: str
    """Shown beside the chunk and put before it for the embedding; never mixed into the stored chunk text."""
    keywords: str
    """Further words for the full-text index only."""
    method: str
    status: Status = "written"
    reason: str = ""
    """Why the status is `fallback` or `pending`: `no_key`, `budget`, `auth`, `deferred`, `batch`, or a message."""
    attempts: int = 1
    memo_key: str = ""
    """Key of the paid request behind the text; empty for contexts that cost nothing."""


class Contextualizer(Protocol):
    """Writes contexts for the chunks of documents."""

    method: str
    fingerprint: str
    """Identity of everything that affects a context; the context stage's hash."""

    def write(self, documents: Sequence[tuple[Document, Sequence[Chunk]]]) -> list[list[Context] | Exception]:
        """One result per document, in order: a context for each of its chunks, or why the document failed.

        Documents come together so that calls of several documents can share one pool. Raises FatalError only when
        nothing more can be written in this run.
        """
        ...
