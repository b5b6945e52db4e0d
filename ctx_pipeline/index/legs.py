"""The legs of a search: ranked chunks of one pinned version of a search table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctx_pipeline.index.fulltext import identifiers, query_text
from ctx_pipeline.index.fusion import ranked, reciprocal_rank_fusion
from ctx_pipeline.index.lance_errors import is_lance_error, lance_message
from ctx_pipeline.index.schemas import IDENTIFIERS, text_column

REFINE_FACTOR = 5
"""Candidates re-scored by exact vectors, as a multiple of the limit: recall@20 of 1.0 for IvfSq at 100,000 rows."""

LANGUAGES_RRF_K = 60
"""The usual constant: it lets a whole identifier rank first although other rows hold its parts more often."""


class Broken:
    """Legs that failed in one search, with the reason. May be told of from several threads."""

    def __init__(self) -> None:
        self._failed: dict[str, Exception] = {}

    def __bool__(self) -> bool:
        return bool(self._failed)

    def add(self, leg: str, error: Exception) -> None:
        """A leg failed."""
        self._failed[leg] = error

    def warnings(self, *, any_found: bool) -> list[str]:
        """One line for each failed leg. Raises the first error when no other leg found anything: then it is not known
        whether there is anything to find."""
        if not any_found:
            raise next(iter(self._failed.values()))
        return [
            f"the index on {leg} cannot be used ({lance_message(error)}), these are hits of the others; "
            "`ctx-pipeline doctor --fix` mends it"
            for leg, error in self._failed.items()
        ]


class Legs:
    """Queries against one version of a table, and the rows of what they found.

    Chunks are named by chunk_id. May be used from several threads.
    """

    def __init__(self, table: Any, limit: int, where: str | None, broken: Broken | None = None) -> None:
        """Each leg finds at most `limit` chunks among the rows that `where`, a SQL filter, lets pass.

        A leg that LanceDB cannot answer is left out and told to `broken`; without it the error is raised.
        """
        self._broken = broken
        self._table, self._limit, self._where = table, limit, where
        self._indexed = {column for index in table.list_indices() for column in index.columns}
        self._row_ids: dict[str, int] = {}

    def vector(self, vector: NDArray[np.float32]) -> list[str]:
        """The chunks nearest to a vector by cosine."""
        search = self._table.search(vector, vector_column_name="vector").distance_type("cosine")
        return self._answer("vector", lambda: self._ids(search.refine_factor(REFINE_FACTOR), "_distance"))

    def keyword(self, query: str, languages: Sequence[str], exact: Sequence[str]) -> list[str]:
        """The chunks that share words with a query.

        Each language's column covers all rows; scores of different columns do not compare, so ranks are fused, with
        those of `exact` identifiers.
        """
        words = query_text(query)
        legs = [(self._text(words, text_column(language)), 1.0) for language in languages]
        return ranked(reciprocal_rank_fusion([*legs, (exact, 1.0)], LANGUAGES_RRF_K))[: self._limit]

    def identifiers(self, query: str) -> list[str]:
        """The chunks that hold an identifier of a query whole, whatever its parts are worth as words."""
        wanted = " ".join(identifiers(query))
        return self._text(wanted, IDENTIFIERS) if wanted else []

    def rows(self, chunk_ids: Sequence[str], columns: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The rows of chunks that a leg has found, by chunk_id, which is among the `columns`."""
        if not chunk_ids:
            return {}
        taken = self._table.take_row_ids([self._row_ids[chunk] for chunk in chunk_ids]).select(list(columns))
        return {row["chunk_id"]: row for row in taken.to_arrow().to_pylist()}

    def _text(self, words: str, column: str) -> list[str]:
        """Nothing where the column has no index: an empty table has none yet, one by an older version lacks some."""
        from lancedb.query import MatchQuery

        if column not in self._indexed:
            return []
        return self._answer(column, lambda: self._ids(self._table.search(MatchQuery(words, column)), "_score"))

    def _answer(self, leg: str, ask: Callable[[], list[str]]) -> list[str]:
        try:
            return ask()
        except Exception as error:
            if self._broken is None or not is_lance_error(error):
                raise
            self._broken.add(leg, error)
            return []

    def _ids(self, search: Any, measure: str) -> list[str]:
        if self._where:
            search = search.where(self._where, prefilter=True)
        found = search.select(["chunk_id", measure]).with_row_id(True).limit(self._limit).to_arrow()
        # Equals come in the order of the rows, which an incremental index has otherwise than a fresh one.
        order = "descending" if measure == "_score" else "ascending"
        found = found.sort_by([(measure, order), ("chunk_id", "ascending")])
        chunk_ids: list[str] = found["chunk_id"].to_pylist()
        self._row_ids.update(zip(chunk_ids, found["_rowid"].to_pylist(), strict=True))
        return chunk_ids
