"""The arms of an evaluation: the same chunks with different contexts, indexed and searched as the product does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from ctx_pipeline.chunking.model import Chunk
from ctx_pipeline.contexts.model import EMULATOR, FREE_METHODS, Context, Progress
from ctx_pipeline.contexts.outline import SEPARATOR
from ctx_pipeline.documents.model import Document
from ctx_pipeline.embedding.protocol import Embedder
from ctx_pipeline.errors import CtxError
from ctx_pipeline.evaluation.corpus import Corpus
from ctx_pipeline.index.embedded import embedded_texts
from ctx_pipeline.index.lock import storage_lock
from ctx_pipeline.index.outcome import Outcome, Task
from ctx_pipeline.index.search import SearchIndex
from ctx_pipeline.index.search_tables import SearchTables
from ctx_pipeline.index.tables import Store
from ctx_pipeline.index.versions import StageHashes, digest
from ctx_pipeline.progress import ContextLine, Throttle
from ctx_pipeline.refresh import Pipeline
from ctx_pipeline.settings import Settings

Contexts = Mapping[str, Sequence[Context]]
"""Of each document, one for each of its chunks."""

BATCH_CHUNKS = 2_000
LISTED = 3
_STORED = "documents"


class NotMeasuredError(Exception):
    """Why an arm has no figures."""


def plain_contexts(corpus: Corpus) -> Contexts:
    """No context: the chunks alone."""
    return {doc_id: [Context("", "", "none") for _ in chunks] for doc_id, chunks in corpus.chunks.items()}


def heading_prefixes(corpus: Corpus) -> Contexts:
    """Title and headings before each chunk: what costs nothing, and what any context has to beat."""

    def prefix(document: Document, chunk: Chunk) -> Context:
        title, headings = document.parsed.title, chunk.heading_path
        repeated = bool(headings) and headings[0].casefold() == title.casefold()
        return Context(SEPARATOR.join((title, *headings[repeated:])), "", "headings")

    return {
        doc_id: [prefix(corpus.documents[doc_id], chunk) for chunk in chunks]
        for doc_id, chunks in corpus.chunks.items()
    }


def contexts_to_measure(
    pipeline: Pipeline, corpus: Corpus, progress: Callable[[str], None] = lambda line: None
) -> Contexts:
    """The stored contexts, or those that the contextualizer writes for the corpus, paid for up to its budget.

    Raises NotMeasuredError when there are none, when an emulator wrote them, or when the outline stands in for all.
    """
    method = pipeline.contextualizer.method
    if corpus.contexts is None and method == "none":
        raise NotMeasuredError("contexts.method is none")
    contexts: Contexts = _written(pipeline, corpus, progress) if corpus.contexts is None else corpus.contexts
    every = [context for own in contexts.values() for context in own]
    if every and all(context.method == "none" for context in every):
        raise NotMeasuredError("the index was built without contexts")
    if any(context.method == EMULATOR for context in every):
        raise NotMeasuredError("the contexts were written by an emulator")
    missing = {context.reason for context in every if context.status != "written"}
    if missing and all(context.method in FREE_METHODS for context in every if context.status == "written"):
        raise NotMeasuredError(f"no context is written by {method} ({', '.join(sorted(missing)[:LISTED])})")
    return contexts


def _written(pipeline: Pipeline, corpus: Corpus, progress: Callable[[str], None]) -> Contexts:
    doc_ids, line, told = list(corpus.documents), ContextLine(), Throttle()

    def tell(done: Progress) -> None:
        text = line.text(done)
        if told(done.done, done.total):
            progress(text)

    documents = [(corpus.documents[doc_id], corpus.chunks[doc_id]) for doc_id in doc_ids]
    # What is paid for goes into the memo, which only the holder of the lock may write.
    is_paid = pipeline.contextualizer.method not in FREE_METHODS
    with storage_lock(pipeline.store.uri, "an evaluation") if is_paid else nullcontext():
        if is_paid:
            pipeline.store.create()
        results = pipeline.contextualizer.write(documents, tell)
    written: dict[str, Sequence[Context]] = {}
    for doc_id, result in zip(doc_ids, results, strict=True):
        if isinstance(result, Exception):
            raise NotMeasuredError(f"the contexts of {doc_id} could not be written ({result})")
        written[doc_id] = result.contexts
    return written


def method_of(contexts: Contexts) -> str:
    """What wrote the contexts, most of them first."""
    methods = Counter(context.method for own in contexts.values() for context in own)
    return ", ".join(method for method, _ in methods.most_common()) or "none"


def truncated_texts(corpus: Corpus, contexts: Contexts, embedder: Embedder) -> int:
    """Chunks that, with their context, do not fit the embedder's window."""
    texts = [
        text.needed
        for doc_id, chunks in corpus.chunks.items()
        for text in embedded_texts(corpus.documents[doc_id], chunks, contexts[doc_id], embedder)
    ]
    return sum(tokens > embedder.window_tokens for tokens in embedder.count_tokens(texts))


class ArmIndex:
    """A search index of its own for one arm, kept in a folder, which the caller holds the lock of.

    Running the arm again embeds only texts that changed, and writes only documents that changed.
    """

    def __init__(self, folder: Path, settings: Settings, embedder: Embedder, hashes: StageHashes) -> None:
        self._store = Store(folder)
        self._settings, self._embedder, self._hashes = settings, embedder, hashes

    def update(self, corpus: Corpus, contexts: Contexts) -> SearchIndex:
        """Make the index that of `corpus` with `contexts`. Raises CtxError when a document cannot be embedded."""
        self._store.create()
        tables = SearchTables(self._store, self._settings, self._embedder, self._hashes)
        tables.prepare()
        [target] = [target for target in tables.targets() if target.is_build]
        key = f"{_STORED}:{target.name}"
        before: dict[str, str] = json.loads(self._store.state().get(key, "{}"))
        wanted = {doc_id: self._identity(corpus, contexts, doc_id) for doc_id in corpus.documents}
        changed = [doc_id for doc_id, identity in wanted.items() if before.get(doc_id) != identity]
        gone = set(self._store.all_rows(target.name, ["doc_id"])["doc_id"].to_pylist()) - wanted.keys()
        if changed or gone:
            # What is about to change is not vouched for, so that a kill meanwhile leaves it to be written again.
            kept = {doc_id: identity for doc_id, identity in before.items() if wanted.get(doc_id) == identity}
            self._store.set_state(**{key: json.dumps(kept)})
            self._store.delete(target.name, sorted(gone))
        for batch in _batches(changed, corpus.chunks):
            outcomes = [
                Outcome(
                    Task(doc_id, frozenset()),
                    document=corpus.documents[doc_id],
                    chunks=list(corpus.chunks[doc_id]),
                    contexts=list(contexts[doc_id]),
                )
                for doc_id in batch
            ]
            tables.embed_and_replace(target, outcomes)
            for outcome in outcomes:
                if outcome.error is not None:
                    raise CtxError(f"{outcome.doc_id} cannot be embedded ({outcome.error})") from outcome.error
        if changed or gone:
            # BM25's document frequencies are those of the last optimization.
            self._store.table(target.name).optimize()
            self._store.set_state(**{key: json.dumps(wanted)})
        tables.switch()
        return SearchIndex(self._store, self._settings, embedder=self._embedder)

    def _identity(self, corpus: Corpus, contexts: Contexts, doc_id: str) -> str:
        return digest(
            corpus.documents[doc_id].content_hash,
            self._hashes.parse,
            [(chunk.start, chunk.end) for chunk in corpus.chunks[doc_id]],
            [(context.text, context.keywords) for context in contexts[doc_id]],
        )


def _batches(doc_ids: Sequence[str], chunks: Mapping[str, Sequence[Chunk]]) -> list[list[str]]:
    batches: list[list[str]] = []
    size = BATCH_CHUNKS
    for doc_id in doc_ids:
        if size >= BATCH_CHUNKS:
            batches.append([])
            size = 0
        batches[-1].append(doc_id)
        size += len(chunks[doc_id])
    return batches
