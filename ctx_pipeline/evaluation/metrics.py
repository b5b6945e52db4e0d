"""Retrieval measures per query, their means, and the paired sign test.

A query's relevant chunks are those that cover at least one of its spans (`Span.is_covered_by`). Where a span is
covered by one chunk each, these are the measures of trec_eval on chunk judgements; where overlapping or small chunks
cover one span several times, recall still counts the span once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

CUTOFFS = (1, 5, 10, 20)
DEPTH = 20
"""Chunks of a ranking that are looked at, also by MRR."""
NDCG_CUTOFF = 10
SIGNIFICANCE = 0.05


@dataclass(frozen=True, slots=True)
class Judged:
    """One query's ranking against its spans. Ranks count from 1."""

    qid: str
    span_ranks: tuple[int | None, ...]
    """For each span the rank of the first chunk that covers it, None when none within the depth does."""
    relevant_ranks: tuple[int, ...]
    """Ranks of all chunks that cover some span, ascending."""
    relevant_total: int
    """Chunks of the whole corpus that cover some span."""

    def recall(self, k: int) -> float:
        """Spans covered by the first k chunks / spans."""
        return sum(rank is not None and rank <= k for rank in self.span_ranks) / len(self.span_ranks)

    def hit(self, k: int) -> float:
        """1 when the first k chunks cover any span."""
        return float(any(rank is not None and rank <= k for rank in self.span_ranks))

    def reciprocal_rank(self) -> float:
        """1 / rank of the first relevant chunk, 0 when there is none within the depth."""
        return 1 / self.relevant_ranks[0] if self.relevant_ranks else 0.0

    def ndcg(self, k: int = NDCG_CUTOFF) -> float:
        """Normalized discounted cumulative gain with gains 0 and 1 and discount log2(rank + 1) (Järvelin 2002)."""
        gained = sum(1 / math.log2(rank + 1) for rank in self.relevant_ranks if rank <= k)
        ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(k, self.relevant_total) + 1))
        return gained / ideal if ideal else 0.0


@dataclass(frozen=True, slots=True)
class Measures:
    """Means over all queries; a query without a result counts 0."""

    recall: Mapping[int, float]
    hit_rate: Mapping[int, float]
    mrr: float
    ndcg_at_10: float

    @property
    def failure_rate(self) -> float:
        """1 - recall@20: the figure that contextual retrieval promises to lower."""
        return 1 - self.recall[DEPTH]


def measure(judged: Sequence[Judged]) -> Measures:
    """Means of the measures. Raises ValueError for no query."""
    if not judged:
        raise ValueError("no query to measure")
    return Measures(
        recall={k: fmean(one.recall(k) for one in judged) for k in CUTOFFS},
        hit_rate={k: fmean(one.hit(k) for one in judged) for k in CUTOFFS},
        mrr=fmean(one.reciprocal_rank() for one in judged),
        ndcg_at_10=fmean(one.ndcg() for one in judged),
    )


@dataclass(frozen=True, slots=True)
class SignTest:
    """Queries that one arm answers better and worse than another, and how likely so uneven a split is by chance."""

    wins: int
    losses: int
    ties: int

    @property
    def p(self) -> float:
        """Two-sided exact probability under wins ~ Binomial(wins + losses, 1/2); 1 when every query ties."""
        n, fewer = self.wins + self.losses, min(self.wins, self.losses)
        return min(1.0, float(2 * sum(math.comb(n, i) for i in range(fewer + 1)) / 2**n))

    @property
    def is_noise(self) -> bool:
        """Whether the difference may well be chance (p of at least 0.05)."""
        return self.p >= SIGNIFICANCE


def sign_test(before: Sequence[Judged], after: Sequence[Judged], k: int = DEPTH) -> SignTest:
    """Recall@k of the same queries in two arms, paired. Raises ValueError when the queries are not the same."""
    if [one.qid for one in before] != [one.qid for one in after]:
        raise ValueError("the arms were run on different queries")
    pairs = [(a.recall(k), b.recall(k)) for a, b in zip(before, after, strict=True)]
    wins, losses = sum(b > a for a, b in pairs), sum(b < a for a, b in pairs)
    return SignTest(wins, losses, len(pairs) - wins - losses)
