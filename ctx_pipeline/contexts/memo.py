"""The memo: contexts that were paid for, found again by the request that produced them.

Rows are only ever added, as soon as they are paid for, and stored every `FLUSH_S` seconds: a process that dies loses no
more than that. The table comes into being with its first row.
"""

from __future__ import annotations

import hashlib
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from ctx_pipeline.chunking.model import Chunk
from ctx_pipeline.claude.usage import Usage
from ctx_pipeline.contexts.model import NO_USAGE
from ctx_pipeline.index.schemas import MEMO, MEMO_SCHEMA
from ctx_pipeline.index.tables import Store, blocks, id_filter

FLUSH_S = 2.0
_HASH_BYTES = 8
_FOUND_COLUMNS = [
    "memo_key",
    "context",
    "method",
    "model",
    "doc_id",
    "place",
    "shape",
    "chunk_set",
    "written_at",
    "earlier",
]


@dataclass(frozen=True, slots=True)
class Paid:
    """A context that was paid for."""

    memo_key: str
    context: str
    method: str
    model: str
    """The model that was asked."""
    doc_id: str
    place: str
    """Digest of what situates the chunk, and of the chunk (`place_of`)."""
    shape: str
    """Digest of model, most tokens and wording."""
    chunk_set: str
    """Digest of `members`."""
    members: frozenset[bytes] | None
    """Hashes of the document's chunks when this was written; None when an older row holds the same set."""
    written_at: datetime
    usage: Usage = NO_USAGE
    """Of the call; when that wrote several contexts, the first one's row has it all."""
    usd: Decimal = Decimal(0)
    earlier: bool = False
    """Whether the context was asked for by a request of an earlier version of this program, and kept under this key."""


class Memo:
    """The memo of a storage. Reading makes no table; the caller holds the storage's lock to add. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[Paid] = []
        self._stored_sets: set[tuple[str, str]] = set()
        self._adding, self._writing = threading.Lock(), threading.Lock()

    def find(self, keys: Sequence[str]) -> dict[str, Paid]:
        """The rows of those keys that are there; one that was asked for anew goes before one of an earlier wording."""
        rows = [row for block in blocks(sorted(set(keys))) for row in self._rows("memo_key", block)]
        return {row.memo_key: row for row in sorted(rows, key=lambda row: not row.earlier)}

    def has_shape(self, shapes: Iterable[str]) -> bool:
        """Whether anything was paid for in one of these shapes."""
        self.flush()
        table = self._store.memo_table()
        with self._store.reading(MEMO):
            return table is not None and bool(table.count_rows(id_filter("shape", shapes)))

    def of_documents(self, doc_ids: Sequence[str]) -> dict[str, list[Paid]]:
        """All rows that were written for some documents, each with the members of its chunk set where known."""
        rows = [row for block in blocks(doc_ids) for row in self._rows("doc_id", block)]
        sets = {row.chunk_set: row.members for row in rows if row.members is not None}
        found: dict[str, list[Paid]] = defaultdict(list)
        for row in rows:
            members = sets.get(row.chunk_set)
            kept = {field.name: getattr(row, field.name) for field in fields(row)}
            found[row.doc_id].append(Paid(**{**kept, "members": members}))
        return found

    def add(self, row: Paid) -> None:
        """Keep a row; it is stored by the next `flush`."""
        with self._adding:
            self._waiting.append(row)

    def flush(self) -> None:
        """Store what waits, in one commit; none for nothing."""
        with self._writing:
            with self._adding:
                rows, self._waiting = self._waiting, []
            if not rows:
                return
            try:
                data, sets = self._to_table(rows)
                table = self._store.memo_table()
                if table is None:
                    # Empty first: what a kill leaves of it then holds no data, unlike a memo that lost its manifests.
                    table = self._store.connect(create=True).create_table(MEMO, schema=MEMO_SCHEMA)
                table.add(data)
            except BaseException:
                with self._adding:
                    self._waiting = rows + self._waiting
                raise
            self._stored_sets |= sets

    def _rows(self, column: str, values: Sequence[str]) -> Iterable[Paid]:
        self.flush()
        table = self._store.memo_table() if values else None
        if table is None:
            return []
        columns = [name for name in (*_FOUND_COLUMNS, "members") if name in table.schema.names]
        return map(_from_row, self._store.rows(MEMO, values, columns, column=column))

    def _to_table(self, rows: Sequence[Paid]) -> tuple[pa.Table, set[tuple[str, str]]]:
        """The rows, and the chunk sets that they hold: one that is stored is not written again."""
        values, sets = [], set()
        for paid in rows:
            own = (paid.doc_id, paid.chunk_set)
            new = paid.members is not None and own not in self._stored_sets and own not in sets
            sets.add(own)
            values.append(
                {
                    **{name: getattr(paid, name) for name in _FOUND_COLUMNS},
                    **{f"{field.name}_tokens": getattr(paid.usage, field.name) for field in fields(paid.usage)},
                    "members": b"".join(sorted(paid.members or ())) if new else None,
                    "usd": float(paid.usd),
                }
            )
        return pa.Table.from_pylist(values, schema=MEMO_SCHEMA), sets


def _from_row(row: dict[str, Any]) -> Paid:
    raw, earlier = row.pop("members"), bool(row.pop("earlier", False))
    members = None if raw is None else frozenset(raw[at : at + _HASH_BYTES] for at in range(0, len(raw), _HASH_BYTES))
    return Paid(**row, members=members, earlier=earlier)


def place_of(title: str, chunk: Chunk) -> str:
    """Digest of title, heading path and text of a chunk."""
    parts = [title, *chunk.heading_path, chunk.text]
    return _hash("\0".join(f"{len(part)} {part}" for part in parts)).hex()


def members_of(texts: Iterable[str]) -> frozenset[bytes]:
    """Hashes of the texts of chunks."""
    return frozenset(_hash(text)[:_HASH_BYTES] for text in texts)


def set_digest(members: frozenset[bytes]) -> str:
    """Identity of a set of hashes."""
    return hashlib.sha256(b"".join(sorted(members))).hexdigest()[:16]


def drift(now: frozenset[bytes], then: frozenset[bytes]) -> float:
    """Share of a document's chunks that differ from those of an earlier version, in [0, 1]: added, changed or gone."""
    most = max(len(now), len(then))
    return 1 - len(now & then) / most if most else 0.0


def now() -> datetime:
    """The moment, as rows keep it."""
    return datetime.now(UTC)


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]
