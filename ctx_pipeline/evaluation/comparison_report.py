"""A chunking comparison for people and programs."""

from __future__ import annotations

from typing import Any

from ctx_pipeline.escaping import markdown
from ctx_pipeline.evaluation.chunking_comparison import BUDGET_TOKENS, Compared, Comparison
from ctx_pipeline.evaluation.metrics import CUTOFFS, DEPTH


def comparison_markdown(comparison: Comparison) -> str:
    """A chunking comparison as a Markdown table, with a recommendation from its own numbers."""
    header = ("chunking", "chunks", "mean tokens", "recall@5", "@20", f"in {BUDGET_TOKENS:,} tokens", "vector @20",
              "keyword @20", "seconds", "USD")  # fmt: skip
    lines = [f"| {' | '.join(header)} |", f"| --- {'| ---: ' * (len(header) - 1)}|"]
    for one in comparison.variants:
        if one.judged is None:
            lines.append(f"| {one.variant.name} | {markdown(one.not_measured)}{' |' * (len(header) - 1)}")
            continue
        recalls = [
            one.recall("hybrid", 5), one.recall("hybrid", DEPTH), one.budget_recall,
            one.recall("vector", DEPTH), one.recall("keyword", DEPTH),
        ]  # fmt: skip
        cells = [
            one.variant.name,
            f"{one.chunks:,}",
            f"{one.mean_tokens:.0f}",
            *(f"{recall:.3f}" for recall in recalls),
        ]
        usd = "unknown" if one.usd is None else f"{one.usd:.4f}" if one.usd else "0"
        lines.append(f"| {' | '.join([*cells, f'{one.seconds:.0f}', usd])} |")
    about = (
        f"{comparison.queries} queries, {comparison.documents} documents; embedder {comparison.embedding_model}, "
        f"contexts {comparison.context_method}. Recall of both legs fused, then as far as {BUDGET_TOKENS:,} tokens of "
        "text go, then of each leg alone; seconds to cut, write contexts and embed."
    )
    return "\n".join([*lines, "", about, "", _recommendation(comparison)])


def _recommendation(comparison: Comparison) -> str:
    found = comparison.recommended()
    if found is None:
        return "nothing was measured, so nothing is recommended"
    chosen, best, test = found
    line = f"recommended: {chosen.variant.name}"
    if chosen is best:
        return f"{line}, the best within the token budget ({best.budget_recall:.3f})"
    return (
        f"{line} ({chosen.budget_recall:.3f} within the token budget, {chosen.chunks:,} chunks): what "
        f"{best.variant.name} has more ({best.budget_recall:.3f}, {best.chunks:,} chunks) is within the noise "
        f"({test.wins} queries better, {test.losses} worse, p {test.p:.2g})"
    )


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """The contract of `ctx-pipeline eval --compare-chunking --json`."""
    found = comparison.recommended()
    return {
        "queries": comparison.queries,
        "documents": comparison.documents,
        "embedding_model": comparison.embedding_model,
        "context_method": comparison.context_method,
        "variants": [_variant(one) for one in comparison.variants],
        "recommended": found[0].variant.name if found else None,
        "warnings": list(comparison.warnings),
    }


def _variant(one: Compared) -> dict[str, Any]:
    if one.judged is None:
        return {"variant": one.variant.name, "not_measured": one.not_measured}
    return {
        "variant": one.variant.name,
        "chunks": one.chunks,
        "mean_tokens": one.mean_tokens,
        "recall": {mode: {str(k): one.recall(mode, k) for k in CUTOFFS} for mode in one.judged},
        "recall_at_budget": one.budget_recall,
        "seconds": one.seconds,
        "usd": one.usd,
    }
