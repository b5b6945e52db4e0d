"""Measures and the sign test: by hand, by their properties, and against ir-measures on a real run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import ir_measures
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ir_measures import RR, R, Success, nDCG

from ctx_pipeline.evaluation.metrics import CUTOFFS, Judged, SignTest, measure, sign_test
from ctx_pipeline.evaluation.queries import Span


def judged(*span_ranks: int | None, relevant: tuple[int, ...] | None = None, total: int | None = None) -> Judged:
    ranks = tuple(sorted({rank for rank in span_ranks if rank})) if relevant is None else relevant
    return Judged("q", span_ranks, ranks, len(span_ranks) if total is None else total)


def test_recall_counts_spans_and_a_query_without_a_result_counts_zero() -> None:
    both, one, none = judged(1, 6), judged(3, None), judged(None)
    assert [both.recall(k) for k in CUTOFFS] == [0.5, 0.5, 1, 1]
    assert [one.recall(k) for k in CUTOFFS] == [0, 0.5, 0.5, 0.5]
    assert [one.hit(k) for k in CUTOFFS] == [0, 1, 1, 1]
    found = measure([both, one, none])
    assert found.recall[20] == pytest.approx(0.5)
    assert found.failure_rate == pytest.approx(0.5)
    assert found.hit_rate[20] == pytest.approx(2 / 3)
    assert found.mrr == pytest.approx((1 + 1 / 3 + 0) / 3)


def test_two_chunks_over_one_span_count_once_for_recall_and_twice_for_ndcg() -> None:
    overlapping = judged(2, relevant=(2, 3), total=2)
    assert overlapping.recall(5) == 1
    gained, ideal = 1 / math.log2(3) + 1 / math.log2(4), 1 + 1 / math.log2(3)
    assert overlapping.ndcg() == pytest.approx(gained / ideal)


def test_a_span_that_no_chunk_covers_is_a_failure_not_a_division_by_zero() -> None:
    lost = judged(None, total=0)
    assert (lost.recall(20), lost.ndcg(), lost.reciprocal_rank()) == (0, 0, 0)


@pytest.mark.parametrize(
    ("span", "chunk", "covered"),
    [
        ((100, 200), (100, 200), True),
        ((100, 200), (150, 400), True),  # half of the span
        ((100, 200), (151, 400), False),
        ((0, 5000), (0, 600), True),  # half of 1,200 characters of a long span
        ((0, 5000), (4900, 5500), False),
        ((0, 5000), (1000, 1100), True),  # a small chunk inside the span
        ((0, 5000), (4910, 5010), True),  # 90 % of the chunk inside
        ((0, 5000), (4911, 5011), False),
        ((100, 200), (200, 300), False),
    ],
)
def test_what_covers_a_span(span: tuple[int, int], chunk: tuple[int, int], covered: bool) -> None:
    assert Span("a.md", *span).is_covered_by(*chunk) is covered


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_the_sign_test_is_exact(wins: int, losses: int, ties: int) -> None:
    """Against all 2^n outcomes, added up the other way round."""
    n = wins + losses
    as_uneven = sum(math.comb(n, i) for i in range(n + 1) if abs(2 * i - n) >= abs(wins - losses))
    assert SignTest(wins, losses, ties).p == pytest.approx(as_uneven / 2**n)


def test_the_sign_test_says_what_is_noise() -> None:
    assert SignTest(5, 0, 100).p == pytest.approx(0.0625)
    assert SignTest(5, 0, 100).is_noise
    assert not SignTest(6, 0, 100).is_noise
    assert SignTest(0, 0, 7).p == 1
    before = [judged(None), judged(None), judged(5), judged(1)]
    after = [judged(3), judged(20), judged(None), judged(9)]
    assert sign_test(before, after) == SignTest(wins=2, losses=1, ties=1)
    with pytest.raises(ValueError, match="different queries"):
        sign_test(before, after[:2])


def test_measures_agree_with_ir_measures_on_given_chunks(corpora: Path) -> None:
    """A run made of real judgements: for each query its chunks in an order shuffled by a fixed rule."""
    folder = corpora / "code-search"
    chunks = [json.loads(line) for line in (folder / "chunks.jsonl").open(encoding="utf-8")]
    spans: dict[str, list[Span]] = {}
    for line in (folder / "queries.jsonl").open(encoding="utf-8"):
        row = json.loads(line)
        spans.setdefault(row["qid"], []).append(Span(row["doc"], row["start"], row["end"]))
    ours, qrels, run = [], [], []
    for number, (qid, own) in enumerate(spans.items()):
        step = 2 * number + 5
        ranking = [(number * 31 + step * i) % len(chunks) for i in range(20)]
        covered_by = [
            {i for i, c in enumerate(chunks) if c["doc"] == span.doc and span.is_covered_by(c["start"], c["end"])}
            for span in own
        ]
        relevant = sorted(set().union(*covered_by))
        if any(len(covering) != 1 for covering in covered_by) or len(relevant) != len(own):
            continue  # a span in two chunks: trec_eval's recall counts chunks, ours counts spans
        ranking[number % 20] = relevant[0]  # random rankings would hold next to nothing
        ranking = list(dict.fromkeys(ranking))
        ranks = {chunk: rank for rank, chunk in enumerate(ranking, start=1)}
        ours.append(
            Judged(
                qid,
                tuple(ranks.get(min(covering)) for covering in covered_by),
                tuple(sorted(ranks[c] for c in relevant if c in ranks)),
                len(relevant),
            )
        )
        qrels += [ir_measures.Qrel(qid, str(chunk), 1) for chunk in relevant]
        run += [ir_measures.ScoredDoc(qid, str(chunk), -float(rank)) for chunk, rank in ranks.items()]
    assert len(ours) > 200
    theirs = ir_measures.calc_aggregate([R @ 1, R @ 5, R @ 10, R @ 20, Success @ 20, RR, nDCG @ 10], qrels, run)
    found = measure(ours)
    assert {k: found.recall[k] for k in CUTOFFS} == pytest.approx({k: theirs[R @ k] for k in CUTOFFS})
    assert found.hit_rate[20] == pytest.approx(theirs[Success @ 20])
    assert found.mrr == pytest.approx(theirs[RR])
    assert found.ndcg_at_10 == pytest.approx(theirs[nDCG @ 10])
