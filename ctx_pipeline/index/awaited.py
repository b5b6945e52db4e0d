"""Contexts that are not written: how many, why, and what to do about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ctx_pipeline.errors import counted
from ctx_pipeline.index.ledger import LedgerRow
from ctx_pipeline.index.schemas import CONTEXTS
from ctx_pipeline.index.tables import Store

REMEDIES = {
    "no_key": "set the key of contexts.method (ANTHROPIC_API_KEY for claude), then run `ctx-pipeline refresh`",
    "auth": "the key was refused: set another one, then run `ctx-pipeline refresh`",
    "unavailable": "the service could not be used for now; run `ctx-pipeline refresh` again later",
    "budget": "raise contexts.max_usd, or run `ctx-pipeline refresh` again, each may spend as much; where the refresh "
    "told of a spend limit of the account, raise that",
}
"""What to do about contexts that are pending because somebody, or the service, has to do something first."""
STOPPING = frozenset({"no_key", "auth", "budget"})
"""Reasons that hold for every further call of a refresh."""
RETRY = "`ctx-pipeline refresh --retry` asks for them again"
_PENDING = "pending:"


def pending_by_reason(counts: Mapping[str, int]) -> dict[str, int]:
    """The pending contexts among `LedgerRow.context_counts`, or sums of them, by reason."""
    return {name.removeprefix(_PENDING): count for name, count in counts.items() if name.startswith(_PENDING)}


def context_totals(rows: Iterable[LedgerRow]) -> Counter[str]:
    """The sum of all documents' `context_counts`."""
    totals = Counter[str]()
    for row in rows:
        totals.update(row.context_counts)
    return totals


def fallback_reasons(store: Store, totals: Mapping[str, int]) -> dict[str, int]:
    """Fallback contexts by reason, the most frequent first. Reads the table only where `totals` tell of some."""
    if not totals.get("fallback"):
        return {}
    found = store.table(CONTEXTS).search().where("status = 'fallback'").select(["reason"]).to_arrow()
    return dict(Counter(found["reason"].to_pylist()).most_common())


def not_written(totals: Mapping[str, int]) -> list[tuple[str, str]]:
    """What is not written and needs somebody, each with the remedy; `deferred` and `batch` wait for their own job."""
    found = [
        (f"{counted(count, 'context')} pending ({reason})", REMEDIES[reason])
        for reason, count in pending_by_reason(totals).items()
        if reason in REMEDIES
    ]
    if fallback := totals.get("fallback", 0):
        found.append((f"{counted(fallback, 'context')} fell back to the outline", RETRY))
    return found


def context_warnings(totals: Mapping[str, int]) -> list[str]:
    """The same in one line each."""
    return [f"{problem}: {remedy}" for problem, remedy in not_written(totals)]
