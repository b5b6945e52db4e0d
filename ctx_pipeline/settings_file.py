"""Reading the settings: `ctx.toml`, overridden by `CTX_SECTION__KEY` environment variables."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ctx_pipeline.errors import SettingsError
from ctx_pipeline.setting_types import is_text
from ctx_pipeline.settings import Settings

_NEW = """\
# Settings of ctx-pipeline. Paths start from this file's folder; every key can be overridden by CTX_SECTION__KEY.

[[source]]
name = "docs"
path = {path}
# include = ["*.md", "*.markdown", "*.mdx", "*.txt", "*.rst"]

[storage]
uri = ".ctx/index"

[contexts]
method = "outline"   # without a model; "claude" asks one: `ctx-pipeline plan` tells what that would cost
"""

RESERVED_VARIABLES = frozenset({"CTX_CONFIG", "CTX_CACHE_DIR"})


def settings_file(environ: Mapping[str, str] | None = None) -> Path:
    """The settings file: `CTX_CONFIG`, else `ctx.toml` in the working directory (it need not exist)."""
    environ = os.environ if environ is None else environ
    return Path(environ.get("CTX_CONFIG") or "ctx.toml").absolute()


def write_settings(path: Path, documents: Path) -> None:
    """Write a short settings file for a folder of documents, named from the file's own folder where it lies below.

    Raises SettingsError when it cannot be written.
    """
    folder, own = documents.absolute().resolve(), path.parent.resolve()
    below = folder.relative_to(own).as_posix() if folder.is_relative_to(own) else str(folder)
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(_NEW.format(path=json.dumps(below, ensure_ascii=False)))
    except OSError as error:
        raise SettingsError(f"{path} cannot be written ({error.strerror})") from None


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings file and the environment.

    Relative paths in the file start from its folder, those in the environment from the working directory.

    Raises SettingsError: one line naming the file (or the variable), the key and what is allowed.
    """
    environ = os.environ if environ is None else environ
    path = settings_file(environ)
    try:
        values = _read_file(path, named=bool(environ.get("CTX_CONFIG")))
        from_environment = _overlay_environment(values, environ)
        try:
            settings = Settings.model_validate(values)
        except ValidationError as error:
            raise SettingsError(_message(error, path, from_environment)) from None
    except SettingsError as error:
        raise SettingsError(" ".join(str(error).splitlines())) from None
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
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from None


def _overlay_environment(values: dict[str, Any], environ: Mapping[str, str]) -> dict[tuple[str, ...], str]:
    """Put the variables' values over the file's; the result maps each overridden key to its variable."""
    origin: dict[tuple[str, ...], str] = {}
    for variable in sorted(environ):
        if not variable.startswith("CTX_") or variable in RESERVED_VARIABLES:
            continue
        section, *key = variable.removeprefix("CTX_").lower().split("__", 1)
        if not key and section not in Settings.model_fields:
            _refuse_single_underscore(variable, section)
            continue  # some other program's variable
        target = values
        if key:
            target = values.setdefault(section, {})
            if not isinstance(target, dict):
                raise SettingsError(f"environment variable {variable}: {section} has no keys that a variable can set")
        name = key[0] if key else section
        target[name] = _environment_value(section, name if key else None, environ[variable])
        origin[(section, *key)] = variable
    return origin


def _refuse_single_underscore(variable: str, words: str) -> None:
    for section in Settings.model_fields:
        key = words.removeprefix(f"{section}_")
        if key != words and key in _keys_of(section):
            right = f"CTX_{section}__{key}".upper()
            raise SettingsError(f"environment variable {variable}: two underscores follow the section: {right}")


def _environment_value(section: str, key: str | None, raw: str) -> Any:
    """A TOML literal where the setting is not a plain string: `5`, `["Spanish"]`, `[{name="docs", path="d"}]`."""
    if key is not None and is_text(_keys_of(section).get(key)):
        return raw
    try:
        return tomllib.loads(f"value = {raw}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return raw


def _message(error: ValidationError, path: Path, from_environment: Mapping[tuple[str, ...], str]) -> str:
    # A misspelt key comes first: it explains why another one is missing.
    found = sorted(error.errors(include_url=False, include_input=False), key=lambda e: e["type"] != "extra_forbidden")
    location = found[0]["loc"]
    words = tuple(str(part) for part in location)
    set_by = (name for key, name in from_environment.items() if key == words[: len(key)] or words == key[: len(words)])
    variable = next(set_by, "")
    where = f"environment variable {variable}" if variable else str(path)
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return ": ".join(part for part in (where, key, _what(found[0])) if part) + more


def _what(error: ErrorDetails) -> str:
    location = error["loc"]
    match error["type"]:
        case "extra_forbidden":
            return f"unknown key; allowed here: {', '.join(_allowed_keys(location[:-1]))}"
        case "model_type":
            return f"must be a table with keys of {', '.join(_allowed_keys(location))}"
        case "tuple_type":
            in_file = {("source",): "[[source]]", ("contexts", "rule"): "[[contexts.rule]]"}
            entries = in_file.get(tuple(map(str, location)))
            return f"must be written as {entries} entries" if entries else "must be a list"
        case _:
            return error["msg"].removeprefix("Value error, ")


def _allowed_keys(location: tuple[int | str, ...]) -> list[str]:
    return sorted(_keys_of(*(name for name in location if isinstance(name, str))))


def _keys_of(*names: str) -> dict[str, Any]:
    """The type of each key of a section, or of an entry of a list of tables; empty for other names."""
    model: type[BaseModel] = Settings
    for name in names:
        field = model.model_fields.get(name)
        tables = (field.annotation, *get_args(field.annotation)) if field else ()
        inner = next((type_ for type_ in tables if isinstance(type_, type) and issubclass(type_, BaseModel)), None)
        if inner is None:
            return {}
        model = inner
    return {name: field.annotation for name, field in model.model_fields.items()}


def _absolute(settings: Settings, folder: Path, from_environment: Mapping[tuple[str, ...], str]) -> Settings:
    def resolve(value: Path, *key: str) -> Path:
        base = Path.cwd() if key in from_environment else folder
        return base / value.expanduser()

    return settings.model_copy(
        update={
            "source": tuple(s.model_copy(update={"path": resolve(s.path, "source")}) for s in settings.source),
            "storage": settings.storage.model_copy(update={"uri": resolve(settings.storage.uri, "storage", "uri")}),
            "contexts": settings.contexts.model_copy(
                update={"prices": settings.contexts.prices and resolve(settings.contexts.prices, "contexts", "prices")}
            ),
            "evaluation": settings.evaluation.model_copy(
                update={
                    "queries": settings.evaluation.queries
                    and resolve(settings.evaluation.queries, "evaluation", "queries")
                }
            ),
            "embedding": settings.embedding.model_copy(
                update={"path": settings.embedding.path and resolve(settings.embedding.path, "embedding", "path")}
            ),
        }
    )
