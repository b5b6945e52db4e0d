"""Blocks of raw HTML: headings, preformatted text, tables, and what is between them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ctx_pipeline.documents.blocks import Block, BlockKind, blank_line_cuts, trimmed
from ctx_pipeline.documents.html_tables import header_cells, plain_html
from ctx_pipeline.documents.model import Parsed

_BEGINNING_CHARS = 2_000
_HEADING_CHARS = 2_000

_COMMENTS = re.compile(r"(?:\s+|<!--(?:(?!-->).)*-->|<\?[^<>]*>)*", re.DOTALL)
_DOCUMENT = re.compile(r"<(?:!doctype\s+html|html)\b", re.IGNORECASE)
_TAG = re.compile(
    r"<!--|<(?P<close>/?)(?P<name>h[1-6]|pre|table|script|style|textarea|p|div|section|article|ul|ol|dl|blockquote|figure"
    r"|form|nav|main|header|footer|aside|details|body|hr)\b[^<>]*>",
    re.IGNORECASE,
)
_KINDS: dict[str, BlockKind] = {"pre": "code", "table": "table"}
_HEADING_TAG = re.compile(r"<(?P<close>/?)(?P<name>h[1-6])\b[^<>]*>", re.IGNORECASE)
_HEADINGS = frozenset(["h1", "h2", "h3", "h4", "h5", "h6"])
_OPAQUE = frozenset(["script", "style", "textarea"])


@dataclass(slots=True)
class _Mark:
    """Where a block begins; it ends where the next one does."""

    offset: int
    kind: BlockKind = "paragraph"
    level: int = 0
    title: str = ""
    head: tuple[str, ...] = ()


def is_html(parsed: Parsed) -> bool:
    """Whether a document is HTML: by its file's suffix, else by its beginning."""
    if parsed.media_type != "text/plain":
        return parsed.media_type == "text/html"
    beginning = parsed.text[:_BEGINNING_CHARS]
    comments = _COMMENTS.match(beginning)
    return bool(_DOCUMENT.match(beginning, comments.end() if comments else 0))


def html_blocks(text: str) -> list[Block]:
    """The text's blocks in order; together they hold every character other than whitespace.

    A heading has its level and its text as title. `pre` and `table` elements, without those that are never closed, are
    blocks of their own; headings inside them, in comments and in scripts are none.
    """
    marks = list(_marks(text))
    blocks = []
    for mark, following in zip(marks, [*marks[1:], _Mark(len(text))], strict=True):
        start, end = trimmed(text, mark.offset, following.offset)
        if start < end:
            blocks.append(Block(mark.kind, start, end, level=mark.level, title=mark.title, head=mark.head))
    return blocks


def _marks(text: str) -> Iterator[_Mark]:
    yield _Mark(0)
    closers = _Closers(text)
    position = done = 0
    lead: tuple[int, int] | None = None
    """Opening tags with nothing between them and what follows, which they belong to."""
    while tag := _TAG.search(text, position):
        position = tag.end()
        name = (tag["name"] or "").lower()
        start = tag.start()
        if not name or name in _OPAQUE:
            position = (closers.end_of(name, position) if not tag["close"] else None) or position
            continue
        if lead and not text[lead[1] : start].strip():
            start = lead[0]
        lead = None
        if tag["close"]:
            continue
        end = closers.end_of(name, position) if name in _KINDS or name in _HEADINGS else None
        yield from _paragraphs(text, done, start)
        if end is None:
            yield _Mark(start)
            lead = (start, position)
            done = start
        else:
            is_heading = name in _HEADINGS
            kind = "heading" if is_heading else _KINDS[name]
            mark = _Mark(start, kind)
            if is_heading:
                mark.level, mark.title = int(name[1]), plain_html(text[position:end])
            elif kind == "table":
                mark.head = header_cells(text, start, end)
            yield mark
            yield _Mark(end)
            position = done = end
    yield from _paragraphs(text, done, len(text))


def _paragraphs(text: str, start: int, end: int) -> Iterator[_Mark]:
    return (_Mark(cut) for cut in blank_line_cuts(text, start, end) if cut < end)


class _Closers:
    """Where elements end. What is not closed is looked for once, so that many such tags take no quadratic time."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._missing_from: dict[str, int] = {}

    def end_of(self, name: str, position: int) -> int | None:
        """The offset after the closing tag of an element whose content begins at `position`; None without one.

        `name` is empty for a comment. A heading ends before the next one, and within some lines.
        """
        if name in _HEADINGS:
            tag = _HEADING_TAG.search(self._text, position, position + _HEADING_CHARS)
            return tag.end() if tag and tag["close"] and tag["name"].lower() == name else None
        if position >= self._missing_from.get(name, len(self._text) + 1):
            return None
        end = self._find(name, position)
        if end is None:
            self._missing_from[name] = position
        return end

    def _find(self, name: str, position: int) -> int | None:
        if not name:
            end = self._text.find("-->", position)
            return end + 3 if end >= 0 else None
        depth = 1
        for tag in re.compile(rf"<(?P<close>/?){name}\b[^<>]*>", re.IGNORECASE).finditer(self._text, position):
            depth += -1 if tag["close"] else name == "table"
            if not depth:
                return tag.end()
        return None
