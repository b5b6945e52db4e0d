"""Chunking strategies, and the one place that chooses among them."""

from __future__ import annotations

from ctx_pipeline.chunking.fixed import FixedChunker
from ctx_pipeline.chunking.model import Chunker, SizeLimit, embedder_chunk_tokens
from ctx_pipeline.chunking.recursive import RecursiveChunker
from ctx_pipeline.chunking.semantic import SemanticChunker
from ctx_pipeline.chunking.structure import StructureChunker
from ctx_pipeline.embedding.protocol import Embedder
from ctx_pipeline.errors import SettingsError
from ctx_pipeline.settings import ChunkingSettings


def open_chunker(settings: ChunkingSettings, embedder: Embedder) -> Chunker:
    """The chunker that settings name; its chunks fit the embedder's window beside their context. Loads nothing.

    Raises SettingsError when the window leaves too little room for a chunk, or for the overlap.
    """
    limit = SizeLimit(settings.max_tokens, embedder_chunk_tokens(embedder), embedder.count_tokens)
    if 2 * settings.overlap >= limit.embedder_tokens:
        raise SettingsError(
            f"chunking.overlap must be less than half of the {limit.embedder_tokens} tokens that the window of "
            f"{embedder.name} leaves for a chunk, got {settings.overlap}"
        )
    identity = f"{limit.max_tokens}/{limit.embedder_tokens}/{settings.overlap}/{embedder.tokenizer}"
    match settings.strategy:
        case "recursive":
            return RecursiveChunker(limit, settings.overlap, identity)
        case "fixed":
            return FixedChunker(limit, settings.overlap, identity)
        case "structure":
            return StructureChunker(limit, settings.overlap, identity)
        case "semantic":
            return SemanticChunker(limit, settings.semantic_percentile, embedder, identity)
