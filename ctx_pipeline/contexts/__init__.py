"""Contexts, and the one place that chooses what writes them."""

from __future__ import annotations

from ctx_pipeline.contexts.model import Contextualizer
from ctx_pipeline.contexts.outline import NoContextualizer, OutlineContextualizer
from ctx_pipeline.embedding.protocol import Embedder
from ctx_pipeline.settings import CONTEXT_TOKENS, ContextSettings


def open_contextualizer(settings: ContextSettings, embedder: Embedder) -> Contextualizer:
    """The contextualizer that settings name; its contexts fit the room that chunks leave in the embedder's window."""
    if settings.method == "none":
        return NoContextualizer()
    return OutlineContextualizer(CONTEXT_TOKENS, embedder.count_tokens, embedder.tokenizer)
