"""The one typed settings model: `ctx.toml`, overridden by `CTX_SECTION__KEY` environment variables."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    SecretStr,
    ValidationError,
    model_validator,
)

from ctx_pipeline.errors import SettingsError

CONTEXT_TOKENS = 128
"""Room kept for the context of a chunk, counted by the embedder's tokenizer. Constant: changing how contexts are
written must not cut the documents anew, and evaluation compares methods on the same chunks."""

FTS_LANGUAGES = (
    "Arabic", "Danish", "Dutch", "English", "Finnish", "French", "German", "Greek", "Hungarian", "Italian",
    "Norwegian", "Portuguese", "Romanian", "Russian", "Spanish", "Swedish", "Tamil", "Turkish",
)  # fmt: skip
"""The stemmers of LanceDB's full-text index, by the names it wants."""

BUILT_IN_EMBEDDERS = ("multilingual-e5-small", "hashing")
RESERVED_VARIABLES = frozenset({"CTX_CONFIG", "CTX_CACHE_DIR"})


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def _known_language(value: str) -> str:
    if value not in FTS_LANGUAGES:
        raise ValueError(f"{value!r} is not one of {', '.join(FTS_LANGUAGES)}")
    return value


def _known_timezone(value: str) -> str:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{value!r} is not a time zone of the IANA database, such as Europe/Madrid") from None
    return value


def _valid_cron(value: str | None) -> str | None:
    if value is not None and (value.startswith("@") or len(value.split()) != 5):
        raise ValueError(f"{value!r} is not a cron expression of five fields, such as '0 3 * * *'")
    return value


class SourceSettings(Section):
    """A named root of documents."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=64)]
    path: Path
    include: tuple[str, ...] = ("*.md", "*.markdown", "*.mdx", "*.txt", "*.rst")
    exclude: tuple[str, ...] = (".*",)
    max_bytes: PositiveInt = 10_000_000


class StorageSettings(Section):
    """Where the tables are, and how long old versions stay readable (seconds)."""

    uri: Path = Path(".ctx/index")
    retention: NonNegativeInt = 10


class ChunkingSettings(Section):
    """How documents are cut; `max_tokens` is a ceiling counted by o200k_base."""

    strategy: Literal["recursive"] = "recursive"
    max_tokens: Annotated[int, Field(ge=32, le=8192)] = 512


class ContextSettings(Section):
    """What writes contexts."""

    method: Literal["outline", "none"] = "outline"


class EmbeddingSettings(Section):
    """The embedder. `base_url` selects an OpenAI-compatible endpoint; `path` is the cache folder of built models."""

    model: Annotated[str, Field(min_length=1)] = "multilingual-e5-small"
    path: Path | None = None
    base_url: str | None = None
    api_key: SecretStr | None = None
    dimension: PositiveInt | None = None
    window_tokens: Annotated[int, Field(ge=256)] = 8191

    @model_validator(mode="after")
    def _model_is_reachable(self) -> EmbeddingSettings:
        if self.base_url is None and self.model not in BUILT_IN_EMBEDDERS:
            raise ValueError(
                f"model {self.model!r} is not one of {', '.join(BUILT_IN_EMBEDDERS)}; "
                "any other model needs embedding.base_url, an OpenAI-compatible endpoint"
            )
        return self


class SearchSettings(Section):
    """Retrieval: candidates of each leg, the full-text languages, the constant of reciprocal rank fusion."""

    candidates: Annotated[int, Field(ge=1, le=10_000)] = 150
    languages: tuple[Annotated[str, AfterValidator(_known_language)], ...] = Field(
        default=("Spanish", "English"), min_length=1
    )
    rrf_k: PositiveInt = 60

    @model_validator(mode="after")
    def _languages_differ(self) -> SearchSettings:
        if len(set(self.languages)) != len(self.languages):
            raise ValueError("languages names a language twice")
        return self


class ScheduleSettings(Section):
    """When `scheduled_refresh` runs; without a cron it is defined but stopped."""

    cron: Annotated[str | None, AfterValidator(_valid_cron)] = None
    timezone: Annotated[str, AfterValidator(_known_timezone)] = "UTC"


class DagsterSettings(Section):
    """Name of the dynamic partitions, and the documents of one partitioned run of a backfill."""

    partitions: Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+$")] = "documents"
    max_documents_per_run: PositiveInt = 500


class SafetySettings(Section):
    """Deletions of one source are held back when they exceed the share of its documents AND the count."""

    max_delete_share: Annotated[float, Field(ge=0, le=1)] = 0.2
    max_delete_count: NonNegativeInt = 20


class Settings(Section):
    """All settings, with paths made absolute."""

    source: tuple[SourceSettings, ...] = ()
    storage: StorageSettings = StorageSettings()
    chunking: ChunkingSettings = ChunkingSettings()
    contexts: ContextSettings = ContextSettings()
    embedding: EmbeddingSettings = EmbeddingSettings()
    search: SearchSettings = SearchSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    dagster: DagsterSettings = DagsterSettings()
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


def settings_file(environ: Mapping[str, str] | None = None) -> Path:
    """The settings file: `CTX_CONFIG`, else `ctx.toml` in the working directory (it need not exist)."""
    environ = os.environ if environ is None else environ
    return Path(environ.get("CTX_CONFIG") or "ctx.toml").absolute()


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings file and the environment.

    Relative paths in the file start from its folder, those in the environment from the working directory.

    Raises SettingsError: one line naming the file (or the variable), the key and what is allowed.
    """
    environ = os.environ if environ is None else environ
    path = settings_file(environ)
    values = _read_file(path, named=bool(environ.get("CTX_CONFIG")))
    from_environment = _overlay_environment(values, environ)
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError(_one_line(error, path, from_environment)) from None
    return _absolute(settings, path.parent, from_environment)


def _read_file(path: Path, *, named: bool) -> dict[str, Any]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        if named:
            raise SettingsError(f"{path}: no such file; CTX_CONFIG must name a settings file") from None
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read as UTF-8 text ({error})") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from None


def _overlay_environment(values: dict[str, Any], environ: Mapping[str, str]) -> dict[tuple[str, ...], str]:
    """Put the variables' values over the file's; the result maps each overridden key to its variable."""
    origin: dict[tuple[str, ...], str] = {}
    for variable in sorted(environ):
        if not variable.startswith("CTX_") or variable in RESERVED_VARIABLES:
            continue
        section, *key = variable.removeprefix("CTX_").lower().split("__", 1)
        if not key and section not in Settings.model_fields:
            continue  # some other program's variable
        target = values
        if key:
            target = values.setdefault(section, {})
            if not isinstance(target, dict):
                raise SettingsError(f"environment variable {variable}: [{section}] is not a table of keys")
        name = key[0] if key else section
        target[name] = _environment_value(section, name if key else None, environ[variable])
        origin[(section, *key)] = variable
    return origin


def _environment_value(section: str, key: str | None, raw: str) -> Any:
    """A TOML literal where the setting is not a plain string: `5`, `["Spanish"]`, `[{name="docs", path="d"}]`."""
    field = Settings.model_fields.get(section)
    if key is not None and field is not None and isinstance(field.annotation, type):
        inner = getattr(field.annotation, "model_fields", {}).get(key)
        kinds = {inner.annotation, *get_args(inner.annotation)} if inner is not None else set()
        if kinds & {str, Path, SecretStr}:
            return raw
    try:
        return tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return raw


def _one_line(error: ValidationError, path: Path, from_environment: Mapping[tuple[str, ...], str]) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    location = first["loc"]
    words = tuple(str(part) for part in location)
    variable = from_environment.get(words[:2]) or from_environment.get(words[:1])
    where = f"environment variable {variable}" if variable else str(path)
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
    if first["type"] == "extra_forbidden":
        what = f"unknown key; allowed here: {', '.join(_allowed_keys(location[:-1]))}"
    else:
        what = first["msg"].removeprefix("Value error, ")
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{where}: {key}: {what}{more}" if key else f"{where}: {what}{more}"


def _allowed_keys(location: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = Settings
    for part in location:
        if isinstance(part, str):
            annotation: Any = model.model_fields[part].annotation
            candidates = (annotation, *get_args(annotation))
            model = next(c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel))
    return sorted(model.model_fields)


def _absolute(settings: Settings, folder: Path, from_environment: Mapping[tuple[str, ...], str]) -> Settings:
    def resolve(value: Path, *key: str) -> Path:
        base = Path.cwd() if key in from_environment else folder
        return base / value.expanduser()

    if "://" in str(settings.storage.uri) or ":/" in str(settings.storage.uri):
        raise SettingsError(
            f"storage.uri: {settings.storage.uri} is not a local folder; only local folders are supported"
        )
    return settings.model_copy(
        update={
            "source": tuple(s.model_copy(update={"path": resolve(s.path, "source")}) for s in settings.source),
            "storage": settings.storage.model_copy(update={"uri": resolve(settings.storage.uri, "storage", "uri")}),
            "embedding": settings.embedding.model_copy(
                update={"path": settings.embedding.path and resolve(settings.embedding.path, "embedding", "path")}
            ),
        }
    )
