"""Bytes to text: decoding, title, language and metadata of a document."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import date, time
from pathlib import PurePosixPath
from typing import Any

from ctx_pipeline.documents.blocks import TITLE_CHARS, Block
from ctx_pipeline.documents.decoding import decode
from ctx_pipeline.documents.markdown import front_matter, markdown_blocks
from ctx_pipeline.documents.model import Parsed

VERSION = 2
"""Raised when the same bytes would give other text, title, language or metadata."""

MARKDOWN_SUFFIXES = frozenset({".md", ".markdown", ".mdx"})
HTML_SUFFIXES = frozenset({".html", ".htm", ".xhtml"})
SOURCE_SUFFIXES = frozenset(
    {
        *(".bash", ".c", ".cc", ".cjs", ".cpp", ".cs", ".cxx", ".dart", ".ex", ".exs", ".go", ".groovy", ".h", ".hh"),
        *(".hpp", ".hxx", ".java", ".jl", ".js", ".jsx", ".kt", ".kts", ".lua", ".m", ".mjs", ".mm", ".php", ".pl"),
        *(".pm", ".py", ".pyi", ".pyx", ".r", ".rb", ".rs", ".scala", ".sh", ".sol", ".swift", ".ts", ".tsx", ".zig"),
    }
)
LANGUAGE_CHARACTERS = 4000
"""Characters of a document that the language detector sees; it is sure after some hundred."""

BEGINNING_CHARACTERS = 2000
"""Where the title is looked for first: parsing all of a document's blocks for it would double the work of reading."""

_LETTERS = re.compile(r"[^\W\d_]{2,}")


def parse(data: bytes, path: str) -> Parsed:
    """Decode and describe a document; `path` (POSIX, below the source) tells format and, without a heading, title.

    Raises PermanentError when the bytes are not text.
    """
    text = decode(data)
    suffix = PurePosixPath(path).suffix.lower()
    is_markdown = suffix in MARKDOWN_SUFFIXES
    metadata = _json_object(front_matter(text)) if is_markdown else {}
    return Parsed(
        text=text,
        media_type=_media_type(suffix),
        title=content_title(text, metadata, markdown=is_markdown) or _cut(title_from_path(path)),
        language=detect_language(text),
        metadata=metadata,
    )


def _media_type(suffix: str) -> str:
    if suffix in MARKDOWN_SUFFIXES:
        return "text/markdown"
    if suffix in HTML_SUFFIXES:
        return "text/html"
    return "text/x-source" if suffix in SOURCE_SUFFIXES else "text/plain"


def content_title(text: str, metadata: Mapping[str, object], *, markdown: bool) -> str:
    """The title that the document gives itself in its front matter or a heading; empty when it has none."""
    named = metadata.get("title")
    title = " ".join(str(named).split()) if isinstance(named, str | int | float) else ""
    if not title and markdown:
        title = _first_heading(text)
    return _cut(title)


def detect_language(text: str) -> str:
    """ISO 639-1 code of the text's main language, `und` for fewer than five words of letters."""
    sample = text.lstrip()[:LANGUAGE_CHARACTERS]
    if len(_LETTERS.findall(sample)) < 5:
        return "und"
    import py3langid

    code, _ = py3langid.classify(sample)
    return str(code)


def _first_heading(text: str) -> str:
    """The first heading of level 1, else the first of any; most documents have it at their beginning."""
    for part in (text[:BEGINNING_CHARACTERS], text):
        headings = [block for block in _walk(markdown_blocks(part)) if block.kind == "heading" and block.title]
        level_one = next((block for block in headings if block.level == 1), None)
        if level_one:
            return level_one.title
    return headings[0].title if headings else ""


def _json_object(values: Mapping[Any, Any]) -> dict[str, object]:
    """What YAML read, as values that JSON and Arrow can hold, the same in every process."""
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


def _walk(blocks: Any) -> list[Block]:
    return [inner for block in blocks for inner in (block, *_walk(block.children))]


def _cut(title: str) -> str:
    return title[:TITLE_CHARS].rstrip()


def title_from_path(path: str) -> str:
    """The title of a document that names none: its file's name, or its folder's for an index."""
    pure = PurePosixPath(path)
    name = pure.parent.name if pure.stem.lower() in {"index", "readme"} and pure.parent.name else pure.stem
    return re.sub(r"[\s_-]+", " ", name).strip() or pure.name
