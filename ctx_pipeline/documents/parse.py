"""Bytes to text: decoding, title, language and metadata of a document."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date, time
from pathlib import PurePosixPath
from typing import Any

from ctx_pipeline.documents.decoding import decode
from ctx_pipeline.documents.front_matter import read_front_matter
from ctx_pipeline.documents.language import language_of
from ctx_pipeline.documents.model import Parsed
from ctx_pipeline.documents.structure import document_blocks
from ctx_pipeline.documents.titles import own_title, title_from_path

VERSION = 2
"""Raised when the same bytes would give other text, title, language or metadata."""

MARKDOWN_SUFFIXES = frozenset({".md", ".markdown", ".mdx"})
RST_SUFFIXES = frozenset({".rst", ".rest"})
HTML_SUFFIXES = frozenset({".html", ".htm", ".xhtml"})
SOURCE_SUFFIXES = frozenset(
    {
        *(".bash", ".c", ".cc", ".cjs", ".cpp", ".cs", ".cxx", ".dart", ".ex", ".exs", ".go", ".groovy", ".h", ".hh"),
        *(".hpp", ".hxx", ".java", ".jl", ".js", ".jsx", ".kt", ".kts", ".lua", ".m", ".mjs", ".mm", ".php", ".pl"),
        *(".pm", ".py", ".pyi", ".pyx", ".r", ".rb", ".rs", ".scala", ".sh", ".sol", ".swift", ".ts", ".tsx", ".zig"),
    }
)


def parse(data: bytes, path: str) -> Parsed:
    """Decode and describe a document; `path` (POSIX, below the source) tells its format, and a title if need be.

    Raises PermanentError when the bytes are not text.
    """
    text = decode(data)
    suffix = PurePosixPath(path).suffix.lower()
    media_type = _media_type(suffix)
    blocks = document_blocks(text, media_type)
    matter = read_front_matter(text) if media_type == "text/markdown" else None
    metadata = _json_object(matter.values) if matter else {}
    return Parsed(
        text=text,
        media_type=media_type,
        title=own_title(text, media_type, blocks, metadata) or title_from_path(path),
        language=language_of(text, blocks),
        metadata=metadata,
        warnings=matter.warnings if matter else (),
    )


def _media_type(suffix: str) -> str:
    if suffix in MARKDOWN_SUFFIXES:
        return "text/markdown"
    if suffix in RST_SUFFIXES:
        return "text/x-rst"
    if suffix in HTML_SUFFIXES:
        return "text/html"
    return "text/x-source" if suffix in SOURCE_SUFFIXES else "text/plain"


def _json_object(values: Mapping[Any, Any]) -> dict[str, object]:
    """What front matter holds, as values that JSON and Arrow can hold, the same in every process."""
    return {str(_json_value(key)): _json_value(value) for key, value in values.items()}


def _json_value(value: Any) -> object:
    match value:
        case str():  # escapes can write lone surrogates
            return value.replace("\0", "\ufffd").encode(errors="replace").decode()
        case dict():
            return _json_object(value)
        case list() | tuple():
            return [_json_value(item) for item in value]
        case set():
            return sorted(str(_json_value(item)) for item in value)
        case date() | time():
            return value.isoformat()
        case float() if not math.isfinite(value):
            return str(value)
        case None | bool() | int() | float():
            return value
        case _:
            return str(value)
