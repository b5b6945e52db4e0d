"""Needs work: one pure function of (scan, ledger, settings) that refresh, status and the sensor share."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ctx_pipeline.contexts.model import EARLIER_VECTORS, EARLIER_WORDING, RENEW
from ctx_pipeline.documents.not_indexed import NotIndexed, merged
from ctx_pipeline.documents.source import RACY_NS, FoundFile, Known, SourceScan
from ctx_pipeline.errors import counted
from ctx_pipeline.index.awaited import context_totals, pending_by_reason
from ctx_pipeline.index.deletions import deletions
from ctx_pipeline.index.ledger import BACKOFF_MAX_S, Failure, LedgerRow
from ctx_pipeline.index.versions import Stage, StageHashes, digest
from ctx_pipeline.settings import SafetySettings

Met = TypeVar("Met", LedgerRow, Failure)


@dataclass(frozen=True, slots=True)
class Work:
    """A document that is owed work, from its first owed stage on."""

    doc_id: str
    stage: Stage
    reason: str
    file: FoundFile | None
    """None where the source cannot be read now: the work starts from the stored document."""
    edited: bool = True
    """Whether the content differs, or may differ, from what the live search table holds."""
    only_awaited: bool = False
    """Whether nothing is owed but contexts that another attempt may get written."""


@dataclass(slots=True)
class Plan:
    """What a refresh would do, and what it leaves alone and why."""

    work: list[Work] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    notes: list[LedgerRow] = field(default_factory=list)
    """Ledger rows whose file moved without a change of content; stored as they are here."""
    held: dict[str, int] = field(default_factory=dict)
    """Deletions held back, by source."""
    failed: dict[str, str] = field(default_factory=dict)
    """Standing failures: documents that wait for other content, other settings or their next try."""
    unchanged: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    not_indexed: NotIndexed = field(default_factory=NotIndexed)
    """Files that no include pattern names."""
    ignored: dict[str, str] = field(default_factory=dict)
    """Folders and files left out by a .gitignore, or by what they are, with the reason."""
    mounts: dict[str, frozenset[str]] = field(default_factory=dict)
    """Mount points of each source that could be read, to be remembered."""
    contexts: Mapping[str, int] = field(default_factory=dict)
    """Contexts as they are stored: by status, and `pending:<reason>` for each reason."""
    warnings: list[str] = field(default_factory=list)
    build: str = ""
    """Name of the search table to build beside the live one, when the settings ask for another."""

    @property
    def owed(self) -> bool:
        """Whether a refresh would change an index (notes alone do not)."""
        return bool(self.work or self.removed or self.build)

    def digest(self) -> str:
        """Identity of the owed work: the same for the same documents in the same state."""
        works = sorted((w.doc_id, w.stage, w.reason, _stamp(w.file)) for w in self.work)
        return digest(works, sorted(self.removed), self.build)


@dataclass(frozen=True, slots=True)
class Damage:
    """Documents whose rows are not those the ledger tells of: the first stage to redo, and rows without a document."""

    stages: Mapping[str, Stage] = field(default_factory=dict)
    orphans: tuple[str, ...] = ()


def make_plan(
    scans: Sequence[SourceScan],
    ledger: Mapping[str, LedgerRow],
    hashes: StageHashes,
    *,
    target: str,
    live: str,
    now: float,
    safety: SafetySettings,
    damage: Damage | None = None,
    retry: bool = False,
    renew: bool = False,
    take_up: Container[str] = (),
    allow_mass_delete: bool = False,
) -> Plan:
    """Compare what is there with what is indexed.

    `target` is the search table that the settings ask for (the `live` one, or one being built beside it); `now` is
    Unix time in seconds. `retry` takes up permanent failures, transient ones that are not due, and fallback contexts;
    `renew` takes up contexts of an earlier wording; `take_up` names the reasons of pending contexts that are to be
    tried again.
    """
    damage = damage or Damage()
    wanted = _Wanted(hashes, target, damage, now, retry, renew, take_up)
    plan = Plan(
        build=target if target != live else "",
        contexts=context_totals(ledger.values()),
        not_indexed=merged(scan.not_indexed for scan in scans),
    )
    files = {doc_id: file for scan in scans for doc_id, file in scan.files.items()}
    for scan in scans:
        _report(scan, plan)

    # Rows of documents that the ledger does not know (it was lost) are the documents' last trace.
    known = [*ledger, *(doc_id for doc_id in damage.orphans if doc_id not in ledger)]
    found = deletions(scans, known, safety, allow_mass_delete=allow_mass_delete)
    plan.removed, plan.held, plan.mounts = found.removed, found.held, found.mounts
    plan.warnings += found.warnings
    for doc_id in found.kept:
        if doc_id in ledger:
            _plan_stored(ledger[doc_id], wanted, plan)

    for doc_id in sorted(files):
        _plan_found(files[doc_id], ledger.get(doc_id), wanted, plan)
    return plan


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What every document is compared with."""

    hashes: StageHashes
    target: str
    damage: Damage
    now: float
    retry: bool = False
    renew: bool = False
    take_up: Container[str] = ()


def _plan_found(file: FoundFile, row: LedgerRow | None, wanted: _Wanted, plan: Plan) -> None:
    hashes, retry = wanted.hashes, wanted.retry
    if row is None:
        plan.work.append(Work(file.doc_id, Stage.DOCUMENTS, "new", file))
        return
    failure = row.failure
    met_before = not retry and _same_content_as_failure(file, row)
    if failure and met_before and _waits(failure, wanted.now, hashes.all, digest(hashes.all, file.max_bytes)):
        # A mark left on a failed document is not owed: its repair needs the same content to pass.
        before = len(plan.work)
        _plan_stored(row, wanted, plan)
        if len(plan.work) == before and _is_hashed_in_vain(file, failure):
            plan.notes.append(replace(row, failure=_noted(failure, file)))
        return
    reason = ""
    if row.writing:
        reason = "interrupted"
    elif failure is not None and (retry or _same_content_as_failure(file, row)):
        reason = "failed before"
    elif not _content_is(file, row):
        reason = "changed" if row.content_hash else "new"
    elif file.size > file.max_bytes:
        reason = "over max_bytes"  # the limit was lowered: the read says so
    if reason:
        plan.work.append(Work(file.doc_id, Stage.DOCUMENTS, reason, file))
        return
    owed = _owed_stage(row, file, wanted)
    if owed is not None:
        plan.work.append(owed)
        return
    plan.unchanged += 1
    if failure is not None or _is_hashed_in_vain(file, row):
        plan.notes.append(replace(_noted(row, file), failure=None))


def _plan_stored(row: LedgerRow, wanted: _Wanted, plan: Plan) -> None:
    """Work that needs no source: what follows from the stored document."""
    failure = row.failure
    if failure is not None:
        plan.failed[row.doc_id] = failure.reason
    if not row.content_hash or row.writing:
        return
    met_stored = failure is not None and failure.content_hash == row.content_hash
    if failure is not None and met_stored and _waits(failure, wanted.now, wanted.hashes.all):
        return  # the stored document itself failed
    owed = _owed_stage(row, None, wanted)
    if owed is not None and owed.stage > Stage.DOCUMENTS:
        plan.work.append(owed)


def stored_work(rows: Iterable[LedgerRow | None], hashes: StageHashes, target: str, now: float) -> list[Work]:
    """Work on the stored documents of `rows` that needs no source."""
    plan = Plan()
    for row in rows:
        if row is not None:
            _plan_stored(row, _Wanted(hashes, target, Damage(), now), plan)
    return plan.work


def _owed_stage(row: LedgerRow, file: FoundFile | None, wanted: _Wanted) -> Work | None:
    """What a document of unchanged content is owed."""
    hashes, reasons = wanted.hashes, list[tuple[Stage, str]]()
    if row.parse != hashes.parse:
        reasons.append((Stage.DOCUMENTS, "settings: parse"))
    elif row.chunk != hashes.chunk:
        reasons.append((Stage.CHUNKS, "settings: chunking"))
    elif row.context != hashes.context:
        reasons.append((Stage.CONTEXTS, "settings: contexts"))
    elif row.indexed.get(wanted.target) != hashes.version(Stage.SEARCH, row.content_hash):
        reasons.append((Stage.SEARCH, "settings: search table"))
    elif wanted.renew and row.context_counts.get(EARLIER_VECTORS):
        reasons.append((Stage.SEARCH, "vectors of an earlier wording"))
    if row.doc_id in wanted.damage.stages:
        reasons.append((wanted.damage.stages[row.doc_id], "rows missing"))
    stage, reason = min(reasons, default=(None, ""))
    awaited = _awaited(row, wanted) if stage is None or stage > Stage.CONTEXTS else ""
    if awaited:
        return Work(row.doc_id, Stage.CONTEXTS, awaited, file, edited=False, only_awaited=stage is None)
    return None if stage is None else Work(row.doc_id, stage, reason, file, edited=False)


def _awaited(row: LedgerRow, wanted: _Wanted) -> str:
    """The contexts of a document that are to be tried again; empty for none."""
    pending = pending_by_reason(row.context_counts)
    tried = [f"{counted(n, 'context')} pending: {reason}" for reason, n in pending.items() if reason in wanted.take_up]
    fallback, earlier = (row.context_counts.get(name, 0) for name in ("fallback", EARLIER_WORDING))
    tried += [f"{counted(fallback, 'context')} fallback"] * (wanted.retry and fallback > 0)
    renewed = earlier + pending.get(RENEW, 0)
    return ", ".join(
        tried + [f"{counted(renewed, 'context')} of an {EARLIER_WORDING}"] * (wanted.renew and renewed > 0)
    )


def _waits(failure: Failure, now: float, *settings: str) -> bool:
    """Whether the same content under any of `settings` is not to be tried now."""
    if failure.kind == "permanent":
        return failure.settings in settings
    # Further away than any pause: the clock was wrong when it was set, and it is due.
    return failure.next_try - BACKOFF_MAX_S <= now < failure.next_try


def _same_content_as_failure(file: FoundFile, row: LedgerRow) -> bool:
    failure = row.failure
    return failure is not None and _content_is(file, failure)


def _content_is(file: FoundFile, met: LedgerRow | Failure) -> bool:
    """Whether the file holds what was met before: by its hash where both are known, else by size and times."""
    if file.size != met.size:
        return False
    if file.content_hash is not None and met.content_hash:
        return file.content_hash == met.content_hash
    return file.mtime_ns == met.mtime_ns and (met.ctime_ns is None or file.ctime_ns == met.ctime_ns)


def _is_hashed_in_vain(file: FoundFile, met: Known) -> bool:
    """Whether every scan would hash the file again although it did not change, unless its times are noted."""
    if (file.mtime_ns, file.ctime_ns) != (met.mtime_ns, met.ctime_ns):
        return True
    # Later than its reading by the clock of one of two machines, or of another day: no edit within the tick, which
    # could hide, and for as long as the clocks differ taken for one. What counts is that the two looks lie apart.
    looked_again = file.content_hash is not None and abs(file.scanned_at_ns - met.read_at_ns) >= RACY_NS
    return looked_again and met.mtime_ns > met.read_at_ns + RACY_NS


def _noted(met: Met, file: FoundFile) -> Met:
    """What was met, with the file's times of now.

    An edit that could hide behind the mtime would have shown in a second look; so an mtime in the future, which would
    be taken for young at each scan until then, is trusted after it.
    """
    seen_twice = file.mtime_ns == met.mtime_ns and file.ctime_ns == met.ctime_ns
    read_at_ns = max(file.scanned_at_ns, file.mtime_ns + RACY_NS) if seen_twice else file.scanned_at_ns
    return replace(met, mtime_ns=file.mtime_ns, ctime_ns=file.ctime_ns, read_at_ns=read_at_ns)


def _stamp(file: FoundFile | None) -> tuple[int, int, int | None] | None:
    return None if file is None else (file.size, file.mtime_ns, file.ctime_ns)


def _report(scan: SourceScan, plan: Plan) -> None:
    plan.skipped.update(scan.skipped)
    plan.ignored.update(scan.ignored)
    if scan.unreachable:
        plan.warnings.append(
            f"source {scan.name!r} cannot be read ({scan.unreachable}); its documents stay as they are indexed"
        )
    for prefix, reason in scan.unreadable.items():
        plan.warnings.append(f"{prefix} cannot be read ({reason}); what is indexed below it stays")


def plan_counts(plan: Plan, known: Container[str]) -> dict[str, int]:
    """Documents by what would happen to them; `known` are those that are indexed already."""
    return {
        "added": sum(1 for work in plan.work if work.doc_id not in known),
        "changed": sum(1 for work in plan.work if work.doc_id in known),
        "removed": len(plan.removed),
        "unchanged": plan.unchanged,
        "failed": len(plan.failed),
        "skipped": len(plan.skipped),
    }
