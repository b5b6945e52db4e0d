"""Ledger and tables compared, document by document: what both the findings and the repairs go by."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ctx_pipeline.index.audit import audit, duplicate_ids
from ctx_pipeline.index.ledger import Ledger
from ctx_pipeline.index.plan import Damage
from ctx_pipeline.index.rows import text_hash
from ctx_pipeline.index.schemas import CHUNKS, CONTEXTS, DOCUMENTS, LEDGER
from ctx_pipeline.index.tables import Store, blocks
from ctx_pipeline.index.versions import Stage
from ctx_pipeline.refresh import Pipeline

TEXT_BLOCK = 500
"""Documents whose texts are in memory at once."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Documents, by what is wrong with them."""

    damage: Damage
    """Rows missing or mixed, and rows of documents that the ledger does not know."""
    twice: Mapping[str, tuple[str, ...]]
    """Keys that a table holds more than once, by table."""
    other_content: Mapping[str, tuple[str, ...]]
    """Documents whose rows carry another content hash than the ledger, by table."""
    altered: tuple[str, ...]
    """Documents whose stored text is not the one that was read."""
    cut_elsewhere: Mapping[str, tuple[str, ...]]
    """Documents with chunks that are not what stands at their place in the document's text, by table."""

    def without(self, doc_ids: Collection[str]) -> Comparison:
        """The same, but for documents that are being changed."""
        return Comparison(
            Damage(
                {doc_id: stage for doc_id, stage in self.damage.stages.items() if doc_id not in doc_ids},
                tuple(doc_id for doc_id in self.damage.orphans if doc_id not in doc_ids),
            ),
            {
                name: tuple(key for key in keys if document_of(key, name) not in doc_ids)
                for name, keys in self.twice.items()
            },
            {name: tuple(d for d in found if d not in doc_ids) for name, found in self.other_content.items()},
            tuple(doc_id for doc_id in self.altered if doc_id not in doc_ids),
            {name: tuple(d for d in found if d not in doc_ids) for name, found in self.cut_elsewhere.items()},
        )  # fmt: skip

    def stages(self) -> dict[str, Stage]:
        """The first stage that each document is to be done again from."""
        found: dict[str, Stage] = {}

        def owe(doc_ids: Collection[str], stage: Stage) -> None:
            found.update((doc_id, min(stage, found.get(doc_id, stage))) for doc_id in doc_ids)

        for doc_id, stage in self.damage.stages.items():
            owe([doc_id], stage)
        for name, keys in self.twice.items():
            owe([document_of(key, name) for key in keys], _stage_of(name))
        owe(self.altered, Stage.DOCUMENTS)
        for found_in in (self.other_content, self.cut_elsewhere):
            for name, doc_ids in found_in.items():
                owe(doc_ids, _stage_of(name))
        return found


def compare(pipeline: Pipeline, ledger: Ledger) -> Comparison:
    """Compare the tables with the ledger and with each other. Reads only."""
    store, tables = pipeline.store, pipeline.search_tables()
    names = store.names()
    with_keys = [name for name in (DOCUMENTS, CHUNKS, CONTEXTS, LEDGER, *tables.names) if name in names]
    # A table that is about to be replaced may hold chunks of an earlier parser's text.
    altered, cut_elsewhere = _texts(store, ledger, [CHUNKS, *([tables.live] if tables.is_current else [])])
    return Comparison(
        audit(store, ledger, tables.audited),
        {name: tuple(duplicate_ids(store, name)) for name in with_keys},
        {name: tuple(_other_content(store, ledger, name)) for name in (DOCUMENTS, tables.live) if name in names},
        altered,
        cut_elsewhere,
    )


def document_of(key: str, table: str) -> str:
    """The document that a key of a table belongs to."""
    return key if table in (DOCUMENTS, LEDGER) else key.rpartition("#")[0]


def _stage_of(table: str) -> Stage:
    stages = {DOCUMENTS: Stage.DOCUMENTS, LEDGER: Stage.DOCUMENTS, CHUNKS: Stage.CHUNKS, CONTEXTS: Stage.CONTEXTS}
    return stages.get(table, Stage.SEARCH)


def _other_content(store: Store, ledger: Ledger, name: str) -> Iterator[str]:
    pairs = store.all_rows(name, ["doc_id", "content_hash"]).group_by(["doc_id", "content_hash"]).aggregate([])
    for pair in pairs.to_pylist():
        row = ledger.rows.get(pair["doc_id"])
        if row and not row.writing and row.content_hash != pair["content_hash"]:
            yield pair["doc_id"]


def _texts(store: Store, ledger: Ledger, tables: list[str]) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Documents of altered text, and by table those with chunks that are not at their place in it."""
    names = store.names()
    altered: list[str] = []
    elsewhere: dict[str, list[str]] = {name: [] for name in tables if name in names}
    if DOCUMENTS not in names:
        return (), {}
    known = [doc_id for doc_id, row in ledger.rows.items() if row.content_hash and not row.writing]
    has_hash = "text_hash" in store.table(DOCUMENTS).schema.names
    columns = ["doc_id", "text", "content_hash", *(["text_hash"] if has_hash else [])]
    for block in blocks(sorted(known), TEXT_BLOCK):
        texts: dict[str, str] = {}
        for row in store.rows(DOCUMENTS, block, columns):
            if row.get("text_hash") and row["text_hash"] != text_hash(row["text"]):
                altered.append(row["doc_id"])
            elif row["content_hash"] == ledger.rows[row["doc_id"]].content_hash:
                texts[row["doc_id"]] = row["text"]
        for name, found in elsewhere.items():
            wrong = {
                row["doc_id"]
                for row in store.rows(name, block, ["doc_id", "start", "end", "text"])
                if (text := texts.get(row["doc_id"])) is not None and text[row["start"] : row["end"]] != row["text"]
            }
            found += sorted(wrong)
    return tuple(altered), {name: tuple(found) for name, found in elsewhere.items()}
