"""The LanceDB tables of one storage: opened, read, and replaced document by document in single commits."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from ctx_pipeline.errors import StorageError
from ctx_pipeline.index.schemas import (
    MEMO,
    MEMO_SCHEMA,
    SCHEMA_VERSION,
    SCHEMAS,
    STATE,
    SearchTableSpec,
    search_schema,
)
from ctx_pipeline.index.upgrades import add_missing_columns
from ctx_pipeline.private_files import make_folder

COMMIT_TIMEOUT = timedelta(minutes=10)
ID_BLOCK = 5_000
"""Ids of one `IN (...)` list; LanceDB takes that many without trouble."""


class Store:
    """One storage: a local folder of LanceDB tables. Opening it creates nothing."""

    def __init__(self, uri: Path) -> None:
        self.uri = uri
        self._connection: Any = None

    def connect(self, *, create: bool = False) -> Any:
        """The LanceDB connection. Raises StorageError when there is no index, or one of another schema version."""
        if self._connection is None:
            if create:
                try:
                    make_folder(self.uri)
                except OSError as error:
                    raise StorageError(
                        f"storage.uri {self.uri} cannot be created ({error.strerror}); name another folder"
                    ) from None
            elif not self.exists():
                raise StorageError(f"no index at {self.uri}; run `ctx-pipeline refresh` first, or set storage.uri")
            import lancedb

            self._connection = lancedb.connect(str(self.uri))
            if STATE in self.names():
                found = self.state().get("schema_version")
                if found != SCHEMA_VERSION:
                    self._connection = None
                    raise StorageError(
                        f"the index at {self.uri} has schema version {found}, this program reads {SCHEMA_VERSION}; "
                        "build a new one by another storage.uri"
                    )
        return self._connection

    def exists(self) -> bool:
        """Whether an index was ever begun here (no connection is made)."""
        return STATE in self.names()

    def names(self) -> set[str]:
        """Names of all tables. A folder without a manifest is none: a kill while it was made or dropped left it."""
        return {folder.stem for folder in self.uri.glob("*.lance") if any((folder / "_versions").glob("*.manifest"))}

    def create(self) -> None:
        """Create what is missing of the fixed tables and of their columns; the caller holds the lock.

        The state table comes last and in one commit with its row, so that it vouches for the others.
        """
        connection = self.connect(create=True)
        names = self.names()
        for folder in self.uri.glob("*.lance"):
            if folder.stem not in names:
                shutil.rmtree(folder)
        for name in SCHEMAS:
            if name not in names and name != STATE:
                connection.create_table(name, schema=SCHEMAS[name])
        if STATE not in names:
            first = pa.Table.from_pylist([{"name": "schema_version", "value": SCHEMA_VERSION}], schema=SCHEMAS[STATE])
            connection.create_table(STATE, data=first, schema=SCHEMAS[STATE])
        for name, schema in (*SCHEMAS.items(), (MEMO, MEMO_SCHEMA)):
            if name in names:
                add_missing_columns(self.table(name), schema)
        for name, spec in self.search_tables().items():
            add_missing_columns(self.table(name), search_schema(spec))

    def table(self, name: str, version: int | None = None) -> Any:
        """A handle pinned to a version of a table, else the latest. Raises StorageError when it does not exist."""
        try:
            return self.connect().open_table(name, version=version) if version else self.connect().open_table(name)
        except (ValueError, RuntimeError) as error:
            if name in self.names():
                raise
            raise StorageError(
                f"table {name!r} is missing from {self.uri}; `ctx-pipeline refresh` builds it again"
            ) from error

    def count(self, name: str) -> int:
        """Rows of a table, 0 when it does not exist."""
        return int(self.table(name).count_rows()) if name in self.names() else 0

    def rows(self, name: str, doc_ids: Sequence[str], columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """The rows of some documents, unordered."""
        table, found = self.table(name), []
        for block in blocks(doc_ids):
            query = table.search().where(id_filter("doc_id", block))
            found += (query.select(list(columns)) if columns else query).to_arrow().to_pylist()
        return found

    def all_rows(self, name: str, columns: Sequence[str]) -> pa.Table:
        """The named columns of a whole table."""
        return self.table(name).search().select(list(columns)).to_arrow()

    def upsert(self, name: str, rows: Sequence[dict[str, Any]], *, key: str = "doc_id") -> None:
        """Insert or update rows by key, in one commit; none for no rows."""
        if rows:
            table = self.table(name)
            data = pa.Table.from_pylist(list(rows), schema=table.schema)
            table.merge_insert(key).when_matched_update_all().when_not_matched_insert_all().execute(
                data, timeout=COMMIT_TIMEOUT
            )

    def replace(self, name: str, doc_ids: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
        """Make `rows` all that the table holds of `doc_ids`, in one atomic commit: readers see all old or all new."""
        table = self.table(name)
        if not rows:
            self.delete(name, doc_ids)
            return
        data = pa.Table.from_pylist(list(rows), schema=table.schema)
        (
            table.merge_insert("chunk_id")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .when_not_matched_by_source_delete(id_filter("doc_id", doc_ids))
            .execute(data, timeout=COMMIT_TIMEOUT)
        )

    def delete(self, name: str, doc_ids: Sequence[str]) -> None:
        """Delete all rows of some documents; no commit where there are none."""
        table = self.table(name)
        for block in blocks(doc_ids):
            where = id_filter("doc_id", block)
            if table.count_rows(where):
                table.delete(where)

    def state(self) -> dict[str, str]:
        """The state table: `schema_version`, `active` (the live search table)."""
        rows = self.table(STATE).search().to_arrow().to_pylist()
        return {row["name"]: row["value"] for row in rows}

    def set_state(self, **values: str) -> None:
        """Set some entries of the state table in one commit."""
        self.upsert(STATE, [{"name": name, "value": value} for name, value in values.items()], key="name")

    def search_tables(self) -> dict[str, SearchTableSpec]:
        """Every `search_<n>` table with what it was built with, oldest first."""
        names = sorted(
            (n for n in self.names() if n.startswith("search_")), key=lambda n: int(n.removeprefix("search_"))
        )
        return {name: SearchTableSpec.from_schema(self.table(name).schema) for name in names}

    def create_search_table(self, name: str, spec: SearchTableSpec) -> None:
        """Create an empty search table."""
        self.connect().create_table(name, schema=search_schema(spec), exist_ok=True)

    def drop(self, name: str) -> None:
        """Drop a table with its data."""
        self.connect().drop_table(name, ignore_missing=True)


def id_filter(column: str, ids: Iterable[str]) -> str:
    """SQL `column IN (...)` with the ids as literals."""
    return f"{column} IN ({', '.join(sql_literal(value) for value in ids)})"


def sql_literal(value: str) -> str:
    """A SQL string literal; quotes inside are doubled, so no value can end it."""
    return "'" + value.replace("'", "''") + "'"


def blocks(values: Sequence[str], size: int = ID_BLOCK) -> Iterable[Sequence[str]]:
    """`values` in slices of at most `size`."""
    return (values[i : i + size] for i in range(0, len(values), size))
