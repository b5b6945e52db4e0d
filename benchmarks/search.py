"""Latency of `search` over a large index, against the LanceDB queries that it makes.

    python -m benchmarks.search [--chunks 100000] [--queries 300]

Run it from the repository's folder, with the project installed. An index of generated chunks (about 60 words of a
Zipf-distributed vocabulary, 384-dimensional vectors in clusters) is built in a temporary folder (TMPDIR chooses where)
with the product's tables and indexes, and optimized. Every query is run three ways in turn, so that all three see the
same machine: `search` itself with the query's vector given; the same LanceDB queries bare, one after the other, with
the rows of the hits read; and LanceDB's own hybrid query over the vector and one full-text column. Embedding a query
with e5 is timed apart. Target: p50 and p95 of `search` at most 1.15 x those of the bare queries.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctx_pipeline.embedding.e5 import E5Embedder
from ctx_pipeline.embedding.hashing import HashingEmbedder
from ctx_pipeline.index.fulltext import query_text
from ctx_pipeline.index.legs import REFINE_FACTOR
from ctx_pipeline.index.maintenance import ensure_text_indexes, ensure_vector_index
from ctx_pipeline.index.schemas import SearchTableSpec, chunk_id, text_column
from ctx_pipeline.index.search import CONTENT_COLUMNS, SearchIndex
from ctx_pipeline.index.search_tables import ACTIVE
from ctx_pipeline.index.tables import Store, id_filter
from ctx_pipeline.index.versions import embed_hash
from ctx_pipeline.settings import Settings, StorageSettings

DIMENSION, CLUSTERS, WORDS, CHUNK_WORDS, CHUNKS_PER_DOCUMENT = 384, 300, 30_000, 60, 20
BLOCK = 10_000
MAX_RATIO = 1.15
K = 20


class GivenVectors(HashingEmbedder):
    """An embedder whose query vectors are made before the clock starts."""

    fingerprint = "given"

    def __init__(self) -> None:
        super().__init__()
        self.vector: NDArray[np.float32] = np.zeros(DIMENSION, np.float32)

    @property
    def dimension(self) -> int:
        return DIMENSION

    def embed_query(self, text: str) -> NDArray[np.float32]:
        return self.vector


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--chunks", type=int, default=100_000)
    arguments.add_argument("--queries", type=int, default=300)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(storage=StorageSettings(uri=Path(folder)))
        embedder = GivenVectors()
        generated = Generated(random.Random(7), np.random.default_rng(7))
        started = time.perf_counter()
        store = build(settings, embedder, generated, options.chunks)
        print(f"{options.chunks:,} chunks built and indexed in {time.perf_counter() - started:.0f} s")
        index = SearchIndex(store, settings, embedder)
        ways: dict[str, Callable[[str, NDArray[np.float32]], Any]] = {
            "search": lambda query, vector: index.search(query, K),
            "bare queries": Bare(store, settings).run,
            "LanceDB hybrid": Hybrid(store, settings).run,
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(options.queries + 20):
            query, embedder.vector = generated.text(6), generated.vector()
            for name in random.sample(list(ways), len(ways)):
                started = time.perf_counter()
                ways[name](query, embedder.vector)
                if number >= 20:  # the first ones read what later ones find in memory
                    taken[name].append(1000 * (time.perf_counter() - started))
    report(taken, options.queries)


def report(taken: dict[str, list[float]], count: int) -> None:
    base = quantiles(taken["bare queries"])
    print(f"{count} queries, k {K}, in milliseconds")
    for name, values in taken.items():
        p50, p95 = quantiles(values)
        ratios = f"{p50 / base[0]:.2f} x, {p95 / base[1]:.2f} x"
        print(f"  {name:16} p50 {p50:6.1f}  p95 {p95:6.1f}   {ratios if name != 'bare queries' else ''}")
    p50, p95 = quantiles(taken["search"])
    met = p50 <= MAX_RATIO * base[0] and p95 <= MAX_RATIO * base[1]
    print(f"  target {MAX_RATIO} x: {'met' if met else 'missed'}")
    e5 = E5Embedder()
    e5.embed_query("warm-up")
    embedding = []
    for number in range(100):
        started = time.perf_counter()
        e5.embed_query(f"¿Cuántas peticiones por minuto permite el plan {number}?")
        embedding.append(1000 * (time.perf_counter() - started))
    p50, p95 = quantiles(embedding)
    print(f"  embedding a query with e5: p50 {p50:.1f}  p95 {p95:.1f}")


def quantiles(values: Sequence[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(values, n=20)
    return statistics.median(values), cuts[-1]


class Generated:
    """Texts and vectors with the skew of real ones: few frequent words and many rare ones, vectors in clusters."""

    def __init__(self, chance: random.Random, numbers: np.random.Generator) -> None:
        self._chance, self._numbers = chance, numbers
        letters = "abcdefghijklmnopqrstuvwxyz"
        self._words = ["".join(chance.choices(letters, k=chance.randint(4, 9))) for _ in range(WORDS)]
        self._weights = np.cumsum(1 / np.arange(1, WORDS + 1)).tolist()
        self._centres = numbers.normal(size=(CLUSTERS, DIMENSION)).astype(np.float32)

    def text(self, words: int) -> str:
        return " ".join(self._chance.choices(self._words, cum_weights=self._weights, k=words))

    def vector(self) -> NDArray[np.float32]:
        return self.vectors(1)[0]

    def vectors(self, count: int) -> NDArray[np.float32]:
        near = self._centres[self._numbers.integers(CLUSTERS, size=count)]
        moved = near + self._numbers.normal(scale=0.7, size=(count, DIMENSION)).astype(np.float32)
        unit: NDArray[np.float32] = (moved / np.linalg.norm(moved, axis=1, keepdims=True)).astype(np.float32)
        return unit


def build(settings: Settings, embedder: GivenVectors, generated: Generated, count: int) -> Store:
    """The search table of `count` chunks with its indexes, live."""
    store = Store(settings.storage.uri)
    store.create()
    languages = settings.search.languages
    spec = SearchTableSpec("given", embed_hash(embedder), "", DIMENSION, languages)
    store.create_search_table("search_1", spec)
    for first in range(0, count, BLOCK):
        vectors = generated.vectors(min(BLOCK, count - first))
        rows = []
        for number, vector in enumerate(vectors, start=first):
            document, ordinal = divmod(number, CHUNKS_PER_DOCUMENT)
            rows.append(row(f"docs/{document:06}.md", ordinal, generated.text(CHUNK_WORDS), vector, languages))
        store.upsert("search_1", rows, key="chunk_id")
    table = store.table("search_1")
    ensure_text_indexes(table, languages)
    ensure_vector_index(table)
    table.optimize()
    store.set_state(**{ACTIVE: "search_1"})
    return store


def row(doc_id: str, ordinal: int, text: str, vector: Any, languages: Sequence[str]) -> dict[str, Any]:
    return {
        "chunk_id": chunk_id(doc_id, ordinal),
        "doc_id": doc_id,
        "ordinal": ordinal,
        "start": 0,
        "end": len(text),
        "line": 1,
        "text": text,
        "context": doc_id,
        "context_status": "written",
        "heading_path": [doc_id],
        "title": doc_id,
        "language": "en",
        "metadata": "{}",
        "vector": vector,
        "embed_key": f"{doc_id}{ordinal}",
        **{text_column(language): text for language in languages},
        "identifiers": "",
        "content_hash": "",
        "version": "",
    }


class Bare:
    """The queries of one search as a program would write them against an open table."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._table = store.table("search_1")
        self._limit = settings.search.candidates
        self._columns = [text_column(language) for language in settings.search.languages]

    def run(self, query: str, vector: NDArray[np.float32]) -> Any:
        from lancedb.query import MatchQuery

        table = self._table
        nearest = table.search(vector, vector_column_name="vector").distance_type("cosine").refine_factor(REFINE_FACTOR)
        legs = [nearest.select(["chunk_id", "_distance"]).limit(self._limit).to_arrow()]
        telling = query_text(query)
        for column in self._columns:
            words = table.search(MatchQuery(telling, column)).select(["chunk_id", "_score"])
            legs.append(words.limit(self._limit).to_arrow())
        best = legs[0]["chunk_id"].to_pylist()[:K]
        return table.search().where(id_filter("chunk_id", best)).select(list(CONTENT_COLUMNS)).to_arrow().to_pylist()


class Hybrid:
    """LanceDB's own hybrid query over the vector and the first full-text column."""

    def __init__(self, store: Store, settings: Settings) -> None:
        from lancedb.rerankers import RRFReranker

        self._table = store.table("search_1")
        self._limit = settings.search.candidates
        self._column = text_column(settings.search.languages[0])
        self._reranker = RRFReranker(K=settings.search.rrf_k)

    def run(self, query: str, vector: NDArray[np.float32]) -> Any:
        from lancedb.query import MatchQuery

        search = self._table.search(query_type="hybrid", vector_column_name="vector").vector(vector)
        search = search.text(MatchQuery(query, self._column)).distance_type("cosine").refine_factor(REFINE_FACTOR)
        return search.rerank(self._reranker).select(list(CONTENT_COLUMNS)).limit(self._limit).to_arrow()


if __name__ == "__main__":
    main()
