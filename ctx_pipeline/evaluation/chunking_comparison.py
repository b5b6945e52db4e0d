"""Which chunking serves a user's own queries best: a sweep over strategies, sizes and overlaps."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import get_args

from ctx_pipeline.chunking.model import Chunk
from ctx_pipeline.context_settings import ContextSettings
from ctx_pipeline.contexts.model import FREE_METHODS
from ctx_pipeline.errors import SettingsError
from ctx_pipeline.evaluation.arms import ArmIndex, contexts_to_measure, plain_contexts
from ctx_pipeline.evaluation.corpus import Corpus, rank_of
from ctx_pipeline.evaluation.metrics import DEPTH, Judged, SignTest, measure, sign_test
from ctx_pipeline.evaluation.queries import Query
from ctx_pipeline.index.search import Hit, Mode, SearchIndex
from ctx_pipeline.refresh import Pipeline
from ctx_pipeline.settings import LATE_CHUNKING_EMBEDDERS, Settings, Strategy

SIZES, OVERLAP_PERCENTS = (256, 512, 1024), (0, 10, 20)
BUDGET_TOKENS = 5_120
"""Tokens of retrieved text at which variants are compared: 20 chunks of 256, 10 of 512."""
BUDGET_DEPTH = 100
MAX_LOSS = 0.02
"""Of recall, that a cheaper variant may have less: with few queries even a large difference is within the noise."""
MODES: tuple[Mode, ...] = ("hybrid", "vector", "keyword")


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to cut the documents, and to embed what was cut."""

    strategy: Strategy
    max_tokens: int
    overlap_percent: int = 0
    late: bool = False

    @property
    def name(self) -> str:
        """As it stands in the table."""
        overlap = f", overlap {self.overlap_percent} %" if self.overlap_percent else ""
        return f"{self.strategy} {self.max_tokens}{overlap}{', late chunking' if self.late else ''}"

    def applied(self, settings: Settings) -> Settings:
        """Settings with this variant; contexts that cost money give way to the outline."""
        chunking = settings.chunking.model_copy(
            update={
                "strategy": self.strategy,
                "max_tokens": self.max_tokens,
                "overlap": self.max_tokens * self.overlap_percent // 100,
            }
        )
        embedding = settings.embedding.model_copy(update={"late_chunking": self.late})
        free = settings.contexts.method in FREE_METHODS
        contexts = settings.contexts if free else ContextSettings(method="outline")
        return settings.model_copy(update={"chunking": chunking, "embedding": embedding, "contexts": contexts})


@dataclass(frozen=True, slots=True)
class Compared:
    """A variant as it was measured, or why it was not."""

    variant: Variant
    not_measured: str = ""
    chunks: int = 0
    mean_tokens: float = 0.0
    judged: Mapping[Mode, Sequence[Judged]] | None = None
    at_budget: Sequence[Judged] = ()
    """The hybrid ranking as far as `BUDGET_TOKENS` of text go."""
    seconds: float = 0.0
    """For cutting, contexts and embedding."""
    usd: float | None = 0.0
    """For embedding; None when its price is not known."""

    def recall(self, mode: Mode, k: int) -> float:
        """Recall@k of one leg, or of both."""
        assert self.judged is not None
        return measure(self.judged[mode]).recall[k]

    @property
    def budget_recall(self) -> float:
        """Recall of the text that fits the token budget."""
        return measure(self.at_budget).recall[DEPTH]


@dataclass(frozen=True, slots=True)
class Comparison:
    """All variants, on the same documents and queries."""

    variants: Sequence[Compared]
    queries: int
    documents: int
    embedding_model: str
    context_method: str
    warnings: Sequence[str]

    @property
    def measured(self) -> list[Compared]:
        """Variants with figures."""
        return [compared for compared in self.variants if compared.judged is not None]

    def recommended(self) -> tuple[Compared, Compared, SignTest] | None:
        """What to take, the best at the token budget, and the test between them.

        The best one may cost vectors and time; of those that it beats by no more than noise and 0.02, the one with
        fewest chunks is as good and cheaper. None when nothing was found by any.
        """
        if not self.measured:
            return None
        best = max(self.measured, key=lambda compared: (compared.budget_recall, -compared.chunks))
        if not best.budget_recall:
            return None
        as_good = [
            one
            for one in self.measured
            if best.budget_recall - one.budget_recall <= MAX_LOSS and sign_test(one.at_budget, best.at_budget).is_noise
        ]
        chosen = min(as_good, key=lambda compared: (compared.chunks, compared.variant.late, -compared.budget_recall))
        return chosen, best, sign_test(chosen.at_budget, best.at_budget)


def variants(strategies: Sequence[Strategy], sizes: Sequence[int], overlaps: Sequence[int]) -> Iterator[Variant]:
    """The sweep: every combination that has a meaning, and late chunking of `recursive` without overlap."""
    for strategy in strategies:
        for size in sizes:
            for overlap in overlaps if strategy != "semantic" else (0,):
                yield Variant(strategy, size, overlap)
    if "recursive" in strategies:
        yield from (Variant("recursive", size, late=True) for size in sizes)


def compare_chunking(
    pipeline: Pipeline,
    corpus: Corpus,
    queries: Sequence[Query],
    *,
    strategies: Sequence[Strategy] = get_args(Strategy),
    sizes: Sequence[int] = SIZES,
    overlaps: Sequence[int] = OVERLAP_PERCENTS,
    progress: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Cut, index and query the documents of `corpus` by every variant, in temporary tables.

    Nothing is kept between runs, so that the times are those of the work. Raises QueryError when the queries are of
    other documents.
    """
    queries = corpus.resolve(queries)
    seen: dict[object, Variant] = {}
    compared = []
    method = "none"
    for variant in variants(strategies, sizes, overlaps):
        progress(f"chunking: {variant.name}")
        if variant.late and pipeline.embedder.name not in LATE_CHUNKING_EMBEDDERS:
            compared.append(Compared(variant, f"{pipeline.embedder.name} gives no vectors of single tokens"))
            continue
        try:
            own = Pipeline(variant.applied(pipeline.settings))
        except SettingsError as error:
            compared.append(Compared(variant, str(error)))
            continue
        method = own.contextualizer.method
        started = time.perf_counter()
        chunks = {doc_id: own.chunker.split(document.parsed) for doc_id, document in corpus.documents.items()}
        identity = (variant.late, tuple(_spans(chunks)))
        if identity in seen:
            compared.append(Compared(variant, f"the same chunks as {seen[identity].name}"))
            continue
        seen[identity] = variant
        compared.append(_measure(own, variant, replace(corpus, chunks=chunks, contexts=None), queries, started))
    return Comparison(
        compared, len(queries), len(corpus.documents), pipeline.embedder.name, method, list(corpus.warnings)
    )


def _measure(
    pipeline: Pipeline, variant: Variant, corpus: Corpus, queries: Sequence[Query], started: float
) -> Compared:
    with tempfile.TemporaryDirectory() as folder:
        plain = pipeline.contextualizer.method == "none"
        contexts = plain_contexts(corpus) if plain else contexts_to_measure(pipeline, corpus)
        arm = ArmIndex(Path(folder), pipeline.settings, pipeline.embedder, pipeline.hashes)
        index = arm.update(corpus, contexts)
        seconds = time.perf_counter() - started
        judged: dict[Mode, list[Judged]] = {mode: [] for mode in MODES}
        at_budget = []
        tokens = {
            (doc_id, chunk.start, chunk.end): chunk.tokens for doc_id, own in corpus.chunks.items() for chunk in own
        }
        for query in queries:
            for mode in MODES:
                hits = _hits(index, query, mode)
                judged[mode].append(corpus.judge(query, hits))
                if mode == "hybrid":
                    at_budget.append(_within_budget(query, hits, tokens))
    counts = [chunk.tokens for own in corpus.chunks.values() for chunk in own]
    usd = pipeline.embedder.usage_usd
    return Compared(variant, "", len(counts), fmean(counts or [0]), judged, at_budget, seconds, usd)


def _hits(index: SearchIndex, query: Query, mode: Mode) -> list[Hit]:
    return index.search(query.text, BUDGET_DEPTH if mode == "hybrid" else DEPTH, mode, rerank="none")


def _within_budget(query: Query, hits: Sequence[Hit], tokens: Mapping[tuple[str, int, int], int]) -> Judged:
    """The hits that fit the token budget; recall within it is recall@20 of this judgement."""
    shown: list[Hit] = []
    left = BUDGET_TOKENS
    for hit in hits:
        left -= tokens[hit.doc_id, hit.start, hit.end]
        if left < 0:
            break
        shown.append(hit)
    ranks = [rank_of(span, shown) for span in query.spans]
    # Found anywhere within the budget counts, also beyond the 20th chunk.
    return Judged(query.qid, tuple(rank and 1 for rank in ranks), (), 0)


def _spans(chunks: Mapping[str, Sequence[Chunk]]) -> Iterator[tuple[str, int, int]]:
    return ((doc_id, chunk.start, chunk.end) for doc_id, own in chunks.items() for chunk in own)
