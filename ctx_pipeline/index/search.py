"""Search: a vector leg and a keyword leg over one pinned version, fused by rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from ctx_pipeline.embedding import open_embedder
from ctx_pipeline.embedding.protocol import Embedder
from ctx_pipeline.errors import CtxError, StorageError
from ctx_pipeline.index.embedded import with_context
from ctx_pipeline.index.filters import Filters, read_filter
from ctx_pipeline.index.fusion import add_document_ranks, ranked, reciprocal_rank_fusion
from ctx_pipeline.index.lance_errors import LegError, lancedb_errors
from ctx_pipeline.index.legs import VECTOR, Legs
from ctx_pipeline.index.schemas import SEARCH_SETTINGS, SearchTableSpec, document_of_chunk, text_column
from ctx_pipeline.index.search_tables import ACTIVE, embedder_of
from ctx_pipeline.index.tables import Store
from ctx_pipeline.index.versions import embed_hash
from ctx_pipeline.rerank import open_reranker
from ctx_pipeline.rerank.model import Reranked, Reranker
from ctx_pipeline.settings import Rerank, SearchSettings, Settings

Mode = Literal["hybrid", "vector", "keyword"]
_REMEDY = "`ctx-pipeline doctor` says what is damaged, `ctx-pipeline doctor --fix` mends it"
CONTENT_COLUMNS = (
    "chunk_id", "doc_id", "start", "end", "line", "page", "text", "context", "context_status", "heading_path", "title",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Hit:
    """A retrieved chunk. `start` and `end` count characters of the document's text; ranks count from 1."""

    chunk_id: str
    doc_id: str
    score: float
    """Reciprocal rank fusion of legs and documents; comparable within one query only."""
    text: str
    context: str
    context_status: str
    heading_path: tuple[str, ...]
    title: str
    start: int
    end: int
    line: int
    vector_rank: int | None
    keyword_rank: int | None
    page: int | None = None
    """Page of `start`, from 1; None where the document has no pages."""
    rerank_score: float | None = None
    """Of the reranker, comparable within one query only; None when the hit was not reranked."""

    def to_json(self) -> dict[str, object]:
        """The contract of `ctx-pipeline search --json`."""
        names = ("chunk_id", "doc_id", "score", "text", "context", "heading_path", "start", "end", "line", "page")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Hits, best first, and what the user should know about how they were found."""

    hits: list[Hit]
    warnings: list[str]
    rerank: Reranked | None = None
    """What reranking took; None when the order is that of the fusion."""


class SearchIndex:
    """The live search table, queried with the embedder it was built with."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        embedder: Embedder | None = None,
        pinned: tuple[str, int] | None = None,
    ) -> None:
        """`embedder` is one that is loaded already; it is used where it is the table's own. `pinned` names a search
        table and its version, in place of the latest of the live one."""
        self._store, self._settings, self._pinned = store, settings, pinned
        self._embedder = (embed_hash(embedder), embedder) if embedder else None
        self._rerankers: dict[Rerank, Reranker | None] = {}

    @classmethod
    def open(cls, uri: str | Path, settings: Settings | None = None) -> SearchIndex:
        """The index at `uri`, searched as the settings of its last refresh say unless others are given.

        A ctx.toml in the working directory is not read: `load_settings()` does that. Raises StorageError when there is
        no index.
        """
        store = Store(Path(uri))
        store.connect()
        kept = store.state().get(SEARCH_SETTINGS)
        return cls(store, settings or Settings(search=SearchSettings.model_validate_json(kept or "{}")))

    def search(
        self,
        query: str,
        k: int = 20,
        mode: Mode = "hybrid",
        where: str | None = None,
        rerank: Rerank | None = None,
        filters: Filters | None = None,
    ) -> list[Hit]:
        """The `k` best chunks for a query, which is always taken literally.

        `where` is a SQL condition on the columns of the search table, applied before the legs; it is read whole or
        refused. `filters` needs no SQL: `{"language": "es", "doc_id": "docs/legal/*"}` asks for rows in which every
        named column has its value, or one of a list of values. A `*` in the value of a text column stands for
        anything, None for an empty column; a column of lists, as heading_path, has to hold the value. Both together
        must hold. `rerank` names what orders the fused candidates anew, in place of the settings; "none" leaves them
        as they are.

        Raises QueryError for a filter that cannot be read or takes longer than 10 s, StorageError when no leg can be
        read, FatalError when the live table's embedder is gone.
        """
        return self.search_with_warnings(query, k, mode, where, rerank, filters).hits

    def search_with_warnings(
        self,
        query: str,
        k: int = 20,
        mode: Mode = "hybrid",
        where: str | None = None,
        rerank: Rerank | None = None,
        filters: Filters | None = None,
    ) -> SearchResult:
        """`search`, with warnings such as a broken index or a reranker that failed, and what reranking took."""
        query = query.encode(errors="replace").decode().strip()
        if mode not in get_args(Mode):
            raise ValueError(f"mode {mode!r} is not one of {', '.join(get_args(Mode))}")
        if rerank not in (None, *get_args(Rerank)):
            raise ValueError(f"rerank {rerank!r} is not one of {', '.join(get_args(Rerank))}")
        if not query or k < 1:
            return SearchResult([], ["the query is empty"] if not query else [])
        reranker = self._reranker(rerank or self._settings.search.rerank)
        candidates = k if reranker is None else max(k, self._settings.search.candidates)
        try:
            result = self._search(query, candidates, mode, where, filters)
        except LegError:
            # Maintenance may have removed the pinned version, or a switch its table, between two reads.
            try:
                result = self._search(query, candidates, mode, where, filters, tolerant=True)
            except LegError as error:
                raise StorageError(f"the search failed: {error}; {_REMEDY}") from error
        return result if reranker is None else _reranked(reranker, query, result, k)

    def _search(
        self, query: str, k: int, mode: Mode, where: str | None, filters: Filters | None, *, tolerant: bool = False
    ) -> SearchResult:
        with lancedb_errors():
            active, version = self._pinned or (self._store.state().get(ACTIVE), None)
            if not active:
                raise StorageError(f"the index at {self._store.uri} is not built yet; run `ctx-pipeline refresh`")
            table = self._store.table(active, version)
        spec = SearchTableSpec.from_schema(table.schema)
        condition = read_filter(table, where, filters)
        legs = Legs(table, max(self._settings.search.candidates, k), condition, tolerant=tolerant)
        vector_ids: list[str] = []
        keyword_ids: list[str] = []
        exact_ids: list[str] = []
        with ThreadPoolExecutor(1) as pool:
            nearest = pool.submit(self._nearest, legs, spec, query) if mode != "keyword" else None
            if mode != "vector":
                exact_ids = legs.identifiers(query)
                keyword_ids = legs.keyword(query, spec.languages, exact_ids)
            if nearest:
                vector_ids = nearest.result()
        warnings = _broken(legs.broken, mode, spec)
        if mode != "vector" and not keyword_ids and not warnings:
            found = "; these are the vector leg's" if vector_ids else ""
            among = " among the rows of the filter" if condition else ""
            warnings.append(f"no word of the query is in the full-text index{among}{found}")
        scores = self._fuse(vector_ids, keyword_ids, exact_ids)
        best = ranked(scores)[:k]
        rows = legs.rows(best, [column for column in CONTENT_COLUMNS if column in table.schema.names])
        ranks = [{chunk: rank for rank, chunk in enumerate(leg, start=1)} for leg in (vector_ids, keyword_ids)]
        return SearchResult(
            [_hit(rows[chunk], scores[chunk], *(of.get(chunk) for of in ranks)) for chunk in best], warnings
        )

    def _nearest(self, legs: Legs, spec: SearchTableSpec, query: str) -> list[str]:
        return legs.vector(self._embedder_for(spec).embed_query(query))

    def _fuse(self, vector: Sequence[str], keyword: Sequence[str], exact: Sequence[str]) -> dict[str, float]:
        """One leg alone keeps its order and plain reciprocal ranks; two are weighted, and documents count."""
        weights, k = self._settings.search.weights, self._settings.search.rrf_k
        if not (vector and keyword):
            return reciprocal_rank_fusion([(vector or keyword, 1.0)], k)
        legs = [(vector, weights.vector), (keyword, weights.keyword), (exact, weights.identifiers)]
        return add_document_ranks(reciprocal_rank_fusion(legs, k), document_of_chunk, weights.document, k)

    def _reranker(self, method: Rerank) -> Reranker | None:
        if method not in self._rerankers:
            self._rerankers[method] = open_reranker(
                self._settings.search, method, prices=self._settings.contexts.prices
            )
        return self._rerankers[method]

    def _embedder_for(self, spec: SearchTableSpec) -> Embedder:
        if self._embedder is None or self._embedder[0] != spec.embed_hash:
            configured = open_embedder(self._settings.embedding)
            same = embed_hash(configured) == spec.embed_hash
            self._embedder = (spec.embed_hash, configured if same else embedder_of(spec, self._settings.embedding))
        return self._embedder[1]


def _reranked(reranker: Reranker, query: str, result: SearchResult, k: int) -> SearchResult:
    """The `k` best hits by the reranker; when it fails those of the fusion, with a warning that says why."""
    if not result.hits:
        return result
    try:
        report = reranker.rerank(query, [with_context(hit.context, hit.text) for hit in result.hits], k)
    except CtxError as error:
        warning = f"not reranked, the order is that of the fusion: {reranker.name}: {error}"
        return SearchResult(result.hits[:k], [*result.warnings, warning])
    scored = zip(report.order, report.scores, strict=True)
    hits = [replace(result.hits[at], rerank_score=score) for at, score in scored]
    return SearchResult(hits, [*result.warnings, *report.warnings], report)


def _broken(broken: Mapping[str, str], mode: Mode, spec: SearchTableSpec) -> list[str]:
    """A warning for each index that could not be read. Raises StorageError when that leaves no leg to answer."""
    legs = {"vector": [VECTOR], "keyword": [text_column(language) for language in spec.languages]}
    asked = [columns for leg, columns in legs.items() if mode in (leg, "hybrid")]
    if all(column in broken for columns in asked for column in columns):
        raise StorageError(f"the search failed: {'; '.join(dict.fromkeys(broken.values()))}; {_REMEDY}")
    return [
        f"the {'vector' if column == VECTOR else 'full-text'} index of column {column} cannot be read and answers "
        f"nothing ({problem}); {_REMEDY}"
        for column, problem in broken.items()
    ]


def _hit(row: Mapping[str, Any], score: float, vector_rank: int | None, keyword_rank: int | None) -> Hit:
    return Hit(
        chunk_id=row["chunk_id"],
        doc_id=row["doc_id"],
        score=score,
        text=row["text"],
        context=row["context"],
        context_status=row["context_status"],
        heading_path=tuple(row["heading_path"]),
        title=row["title"],
        start=row["start"],
        end=row["end"],
        line=row["line"],
        vector_rank=vector_rank,
        keyword_rank=keyword_rank,
        page=row.get("page"),
    )
