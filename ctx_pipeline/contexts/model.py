"""A context, and what the pipeline asks of whatever writes contexts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Literal, Protocol

from ctx_pipeline.chunking.model import Chunk
from ctx_pipeline.claude.usage import Usage
from ctx_pipeline.documents.model import Document

Status = Literal["written", "fallback", "pending"]
NO_USAGE = Usage()
FREE_METHODS = frozenset({"outline", "none"})
"""Methods that ask no model; all others pay for calls."""
EARLIER_WORDING = "earlier wording"
"""Beside the counts by status: contexts that an earlier version of this program asked for, which are kept."""
EARLIER_VECTORS = "vectors:earlier"
"""Beside the counts by status: chunks whose vector, of an embedder that has a price, is that of an earlier wording."""
RENEW = "renew"
"""Why a context is pending that only an upgrade of this program calls for: the user has to say so."""
EMULATOR = "emulator"
"""The model that emulators of paid services name: what they write proves a program right, and measures nothing."""


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
    """Of a `pending` context: `no_key`, `budget`, `auth`, `unavailable`, `deferred`, `batch`, `renew`. Of a `fallback`:
    what went wrong. Of a `written` one that an earlier version of its document had: from when it is, and the drift."""
    attempts: int = 1
    memo_key: str = ""
    """Key of the paid request behind the text; empty for contexts that cost nothing."""
    earlier: bool = False
    """Whether an earlier version of this program asked for it, which would ask otherwise today."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """The chunks and contexts of a document that an earlier version of this program made."""

    chunks: tuple[tuple[int, int, str, Context], ...]
    """Start, end, text and context of each chunk, in order."""
    same_content: bool
    """Whether the document's bytes are those that it has now."""
    same_settings: bool
    """Whether it is known that the user's settings were those of now; rows of 0.1.0 do not tell."""


NOTHING_EARLIER: Mapping[str, Earlier] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Written:
    """The contexts of one document, and what was paid for them now."""

    contexts: list[Context]
    """One for each chunk, in order."""
    usage: Usage = NO_USAGE
    usd: Decimal = Decimal(0)
    calls: int = 0
    """Calls that were answered; contexts used again cost none."""
    reused: int = 0
    """Contexts that were paid for earlier."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the contexts of a refresh are."""

    done: int = 0
    total: int = 0
    usage: Usage = NO_USAGE
    usd: Decimal = Decimal(0)

    def __add__(self, other: Progress) -> Progress:
        return Progress(
            self.done + other.done, self.total + other.total, self.usage + other.usage, self.usd + other.usd
        )


class Contextualizer(Protocol):
    """Writes contexts for the chunks of documents."""

    method: str
    fingerprint: str
    """Identity of everything that affects a context; the context stage's hash."""
    warnings: list[str]
    """What a person should know or do; grows, one line for each cause."""

    def can_take_up(self) -> frozenset[str]:
        """Reasons of pending contexts that no longer hold, or may not, so that a refresh tries again.

        Reads settings and environment only.
        """
        ...

    def write(
        self,
        documents: Sequence[tuple[Document, Sequence[Chunk]]],
        progress: Callable[[Progress], None] = lambda progress: None,
        earlier: Mapping[str, Earlier] = NOTHING_EARLIER,
        *,
        renew: bool = False,
    ) -> list[Written | Exception]:
        """One result per document, in order: a context for each of its chunks, or why the document failed.

        Documents come together so that calls of several documents can share one pool. `progress` is told from time to
        time how far the contexts of these documents are. Nothing that was paid for is lost by an error.

        `earlier`, by doc_id, is what an earlier version of this program made of documents: what it paid for is kept
        where today's request would differ. `renew` asks again for what was kept in that way.
        """
        ...
