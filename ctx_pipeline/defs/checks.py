"""Asset checks: they ask the tables, and run at the end of each refresh or from the UI."""

from collections.abc import Callable, Sequence
from typing import Any

import dagster as dg

from ctx_pipeline.defs.events import bullets, reason_list
from ctx_pipeline.defs.resources import PipelineResource, run_or_fail
from ctx_pipeline.escaping import one_line
from ctx_pipeline.index.audit import audit, duplicate_ids, quick_damage
from ctx_pipeline.index.awaited import context_totals, context_warnings, fallback_reasons, pending_by_reason
from ctx_pipeline.index.ledger import Ledger
from ctx_pipeline.refresh import Pipeline

LISTED = 20

Finding = tuple[bool, dict[str, Any]]
Check = Callable[[Pipeline, bool], Finding]


def no_standing_failures(pipeline: Pipeline, quick: bool) -> Finding:
    """No document waits with a failure; its previous version, if any, stays searchable."""
    failures = [(row.doc_id, row.failure) for row in Ledger.read(pipeline.store).rows.values() if row.failure]
    lines = [f"{doc_id}: {failure.reason}" for doc_id, failure in failures[:LISTED]]
    return not failures, {"failed_documents": len(failures), "failures": bullets(lines)}


def index_matches_ledger(pipeline: Pipeline, quick: bool) -> Finding:
    """Each document's rows are as many as the ledger tells, of one version, with ordinals 0..n-1 and unique ids.

    `quick` looks at the rows only when their number is not the ledger's: after each refresh that is enough.
    """
    tables = pipeline.search_tables()
    compare = quick_damage if quick else audit
    damage = compare(pipeline.store, Ledger.read(pipeline.store), tables.audited)
    duplicates = duplicate_ids(pipeline.store, tables.live) if tables.live and not quick else []
    damaged = len(damage.stages) + len(damage.orphans) + len(duplicates)
    return bool(tables.live) and not damaged, {
        "damaged_documents": len(damage.stages),
        "orphaned_documents": len(damage.orphans),
        "duplicate_ids": len(duplicates),
        "examples": ", ".join(map(one_line, [*damage.stages, *damage.orphans, *duplicates][:LISTED])),
    }


def contexts_are_written(pipeline: Pipeline, quick: bool) -> Finding:
    """No chunk waits for its context or has the outline in place of one; the reasons say what to do."""
    totals = context_totals(Ledger.read(pipeline.store).rows.values())
    fallback, pending = fallback_reasons(pipeline.store, totals), pending_by_reason(totals)
    reasons = {
        **{f"pending, {reason}": count for reason, count in pending.items()},
        **{f"fallback, {reason}": count for reason, count in list(fallback.items())[:LISTED]},
    }
    return not reasons, {
        **{f"contexts_{status}": totals[status] for status in ("written", "fallback", "pending")},
        **{f"contexts_pending_{reason}": count for reason, count in pending.items()},
        "reasons": reason_list(reasons),
        "remedies": bullets(context_warnings(totals)),
    }


CHECKS: dict[str, tuple[str, Check, dg.AssetCheckSeverity]] = {
    "contexts_are_written": ("contexts", contexts_are_written, dg.AssetCheckSeverity.WARN),
    "no_standing_failures": ("search_index", no_standing_failures, dg.AssetCheckSeverity.WARN),
    "index_matches_ledger": ("search_index", index_matches_ledger, dg.AssetCheckSeverity.ERROR),
}
"""Each check with the asset it is of, and what it means when it does not pass."""


def index_checks(pipeline: Pipeline, *, quick: bool) -> list[dg.AssetCheckEvaluation]:
    """Evaluations to log at the end of a refresh, also of one whose step then fails."""
    evaluations = []
    for name, (asset, check, severity) in CHECKS.items():
        passed, metadata = check(pipeline, quick)
        evaluations.append(
            dg.AssetCheckEvaluation(
                check_name=name, asset_key=dg.AssetKey(asset), passed=passed, severity=severity, metadata=metadata
            )
        )
    return evaluations


def check_definitions() -> Sequence[dg.AssetChecksDefinition]:
    """The same checks, to be run from the UI or after a partitioned run."""
    return [_definition(name) for name in CHECKS]


def _definition(name: str) -> dg.AssetChecksDefinition:
    asset, check, severity = CHECKS[name]

    @dg.asset_check(asset=asset, name=name, description=(check.__doc__ or "").split("\n")[0])
    def asset_check(pipeline: PipelineResource) -> dg.AssetCheckResult:
        passed, metadata = run_or_fail(lambda: check(pipeline.open(), False))
        return dg.AssetCheckResult(passed=passed, severity=severity, metadata=metadata)

    return asset_check
