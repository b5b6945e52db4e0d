"""What each mechanism of contexts without a model and of the keyword leg adds to recall.

    python -m benchmarks.outline CORPORA [--vectors FILE]

Temporary tables, built and searched by the product's code. What contexts hold was chosen with the queries of a random
half of the documents of `code-search`, the constant of fusion with all corpora. `--vectors` keeps the embeddings.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from ctx_pipeline.chunking.model import Chunk, SizeLimit
from ctx_pipeline.chunking.recursive import split
from ctx_pipeline.contexts.model import Context
from ctx_pipeline.contexts.outline import OutlineContextualizer
from ctx_pipeline.documents.model import Document
from ctx_pipeline.documents.parse import parse
from ctx_pipeline.embedding.e5 import E5Embedder
from ctx_pipeline.index import fulltext, rows
from ctx_pipeline.index import search as search_module
from ctx_pipeline.index.embedded import EmbeddedText, embedded_texts
from ctx_pipeline.index.maintenance import ensure_text_indexes
from ctx_pipeline.index.schemas import SearchTableSpec
from ctx_pipeline.index.search import Mode, SearchIndex
from ctx_pipeline.index.search_tables import ACTIVE
from ctx_pipeline.index.tables import Store
from ctx_pipeline.index.versions import embed_hash
from ctx_pipeline.settings import CONTEXT_TOKENS, SearchSettings, SearchWeights, Settings

SEED, LANGUAGES = 20, ("Spanish", "English")
EQUAL = SearchWeights(vector=1.0, keyword=1.0, identifiers=0.0, document=0.0)


Query = tuple[str, str, list[set[str]]]


@dataclass(frozen=True)
class Corpus:
    """Documents with their chunks; of each query its text, its document and what covers each relevant span."""

    name: str
    documents: dict[str, tuple[Document, list[Chunk]]]
    queries: list[Query]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@dataclass(frozen=True)
class Step:
    """The mechanisms that are on."""

    name: str
    mode: Mode = "hybrid"
    drop_function_words: bool = False
    split_names: bool = False
    context: bool = False
    keywords: bool = False
    identifiers: bool = False
    weights: SearchWeights = EQUAL
    rrf_k: int = 60


def steps() -> list[Step]:
    """The table's lines: each hybrid one adds one mechanism to the one before."""
    first = [Step("plain BM25", "keyword"), Step("plain e5", "vector")]
    changes: list[dict[str, Any]] = [
        {"name": "+ function words dropped", "drop_function_words": True},
        {"name": "+ names split into words", "split_names": True},
        {"name": "+ names as keywords", "keywords": True},
        {"name": "+ context", "context": True},
        {"name": "+ fusion constant of 10", "rrf_k": SearchSettings().rrf_k},
        {"name": "+ document term", "weights": SearchWeights(identifiers=0.0)},
        {"name": "+ identifiers: the default", "identifiers": True, "weights": SearchWeights()},
        {"name": "its keyword leg alone", "mode": "keyword"},
        {"name": "its vector leg alone", "mode": "vector"},
    ]
    return [*first, *accumulate(changes, lambda step, change: replace(step, **change), initial=Step("plain hybrid"))]


def read_corpus(folder: Path, embedder: E5Embedder, max_tokens: int | None) -> Corpus:
    """A folder of `docs/` and `queries.jsonl`; without `max_tokens` its chunks are those of `chunks.jsonl`."""
    limit = SizeLimit(max_tokens or 512, embedder.window_tokens - CONTEXT_TOKENS, embedder.count_tokens)
    documents: dict[str, tuple[Document, list[Chunk]]] = {}
    for path in sorted((folder / "docs").iterdir()):
        parsed = parse(path.read_bytes(), path.name)
        chunks = split(parsed.text, markdown=parsed.media_type == "text/markdown", limit=limit) if max_tokens else []
        documents[path.name] = Document(f"docs/{path.name}", "", 0, 0, 0, "", parsed), chunks
    for given in _lines(folder / "chunks.jsonl") if max_tokens is None else ():
        document, chunks = documents[given["doc"]]
        start, end = given["start"], given["end"]
        chunks.append(Chunk(start, end, 1, document.parsed.text[start:end], (), 0, 0))
    queries: dict[str, Query] = {}
    for span in _lines(folder / "queries.jsonl"):
        document, chunks = documents[span["doc"]]
        needed = 0.5 * min(span["end"] - span["start"], 1200)
        covering = set()
        for ordinal, chunk in enumerate(chunks):
            overlap = min(chunk.end, span["end"]) - max(chunk.start, span["start"])
            if overlap > 0 and (overlap >= needed or overlap >= 0.9 * (chunk.end - chunk.start)):
                covering.add(f"{document.doc_id}#{ordinal:05d}")
        queries.setdefault(span["qid"], (span["query"], span["doc"], []))[2].append(covering)
    return Corpus(f"{folder.name} {max_tokens or 'given chunks'}", documents, list(queries.values()))


@contextmanager
def table(corpus: Corpus, step: Step, embed: Callable[[list[str]], dict[str, NDArray[np.float32]]]) -> Iterator[Path]:
    """The storage of a search table with what a step indexes."""
    embedder = E5Embedder()
    off: list[tuple[Any, str, Callable[[str], str]]] = []
    if not step.split_names:
        off += [(rows, "indexed_text", str), (fulltext, "indexed_text", str)]
    if not step.identifiers:
        off.append((rows, "indexed_identifiers", lambda text: ""))
    if not step.drop_function_words:
        off.append((search_module, "query_text", str))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for module, name, replacement in off:
            stack.enter_context(patch.object(module, name, replacement))
        (store := Store(Path(folder) / "index")).create()
        spec = SearchTableSpec("multilingual-e5-small", embed_hash(embedder), "", embedder.dimension, LANGUAGES)
        store.create_search_table("search_1", spec)
        contexts = OutlineContextualizer(CONTEXT_TOKENS, embedder.count_tokens, "").write(
            list(corpus.documents.values())
        )
        table_rows = []
        for (document, chunks), written in zip(corpus.documents.values(), contexts, strict=True):
            assert not isinstance(written, Exception)
            used = [
                Context(context.text if step.context else "", context.keywords if step.keywords else "", "outline")
                for context in written.contexts
            ]
            texts = embedded_texts(document, chunks, used, embedder)
            vectors, keys = embed([text.text for text in texts]), [text.key(spec.embed_hash) for text in texts]
            table_rows += rows.search_rows(document, chunks, used, keys, vectors, languages=LANGUAGES, version="")
        store.replace("search_1", [document.doc_id for document, _ in corpus.documents.values()], table_rows)
        ensure_text_indexes(store.table("search_1"), LANGUAGES)
        store.set_state(**{ACTIVE: "search_1"})
        yield store.uri


def recalls(corpus: Corpus, step: Step, uri: Path) -> NDArray[np.float64]:
    """Recall@5 and @20 of each query, shape (queries, 2)."""
    index = SearchIndex.open(
        uri, Settings(search=SearchSettings(languages=LANGUAGES, weights=step.weights, rrf_k=step.rrf_k))
    )
    found = []
    for query, _, spans in corpus.queries:
        ids = [hit.chunk_id for hit in index.search(query, k=20, mode=step.mode)]
        found.append([np.mean([not span.isdisjoint(ids[:k]) for span in spans]) for k in (5, 20)])
    return np.array(found)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("corpora", type=Path)
    parser.add_argument("--vectors", type=Path)
    arguments, embedder = parser.parse_args(), E5Embedder()
    known = dict(np.load(arguments.vectors)) if arguments.vectors and arguments.vectors.exists() else {}

    def embed(texts: list[str]) -> dict[str, NDArray[np.float32]]:
        keys = {text: EmbeddedText(text).key(embed_hash(embedder)) for text in texts}
        fresh = [text for text in keys if keys[text] not in known]
        known.update(zip((keys[text] for text in fresh), embedder.embed_passages(fresh), strict=True))
        return known

    corpora = (
        ("code-search", None),
        ("policy-orphans", 512),
        ("prose-es", 512),
        ("mixed-prose", 512),
        ("mixed-prose", 128),
    )
    for name, max_tokens in corpora:
        corpus = read_corpus(arguments.corpora / name, embedder, max_tokens)
        random.Random(SEED).shuffle(names := sorted(corpus.documents))
        tuned = set(names[: len(names) // 2]) if max_tokens is None else set()
        in_tuned = np.array([document in tuned for _, document, _ in corpus.queries])
        parts = {"tuned": in_tuned, "rest": ~in_tuned} if tuned else {}
        parts["all"] = np.ones_like(in_tuned)
        print(f"\n{corpus.name}: recall@5 / @20 of " + ", ".join(f"{part} ({p.sum()})" for part, p in parts.items()))
        for step in steps():
            with table(corpus, step, embed) as uri:
                recall = recalls(corpus, step, uri)
            means = ("   {:.3f} / {:.3f}".format(*recall[part].mean(axis=0)) for part in parts.values())
            print(f"{step.name:28}" + "".join(means), flush=True)
        if arguments.vectors:
            np.savez(arguments.vectors, **known)


if __name__ == "__main__":
    main()
