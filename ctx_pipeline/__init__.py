"""Contextual retrieval, kept fresh. The names below are the public ones; importing the package loads none of them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctx_pipeline.definitions import build_definitions
    from ctx_pipeline.index.search import Hit, SearchIndex
    from ctx_pipeline.refresh import Pipeline
    from ctx_pipeline.settings import Settings
    from ctx_pipeline.settings_file import load_settings

__version__: str

_PLACES = {
    "Hit": "ctx_pipeline.index.search",
    "Pipeline": "ctx_pipeline.refresh",
    "SearchIndex": "ctx_pipeline.index.search",
    "Settings": "ctx_pipeline.settings",
    "build_definitions": "ctx_pipeline.definitions",
    "load_settings": "ctx_pipeline.settings_file",
}

__all__ = ["Hit", "Pipeline", "SearchIndex", "Settings", "__version__", "build_definitions", "load_settings"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("ctx-pipeline")
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
