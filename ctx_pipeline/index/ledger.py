"""The ledger: one row per document that says what is indexed now, and what stands in the way of the rest."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from ctx_pipeline.errors import CtxError, PermanentError, place_of_defect
from ctx_pipeline.index.schemas import LEDGER
from ctx_pipeline.index.tables import Store

BACKOFF_FIRST_S = 60
BACKOFF_MAX_S = 3_600
REASON_CHARACTERS = 1_000
DEFECT = "a defect of ctx-pipeline, not of the document,"


@dataclass(frozen=True, slots=True)
class Met:
    """The bytes that a document was met with; the hash is empty when they could not be read."""

    size: int
    mtime_ns: int
    read_at_ns: int
    content_hash: str
    ctime_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a document is not indexed as it is now, and what it was met with."""

    kind: Literal["permanent", "transient"]
    reason: str
    attempts: int
    next_try: float
    """Unix time (s) of the next attempt of a transient failure."""
    size: int
    mtime_ns: int
    read_at_ns: int
    content_hash: str
    """Empty when the bytes were never read."""
    settings: str
    """Hash of the settings it was met with; other settings are another chance."""
    ctime_ns: int | None = None
    """None where a version that did not look at it met the failure."""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One document. Hashes are empty until it is first indexed."""

    doc_id: str
    size: int = -1
    mtime_ns: int = -1
    ctime_ns: int | None = None
    """None in rows of versions that did not look at it."""
    read_at_ns: int = 0
    content_hash: str = ""
    parse: str = ""
    chunk: str = ""
    context: str = ""
    settings: str | None = None
    """What the user set for chunks and contexts, whatever this program's version; None in rows of 0.1.0."""
    chunks: int = 0
    tokens: int = 0
    context_counts: Mapping[str, int] = field(default_factory=dict)
    """Chunks by status, and `pending:<reason>` for each reason."""
    indexed: Mapping[str, str] = field(default_factory=dict)
    """Version of the document's rows in each search table that holds them."""
    failure: Failure | None = None
    writing: str = ""
    """The run that was changing the document; its rows may be ahead of this ledger row."""
    run_id: str = ""
    indexed_at: datetime | None = None

    def to_row(self) -> dict[str, Any]:
        """The row as the table stores it."""
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "context_counts": json.dumps(dict(self.context_counts)),
            "indexed": json.dumps(dict(self.indexed)),
            "failure": json.dumps(asdict(self.failure)) if self.failure else None,
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> LedgerRow:
        """The inverse of `to_row`."""
        failure = row["failure"]
        plain: dict[str, Any] = {name: row.get(name) for name in _PLAIN}
        return cls(
            **plain,
            context_counts=json.loads(row["context_counts"]),
            indexed=json.loads(row["indexed"]),
            failure=Failure(**json.loads(failure)) if failure else None,
        )


_PLAIN = (
    "doc_id", "size", "mtime_ns", "ctime_ns", "read_at_ns", "content_hash", "parse", "chunk", "context", "settings",
    "chunks", "tokens", "writing", "run_id", "indexed_at",
)  # fmt: skip


class Ledger:
    """The ledger table in memory, written through row by row."""

    def __init__(self, store: Store, rows: Iterable[LedgerRow] = ()) -> None:
        self._store = store
        self.rows: dict[str, LedgerRow] = {row.doc_id: row for row in rows}

    @classmethod
    def read(cls, store: Store) -> Ledger:
        """All rows; empty where no index was ever begun, or the table was lost."""
        if not store.exists() or LEDGER not in store.names():
            return cls(store)
        table = store.table(LEDGER).to_arrow()
        return cls(store, (LedgerRow.from_row(row) for row in table.to_pylist()))

    def indexed(self) -> set[str]:
        """Documents that some version of is indexed."""
        return {doc_id for doc_id, row in self.rows.items() if row.content_hash}

    def put(self, rows: Sequence[LedgerRow]) -> None:
        """Store rows, in one commit."""
        self._store.upsert(LEDGER, [row.to_row() for row in rows])
        self.rows.update((row.doc_id, row) for row in rows)

    def mark(self, doc_ids: Iterable[str], run_id: str) -> None:
        """Mark documents as being changed by a run, inserting unknown ones; owed work until the mark is cleared."""
        self.put([replace(self.rows.get(doc_id) or LedgerRow(doc_id), writing=run_id) for doc_id in doc_ids])

    def remove(self, doc_ids: Sequence[str]) -> None:
        """Forget documents."""
        self._store.delete(LEDGER, doc_ids)
        for doc_id in doc_ids:
            self.rows.pop(doc_id, None)


def failure_of(error: Exception, previous: Failure | None, met: Met, settings: str) -> Failure:
    """Classify what a document met: permanent for its content and settings, or transient with a backoff.

    An error nobody foresaw is a defect of this program, which the reason says with its place. It is permanent for that
    content all the same: trying it every minute would not help, and other content or settings, or `--retry`, tries
    again.
    """
    transient = isinstance(error, CtxError) and not isinstance(error, PermanentError)
    attempts = previous.attempts + 1 if previous and previous.kind == "transient" and transient else 1
    delay = min(BACKOFF_FIRST_S * 2 ** (attempts - 1), BACKOFF_MAX_S)
    reason = " ".join((str(error) if isinstance(error, CtxError) else f"{type(error).__name__}: {error}").split())
    defect = (
        f" ({DEFECT} at {place}; `ctx-pipeline refresh --retry` tries again)"
        if (place := place_of_defect(error))
        else ""
    )
    return Failure(
        kind="transient" if transient else "permanent",
        reason=reason[: REASON_CHARACTERS - len(defect)] + defect,
        attempts=attempts,
        next_try=datetime.now(UTC).timestamp() + delay if transient else 0.0,
        size=met.size,
        mtime_ns=met.mtime_ns,
        read_at_ns=met.read_at_ns,
        content_hash=met.content_hash,
        settings=settings,
        ctime_ns=met.ctime_ns,
    )
