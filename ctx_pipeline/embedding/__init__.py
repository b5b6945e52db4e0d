"""Embedders, and the one place that chooses among them."""

from __future__ import annotations

from ctx_pipeline.embedding.protocol import Embedder
from ctx_pipeline.settings import EmbeddingSettings


def open_embedder(settings: EmbeddingSettings) -> Embedder:
    """The embedder that settings name. Loads nothing."""
    if settings.base_url is not None:
        from ctx_pipeline.embedding.api import ApiEmbedder

        return ApiEmbedder(
            model=settings.model,
            base_url=settings.base_url,
            api_key=settings.api_key.get_secret_value() if settings.api_key else None,
            window_tokens=settings.window_tokens,
            dimension=settings.dimension,
        )
    if settings.model == "hashing":
        from ctx_pipeline.embedding.hashing import HashingEmbedder

        return HashingEmbedder()
    from ctx_pipeline.embedding.e5 import E5Embedder

    e5 = E5Embedder(settings.path)
    if settings.late_chunking:
        from ctx_pipeline.embedding.late import LateChunkingEmbedder

        return LateChunkingEmbedder(e5)
    return e5
