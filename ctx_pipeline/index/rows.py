"""Documents, chunks and contexts as rows of their tables, and back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctx_pipeline.chunking.model import Chunk
from ctx_pipeline.contexts.model import EARLIER_WORDING, Context
from ctx_pipeline.documents.model import Document, Parsed
from ctx_pipeline.index.embedded import with_context
from ctx_pipeline.index.fulltext import indexed_identifiers, indexed_text, normalized
from ctx_pipeline.index.schemas import IDENTIFIERS, chunk_id, text_column


def document_row(document: Document, version: str) -> dict[str, Any]:
    """A row of `documents`."""
    parsed = document.parsed
    return {
        "doc_id": document.doc_id,
        "uri": document.uri,
        "media_type": parsed.media_type,
        "size": document.size,
        "mtime_ns": document.mtime_ns,
        "read_at_ns": document.read_at_ns,
        "content_hash": document.content_hash,
        "title": parsed.title,
        "language": parsed.language,
        "metadata": json.dumps(parsed.metadata, ensure_ascii=False, default=str),
        "warnings": json.dumps(parsed.warnings, ensure_ascii=False),
        "text": parsed.text,
        "version": version,
    }


def document_from_row(row: Mapping[str, Any]) -> Document:
    """The document of a row of `documents`."""
    return Document(
        doc_id=row["doc_id"],
        uri=row["uri"],
        size=row["size"],
        mtime_ns=row["mtime_ns"],
        read_at_ns=row["read_at_ns"],
        content_hash=row["content_hash"],
        parsed=Parsed(
            text=row["text"],
            media_type=row["media_type"],
            title=row["title"],
            language=row["language"],
            metadata=json.loads(row["metadata"]),
            warnings=tuple(json.loads(row.get("warnings") or "[]")),
        ),
    )


def chunk_rows(doc_id: str, chunks: Sequence[Chunk], version: str) -> list[dict[str, Any]]:
    """Rows of `chunks` for one document."""
    return [
        {
            "chunk_id": chunk_id(doc_id, ordinal),
            "doc_id": doc_id,
            "ordinal": ordinal,
            "start": chunk.start,
            "end": chunk.end,
            "line": chunk.line,
            "page": chunk.page,
            "text": chunk.text,
            "heading_path": list(chunk.heading_path),
            "tokens": chunk.tokens,
            "embedder_tokens": chunk.embedder_tokens,
            "table_head": list(chunk.table_head),
            "left_out": [offset for span in chunk.left_out for offset in span],
            "version": version,
        }
        for ordinal, chunk in enumerate(chunks)
    ]


def chunk_from_row(row: Mapping[str, Any]) -> Chunk:
    """The chunk of a row of `chunks`."""
    left_out = row.get("left_out") or []
    return Chunk(
        start=row["start"],
        end=row["end"],
        line=row["line"],
        text=row["text"],
        heading_path=tuple(row["heading_path"]),
        tokens=row["tokens"],
        embedder_tokens=row["embedder_tokens"],
        page=row.get("page"),
        table_head=tuple(row.get("table_head") or ()),
        left_out=tuple(zip(left_out[::2], left_out[1::2], strict=True)),
    )


def context_rows(doc_id: str, contexts: Sequence[Context], version: str) -> list[dict[str, Any]]:
    """Rows of `contexts` for one document."""
    return [
        {
            "chunk_id": chunk_id(doc_id, ordinal),
            "doc_id": doc_id,
            "ordinal": ordinal,
            "memo_key": context.memo_key,
            "method": context.method,
            "status": context.status,
            "reason": context.reason,
            "attempts": context.attempts,
            "context": context.text,
            "keywords": context.keywords,
            "earlier": context.earlier,
            "version": version,
        }
        for ordinal, context in enumerate(contexts)
    ]


def context_from_row(row: Mapping[str, Any]) -> Context:
    """The context of a row of `contexts`."""
    return Context(
        text=row["context"],
        keywords=row["keywords"],
        method=row["method"],
        status=row["status"],
        reason=row["reason"],
        attempts=row["attempts"],
        memo_key=row["memo_key"],
        earlier=bool(row.get("earlier")),
    )


def context_counts(contexts: Sequence[Context]) -> dict[str, int]:
    """Chunks by status of their context, `pending:<reason>` for each reason, and those of an earlier wording."""
    counts = Counter[str](context.status for context in contexts)
    counts.update(f"pending:{context.reason}" for context in contexts if context.status == "pending")
    earlier = sum(context.earlier for context in contexts)
    return dict(counts) | ({EARLIER_WORDING: earlier} if earlier else {})


def search_rows(
    document: Document,
    chunks: Sequence[Chunk],
    contexts: Sequence[Context],
    keys: Sequence[str],
    vectors: Mapping[str, NDArray[np.float32]],
    *,
    languages: Sequence[str],
    version: str,
) -> list[dict[str, Any]]:
    """Rows of a search table for one document; `keys` are the chunks' `embed_key`s, and `vectors` has one of each."""
    rows = []
    metadata = json.dumps(document.parsed.metadata, ensure_ascii=False, default=str)
    for ordinal, (chunk, context, key) in enumerate(zip(chunks, contexts, keys, strict=True)):
        text = normalized(with_context(context.text, chunk.indexed_text))
        full_text = indexed_text(f"{normalized(context.keywords)}\n{text}" if context.keywords else text)
        rows.append(
            {
                "chunk_id": chunk_id(document.doc_id, ordinal),
                "doc_id": document.doc_id,
                "ordinal": ordinal,
                "start": chunk.start,
                "end": chunk.end,
                "line": chunk.line,
                "page": chunk.page,
                "text": chunk.text,
                "context": context.text,
                "context_status": context.status,
                "heading_path": list(chunk.heading_path),
                "title": document.parsed.title,
                "language": document.parsed.language,
                "metadata": metadata,
                "vector": vectors[key],
                "embed_key": key,
                **{text_column(language): full_text for language in languages},
                IDENTIFIERS: indexed_identifiers(text),
                "content_hash": document.content_hash,
                "version": version,
            }
        )
    return rows
