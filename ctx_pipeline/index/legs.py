"""The legs of a search: ranked chunks of one pinned version of a search table."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctx_pipeline.index.filters import Condition
from ctx_pipeline.index.fulltext import asked_identifiers, normalized, query_text
from ctx_pipeline.index.fusion import ranked, reciprocal_rank_fusion
from ctx_pipeline.index.lancedb_errors import LegError, lancedb_errors, within
from ctx_pipeline.index.schemas import IDENTIFIERS, text_column

REFINE_FACTOR = 5
"""Candidates re-scored by exact vectors, as a multiple of the limit: recall@20 of 1.0 for IvfSq at 100,000 rows."""

LANGUAGES_RRF_K = 60
"""The usual constant: it lets a whole identifier rank first although other rows hold its parts more often."""

VECTOR = "vector"


class Legs:
    """Queries against one version of a table, and the rows of what they found.

    Chunks are named by chunk_id. May be used from several threads. What LanceDB raises comes as LegError, or as
    QueryError where the filter is to blame: it fails, or takes longer than it may.
    """

    def __init__(self, table: Any, limit: int, condition: Condition | None, *, tolerant: bool = False) -> None:
        """Each leg finds at most `limit` chunks among the rows that the condition lets pass. With `tolerant`, an index
        that cannot be read finds nothing and is named in `broken`."""
        self._table, self._limit, self._condition, self._tolerant = table, limit, condition, tolerant
        self._deadline = self._new_deadline()
        with lancedb_errors():
            self._indexed = {column for index in table.list_indices() for column in index.columns}
        self._row_ids: dict[str, int] = {}
        self.broken: dict[str, str] = {}
        """The column of each index that could not be read, with what LanceDB said."""

    def vector(self, vector: NDArray[np.float32]) -> list[str]:
        """The chunks nearest to a vector by cosine."""

        def search() -> Any:
            nearest = self._table.search(vector, vector_column_name=VECTOR).distance_type("cosine")
            return nearest.refine_factor(REFINE_FACTOR)

        # The embedding of the query, which may have had to load a model, is no time of the filter's.
        return self._ids(search, VECTOR, "_distance", self._new_deadline())

    def keyword(self, query: str, languages: Sequence[str], exact: Sequence[str]) -> list[str]:
        """The chunks that share words with a query.

        Each language's column covers all rows; scores of different columns do not compare, so ranks are fused, with
        those of `exact` identifiers.
        """
        words = query_text(normalized(query), found_whole=bool(exact))
        legs = [(self._text(words, text_column(language)), 1.0) for language in languages if words]
        return ranked(reciprocal_rank_fusion([*legs, (exact, 1.0)], LANGUAGES_RRF_K))[: self._limit]

    def identifiers(self, query: str) -> list[str]:
        """The chunks that hold an identifier of a query whole, whatever its parts are worth as words."""
        wanted = asked_identifiers(normalized(query))
        return self._text(wanted, IDENTIFIERS) if wanted else []

    def rows(self, chunk_ids: Sequence[str], columns: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The rows of chunks that a leg has found, by chunk_id, which is among the `columns`."""
        if not chunk_ids:
            return {}
        with lancedb_errors():
            taken = self._table.take_row_ids([self._row_ids[chunk] for chunk in chunk_ids]).select(list(columns))
            found = taken.to_arrow()
        return {row["chunk_id"]: row for row in found.to_pylist()}

    def _text(self, words: str, column: str) -> list[str]:
        """Nothing where the column has no index: an empty table has none yet, one by an older version lacks some."""
        from lancedb.query import MatchQuery

        if column not in self._indexed:
            return []
        return self._ids(lambda: self._table.search(MatchQuery(words, column)), column, "_score", self._deadline)

    def _ids(self, search: Callable[[], Any], column: str, measure: str, deadline: float) -> list[str]:
        try:
            found = self._read(search, measure, self._condition, deadline)
        except LegError as error:
            if not self._tolerant:
                raise
            if self._condition and self._is_readable(search, measure):
                raise self._condition.refused(str(error)) from error
            self.broken[column] = str(error)
            return []
        # Equals come in the order of the rows, which an incremental index has otherwise than a fresh one.
        order = "descending" if measure == "_score" else "ascending"
        found = found.sort_by([(measure, order), ("chunk_id", "ascending")])
        chunk_ids: list[str] = found["chunk_id"].to_pylist()
        self._row_ids.update(zip(chunk_ids, found["_rowid"].to_pylist(), strict=True))
        return chunk_ids

    def _read(self, search: Callable[[], Any], measure: str, condition: Condition | None, deadline: float) -> pa.Table:
        def read(timeout: timedelta | None) -> pa.Table:
            with lancedb_errors():
                query = search().where(condition.sql, prefilter=True) if condition else search()
                query = query.select(["chunk_id", measure]).with_row_id(True).limit(self._limit)
                return query.to_arrow(timeout=timeout)

        if condition is None:
            return read(None)
        left = deadline - time.monotonic()
        try:
            if left <= 0:
                raise TimeoutError
            # LanceDB's own limit ends the work; it does not hold while a query is planned.
            return within(left, lambda: read(timedelta(seconds=left)))
        except (TimeoutError, LegError) as error:
            if isinstance(error, TimeoutError) or time.monotonic() >= deadline:
                raise condition.too_slow() from error
            raise

    def _is_readable(self, search: Callable[[], Any], measure: str) -> bool:
        """Whether the leg answers without the filter."""
        try:
            self._read(search, measure, None, 0.0)
        except LegError:
            return False
        return True

    def _new_deadline(self) -> float:
        return time.monotonic() + (self._condition.seconds if self._condition else 0.0)
