"""The search tables: the live one, and the one being built beside it when the embedder or full text changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctx_pipeline.contexts.earlier import nearest
from ctx_pipeline.embedding import open_embedder
from ctx_pipeline.embedding.protocol import Embedder
from ctx_pipeline.errors import CtxError, FatalError, PermanentError, TransientError
from ctx_pipeline.index import rows
from ctx_pipeline.index.embedded import EmbeddedText, embed, embedded_texts
from ctx_pipeline.index.maintenance import ensure_text_indexes
from ctx_pipeline.index.outcome import Outcome
from ctx_pipeline.index.schemas import SearchTableSpec
from ctx_pipeline.index.tables import Store, blocks, id_filter
from ctx_pipeline.index.versions import Stage, StageHashes, embed_hash
from ctx_pipeline.settings import EmbeddingSettings, Settings

ACTIVE, LAST = "active", "last_search_table"
KEY_BLOCK = 2_000


@dataclass(frozen=True, slots=True)
class Target:
    """A search table that a batch is written to."""

    name: str
    spec: SearchTableSpec
    is_build: bool
    """Whether it is the table that the settings ask for; only edited documents go to any other."""


class SearchTables:
    """Which search tables exist, which one readers use and which one the settings ask for.

    Deciding reads the storage only; `prepare` creates the wanted table and drops what nobody wants.
    """

    def __init__(self, store: Store, settings: Settings, embedder: Embedder, hashes: StageHashes) -> None:
        self._store, self._settings, self._embedder, self._hashes = store, settings, embedder, hashes
        existing = store.search_tables() if store.exists() else {}
        state = store.state() if store.exists() else {}
        active = state.get(ACTIVE, "")
        self._existing = existing
        # Numbers are never used twice: the ledger may still tell of a table that was dropped.
        self._last = max([*map(_number, existing), int(state.get(LAST, "0"))])
        self.live = active if active in existing else ""
        """The table that readers use; empty when there is none."""
        self.build = self._wanted()
        """The table that the settings ask for: the live one, or one to build beside it."""
        self.warnings: set[str] = set()
        self._indexed_text: set[str] = set()

    @property
    def is_current(self) -> bool:
        """Whether readers use the table that the settings ask for."""
        return bool(self.live) and self.live == self.build

    @property
    def names(self) -> list[str]:
        """All search tables."""
        return list(self._existing)

    def targets(self) -> list[Target]:
        """Where a batch goes: the wanted table, and the live one while it is another."""
        names = dict.fromkeys(name for name in (self.live, self.build) if name)
        return [Target(name, self._existing[name], name == self.build) for name in names]

    def prepare(self) -> None:
        """Create the wanted table; drop half-built ones that no setting asks for any more, and old ones.

        The last superseded table stays: for a way back, and for its vectors.
        """
        superseded = [name for name in self.names if self.live and _number(name) < _number(self.live)]
        kept = {self.live, self.build, *superseded[-1:]}
        for name in self.names:
            if name not in kept:
                self._store.drop(name)
                del self._existing[name]
        if self.build not in self._existing:
            spec = _spec(self._settings, self._embedder, self._hashes)
            self._store.set_state(**{LAST: str(_number(self.build))})
            self._store.create_search_table(self.build, spec)
            self._existing[self.build] = spec

    def switch(self) -> None:
        """Make the wanted table the live one."""
        self._store.set_state(**{ACTIVE: self.build})
        self.live = self.build

    @property
    def audited(self) -> list[str]:
        """The tables whose rows must be those of the ledger: the wanted one, where it exists."""
        return [self.build] if self.build in self._existing else []

    def kept(self, indexed: Mapping[str, str]) -> dict[str, str]:
        """`indexed` without tables that are gone or no longer written to."""
        return {name: version for name, version in indexed.items() if name in {self.live, self.build}}

    def embed_and_replace(self, target: Target, outcomes: Sequence[Outcome]) -> None:
        """Embed what has no vector yet, and make the outcomes' rows all that `target` holds of their documents.

        What the embedder refuses of one document stays with it. Raises FatalError when it cannot be used at all, or
        not now: the next documents would wait for it in vain. For a table that is about to be replaced, either is only
        a warning: the one being built must not wait for a model that is gone.
        """
        try:
            same = target.spec.embed_hash == self._hashes.embed
            embedder = self._embedder if same else embedder_of(target.spec, self._settings.embedding)
            self._embed_and_replace(target, outcomes, embedder)
        except FatalError as error:
            if target.is_build:
                raise
            self._warn(str(error))

    def _embed_and_replace(self, target: Target, outcomes: Sequence[Outcome], embedder: Embedder) -> None:
        spec = target.spec
        texts = {o.doc_id: _texts(o, embedder) for o in outcomes}
        self._keep_vectors(spec, [o for o in outcomes if o.keeps_vectors], texts)
        vectors, refused = self._vectors(target, outcomes, texts, embedder)
        ready = [o for o in outcomes if o.doc_id not in refused]
        for outcome in outcomes:
            if target.is_build:
                outcome.error = refused.get(outcome.doc_id)
            elif outcome.doc_id in refused:
                self._warn(f"{outcome.doc_id}: {refused[outcome.doc_id]}")
        table_rows = []
        for outcome in ready:
            assert outcome.document is not None
            version = self._hashes.version(Stage.SEARCH, outcome.document.content_hash)
            outcome.indexed[target.name] = version
            table_rows += rows.search_rows(
                outcome.document,
                outcome.chunks,
                outcome.contexts,
                [text.key(spec.embed_hash) for text in texts[outcome.doc_id]],
                vectors,
                languages=spec.languages,
                version=version,
            )
        if ready:
            self._store.replace(target.name, [o.doc_id for o in ready], table_rows)
        if target.is_build:
            count = self._store.count(target.name)
            for outcome in ready:
                outcome.table_rows = count
        if table_rows and target.name not in self._indexed_text:
            ensure_text_indexes(self._store.table(target.name), spec.languages)
            self._indexed_text.add(target.name)

    def _vectors(
        self,
        target: Target,
        outcomes: Sequence[Outcome],
        texts: Mapping[str, Sequence[EmbeddedText]],
        embedder: Embedder,
    ) -> tuple[dict[str, NDArray[np.float32]], dict[str, Exception]]:
        """A vector for every embed_key of the outcomes, stored ones used again; and the documents that were refused."""
        wanted_hash = target.spec.embed_hash
        keys = {text: text.key(wanted_hash) for all_texts in texts.values() for text in all_texts}
        vectors = self._stored_vectors(wanted_hash, sorted(keys.values()))
        fresh = [text for text in keys if keys[text] not in vectors]
        refused: dict[str, Exception] = {}
        try:
            _embed(embedder, fresh, keys, vectors)
        except FatalError:
            raise
        except Exception:
            # Each document alone, so that the one which is refused does not take the others with it.
            for doc_id, own in texts.items():
                try:
                    _embed(embedder, [text for text in dict.fromkeys(own) if keys[text] not in vectors], keys, vectors)
                except FatalError:
                    raise
                except (ValueError, RuntimeError) as error:  # what models raise for a text, not what a defect does
                    refused[doc_id] = PermanentError(f"{type(error).__name__}: {error}")
                except Exception as error:
                    refused[doc_id] = error
        if target.is_build:
            _count_vectors(outcomes, texts, fresh, embedder)
        return vectors, refused

    def _keep_vectors(
        self, spec: SearchTableSpec, outcomes: Sequence[Outcome], texts: dict[str, list[EmbeddedText]]
    ) -> None:
        """Let vectors of an earlier wording stand where an upgrade of this program alone asks for others."""
        if not outcomes or not self.live or self._existing[self.live].embed_hash != spec.embed_hash:
            return
        keys = {text.key(spec.embed_hash) for o in outcomes for text in texts[o.doc_id]}
        stored = self._stored_vectors(spec.embed_hash, sorted(keys)).keys()
        columns = ["doc_id", "start", "end", "text", "embed_key", "content_hash"]
        earlier: dict[str, list[dict[str, Any]]] = {}
        for row in self._store.rows(self.live, [o.doc_id for o in outcomes], columns):
            earlier.setdefault(row["doc_id"], []).append(row)
        for outcome in outcomes:
            own = sorted(earlier.get(outcome.doc_id, ()), key=lambda row: row["start"])
            spans = [(row["start"], row["end"], row["embed_key"]) for row in own]
            by_text = {row["text"]: row["embed_key"] for row in own}
            assert outcome.document is not None
            same = {row["content_hash"] for row in own} == {outcome.document.content_hash}
            for at, (text, chunk) in enumerate(zip(texts[outcome.doc_id], outcome.chunks, strict=True)):
                if text.key(spec.embed_hash) not in stored:
                    kept = nearest(spans, chunk.start, chunk.end) if same else by_text.get(chunk.text)
                    texts[outcome.doc_id][at] = replace(text, kept_key=kept or "")

    def _stored_vectors(self, wanted_hash: str, keys: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        found: dict[str, NDArray[np.float32]] = {}
        for name, spec in self._existing.items():
            if spec.embed_hash != wanted_hash:
                continue
            table = self._store.table(name)
            if not table.count_rows():
                continue
            for block in blocks([key for key in keys if key not in found], KEY_BLOCK):
                reply = table.search().where(id_filter("embed_key", block)).select(["embed_key", "vector"]).to_arrow()
                if reply.num_rows:
                    matrix = np.stack(reply["vector"].to_numpy())
                    found.update(zip(reply["embed_key"].to_pylist(), matrix, strict=True))
        return found

    def _warn(self, problem: str) -> None:
        self.warnings.add(f"edits reach readers only after the switch to {self.build}: {problem}")

    def _wanted(self) -> str:
        """The newest table not older than the live one that was built with the settings' hashes, or a new name."""
        for name in reversed(self._existing):
            spec = self._existing[name]
            matches = (spec.embed_hash, spec.fts_hash) == (self._hashes.embed, self._hashes.fts)
            if matches and (not self.live or _number(name) >= _number(self.live)):
                return name
        return f"search_{self._last + 1}"


def _texts(outcome: Outcome, embedder: Embedder) -> list[EmbeddedText]:
    assert outcome.document is not None
    return embedded_texts(outcome.document, outcome.chunks, outcome.contexts, embedder)


def _embed(
    embedder: Embedder,
    texts: Sequence[EmbeddedText],
    keys: Mapping[EmbeddedText, str],
    vectors: dict[str, NDArray[np.float32]],
) -> None:
    if not texts:
        return
    try:
        vectors.update(zip((keys[text] for text in texts), embed(embedder, texts), strict=True))
    except TransientError as error:
        # It was tried again already, and the next documents would wait for the same.
        raise FatalError(
            f"embedding failed ({error}); what is finished stays, a later refresh does the rest"
        ) from error


def _count_vectors(
    outcomes: Sequence[Outcome],
    texts: Mapping[str, Sequence[EmbeddedText]],
    fresh: Sequence[EmbeddedText],
    embedder: Embedder,
) -> None:
    """Tell the outcomes which of their texts were embedded, used again and truncated; a text counts as new once."""
    new = dict(zip(fresh, embedder.count_tokens([text.needed for text in fresh]), strict=True))
    for outcome in outcomes:
        for text in texts[outcome.doc_id]:
            tokens = new.pop(text, None)
            outcome.embedded += tokens is not None
            outcome.reused += tokens is None
            outcome.earlier_vectors += bool(text.kept_key)
            outcome.truncated += tokens is not None and tokens > embedder.window_tokens


def embedder_of(spec: SearchTableSpec, settings: EmbeddingSettings) -> Embedder:
    """The embedder that a search table was built with; keys and cache folders come from the settings.

    Raises FatalError naming both when it is not to be had any more.
    """
    try:
        embedder = open_embedder(
            EmbeddingSettings(
                model=spec.model,
                base_url=spec.base_url,
                window_tokens=spec.window_tokens or EmbeddingSettings().window_tokens,
                dimension=spec.requested_dimension,
                late_chunking=spec.late_chunking,
                api_key=settings.api_key,
                path=settings.path,
            )
        )
        problem = "" if embed_hash(embedder) == spec.embed_hash else "this program's version makes other vectors"
    except (CtxError, ValueError) as error:
        problem = str(error)
    if problem:
        raise FatalError(
            f"the live search table was built with {spec.model}, which is not available ({problem}); "
            f"the settings name {settings.model}: `ctx-pipeline refresh` builds a table with it"
        )
    return embedder


def _spec(settings: Settings, embedder: Embedder, hashes: StageHashes) -> SearchTableSpec:
    api = settings.embedding.base_url is not None
    return SearchTableSpec(
        model=settings.embedding.model,
        embed_hash=hashes.embed,
        fts_hash=hashes.fts,
        dimension=embedder.dimension,
        languages=settings.search.languages,
        base_url=settings.embedding.base_url,
        window_tokens=settings.embedding.window_tokens if api else None,
        requested_dimension=settings.embedding.dimension,
        late_chunking=settings.embedding.late_chunking,
    )


def _number(name: str) -> int:
    return int(name.removeprefix("search_") or 0)
