"""The title of a document: what it calls itself, else what its file is called."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from ctx_pipeline.documents.blocks import TITLE_CHARS, Block

LEAD_CHARS = 2_000
"""Characters of running text that may stand before the heading that is the title."""

HEADED = frozenset({"text/markdown", "text/x-rst"})
"""Media types whose headings are marked as such. In plain text they are guessed, and in HTML they are the page's."""

_OPAQUE = frozenset(["front_matter", "fence", "code", "table", "rule", "skipped"])
_TEXT = frozenset(["paragraph", "fence", "code", "table", "quote", "admonition"])
_SOURCE_CHARS = 1_000
_INDEX_NAMES = frozenset({"index", "readme"})
_LANGUAGE_TAG = re.compile(r"[a-z]{2,3}(?:[-_][a-z]{2,4})?", re.IGNORECASE)
_HTML_CHARS = 2_000
# Headings in comments, scripts and preformatted text are none.
_HTML_PART = re.compile(
    r"<!--.*?(?:-->|\Z)|<(?P<opaque>script|style|pre|textarea|template)\b.*?(?:</(?P=opaque)\s*>|\Z)"
    rf"|<h1\b[^<>]*>(?P<title>(?:[^<]|<(?!/?h1\b)){{0,{_HTML_CHARS}}}+)(?P<closed></h1\s*>)?",
    re.IGNORECASE | re.DOTALL,
)
_IMAGE_TEXT = re.compile(r"""<img\b[^<>]*?\balt\s*=\s*(?:"([^"<>]*)"|'([^'<>]*)')[^<>]*>""", re.IGNORECASE)
_TAG = re.compile(r"<[^<>]*>")
# Left by a template engine for the time when the page is made.
_EXPRESSION = re.compile(r"\{\{[^{}]*\}\}|\{%[^{}]*%\}|<%[^<>]*%>")


def own_title(text: str, media_type: str, blocks: Sequence[Block], metadata: Mapping[str, object]) -> str:
    """The title that a document gives itself; empty when it has none.

    That is the front matter's, else the only heading of level 1 (of `blocks`, or `<h1>` in Markdown). The heading has
    to stand near the beginning: below no heading that has text of its own, and no more than `LEAD_CHARS` of text.
    """
    named = metadata.get("title", next((metadata[key] for key in metadata if key.casefold() == "title"), None))
    stated = str(named) if isinstance(named, str | int | float) and not isinstance(named, bool) else ""
    if title := _clean(stated):
        return title
    first = ""
    for title, is_near in _level_one(text, blocks) if media_type in HEADED else ():
        if first or not is_near:
            return ""
        first = title
    return first


def title_from_path(path: str) -> str:
    """The words of the file's name, or of its folder's name for an index; at most `TITLE_CHARS` characters."""
    pure = PurePosixPath(path)
    words = _words(pure.stem)
    name, _, language = words.partition(".")
    is_index = name.casefold() in _INDEX_NAMES and (not language or bool(_LANGUAGE_TAG.fullmatch(language)))
    folder = _words(pure.parent.name) if is_index else ""
    return (folder or words or pure.name)[:TITLE_CHARS].rstrip()


def _words(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name).strip()


def _level_one(text: str, blocks: Sequence[Block]) -> Iterator[tuple[str, bool]]:
    """Titles of the headings of level 1 in order, each with whether it stands near the beginning.

    Those in quotes and lists head only what is in there.
    """
    lead, below_heading = 0, False
    for block in blocks:
        is_near = lead <= LEAD_CHARS
        if block.kind == "heading":
            if block.level == 1 and (title := _clean(block.title)):
                yield title, is_near
            below_heading = True
        elif block.kind not in _OPAQUE and text.startswith("<", block.start):
            for title in _html_titles(text, block):
                yield title, is_near
        elif block.kind in _TEXT:
            lead += LEAD_CHARS + 1 if below_heading else block.end - block.start


def _html_titles(text: str, block: Block) -> Iterator[str]:
    """Titles of the `<h1>` elements that begin in a block; a blank line in one ends the block, but not the element."""
    for part in _HTML_PART.finditer(text, block.start, block.end):
        if part["title"] is not None and not part["closed"]:
            part = _HTML_PART.match(text, part.start(), part.end() + _HTML_CHARS) or part
        if part["title"] is not None and part["closed"]:
            words = _TAG.sub("", part["title"]).strip() or " ".join(map("".join, _IMAGE_TEXT.findall(part["title"])))
            if title := _clean(html.unescape(words)):
                yield title


def _clean(title: str) -> str:
    """One line of at most `TITLE_CHARS`; empty when nothing but expressions of a template engine is in it."""
    title = " ".join(title[:_SOURCE_CHARS].split())
    rest = _EXPRESSION.sub("", title)
    return title[:TITLE_CHARS].rstrip() if rest == title or re.search(r"\w", rest) else ""
