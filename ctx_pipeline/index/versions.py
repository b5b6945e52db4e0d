"""Stage hashes and versions: what decides whether rows are those that the sources and settings ask for."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import IntEnum

from ctx_pipeline.chunking.model import Chunker
from ctx_pipeline.contexts.model import Contextualizer
from ctx_pipeline.documents import parse
from ctx_pipeline.embedding.protocol import Embedder
from ctx_pipeline.settings import Settings

EMBED_LAYOUT = "context\\n\\ntext/1"
FTS_LAYOUT = "keywords\\ncontext\\n\\nnormalized text, words of names; identifiers/3"


class Stage(IntEnum):
    """The stages in order; a stage's rows follow from all stages before it."""

    DOCUMENTS = 0
    CHUNKS = 1
    CONTEXTS = 2
    SEARCH = 3


@dataclass(frozen=True, slots=True)
class StageHashes:
    """Identity of the settings of each stage. Concurrency, budgets, retries and search parameters are in none."""

    parse: str
    chunk: str
    context: str
    embed: str
    fts: str
    settings: str = ""
    """Of what the user set for chunks and contexts alone: another version of this program leaves it as it is."""

    def version(self, stage: Stage, content_hash: str) -> str:
        """Version of a stage's rows for documents with that content."""
        upto = {
            Stage.DOCUMENTS: (self.parse,),
            Stage.CHUNKS: (self.parse, self.chunk),
            Stage.CONTEXTS: (self.parse, self.chunk, self.context),
            Stage.SEARCH: (self.parse, self.chunk, self.context, self.embed, self.fts),
        }[stage]
        return digest(content_hash, *upto)

    @property
    def all(self) -> str:
        """Identity of all settings together: a permanent failure met with other settings gets another chance."""
        return digest(self.parse, self.chunk, self.context, self.embed, self.fts)


def stage_hashes(
    settings: Settings, embedder: Embedder, chunker: Chunker, contextualizer: Contextualizer
) -> StageHashes:
    """The stage hashes of settings. Loads no model."""
    return StageHashes(
        parse=digest("parse", parse.VERSION),
        chunk=digest(chunker.fingerprint),
        context=digest(contextualizer.fingerprint),
        embed=embed_hash(embedder),
        fts=digest(sorted(settings.search.languages), FTS_LAYOUT),
        settings=_chosen(settings, embedder),
    )


def _chosen(settings: Settings, embedder: Embedder) -> str:
    contexts = settings.contexts
    asked = contexts.model_dump(
        mode="json", include={"method", "model", "window_tokens", "max_tokens", "prompt", "glossary", "rule"}
    )
    return digest(settings.chunking.model_dump(mode="json"), asked, embedder.tokenizer, embedder.window_tokens)


def embed_hash(embedder: Embedder) -> str:
    """Identity of the vectors that an embedder makes of context and chunk."""
    return digest(embedder.fingerprint, EMBED_LAYOUT)


def digest(*parts: object) -> str:
    """A short sha256 over values, unambiguous in their boundaries (32 hexadecimal digits)."""
    return hashlib.sha256(json.dumps(parts, ensure_ascii=True).encode()).hexdigest()[:32]
