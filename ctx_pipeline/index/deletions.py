"""Which documents are gone, and which only seem to be: deletions are carried out or held back source by source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ctx_pipeline.documents.source import SourceScan
from ctx_pipeline.errors import counted
from ctx_pipeline.settings import SafetySettings

ALLOW = "run `ctx-pipeline refresh --allow-mass-delete`"
LISTED = 3
"""Documents and folders that a warning names; the rest are counted."""


@dataclass(slots=True)
class Deletions:
    """What becomes of the documents that no scan found."""

    removed: list[str] = field(default_factory=list)
    """Gone: to be deleted."""
    kept: list[str] = field(default_factory=list)
    """Not to be seen now, or held back: they stay as they are indexed."""
    held: dict[str, int] = field(default_factory=dict)
    """Deletions held back, by source."""
    mounts: dict[str, frozenset[str]] = field(default_factory=dict)
    """Mount points to be remembered, by source; sources that could not be read are not among them."""
    warnings: list[str] = field(default_factory=list)


def deletions(
    scans: Sequence[SourceScan], known: Iterable[str], safety: SafetySettings, *, allow_mass_delete: bool = False
) -> Deletions:
    """Judge every document of `known` that is in no scan.

    Held back without `allow_mass_delete`: whatever their count, documents that are there but left out by a .gitignore
    or the kind of their folder, those below a folder that was a mount point and is none now, and those of a source
    whose root has no document any more; else what exceeds both limits of `safety`. Documents of sources that no scan
    is of, because the settings name them no longer, fall under the limits alone.
    """
    found = Deletions()
    by_name = {scan.name: scan for scan in scans}
    totals: dict[str, int] = {}
    absent: dict[str, list[str]] = {}
    for doc_id in known:
        source = doc_id.partition("/")[0]
        totals[source] = totals.get(source, 0) + 1
        scan = by_name.get(source)
        if scan is None or (doc_id not in scan.files and scan.covers(doc_id)):
            absent.setdefault(source, []).append(doc_id)
        elif doc_id not in scan.files:
            found.kept.append(doc_id)
    found.mounts = {scan.name: scan.mounts for scan in scans if not scan.unreachable}
    for source, doc_ids in absent.items():
        if allow_mass_delete:
            found.removed += doc_ids
        else:
            _judge(source, doc_ids, totals[source], by_name.get(source), safety, found)
    found.removed.sort()
    return found


def _judge(
    source: str, absent: list[str], total: int, scan: SourceScan | None, safety: SafetySettings, found: Deletions
) -> None:
    gone = absent
    if scan is not None:
        left_out = [doc_id for doc_id in absent if doc_id in scan.left_out]
        if left_out:
            _hold(source, left_out, _left_out_message(left_out, scan), found)
        gone = [doc_id for doc_id in absent if doc_id not in scan.left_out]
        unmounted = {doc_id: place for doc_id in gone if (place := _mount_above(doc_id, scan.unmounted))}
        if unmounted:
            places = frozenset(unmounted.values())
            found.mounts[source] |= places
            _hold(source, list(unmounted), _unmounted_message(len(unmounted), sorted(places)), found)
            gone = [doc_id for doc_id in gone if doc_id not in unmounted]
    if not gone:
        return
    if scan is not None and not scan.files:
        _hold(source, gone, _empty_message(source, len(gone)), found)
    elif len(gone) > safety.max_delete_count and len(gone) > safety.max_delete_share * total:
        _hold(source, gone, _mass_message(source, len(gone), total, scan, safety), found)
    else:
        found.removed += gone


def _hold(source: str, doc_ids: list[str], message: str, found: Deletions) -> None:
    found.held[source] = found.held.get(source, 0) + len(doc_ids)
    found.kept += doc_ids
    found.warnings.append(message)


def _mount_above(doc_id: str, mounts: frozenset[str]) -> str:
    """The outermost of `mounts` that the document was in; empty for none."""
    return min((place for place in mounts if doc_id.startswith(f"{place}/")), default="")


def _left_out_message(doc_ids: list[str], scan: SourceScan) -> str:
    named = ", ".join(f"{doc_id} ({scan.left_out[doc_id]})" for doc_id in doc_ids[:LISTED])
    return (
        f"{counted(len(doc_ids), 'indexed document')} of source {scan.name!r} left out now though their files are "
        f"there: {named}{_and_more(len(doc_ids))}: deleting them is held back; {ALLOW} to drop them, or keep them by "
        "gitignore = false in their [[source]], or by a pattern with `!` in its exclude"
    )


def _unmounted_message(count: int, places: list[str]) -> str:
    named = ", ".join(places[:LISTED]) + _and_more(len(places))
    return (
        f"{named}: a mount point before, and none now: deleting {counted(count, 'document')} below is held back; "
        f"mount it again, or {ALLOW}"
    )


def _empty_message(source: str, gone: int) -> str:
    return (
        f"source {source!r} has no document any more: deleting its {gone} is held back, as an empty root is mostly a "
        f"volume that is not mounted or another checkout; put it back, correct its path, or {ALLOW}"
    )


def _mass_message(source: str, gone: int, total: int, scan: SourceScan | None, safety: SafetySettings) -> str:
    why = "is no longer in the settings" if scan is None else "no longer holds them"
    return (
        f"source {source!r} {why}: deleting {gone} of its {total} documents is held back "
        f"(more than max_delete_count {safety.max_delete_count} and max_delete_share {safety.max_delete_share:g}); "
        f"restore them, or {ALLOW}"
    )


def _and_more(count: int) -> str:
    return f" and {count - LISTED} more" if count > LISTED else ""
