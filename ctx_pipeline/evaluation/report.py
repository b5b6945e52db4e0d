"""A ladder for people and programs: Markdown, JSON, a plot, and a file with every query."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ctx_pipeline import escaping
from ctx_pipeline.errors import CtxError
from ctx_pipeline.evaluation.ladder import Ladder, Row
from ctx_pipeline.evaluation.metrics import CUTOFFS, DEPTH, SignTest
from ctx_pipeline.evaluation.queries import Query
from ctx_pipeline.private_files import make_folder, write

_HEADER = (
    "arm", "recall@1", "@5", "@10", "@20", "hit@20", "failures", "reduced by", "MRR", "nDCG@10",
    "against: wins / losses / ties", "truncated", "ms/query", "USD/query",
)  # fmt: skip


def markdown(ladder: Ladder) -> str:
    """The ladder as a Markdown table, with what it was measured on and what its columns mean."""
    lines = [f"| {' | '.join(_HEADER)} |", f"| --- {'| ---: ' * (len(_HEADER) - 1)}|"]
    first = next((row for row in ladder.rows if row.measures), None)
    for row in ladder.rows:
        if row.measures is None:
            lines.append(
                f"| {row.name} | not measured: {escaping.markdown(row.not_measured)}{' |' * (len(_HEADER) - 1)}"
            )
        else:
            lines.append(f"| {' | '.join([row.name, *_cells(row, first)])} |")
    embedder, method = escaping.markdown(ladder.embedding_model), escaping.markdown(ladder.context_method)
    about = (
        f"{ladder.queries} queries, {ladder.documents} documents, {ladder.chunks} chunks; embedder "
        f"{embedder}, contexts {method}. Failures are 1 - recall@{DEPTH}; `reduced by` is against the first row. "
        f"Sign test on recall@{DEPTH}, paired by query; MRR looks at {DEPTH} chunks."
    )
    return "\n".join([*lines, "", about, *(f"\nwarning: {escaping.markdown(warning)}" for warning in ladder.warnings)])


def _cells(row: Row, first: Row | None) -> list[str]:
    measures = row.measures
    assert measures is not None
    reduction = "" if first is None or first is row else _reduction(first, row)
    return [
        *(f"{measures.recall[k]:.3f}" for k in CUTOFFS),
        f"{measures.hit_rate[DEPTH]:.3f}",
        f"{measures.failure_rate:.1%}",
        reduction,
        f"{measures.mrr:.3f}",
        f"{measures.ndcg_at_10:.3f}",
        f"{row.against}: {_verdict(row.test)}" if row.test and row.against else "",
        str(row.truncated),
        f"{1000 * row.seconds_per_query:.0f}",
        "unknown" if row.usd_per_query is None else f"{row.usd_per_query:.2g}" if row.usd_per_query else "0",
    ]


def _reduction(first: Row, row: Row) -> str:
    assert first.measures and row.measures
    if not first.measures.failure_rate:
        return "-"
    return f"{1 - row.measures.failure_rate / first.measures.failure_rate:.0%}"


def _verdict(test: SignTest) -> str:
    counts = f"{test.wins} / {test.losses} / {test.ties}"
    return f"{counts}, p {test.p:.2g}" + (", within the noise" if test.is_noise else "")


def to_json(ladder: Ladder) -> dict[str, Any]:
    """The contract of `ctx-pipeline eval --json`."""
    return {
        "queries": ladder.queries,
        "documents": ladder.documents,
        "chunks": ladder.chunks,
        "context_method": ladder.context_method,
        "embedding_model": ladder.embedding_model,
        "arms": [_arm(row) for row in ladder.rows],
        "warnings": ladder.warnings,
    }


def _arm(row: Row) -> dict[str, Any]:
    if row.measures is None:
        return {"arm": row.name, "not_measured": row.not_measured}
    test = row.test
    return {
        "arm": row.name,
        "recall": {str(k): row.measures.recall[k] for k in CUTOFFS},
        "hit_rate": {str(k): row.measures.hit_rate[k] for k in CUTOFFS},
        "failure_rate": row.measures.failure_rate,
        "mrr": row.measures.mrr,
        "ndcg@10": row.measures.ndcg_at_10,
        "against": row.against,
        "sign_test": test and {"wins": test.wins, "losses": test.losses, "ties": test.ties, "p": test.p},
        "truncated": row.truncated,
        "seconds_per_query": row.seconds_per_query,
        "usd_per_query": row.usd_per_query,
    }


def write_per_query(ladder: Ladder, queries: Sequence[Query], path: Path) -> None:
    """One JSON line for each arm and query: measures, ranks of its spans, and the chunks that were retrieved.

    Raises CtxError when the file cannot be written.
    """
    lines = (json.dumps(line, ensure_ascii=False) + "\n" for line in _per_query(ladder, queries))
    write_file(path, "".join(lines).encode())


def write_file(path: Path, content: bytes) -> None:
    """Write a file and the folders above it. Raises CtxError when that is not possible."""
    try:
        make_folder(path.parent)
        unfinished = path.with_name(f"{path.name}.tmp")
        write(unfinished, content)
        unfinished.replace(path)
    except OSError as error:
        raise CtxError(f"{path} cannot be written ({error.strerror})") from None


def _per_query(ladder: Ladder, queries: Sequence[Query]) -> Iterator[dict[str, Any]]:
    for row in ladder.rows:
        for query, judged, found in zip(queries, row.judged, row.found, strict=False):
            yield {
                "arm": row.name,
                "qid": query.qid,
                "query": query.text,
                **{f"recall@{k}": judged.recall(k) for k in CUTOFFS},
                "reciprocal_rank": judged.reciprocal_rank(),
                "ndcg@10": judged.ndcg(),
                "spans": [
                    {"doc": span.doc, "start": span.start, "end": span.end, "rank": rank}
                    for span, rank in zip(query.spans, judged.span_ranks, strict=True)
                ],
                "chunks": list(found),
            }


def plot_png(ladder: Ladder) -> bytes:
    """Recall@5 and @20 of the measured arms as horizontal bars. Raises CtxError without the extra `plot`."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise CtxError(
            "matplotlib is not installed: `pip install -e '.[plot]'` in the project's folder lets it be drawn"
        ) from None
    rows = [row for row in ladder.rows if row.measures][::-1]
    figure = Figure(figsize=(8, 0.8 + 0.6 * len(rows)), dpi=110, layout="constrained")
    axes = figure.subplots()
    for offset, (k, colour) in zip((0.2, -0.2), ((DEPTH, "#2a6f97"), (5, "#a9d6e5")), strict=True):
        values = [row.measures.recall[k] for row in rows if row.measures]
        bars = axes.barh([i + offset for i in range(len(rows))], values, height=0.38, color=colour, label=f"recall@{k}")
        axes.bar_label(bars, fmt="%.3f", padding=3, fontsize=8)
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.set_xlim(0, 1.08)
    axes.set_title(f"{ladder.queries} queries, {ladder.chunks} chunks, contexts: {ladder.context_method}", fontsize=10)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2, frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    return drawn.getvalue()
