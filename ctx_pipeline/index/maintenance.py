"""Indexes and upkeep: made when the first rows exist, optimized by thresholds, under the storage's lock."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ctx_pipeline.index.folders import manifests
from ctx_pipeline.index.fulltext import IDENTIFIER_CHARACTERS
from ctx_pipeline.index.schemas import IDENTIFIERS, MEMO, text_column
from ctx_pipeline.index.tables import Store

VECTOR_INDEX_ROWS = 50_000
"""Below this a flat scan answers in about 60 ms with exact results; an index pays from here on."""
SMALL_FRAGMENTS = 32
"""Fragments below 100,000 rows that are worth compacting: queries slow with their number (8 -> 39 ms at 200)."""
UNINDEXED_MIN_ROWS, UNINDEXED_SHARE = 50, 0.05
"""Rows not yet in an index are scanned by each query."""
DEAD_BYTES_MIN, DEAD_SHARE = 1_000_000, 0.8
"""Bytes that an upkeep could free, as a share of the live data, indexes included."""
OLD_VERSIONS = 64
"""Versions of a table, older than those that readers may hold, after which they are removed."""
LEFT = "upkeep:{}"
"""In the state table: the bytes that the last upkeep of a table could have freed by the same count, and did not."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What was done to one table."""

    table: str
    reason: str
    bytes_before: int
    bytes_after: int


def ensure_text_indexes(table: Any, languages: Sequence[str]) -> None:
    """Create the full-text indexes that are missing from a table with rows.

    An index made on an empty table may cover no rows later, so the caller comes here after the first rows.
    """
    from lancedb.index import FTS

    whole = FTS(
        base_tokenizer="whitespace", stem=False, remove_stop_words=False, max_token_length=4 * IDENTIFIER_CHARACTERS
    )
    configs = {**{text_column(language): FTS(language=language) for language in languages}, IDENTIFIERS: whole}
    for column in unindexed_text_columns(table, languages):
        table.create_index(column, config=configs[column])


def unindexed_text_columns(table: Any, languages: Sequence[str]) -> list[str]:
    """The full-text columns of a table that have no index; one built by an older version lacks some columns."""
    indexed = {column for index in table.list_indices() for column in index.columns}
    columns = [*map(text_column, languages), IDENTIFIERS]
    return [column for column in columns if column in table.schema.names and column not in indexed]


def ensure_vector_index(table: Any, *, min_rows: int = VECTOR_INDEX_ROWS) -> bool:
    """Create the vector index once the table is large enough for it to pay; whether one exists now.

    Scalar quantization by IVF: recall@20 of 1.0 with a refine factor of 5 at 100,000 rows, where the default
    product quantization had 0.40 (measured with LanceDB 0.40).
    """
    from lancedb.index import IvfSq

    if any("vector" in index.columns for index in table.list_indices()):
        return True
    if table.count_rows() < min_rows:
        return False
    table.create_index("vector", config=IvfSq(distance_type="cosine"))
    return True


def maintain(store: Store, search_tables: Sequence[str], retention_s: int, *, force: bool = False) -> list[Upkeep]:
    """Optimize the tables that crossed a threshold: compact, cover new rows by the indexes, drop old versions.

    Versions younger than `retention_s` seconds stay, for readers that still hold one.
    """
    done, state = [], store.state()
    for name in sorted(store.names()):
        if name == MEMO and not store.opens(MEMO):
            continue  # it is for `doctor` to tell; nothing here needs it
        table = store.table(name)
        if name in search_tables:
            ensure_vector_index(table)
        before, left = table_bytes(store, name), int(state.get(LEFT.format(name), "0"))
        reason = "asked for" if force else _reason(store, name, table, retention_s, left)
        if reason:
            table.optimize(cleanup_older_than=timedelta(seconds=retention_s))
            done.append(Upkeep(name, reason, before, table_bytes(store, name)))
            remains = removable_bytes(store, name, store.table(name), retention_s)
            remains = remains if remains > DEAD_BYTES_MIN else 0
            if remains != left:
                store.set_state(**{LEFT.format(name): str(remains)})
    return done


def table_bytes(store: Store, name: str) -> int:
    """Bytes of a table's folder, old versions and indexes included."""
    return sum(path.stat().st_size for path in (store.uri / f"{name}.lance").rglob("*") if path.is_file())


def removable_bytes(store: Store, name: str, table: Any, retention_s: int) -> int:
    """About how many bytes of a table an upkeep could free now: files beyond what is live, and old enough.

    Versions younger than `retention_s` seconds stay, and their files with them, so that these do not count.
    """
    before = time.time() - retention_s
    statuses = [path.stat() for path in (store.uri / f"{name}.lance").rglob("*") if path.is_file()]
    old = sum(status.st_size for status in statuses if status.st_mtime <= before)
    return int(max(0, old - table.stats()["total_bytes"]))


def unindexed_rows(table: Any) -> int:
    """The most rows that any index of the table does not cover."""
    stats = [table.index_stats(index.name) for index in table.list_indices()]
    return max((s.num_unindexed_rows for s in stats if s is not None), default=0)


def _reason(store: Store, name: str, table: Any, retention_s: int, left: int) -> str:
    """Which threshold the table crossed; empty for none. `left` bytes withstood the last upkeep, and do not count."""
    stats = table.stats()
    fragments = stats["fragment_stats"]["num_small_fragments"]
    if fragments >= SMALL_FRAGMENTS:
        return f"{fragments} small fragments"
    dead = removable_bytes(store, name, table, retention_s) - left
    if dead > max(DEAD_BYTES_MIN, DEAD_SHARE * stats["total_bytes"]):
        return f"{dead:,} bytes of old versions for {stats['total_bytes']:,} of data"
    unindexed = unindexed_rows(table)
    if unindexed >= max(UNINDEXED_MIN_ROWS, UNINDEXED_SHARE * table.count_rows()):
        return f"{unindexed} unindexed rows"
    before = time.time() - retention_s
    paths = manifests(store.uri / f"{name}.lance").values()
    versions = sum(1 for path in paths if path.stat().st_mtime <= before)
    return f"{versions} old versions" if versions >= OLD_VERSIONS else ""
