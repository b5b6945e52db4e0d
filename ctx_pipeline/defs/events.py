"""Events and partition keys: what Dagster is told of the documents."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any
from urllib.request import url2pathname

import dagster as dg

from ctx_pipeline.claude.usage import Usage
from ctx_pipeline.contexts.model import Progress
from ctx_pipeline.documents.model import doc_id_of, partition_key
from ctx_pipeline.escaping import markdown, one_line, printable
from ctx_pipeline.index.awaited import pending_by_reason
from ctx_pipeline.index.outcome import Outcome
from ctx_pipeline.index.rows import context_counts
from ctx_pipeline.index.schemas import SEARCH_COLUMNS, SearchTableSpec, search_schema, text_column
from ctx_pipeline.index.stages import ASSETS
from ctx_pipeline.index.tables import blocks
from ctx_pipeline.index.versions import Stage
from ctx_pipeline.progress import ContextLine, Throttle
from ctx_pipeline.summary import NullSink

KEY_BLOCK = 1_000
"""Keys added by one statement; about 36,000 at once were too many SQL variables for SQLite (public report)."""
PREVIEW_CHUNKS = 3
PREVIEW_CHARACTERS = 600


def materializations(outcome: Outcome) -> Iterator[dg.AssetMaterialization]:
    """One event for each stage that was done for a document, in order."""
    for stage in sorted(outcome.done):
        yield dg.AssetMaterialization(
            asset_key=ASSETS[stage],
            partition=partition_key(outcome.doc_id),
            metadata=_METADATA[stage](outcome),
            # No dagster/code_version beside it: with it, and without input provenance, every partition shows stale.
            tags={"dagster/data_version": outcome.versions[stage]},
        )


class DagsterSink(NullSink):
    """Tells Dagster of documents: partition keys, and one event for each document and asset that was worked on."""

    def __init__(self, context: dg.AssetExecutionContext, keys: PartitionKeys) -> None:
        self._context, self._keys = context, keys
        self._line, self._tells = ContextLine(), Throttle()
        self.spent = Progress()
        """Contexts so far and what they cost, also where the run ends in an error."""

    def reconcile_keys(self, doc_ids: Iterable[str]) -> None:
        """See Sink."""
        self._keys.reconcile(doc_ids)

    def documents_done(self, outcomes: Sequence[Outcome]) -> None:
        """See Sink."""
        for outcome in outcomes:
            if outcome.failure is not None:
                failure = outcome.failure
                self._context.log.warning(one_line(f"{outcome.doc_id} failed ({failure.kind}): {failure.reason}"))
                if outcome.defect:
                    name = one_line(outcome.doc_id)
                    self._context.log.error(f"{name} met a defect of ctx-pipeline:\n{printable(outcome.defect)}")
                continue
            for event in materializations(outcome):
                self._context.log_event(event)

    def documents_removed(self, doc_ids: Sequence[str]) -> None:
        """See Sink."""
        self._keys.remove(doc_ids)

    def contexts_progress(self, progress: Progress) -> None:
        """See Sink."""
        self.spent = progress
        text = self._line.text(progress)
        if self._tells(progress.done, progress.total):
            self._context.log.info(text)


class PartitionKeys:
    """The dynamic partitions of an instance: one key per document."""

    def __init__(self, instance: dg.DagsterInstance, name: str) -> None:
        self._instance, self._name = instance, name

    def doc_ids(self) -> set[str]:
        """The documents that have a key."""
        return {doc_id_of(key) for key in self._instance.get_dynamic_partitions(self._name)}

    def reconcile(self, doc_ids: Iterable[str]) -> None:
        """Make the keys those of `doc_ids`: missing ones added in blocks, others pruned."""
        wanted = dict.fromkeys(partition_key(doc_id) for doc_id in doc_ids)
        existing = set(self._instance.get_dynamic_partitions(self._name))
        for block in blocks([key for key in wanted if key not in existing], KEY_BLOCK):
            self._instance.add_dynamic_partitions(self._name, list(block))
        self._delete(existing - wanted.keys())

    def remove(self, doc_ids: Sequence[str]) -> None:
        """Remove the keys of documents."""
        self._delete({partition_key(doc_id) for doc_id in doc_ids})

    def _delete(self, keys: Iterable[str]) -> None:
        for key in sorted(keys):
            self._instance.delete_dynamic_partition(self._name, key)


def _document_metadata(outcome: Outcome) -> dict[str, Any]:
    document = outcome.document
    assert document is not None
    return {
        "source": _path(outcome),
        "title": document.parsed.title,
        "media_type": document.parsed.media_type,
        "language": document.parsed.language,
        "bytes": document.size,
        "characters": len(document.parsed.text),
        "content_hash": document.content_hash,
        **({"warnings": "\n".join(document.parsed.warnings)} if document.parsed.warnings else {}),
    }


def _chunk_metadata(outcome: Outcome) -> dict[str, Any]:
    tokens = [chunk.tokens for chunk in outcome.chunks]
    return {
        "source": _path(outcome),
        "chunks": len(tokens),
        "tokens": sum(tokens),
        "longest_chunk_tokens": max(tokens, default=0),
    }


def cost_metadata(usage: Usage, usd: Decimal, calls: int) -> dict[str, Any]:
    """What contexts cost, as numbers that the UI plots over time."""
    return {
        "usd": float(usd),
        "calls": calls,
        "tokens_input": usage.input,
        "tokens_cache_write": usage.cache_write,
        "tokens_cache_read": usage.cache_read,
        "tokens_output": usage.output,
        # A share of nothing is not 0.
        **({"cache_hit_rate": usage.cache_hit_rate} if usage.total_input else {}),
    }


def reason_list(reasons: Mapping[str, int]) -> dg.MetadataValue[Any]:
    """Reasons with their counts, as a Markdown list."""
    return bullets(f"{count}: {reason}" for reason, count in reasons.items())


def bullets(lines: Iterable[str]) -> dg.MetadataValue[Any]:
    """A Markdown list. The lines may hold names of files and what is in them: nothing in them is markup."""
    return dg.MetadataValue.md("\n".join(f"- {markdown(line)}" for line in lines))


def _context_metadata(outcome: Outcome) -> dict[str, Any]:
    counts = context_counts(outcome.contexts)
    fallback = Counter(context.reason for context in outcome.contexts if context.status == "fallback")
    pending = pending_by_reason(counts)
    return {
        "source": _path(outcome),
        **{f"contexts_{status}": counts.get(status, 0) for status in ("written", "fallback", "pending")},
        "contexts_reused": outcome.contexts_reused,
        **({"fallback_reasons": reason_list(fallback)} if fallback else {}),
        **({"pending_reasons": reason_list(pending)} if pending else {}),
        "method": outcome.contexts[0].method if outcome.contexts else "none needed",
        **cost_metadata(outcome.usage, outcome.usd, outcome.calls),
        "preview": dg.MetadataValue.md(_preview(outcome)),
    }


def _search_metadata(outcome: Outcome) -> dict[str, Any]:
    return {
        "source": _path(outcome),
        "dagster/row_count": outcome.table_rows,
        "dagster/partition_row_count": len(outcome.chunks),
        "chunks": len(outcome.chunks),
        "tokens": sum(chunk.tokens for chunk in outcome.chunks),
        "vectors_embedded": outcome.embedded,
        "vectors_reused": outcome.reused,
        "truncated": outcome.truncated,
        "preview": dg.MetadataValue.md(_preview(outcome)),
    }


_METADATA = {
    Stage.DOCUMENTS: _document_metadata,
    Stage.CHUNKS: _chunk_metadata,
    Stage.CONTEXTS: _context_metadata,
    Stage.SEARCH: _search_metadata,
}


def _path(outcome: Outcome) -> dg.MetadataValue[Any]:
    return dg.MetadataValue.path(url2pathname(outcome.document.uri.removeprefix("file://")) if outcome.document else "")


def _preview(outcome: Outcome) -> str:
    """The first chunks with their contexts, as Markdown; document text stands in fences that it cannot close."""
    parts = []
    for ordinal, (chunk, context) in enumerate(zip(outcome.chunks, outcome.contexts, strict=True)):
        if ordinal == PREVIEW_CHUNKS:
            parts.append(f"… and {len(outcome.chunks) - PREVIEW_CHUNKS} more chunks")
            break
        text = chunk.text[:PREVIEW_CHARACTERS] + ("…" if len(chunk.text) > PREVIEW_CHARACTERS else "")
        fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text + context.text)), default=0))
        parts.append(
            f"**Chunk {ordinal}** · line {chunk.line} · {chunk.tokens} tokens\n\n"
            f"Context ({context.status}):\n\n{fence}text\n{context.text}\n{fence}\n\n"
            f"Text:\n\n{fence}text\n{text}\n{fence}"
        )
    return "\n\n---\n\n".join(parts) or "The document has no text."


def search_columns(languages: Sequence[str]) -> dg.TableSchema:
    """A search table's columns with what they hold, as the UI shows them."""
    texts = [text_column(language) for language in languages]
    schema = search_schema(SearchTableSpec("", "", "", dimension=1, languages=tuple(languages)))
    types = {field.name: "vector" if field.name == "vector" else str(field.type) for field in schema}
    descriptions = {**SEARCH_COLUMNS, **dict.fromkeys(texts, SEARCH_COLUMNS["text_*"])}
    return dg.TableSchema(columns=[dg.TableColumn(name, kind, descriptions[name]) for name, kind in types.items()])
