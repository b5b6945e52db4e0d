"""Reranking by a cross-encoder on this machine."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ctx_pipeline.errors import FatalError
from ctx_pipeline.rerank.model import Reranked, Reranker, complete


class CrossEncoderReranker(Reranker):
    """A model of sentence-transformers that reads query and passage together; free, and slow without a GPU.

    The default is multilingual and reads 512 tokens of query and passage together: what is longer is cut by its
    tokenizer. `model` is a name on the Hugging Face Hub, downloaded on first use, or a folder. May be used from several
    threads. Raises FatalError when the package or the model is missing.
    """

    name = "cross-encoder"

    def __init__(self, model: str | None = None) -> None:
        self.model = model or "cross-encoder/mmarco-mMiniLMv2-L12-H384-v1"
        self._using = threading.Lock()
        self._encoder: Any = None

    def rerank(self, query: str, passages: Sequence[str], k: int) -> Reranked:
        """See Reranker. Ties keep the order of the passages."""
        started = time.monotonic()
        with self._using:
            if self._encoder is None:
                self._encoder = self._load()
            pairs = [(query, passage) for passage in passages]
            scores = np.asarray(self._encoder.predict(pairs, show_progress_bar=False), np.float64)
        if scores.shape != (len(passages),) or not np.isfinite(scores).all():
            raise FatalError(
                f"{self.model} does not give one score for each passage; set search.rerank_model to a reranker"
            )
        best = np.argsort(-scores, kind="stable")
        order, kept = complete(((int(at), float(scores[at])) for at in best), len(passages), k)
        return Reranked(order, kept, self.model, time.monotonic() - started, usd=0.0)

    def _load(self) -> Any:
        try:
            # By name, since type checkers would miss the optional package.
            encoder = importlib.import_module("sentence_transformers").CrossEncoder
        except ImportError as error:
            raise FatalError(
                f"the cross-encoder needs a package that is not installed ({error}): pip install -e '.[cross-encoder]'"
            ) from error
        try:
            return encoder(self.model)
        except Exception as error:  # the libraries below raise errors of many families
            message = " ".join(str(error).split())[:300]
            raise FatalError(
                f"the cross-encoder {self.model} cannot be loaded ({type(error).__name__}: {message}); "
                "set search.rerank_model to a folder that holds a model, or load it once with a network"
            ) from error
