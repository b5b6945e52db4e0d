"""Schemas of the LanceDB tables."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import pyarrow as pa

from ctx_pipeline.errors import StorageError

SCHEMA_VERSION = "1"

DOCUMENTS, CHUNKS, CONTEXTS, LEDGER, STATE = "documents", "chunks", "contexts", "ledger", "state"
MEMO = "memo"
CONTEXT_METHOD = "context_method"
"""In the state table: what `contexts.method = "auto"` was resolved to."""
SEARCH_SETTINGS = "search_settings"
"""In the state table: how to search, as the settings of the last refresh say, for readers without settings."""


def _key(name: str) -> pa.Field:
    """A primary key that makes racing writers of one new row collide and retry; it cannot be declared later."""
    return pa.field(name, pa.string(), nullable=False, metadata={"lance-schema:unenforced-primary-key": "true"})


SCHEMAS: dict[str, pa.Schema] = {
    DOCUMENTS: pa.schema(
        [
            _key("doc_id"),
            pa.field("uri", pa.string()),
            pa.field("media_type", pa.string()),
            pa.field("size", pa.int64()),
            pa.field("mtime_ns", pa.int64()),
            pa.field("read_at_ns", pa.int64()),
            pa.field("content_hash", pa.string()),
            pa.field("title", pa.string()),
            pa.field("language", pa.string()),
            pa.field("metadata", pa.string()),
            pa.field("warnings", pa.string()),
            pa.field("text", pa.string()),
            pa.field("text_hash", pa.string()),
            pa.field("version", pa.string()),
        ]
    ),
    CHUNKS: pa.schema(
        [
            _key("chunk_id"),
            pa.field("doc_id", pa.string()),
            pa.field("ordinal", pa.int32()),
            pa.field("start", pa.int64()),
            pa.field("end", pa.int64()),
            pa.field("line", pa.int32()),
            pa.field("page", pa.int32()),
            pa.field("text", pa.string()),
            pa.field("heading_path", pa.list_(pa.string())),
            pa.field("tokens", pa.int32()),
            pa.field("embedder_tokens", pa.int32()),
            pa.field("table_head", pa.list_(pa.string())),
            pa.field("left_out", pa.list_(pa.int64())),
            pa.field("version", pa.string()),
        ]
    ),
    CONTEXTS: pa.schema(
        [
            _key("chunk_id"),
            pa.field("doc_id", pa.string()),
            pa.field("ordinal", pa.int32()),
            pa.field("memo_key", pa.string()),
            pa.field("method", pa.string()),
            pa.field("status", pa.string()),
            pa.field("reason", pa.string()),
            pa.field("attempts", pa.int32()),
            pa.field("context", pa.string()),
            pa.field("keywords", pa.string()),
            pa.field("earlier", pa.bool_()),
            pa.field("version", pa.string()),
        ]
    ),
    LEDGER: pa.schema(
        [
            _key("doc_id"),
            pa.field("size", pa.int64()),
            pa.field("mtime_ns", pa.int64()),
            pa.field("ctime_ns", pa.int64()),
            pa.field("read_at_ns", pa.int64()),
            pa.field("content_hash", pa.string()),
            pa.field("parse", pa.string()),
            pa.field("chunk", pa.string()),
            pa.field("context", pa.string()),
            pa.field("settings", pa.string()),
            pa.field("chunks", pa.int32()),
            pa.field("tokens", pa.int64()),
            pa.field("context_counts", pa.string()),
            pa.field("indexed", pa.string()),
            pa.field("failure", pa.string()),
            pa.field("writing", pa.string()),
            pa.field("run_id", pa.string()),
            pa.field("indexed_at", pa.timestamp("us", tz="UTC")),
        ]
    ),
    STATE: pa.schema([_key("name"), pa.field("value", pa.string())]),
}

MEMO_SCHEMA = pa.schema(
    [
        _key("memo_key"),
        pa.field("context", pa.string()),
        pa.field("method", pa.string()),
        pa.field("model", pa.string()),
        pa.field("doc_id", pa.string()),
        pa.field("place", pa.string()),
        pa.field("shape", pa.string()),
        pa.field("chunk_set", pa.string()),
        pa.field("members", pa.binary()),
        pa.field("written_at", pa.timestamp("us", tz="UTC")),
        pa.field("input_tokens", pa.int64()),
        pa.field("cache_write_5m_tokens", pa.int64()),
        pa.field("cache_write_1h_tokens", pa.int64()),
        pa.field("cache_read_tokens", pa.int64()),
        pa.field("output_tokens", pa.int64()),
        pa.field("usd", pa.float64()),
        pa.field("earlier", pa.bool_()),
    ]
)
"""Of a table that is made when the first context is paid for: an index without one is whole."""


@dataclass(frozen=True, slots=True)
class SearchTableSpec:
    """What a search table was built with; kept in its schema, so that a reader needs no settings to query it."""

    model: str
    embed_hash: str
    fts_hash: str
    dimension: int
    languages: tuple[str, ...]
    base_url: str | None = None
    window_tokens: int | None = None
    requested_dimension: int | None = None
    late_chunking: bool = False

    def to_metadata(self) -> dict[bytes, bytes]:
        """Schema metadata of the table."""
        return {b"ctx_search": json.dumps(asdict(self)).encode()}

    @classmethod
    def from_schema(cls, schema: pa.Schema) -> SearchTableSpec:
        """The spec of an open table. Raises StorageError when it was not made by this package."""
        raw = (schema.metadata or {}).get(b"ctx_search")
        if raw is None:
            raise StorageError(
                "the search table carries no ctx_search metadata; rebuild the index in a new storage.uri"
            )
        values = json.loads(raw)
        return cls(**{**values, "languages": tuple(values["languages"])})


SEARCH_COLUMNS = {
    "chunk_id": "Identity of the row: doc_id#ordinal.",
    "doc_id": "The document: name of its source, slash, path below it.",
    "ordinal": "Position of the chunk in its document, from 0.",
    "start": "First character of the chunk in the document's text.",
    "end": "Character after the last one.",
    "line": "Line of the first character, from 1.",
    "page": "Page of the first character, from 1; empty where the document has no pages.",
    "text": "The chunk as it stands in the document.",
    "context": "What situates the chunk in its document.",
    "context_status": "written, fallback or pending.",
    "heading_path": "Headings above the chunk, outermost first.",
    "title": "Title of the document.",
    "language": "ISO 639-1 code of the document's language, or und.",
    "metadata": "Front matter of the document, as JSON.",
    "vector": "Embedding of context and chunk, or of the chunk as part of its window (late chunking); of length 1.",
    "embed_key": "Identity of the embedder, the text it saw and, with late chunking, the chunk's span of it.",
    "text_*": "Keywords, context, chunk and words of its names, for full text in one language; all rows are in each.",
    "identifiers": "Identifiers of context and chunk, such as ts-999 or error_code, indexed whole.",
    "content_hash": "sha256 of the document's bytes.",
    "version": "Identity of content and settings behind the row.",
}
"""What the columns of a search table hold."""


IDENTIFIERS = "identifiers"
"""The full-text column of whole identifiers, in no language."""


def text_column(language: str) -> str:
    """The full-text column stemmed for `language`; each covers all rows, whatever their own language."""
    return f"text_{language.lower()}"


def search_schema(spec: SearchTableSpec) -> pa.Schema:
    """Schema of a search table with that embedder and those full-text languages."""
    return pa.schema(
        [
            _key("chunk_id"),
            pa.field("doc_id", pa.string()),
            pa.field("ordinal", pa.int32()),
            pa.field("start", pa.int64()),
            pa.field("end", pa.int64()),
            pa.field("line", pa.int32()),
            pa.field("page", pa.int32()),
            pa.field("text", pa.string()),
            pa.field("context", pa.string()),
            pa.field("context_status", pa.string()),
            pa.field("heading_path", pa.list_(pa.string())),
            pa.field("title", pa.string()),
            pa.field("language", pa.string()),
            pa.field("metadata", pa.string()),
            pa.field("vector", pa.list_(pa.float32(), spec.dimension)),
            pa.field("embed_key", pa.string()),
            *(pa.field(text_column(language), pa.string()) for language in spec.languages),
            pa.field(IDENTIFIERS, pa.string()),
            pa.field("content_hash", pa.string()),
            pa.field("version", pa.string()),
        ],
        metadata=spec.to_metadata(),
    )


def chunk_id(doc_id: str, ordinal: int) -> str:
    """Deterministic identity of a chunk row."""
    return f"{doc_id}#{ordinal:05d}"


def document_of_chunk(chunk: str) -> str:
    """The document of a chunk_id."""
    return chunk.rpartition("#")[0]
