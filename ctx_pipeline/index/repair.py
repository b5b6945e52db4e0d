"""Damaged tables mended from what is left of them: an older version, and the rows that can still be read.

Nothing is removed. The files as they were found are kept in the storage's folder `damaged`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ctx_pipeline.index.folders import VERSIONS, keep_image, manifests, move_aside
from ctx_pipeline.index.schemas import MEMO, MEMO_SCHEMA, SCHEMAS
from ctx_pipeline.index.table_health import HINT, open_afresh, read_all
from ctx_pipeline.index.tables import Store, blocks, id_filter

ROW_BLOCK = 10_000
_FRAGMENT_BITS = 32
"""A row id is its fragment's number and, in the lower 32 bits, the row's place in it."""


@dataclass(frozen=True, slots=True)
class Remains:
    """What can still be read of a damaged table."""

    older: int | None
    """The newest version that can be read whole; None for none."""
    newest: int | None
    """The newest version whose manifest can be read; its rows are those that count."""
    rows: pa.Table | None
    """The rows of `newest` that can be read; None when they are all in `older`, or none can be."""
    lost_rows: int | None
    """Rows of `newest` that neither holds; None when nobody can tell how many there were."""


@dataclass(frozen=True, slots=True)
class Mended:
    """What became of a damaged table."""

    table: str
    kept_at: Path
    """Where its files are, as they were found."""
    is_empty: bool
    """Whether nothing of it could be read."""
    lost_rows: int | None


def remains_of(store: Store, name: str) -> Remains:
    """Look for what is left of a damaged table. Reads only."""
    numbers = sorted(manifests(store.uri / f"{name}.lance"), reverse=True)
    newest = next((number for number in numbers if _opens(store, name, number)), None)
    older = next((number for number in numbers if _reads(store, name, number)), None)
    if newest is None or newest == older:
        # Of newer versions there is not even a manifest; what they held, nobody can tell.
        return Remains(older, newest, None, None)
    table = open_afresh(store, name, newest)
    rows, unread = _readable_rows(table)
    if rows is None:
        return Remains(older, newest, None, None)
    key = _key_of(name)
    have = set(rows[key].to_pylist())
    if older is not None:
        have |= set(open_afresh(store, name, older).search().select([key]).to_arrow()[key].to_pylist())
    return Remains(older, newest, rows, max(0, rows.num_rows + unread - len(have)))


def mend(store: Store, name: str, remains: Remains) -> Mended:
    """Bring a damaged table back to what remains of it; a table of which nothing does is moved aside.

    The caller holds the lock, compares the rows with the ledger afterwards, and makes what is missing.
    """
    folder = store.uri / f"{name}.lance"
    if remains.older is None and remains.rows is None:
        return Mended(name, move_aside(folder), True, None)
    if remains.older is None:
        assert remains.rows is not None
        schema = open_afresh(store, name, remains.newest).schema
        place = move_aside(folder)
        _connection(store).create_table(name, schema=schema).add(remains.rows)
        return Mended(name, place, False, remains.lost_rows)
    place = keep_image(folder)
    for number, path in manifests(folder).items():
        if number > remains.older:
            path.unlink()  # the image has it
    (folder / VERSIONS / HINT).unlink(missing_ok=True)
    if remains.rows is not None and remains.rows.num_rows:
        _put_back(store, name, remains.rows)
    return Mended(name, place, False, remains.lost_rows)


def _put_back(store: Store, name: str, rows: pa.Table) -> None:
    """Rows of the newest version go before those of an older one, a document's all together."""
    table, key = open_afresh(store, name), _key_of(name)
    rows = rows.select([column for column in table.schema.names if column in rows.schema.names])
    if key != "chunk_id":
        table.merge_insert(key).when_matched_update_all().when_not_matched_insert_all().execute(rows)
        return
    for doc_ids in blocks(sorted(set(rows["doc_id"].to_pylist()))):
        own = rows.filter(pc.is_in(rows["doc_id"], pa.array(doc_ids)))
        merge = table.merge_insert(key).when_matched_update_all().when_not_matched_insert_all()
        merge.when_not_matched_by_source_delete(id_filter("doc_id", doc_ids)).execute(own)


def _readable_rows(table: Any) -> tuple[pa.Table | None, int]:
    """The rows of the fragments that can be read, and how many others there are; None where that cannot be told."""
    try:
        ids: list[int] = table.search().select(["_rowid"]).with_row_id(True).to_arrow()["_rowid"].to_pylist()
    except Exception:
        return None, 0  # a file that says which rows are deleted is gone
    fragments: dict[int, list[int]] = {}
    for row_id in ids:
        fragments.setdefault(row_id >> _FRAGMENT_BITS, []).append(row_id)
    found, unread = [table.schema.empty_table()], 0
    for own in fragments.values():
        try:
            parts = [table.take_row_ids(block).to_arrow() for block in _row_blocks(own)]
        except Exception:
            unread += len(own)
        else:
            found += [part.select(table.schema.names) for part in parts]
    return pa.concat_tables(found), unread


def _row_blocks(row_ids: list[int]) -> Iterator[list[int]]:
    return (row_ids[at : at + ROW_BLOCK] for at in range(0, len(row_ids), ROW_BLOCK))


def _opens(store: Store, name: str, version: int) -> bool:
    try:
        open_afresh(store, name, version)
    except Exception:
        return False
    return True


def _reads(store: Store, name: str, version: int) -> bool:
    try:
        read_all(open_afresh(store, name, version))
    except Exception:
        return False
    return True


def _key_of(name: str) -> str:
    """The key column of a table."""
    schema = MEMO_SCHEMA if name == MEMO else SCHEMAS.get(name)
    return str(schema.field(0).name) if schema else "chunk_id"


def _connection(store: Store) -> Any:
    """A connection that does not ask the state table first: that may be the one to mend."""
    import lancedb

    return lancedb.connect(str(store.uri))
