"""The LanceDB tables of one storage: opened, read, and replaced document by document in single commits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from ctx_pipeline.errors import StorageError
from ctx_pipeline.index.folders import holds_data, move_aside, newest_manifest, remove_leftover
from ctx_pipeline.index.lance_errors import is_lance_error, lance_message
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
DOCTOR = "`ctx-pipeline doctor` tells what is wrong with it and what to do"
ID_BLOCK = 5_000
"""Ids of one `IN (...)` list; LanceDB takes that many without trouble."""


class Store:
    """One storage: a local folder of LanceDB tables. Opening it creates nothing."""

    def __init__(self, uri: Path) -> None:
        self.uri = uri
        self._connection: Any = None

    def connect(self, *, create: bool = False, check: bool = True) -> Any:
        """The LanceDB connection; without `check` also to an index whose state table is to be made again.

        Raises StorageError when there is no index, or one of another schema version.
        """
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
            if check and STATE in self.names():
                try:
                    found = self.state().get("schema_version")
                except BaseException:
                    self._connection = None
                    raise
                if found != SCHEMA_VERSION:
                    self._connection = None
                    raise StorageError(
                        f"the index at {self.uri} has schema version {found}, this program reads {SCHEMA_VERSION}; "
                        "build a new one by another storage.uri"
                    )
        return self._connection

    def reconnect(self) -> None:
        """Forget what is in memory of the tables: some were moved or put in the place of others."""
        self._connection = None

    def exists(self) -> bool:
        """Whether an index was ever begun here (no connection is made)."""
        return STATE in self.names()

    def names(self) -> set[str]:
        """Names of all tables. A folder without a manifest is none: a kill while it was made or dropped left it, or
        its manifests are lost (`lost`). Raises StorageError when a folder cannot be read now."""
        return {name for name, folder in self.folders().items() if self._has_manifest(name, folder)}

    def lost(self) -> set[str]:
        """Names of tables that hold data and no manifest: no kill leaves the like of a table that was committed."""
        return {
            name
            for name, folder in self.folders().items()
            if not self._has_manifest(name, folder) and holds_data(folder)
        }

    def folders(self) -> dict[str, Path]:
        """The folder of each table, sound or not. Raises StorageError when the storage cannot be read now."""
        try:
            return {folder.stem: folder for folder in self.uri.iterdir() if folder.suffix == ".lance"}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise StorageError(f"the index at {self.uri} cannot be read now ({error.strerror})") from None

    def create(self) -> list[str]:
        """Create what is missing of the fixed tables and of their columns; the caller holds the lock. What was moved
        aside for that, one line each.

        The state table comes last and in one commit with its row, so that it vouches for the others. A memo that
        cannot be read is left as it is: only methods that pay need it, and they say so.
        """
        connection = self.connect(create=True)
        names, moved = self.names(), []
        if STATE not in names and any(self.count(name) for name in SCHEMAS):
            raise StorageError(
                f"the table 'state' of the index at {self.uri} is lost; `ctx-pipeline doctor --fix` makes it again "
                "from the other tables"
            )
        for name, folder in self.folders().items():
            if name in names:
                continue
            if not holds_data(folder):
                remove_leftover(folder)
            elif name != MEMO:
                moved.append(f"table {name} has lost its manifests; it was moved to {move_aside(folder)}")
        for name in SCHEMAS:
            if name not in names and name != STATE:
                connection.create_table(name, schema=SCHEMAS[name])
        if STATE not in names:
            self.create_state({})
        for name, schema in SCHEMAS.items():
            if name in names:
                add_missing_columns(self.table(name), schema)
        if MEMO in names and self.opens(MEMO):
            add_missing_columns(self.table(MEMO), MEMO_SCHEMA)
        for name, spec in self.search_tables().items():
            add_missing_columns(self.table(name), search_schema(spec))
        return moved

    def create_state(self, entries: Mapping[str, str]) -> None:
        """Make the state table one of these entries and the schema version, in one commit."""
        values = {"schema_version": SCHEMA_VERSION, **entries}
        first = [{"name": name, "value": value} for name, value in values.items()]
        data = pa.Table.from_pylist(first, schema=SCHEMAS[STATE])
        mode = "overwrite" if STATE in self.names() else "create"
        self.connect(create=True).create_table(STATE, data=data, schema=SCHEMAS[STATE], mode=mode)

    def opens(self, name: str) -> bool:
        """Whether a table can be opened now."""
        try:
            self.table(name)
        except StorageError:
            return False
        return True

    def memo_table(self) -> Any:
        """The memo, or None when nothing was ever paid for. Raises StorageError when it is there and cannot be read:
        it must never be begun anew in silence, since all that it holds would be paid for again."""
        if MEMO in self.names():
            return self.table(MEMO)
        if MEMO in self.lost():
            raise StorageError(f"the memo of paid contexts at {self.uri} has lost its manifests; {DOCTOR}")
        return None

    def table(self, name: str, version: int | None = None) -> Any:
        """A handle pinned to a version of a table, else the latest. Raises StorageError when it does not exist."""
        try:
            with self.reading(name):
                connection = self.connect()
                table = connection.open_table(name, version=version) if version else connection.open_table(name)
                if not table.schema.names:  # LanceDB opens a zeroed manifest as a table of no columns
                    raise ValueError("its newest manifest is empty")
                return table
        except StorageError:
            if name in self.names():
                raise
            lost = name in self.lost()
            raise StorageError(
                f"table {name!r} of {self.uri} has lost its manifests; {DOCTOR}"
                if lost
                else f"table {name!r} is missing from {self.uri}; `ctx-pipeline refresh` builds it again"
            ) from None

    @contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """Errors of LanceDB become StorageErrors that name the table and the remedy."""
        try:
            yield
        except Exception as error:
            if not is_lance_error(error):
                raise
            raise StorageError(
                f"table {name!r} of {self.uri} cannot be read or written ({lance_message(error)}); {DOCTOR}"
            ) from error

    def _has_manifest(self, name: str, folder: Path) -> bool:
        try:
            return newest_manifest(folder) is not None
        except OSError as error:
            # Not the same as having none: the table is there, and cannot be looked at now.
            raise StorageError(
                f"table {name!r} of {self.uri} cannot be read now ({error.strerror}); make its folder readable"
            ) from None

    def count(self, name: str) -> int:
        """Rows of a table, 0 when it does not exist. Raises StorageError when it cannot be read, as every method."""
        if name not in self.names():
            return 0
        table = self.table(name)
        with self.reading(name):
            return int(table.count_rows())

    def rows(
        self, name: str, keys: Sequence[str], columns: Sequence[str] | None = None, *, column: str = "doc_id"
    ) -> list[dict[str, Any]]:
        """The rows of some documents, or of other values of `column`, unordered."""
        table, found = self.table(name), []
        with self.reading(name):
            for block in blocks(keys):
                query = table.search().where(id_filter(column, block))
                found += (query.select(list(columns)) if columns else query).to_arrow().to_pylist()
        return found

    def all_rows(self, name: str, columns: Sequence[str]) -> pa.Table:
        """The named columns of a whole table."""
        table = self.table(name)
        with self.reading(name):
            return table.search().select(list(columns)).to_arrow()

    def upsert(self, name: str, rows: Sequence[dict[str, Any]], *, key: str = "doc_id") -> None:
        """Insert or update rows by key, in one commit; none for no rows."""
        if rows:
            table = self.table(name)
            data = pa.Table.from_pylist(list(rows), schema=table.schema)
            with self.reading(name):
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
        with self.reading(name):
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
        with self.reading(name):
            for block in blocks(doc_ids):
                where = id_filter("doc_id", block)
                if table.count_rows(where):
                    table.delete(where)

    def state(self) -> dict[str, str]:
        """The state table: `schema_version`, `active` (the live search table)."""
        rows = self.all_rows(STATE, ["name", "value"]).to_pylist()
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
