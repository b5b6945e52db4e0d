"""Rerankers, and the one place that chooses among them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ctx_pipeline.rerank.model import Reranker
from ctx_pipeline.settings import Rerank, SearchSettings


def open_reranker(
    settings: SearchSettings,
    method: Rerank | None = None,
    environ: Mapping[str, str] | None = None,
    prices: Path | None = None,
) -> Reranker | None:
    """The reranker that settings name, or `method` in its place; None for "none". Loads and connects nothing.

    The settings' model and address hold for their own method, and for any when they name none. `prices` is the file
    of Claude's prices, None for the packaged ones.
    """
    method = method or settings.rerank
    environ = os.environ if environ is None else environ
    meant = settings.rerank in ("none", method)
    model, base_url = (settings.rerank_model, settings.rerank_base_url) if meant else (None, None)
    match method:
        case "none":
            return None
        case "claude":
            from ctx_pipeline.rerank.claude import ClaudeReranker

            return ClaudeReranker(settings.rerank_max_usd, model, base_url, prices=prices)
        case "voyage":
            from ctx_pipeline.rerank.voyage import VoyageReranker

            return VoyageReranker(environ.get("VOYAGE_API_KEY", ""), model, base_url)
        case "cohere":
            from ctx_pipeline.rerank.cohere import CohereReranker

            return CohereReranker(environ.get("COHERE_API_KEY", ""), model, base_url)
        case "cross-encoder":
            from ctx_pipeline.rerank.cross_encoder import CrossEncoderReranker

            return CrossEncoderReranker(model)
