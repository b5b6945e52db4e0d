"""What a refresh is asked, what it tells while it runs, and what it did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Protocol

from ctx_pipeline.claude.usage import Usage
from ctx_pipeline.contexts.model import NO_USAGE, Progress
from ctx_pipeline.documents.not_indexed import NotIndexed
from ctx_pipeline.index.awaited import REMEDIES, STOPPING, pending_by_reason
from ctx_pipeline.index.ledger import LedgerRow
from ctx_pipeline.index.maintenance import Upkeep
from ctx_pipeline.index.outcome import Outcome
from ctx_pipeline.index.versions import Stage

if TYPE_CHECKING:
    from ctx_pipeline.contexts.planning import ContextPlan

NAMED = 1_000
"""Removed documents that a summary names; all are counted."""


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

    def planned(self, plan: ContextPlan) -> None:
        """What contexts will cost; called once, before the calls, where some have to be paid for."""
        ...

    def progress(self, done: int, total: int) -> None:
        """Documents done so far."""
        ...

    def contexts_progress(self, progress: Progress) -> None:
        """Contexts done so far, of the batches that were begun; called often while a model writes them."""
        ...


class NullSink:
    """A sink that keeps nothing; base of others."""

    def reconcile_keys(self, doc_ids: Iterable[str]) -> None:
        """See Sink."""

    def documents_done(self, outcomes: Sequence[Outcome]) -> None:
        """See Sink."""

    def documents_removed(self, doc_ids: Sequence[str]) -> None:
        """See Sink."""

    def planned(self, plan: ContextPlan) -> None:
        """See Sink."""

    def progress(self, done: int, total: int) -> None:
        """See Sink."""

    def contexts_progress(self, progress: Progress) -> None:
        """See Sink."""


@dataclass(frozen=True, slots=True)
class RefreshOptions:
    """What a caller may ask of one refresh."""

    verify: bool = False
    retry: bool = False
    renew: bool = False
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
    removed_documents: list[str] = field(default_factory=list)
    """The first NAMED of those removed."""
    not_indexed: NotIndexed = field(default_factory=NotIndexed)
    """Files that no include pattern names."""
    failures: dict[str, str] = field(default_factory=dict)
    """Documents that failed in this refresh, with the reason."""
    standing: dict[str, str] = field(default_factory=dict)
    """Documents that failed earlier and wait."""
    chunks_indexed: int = 0
    contexts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("written", "reused", "fallback", "pending"), 0)
    )
    """`written` were made in this refresh, `reused` were in the index or the memo before."""
    earlier_wording: int = 0
    """Contexts among the reused ones that an earlier version of this program asked for."""
    pending: Counter[str] = field(default_factory=Counter)
    """Contexts that this refresh was to write and could not, by reason."""
    usage: Usage = NO_USAGE
    usd: Decimal = Decimal(0)
    calls: int = 0
    planned: ContextPlan | None = None
    """What contexts were to cost; None where none had to be paid for."""
    embedded: int = 0
    reused: int = 0
    truncated: int = 0
    tokens: int = 0
    warnings: list[str] = field(default_factory=list)
    remarks: dict[str, str] = field(default_factory=dict)
    """Of documents that this refresh read: what a person should know of how."""
    upkeep: list[Upkeep] = field(default_factory=list)
    switched_to: str = ""
    seconds: float = 0.0

    @property
    def failed(self) -> int:
        """Documents that failed now or before."""
        return len(self.failures.keys() | self.standing.keys())

    @property
    def stopped(self) -> bool:
        """Whether the calls of this refresh came to an end before the work did: no key, a refused one, the budget."""
        return bool(self.pending.keys() & STOPPING)

    @property
    def unfinished(self) -> bool:
        """Whether contexts are left that this refresh was to write, by those or because the service did not answer."""
        return bool(self.pending.keys() & REMEDIES.keys())

    def count(self, outcomes: Sequence[Outcome], known: Container[str]) -> None:
        """Add the outcomes of a batch; `known` are the documents that were indexed before."""
        for outcome in outcomes:
            # Paid is paid, whatever became of the document.
            self.usage, self.usd, self.calls = (
                self.usage + outcome.usage,
                self.usd + outcome.usd,
                self.calls + outcome.calls,
            )
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
            if outcome.document and outcome.document.parsed.warnings and Stage.DOCUMENTS in outcome.done:
                self.remarks[outcome.doc_id] = "; ".join(outcome.document.parsed.warnings)
            self._count_contexts(outcome)

    @property
    def reading_warnings(self) -> list[str]:
        """One line for the documents that were read with remarks, none without."""
        if not self.remarks:
            return []
        (doc_id, remark), *others = self.remarks.items()
        more = f" (and {len(others)} more; `ctx-pipeline show` tells it of each)" if others else ""
        return [f"{doc_id}: {remark}{more}"]

    def count_removed(self, doc_ids: Sequence[str]) -> None:
        """Add documents that were removed."""
        self.removed += len(doc_ids)
        self.removed_documents += doc_ids[: NAMED - len(self.removed_documents)]

    def leave(self, row: LedgerRow) -> None:
        """Count the pending contexts of a document that is left as it is, since nothing can be written now."""
        pending = pending_by_reason(row.context_counts)
        self.pending.update(pending)
        self.contexts["pending"] += sum(pending.values())
        self.unchanged += 1

    def _count_contexts(self, outcome: Outcome) -> None:
        counts = Counter(context.status for context in outcome.contexts)
        fresh = Stage.CONTEXTS in outcome.done
        reused = outcome.contexts_reused if fresh else counts["written"]
        self.contexts["written"] += counts["written"] - reused
        self.contexts["reused"] += reused
        self.contexts["fallback"] += counts["fallback"]
        self.contexts["pending"] += counts["pending"]
        self.earlier_wording += sum(context.earlier for context in outcome.contexts)
        if fresh:
            self.pending.update(context.reason for context in outcome.contexts if context.status == "pending")

    def to_json(self) -> dict[str, object]:
        """The contract of `ctx-pipeline refresh --json`; `removed` names the first NAMED documents."""
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
            "removed": self.removed_documents,
            "not_indexed": self.not_indexed.to_json(),
            "chunks": {"indexed": self.chunks_indexed},
            "contexts": {**self.contexts, "earlier_wording": self.earlier_wording},
            "vectors": {"embedded": self.embedded, "reused": self.reused},
            "usage": {
                "input": self.usage.input,
                "cache_write": self.usage.cache_write,
                "cache_read": self.usage.cache_read,
                "output": self.usage.output,
                "usd": float(self.usd),
            },
            "seconds": round(self.seconds, 3),
        }
