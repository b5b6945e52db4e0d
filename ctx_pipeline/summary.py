"""What a refresh is asked, what it tells while it runs, and what it did."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ctx_pipeline.index.maintenance import Upkeep
from ctx_pipeline.index.outcome import Outcome
from ctx_pipeline.index.versions import Stage


class Sink(Protocol):
    """Where a refresh tells what it did: Dagster's partitions and events, or nothing."""

    def reconcile_keys(self, doc_ids: Iterable[str]) -> None:
        """Make the partition keys those of `doc_ids`: missing ones added in blocks, others pruned."""
        ...

    def documents_done(self, outcomes: Sequence[Outcome]) -> None:
        """Log the events of a batch; called between its rows and its final ledger rows."""
        ...

    def documents_removed(self, doc_ids: Sequence[str]) -> None:
        """Remove the partition keys of documents whose rows are gone."""
        ...

    def progress(self, done: int, total: int) -> None:
        """Documents done so far."""
        ...


class NullSink:
    """A sink that keeps nothing; base of others."""

    def reconcile_keys(self, doc_ids: Iterable[str]) -> None:
        """See Sink."""

    def documents_done(self, outcomes: Sequence[Outcome]) -> None:
        """See Sink."""

    def documents_removed(self, doc_ids: Sequence[str]) -> None:
        """See Sink."""

    def progress(self, done: int, total: int) -> None:
        """See Sink."""


@dataclass(frozen=True, slots=True)
class RefreshOptions:
    """What a caller may ask of one refresh."""

    verify: bool = False
    retry: bool = False
    allow_mass_delete: bool = False


@dataclass(slots=True)
class Summary:
    """Totals of one refresh, as the command line prints them."""

    run_id: str | None = None
    added: int = 0
    changed: int = 0
    removed: int = 0
    unchanged: int = 0
    skipped: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    """Documents that failed in this refresh, with the reason."""
    standing: dict[str, str] = field(default_factory=dict)
    """Documents that failed earlier and wait."""
    chunks_indexed: int = 0
    contexts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("written", "reused", "fallback", "pending"), 0)
    )
    embedded: int = 0
    reused: int = 0
    truncated: int = 0
    tokens: int = 0
    warnings: list[str] = field(default_factory=list)
    upkeep: list[Upkeep] = field(default_factory=list)
    switched_to: str = ""
    seconds: float = 0.0

    @property
    def failed(self) -> int:
        """Documents that failed now or before."""
        return len(self.failures.keys() | self.standing.keys())

    def count(self, outcomes: Sequence[Outcome], known: Container[str]) -> None:
        """Add the outcomes of a batch; `known` are the documents that were indexed before."""
        for outcome in outcomes:
            if outcome.failure is not None:
                self.failures[outcome.doc_id] = outcome.failure.reason
                continue
            if outcome.doc_id in known:
                self.changed += outcome.doc_id not in self.failures  # its last good version followed the settings
            else:
                self.added += 1
            self.chunks_indexed += len(outcome.chunks)
            self.tokens += sum(chunk.tokens for chunk in outcome.chunks)
            self.embedded += outcome.embedded
            self.reused += outcome.reused
            self.truncated += outcome.truncated
            for context in outcome.contexts:
                self.contexts[context.status if Stage.CONTEXTS in outcome.done else "reused"] += 1

    def to_json(self) -> dict[str, object]:
        """The contract of `ctx-pipeline refresh --json`."""
        return {
            "run_id": self.run_id,
            "documents": {
                "added": self.added,
                "changed": self.changed,
                "removed": self.removed,
                "unchanged": self.unchanged,
                "failed": self.failed,
                "skipped": self.skipped,
            },
            "chunks": {"indexed": self.chunks_indexed},
            "contexts": dict(self.contexts),
            "vectors": {"embedded": self.embedded, "reused": self.reused},
            # No contextualizer pays for tokens yet.
            "usage": {"input": 0, "cache_write": 0, "cache_read": 0, "output": 0, "usd": 0.0},
            "seconds": round(self.seconds, 3),
        }
