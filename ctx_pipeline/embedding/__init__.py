"""Embedders, and the one place that chooses among them."""

from __future__ import annotations

import os

from ctx_pipeline.embedding.protocol import Embedder
from ctx_pipeline.settings import VOYAGE_PREFIX, EmbeddingSettings


def open_embedder(settings: EmbeddingSettings) -> Embedder:
    """The embedder that settings name. Loads nothing."""
    if settings.model.startswith(VOYAGE_PREFIX):
        from ctx_pipeline.embedding.voyage import VoyageEmbedder

        # First the service's own variable: embedding.api_key may be meant for another endpoint that the settings
        # name by now, while the live table still asks Voyage.
        own = settings.api_key.get_secret_value() if settings.api_key else None
        return VoyageEmbedder(
            model=settings.model,
            api_key=os.environ.get("VOYAGE_API_KEY") or own,
            base_url=settings.base_url,
            dimension=settings.dimension,
        )
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
    if settings.model == "all-MiniLM-L6-v2":
        from ctx_pipeline.embedding.minilm import MiniLMEmbedder

        return MiniLMEmbedder()
    from ctx_pipeline.embedding.e5 import E5Embedder

    e5 = E5Embedder(settings.path)
    if settings.late_chunking:
        from ctx_pipeline.embedding.late import LateChunkingEmbedder

        return LateChunkingEmbedder(e5)
    return e5
