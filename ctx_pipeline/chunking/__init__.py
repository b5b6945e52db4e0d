"""Chunking strategies, and the one place that chooses among them."""

from __future__ import annotations

from ctx_pipeline.chunking.model import Chunker, SizeLimit, embedder_chunk_tokens
from ctx_pipeline.chunking.recursive import RecursiveChunker
from ctx_pipeline.embedding.protocol import Embedder
from ctx_pipeline.settings import ChunkingSettings


def open_chunker(settings: ChunkingSettings, embedder: Embedder) -> Chunker:
    """The chunker that settings name; its chunks fit the embedder's window beside their context. Loads nothing."""
    limit = SizeLimit(settings.max_tokens, embedder_chunk_tokens(embedder), embedder.count_tokens)
    identity = f"{limit.max_tokens}/{limit.embedder_tokens}/{embedder.tokenizer}"
    return RecursiveChunker(limit, 0, identity)
