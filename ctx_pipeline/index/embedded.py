"""What the embedder sees of each chunk, and the vectors: the one place that tells late chunking from the ordinary way.

Needs no tables: `embed(embedder, embedded_texts(document, chunks, contexts, embedder))` are the vectors of a document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctx_pipeline.chunking.model import Chunk
from ctx_pipeline.contexts.model import Context
from ctx_pipeline.documents.model import Document
from ctx_pipeline.embedding.late import LateChunkingEmbedder, chunk_windows
from ctx_pipeline.embedding.protocol import Embedder, Span
from ctx_pipeline.index.versions import digest


@dataclass(frozen=True, slots=True)
class EmbeddedText:
    """Context and chunk, or the window of the document that is read for the chunk and the chunk's span of it."""

    text: str
    span: Span | None = None
    kept_key: str = ""
    """The `embed_key` of the vector of an earlier wording that stands for this one's; empty for none."""

    def key(self, embed_hash: str) -> str:
        """The `embed_key`: identity of the vector, by the embedder, the text it saw and the span."""
        return self.kept_key or digest(embed_hash, self.text, *(self.span or ()))

    @property
    def needed(self) -> str:
        """What has to fit the embedder's window, lest the vector miss a part of the chunk."""
        return self.text[: self.span[1]] if self.span else self.text


def embedded_texts(
    document: Document, chunks: Sequence[Chunk], contexts: Sequence[Context], embedder: Embedder
) -> list[EmbeddedText]:
    """What `embedder` is to see of each chunk."""
    if not isinstance(embedder, LateChunkingEmbedder):
        return [
            EmbeddedText(with_context(context.text, chunk.indexed_text))
            for context, chunk in zip(contexts, chunks, strict=True)
        ]
    text = document.parsed.text
    windows = chunk_windows(text, chunks, embedder.window_tokens, embedder.count_tokens)
    return [
        EmbeddedText(text[start:end], (chunk.start - start, chunk.end - start))
        for chunk, (start, end) in zip(chunks, windows, strict=True)
    ]


def with_context(context: str, chunk: str) -> str:
    """The chunk below its context: what keyword leg, reranker, and an embedder without late chunking see of it."""
    return f"{context}\n\n{chunk}" if context else chunk


def embed(embedder: Embedder, texts: Sequence[EmbeddedText]) -> NDArray[np.float32]:
    """Vectors of shape (len(texts), dimension), in the order of the texts; raises what the embedder does."""
    if not isinstance(embedder, LateChunkingEmbedder):
        return embedder.embed_passages([text.text for text in texts])
    spans = [text.span or (0, len(text.text)) for text in texts]
    return embedder.embed_spans([text.text for text in texts], spans)
