"""The one typed settings model; `settings_file.load_settings` reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ctx_pipeline.claude.request import DEFAULT_MODEL
from ctx_pipeline.context_settings import ContextSettings
from ctx_pipeline.setting_types import (
    Address,
    Count,
    CountOrZero,
    Cron,
    Folder,
    Languages,
    Patterns,
    Section,
    Share,
    StorageFolder,
    Timezone,
    Weight,
)

CONTEXT_TOKENS = 128
"""Room kept for the context of a chunk, counted by the embedder's tokenizer. Constant: changing how contexts are
written must not cut the documents anew, and evaluation compares methods on the same chunks."""

BUILT_IN_EMBEDDERS = ("multilingual-e5-small", "hashing", "all-MiniLM-L6-v2")
VOYAGE_PREFIX = "voyage-"
"""Embedding models with such a name are asked of Voyage."""
Strategy = Literal["recursive", "fixed", "structure", "semantic"]
Rerank = Literal["none", "claude", "voyage", "cohere", "cross-encoder"]
LATE_CHUNKING_EMBEDDERS = ("multilingual-e5-small",)


class SourceSettings(Section):
    """A named root of documents.

    The extension that a pattern of `include` ends in matches in either case. Left out are also what the .gitignore
    files at and below `path` say (unless `gitignore` is false), and folders that are named node_modules or __pycache__
    or hold a pyvenv.cfg or CACHEDIR.TAG; never `path` itself. A pattern with `!` in `exclude` brings any of them back.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=64)]
    path: Folder
    include: Patterns = ("*.md", "*.markdown", "*.mdx", "*.txt", "*.rst")
    exclude: Patterns = (".*",)
    gitignore: Annotated[bool, Field(strict=True)] = True
    max_bytes: Count = 10_000_000


class StorageSettings(Section):
    """Where the tables are, and how long old versions stay readable (seconds)."""

    uri: StorageFolder = Path(".ctx/index")
    retention: CountOrZero = 10


class ChunkingSettings(Section):
    """How documents are cut; `max_tokens`, a ceiling, and `overlap` are counted by o200k_base."""

    strategy: Strategy = "recursive"
    max_tokens: Annotated[int, Field(strict=True, ge=32, le=8192)] = 512
    overlap: CountOrZero = 0
    semantic_percentile: Annotated[int, Field(strict=True, ge=1, le=99)] = 90

    @field_validator("overlap")
    @classmethod
    def _overlap_is_used_and_small(cls, value: int, others: ValidationInfo) -> int:
        if value and others.data.get("strategy") == "semantic":
            raise ValueError(
                "must be 0 with chunking.strategy 'semantic', which cuts where the topic changes; "
                "'recursive', 'fixed' and 'structure' can overlap"
            )
        max_tokens = others.data.get("max_tokens", 8192)
        if 2 * value >= max_tokens:
            raise ValueError(f"must be less than half of chunking.max_tokens ({max_tokens}), got {value}")
        return value


class EmbeddingSettings(Section):
    """The embedder. `base_url` selects an OpenAI-compatible endpoint; `path` is the cache folder of built models.

    A model whose name begins with `voyage-` is asked of Voyage, at `base_url` if there is one; its window is known.
    """

    base_url: Address | None = None
    model: str = "multilingual-e5-small"
    path: Folder | None = None
    api_key: SecretStr | None = None
    dimension: Count | None = None
    window_tokens: Annotated[Count, Field(ge=256)] = 8191
    late_chunking: Annotated[bool, Field(strict=True)] = False

    @field_validator("model")
    @classmethod
    def _model_is_reachable(cls, value: str, others: ValidationInfo) -> str:
        known = value in BUILT_IN_EMBEDDERS or value.startswith(VOYAGE_PREFIX)
        if others.data.get("base_url") is None and not known:
            raise ValueError(
                f"{value!r} is not one of {', '.join(BUILT_IN_EMBEDDERS)}, nor a model of Voyage ({VOYAGE_PREFIX}...); "
                "any other model needs embedding.base_url, an OpenAI-compatible endpoint"
            )
        return value

    @property
    def is_paid(self) -> bool:
        """Whether vectors cost something, or may: those of an endpoint or of Voyage."""
        return self.base_url is not None or self.model.startswith(VOYAGE_PREFIX)

    @field_validator("late_chunking")
    @classmethod
    def _tokens_are_reachable(cls, value: bool, others: ValidationInfo) -> bool:
        model = others.data.get("model")
        built_in = others.data.get("base_url") is None
        if value and model and not (built_in and model in LATE_CHUNKING_EMBEDDERS):
            raise ValueError(
                f"{model!r}{'' if built_in else ' of an endpoint'} gives no vectors of single tokens; "
                f"only {', '.join(LATE_CHUNKING_EMBEDDERS)} does: choose it, or set this to false"
            )
        return value


class SearchWeights(Section):
    """What each ranking counts in a hybrid search.

    `identifiers` ranks the chunks that hold an identifier of the query whole, `document` the documents by their best
    chunk.
    """

    vector: Weight = 1.0
    keyword: Weight = 1.0
    identifiers: Weight = 1.0
    document: Weight = 1.0

    @model_validator(mode="after")
    def _a_leg_counts(self) -> SearchWeights:
        if self.vector == self.keyword == 0:
            raise ValueError("vector and keyword must not both be 0: nothing would be found")
        return self


class SearchSettings(Section):
    """Retrieval: candidates of each leg, the full-text languages, constant and weights of reciprocal rank fusion.

    With a constant of 10 recall@5 is 0.01 to 0.02 higher than with the usual 60, for code and prose in both languages
    (benchmarks/outline.py).

    `rerank` names what orders the fused candidates anew. `rerank_model` and `rerank_base_url` belong to it, each
    method having defaults; `rerank_max_usd` bounds what `claude` may cost per query. Keys come from ANTHROPIC_API_KEY,
    VOYAGE_API_KEY and COHERE_API_KEY.
    """

    candidates: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 150
    languages: Languages = ("Spanish", "English")
    rrf_k: Count = 10
    weights: SearchWeights = SearchWeights()
    rerank: Rerank = "none"
    rerank_model: Annotated[str, Field(min_length=1)] | None = None
    rerank_base_url: Address | None = None
    rerank_max_usd: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 0.05


class AnswerSettings(Section):
    """What answers `ask`: a Claude model, and the most tokens of one answer."""

    model: str = DEFAULT_MODEL
    max_tokens: Annotated[int, Field(strict=True, ge=64, le=16_000)] = 1_000


class ScheduleSettings(Section):
    """When `scheduled_refresh` runs; without a cron it is defined but stopped."""

    cron: Cron | None = None
    timezone: Timezone = "UTC"


class DagsterSettings(Section):
    """Name of the dynamic partitions, and the documents of one partitioned run of a backfill."""

    partitions: Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+$")] = "documents"
    max_documents_per_run: Count = 500


class EvaluationSettings(Section):
    """The query set of `retrieval_evaluation`, and the recall@20 below which its check fails."""

    queries: Folder | None = None
    min_recall: Share | None = None


class SafetySettings(Section):
    """Deletions of one source are held back when they exceed the share of its documents AND the count."""

    max_delete_share: Share = 0.2
    max_delete_count: CountOrZero = 20


class Settings(Section):
    """All settings, with paths made absolute."""

    source: tuple[SourceSettings, ...] = ()
    storage: StorageSettings = StorageSettings()
    chunking: ChunkingSettings = ChunkingSettings()
    contexts: ContextSettings = ContextSettings()
    embedding: EmbeddingSettings = EmbeddingSettings()
    search: SearchSettings = SearchSettings()
    answers: AnswerSettings = AnswerSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    dagster: DagsterSettings = DagsterSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    safety: SafetySettings = SafetySettings()

    @model_validator(mode="after")
    def _names_differ(self) -> Settings:
        names = [source.name for source in self.source]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two [[source]] entries are named {twice[0]!r}; each name is used once")
        return self

    def with_single_source(self, path: Path) -> Settings:
        """These settings with the sources replaced by one named `docs` (`--source PATH`).

        Include, exclude and max_bytes come from the configured source of that name, if there is one.
        """
        base = next((source for source in self.source if source.name == "docs"), None)
        update = {"name": "docs", "path": path.absolute()}
        source = base.model_copy(update=update) if base else SourceSettings.model_validate(update)
        return self.model_copy(update={"source": (source,)})
