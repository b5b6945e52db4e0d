"""What a refresh would do and what its contexts would cost: the data behind `plan`."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ctx_pipeline.contexts.estimate import Estimate
from ctx_pipeline.contexts.model import EARLIER_VECTORS, EARLIER_WORDING, FREE_METHODS, RENEW
from ctx_pipeline.contexts.planning import ContextPlan
from ctx_pipeline.errors import counted
from ctx_pipeline.index.awaited import context_totals, pending_by_reason
from ctx_pipeline.index.ledger import Ledger
from ctx_pipeline.index.plan import Plan, plan_counts
from ctx_pipeline.refresh import Pipeline
from ctx_pipeline.summary import RefreshOptions


@dataclass(frozen=True, slots=True)
class RefreshCosts:
    """A refresh before it is paid for."""

    plan: Plan
    documents: dict[str, int]
    """By what would happen to them."""
    contexts: ContextPlan
    supposed_for: str
    """The method of the settings, where it costs nothing and `claude` is planned in its place; else empty."""
    corpus_tokens: int
    """Of all documents after the refresh, by o200k_base."""
    advice: list[str]


def refresh_costs(pipeline: Pipeline, *, renew: bool = False) -> RefreshCosts:
    """Plan a refresh with the settings; where they cost nothing, one with `contexts.method = "claude"`.

    `renew` counts contexts of an earlier wording, as a refresh with that option would ask for them again.
    Reads only, and asks nobody. Raises SettingsError for a model without prices.
    """
    settings, embedder, supposed_for = pipeline.settings, pipeline.embedder, ""
    if settings.contexts.method in FREE_METHODS:
        supposed_for = settings.contexts.method
        contexts = settings.contexts.model_copy(update={"method": "claude"})
        pipeline = Pipeline(settings.model_copy(update={"contexts": contexts}), embedder=pipeline.embedder)
    ledger, plan = Ledger.read(pipeline.store), pipeline.plan(RefreshOptions(renew=renew))
    planned = pipeline.context_plan(plan, compare=True, renew=renew)
    assert planned is not None
    gone = {*plan.removed, *(work.doc_id for work in plan.work)}
    corpus_tokens = planned.tokens + sum(row.tokens for doc_id, row in ledger.rows.items() if doc_id not in gone)
    advice = planned.advice(corpus_tokens)
    totals = context_totals(ledger.rows.values())
    earlier = totals.get(EARLIER_WORDING, 0) + pending_by_reason(totals).get(RENEW, 0)
    if earlier and not renew:
        advice.append(
            f"{counted(earlier, 'context')} of an earlier version of this program are kept as they are; "
            "`ctx-pipeline plan --renew` prices asking for them again"
        )
    if vectors := totals.get(EARLIER_VECTORS, 0):
        advice.append(
            f"{counted(vectors, 'vector')} of an earlier version of this program are kept, since {embedder.name} may "
            "cost something; `refresh --renew` embeds them again"
        )
    queries = settings.evaluation.queries
    if planned.wanted:
        measure = f"`ctx-pipeline eval {queries or 'QUERIES.jsonl'}`"
        advice.append(f"{measure} measures what contexts are worth here; try it on a part of the documents first")
    counts = plan_counts(plan, ledger.indexed())
    return RefreshCosts(plan, counts, planned, supposed_for, corpus_tokens, advice)


def costs_json(costs: RefreshCosts) -> dict[str, Any]:
    """The contract of `ctx-pipeline plan --json`."""
    planned = costs.contexts
    return {
        "documents": costs.documents,
        "not_indexed": costs.plan.not_indexed.to_json(),
        "chunks": planned.chunks,
        "tokens": planned.tokens,
        "corpus_tokens": costs.corpus_tokens,
        "contexts": contexts_json(planned),
        "supposed_for": costs.supposed_for or None,
        "strategies": {name: estimate_json(found, planned) for name, found in planned.strategies.items()},
        "window_tokens": {str(tokens): estimate_json(found, planned) for tokens, found in planned.curve.items()},
        "advice": costs.advice,
        "warnings": costs.plan.warnings,
    }


def contexts_json(planned: ContextPlan) -> dict[str, Any]:
    """What contexts would cost with the settings as they are."""
    return {
        "method": planned.method,
        "model": planned.model,
        "documents": planned.asked_documents,
        "wanted": planned.wanted,
        "paid": planned.paid,
        "free": planned.free,
        **estimate_json(planned.chosen, planned),
        "max_usd": None if planned.max_usd is None else float(planned.max_usd),
    }


def estimate_json(found: Estimate, planned: ContextPlan) -> dict[str, Any]:
    """Calls, tokens by kind and USD, each as [low, high]; USD null where no price is known."""

    def usd(value: Decimal) -> float | None:
        return float(value) if planned.is_priced else None

    return {
        "calls": found.calls,
        "tokens": {kind: list(pair) for kind, pair in found.tokens().items()},
        "usd": [usd(found.low.usd), usd(found.high.usd)],
    }
