"""Tables written in HTML: where they end, their rows, and the cells of their header."""

from __future__ import annotations

import html
import re
from itertools import islice

from ctx_pipeline.documents.blocks import TITLE_CHARS

# A header row is among the first rows of its table, and no real one is longer.
_HEADER_CHARS = 10_000
_HEAD_CELLS = 60

_TABLE_TAG = re.compile(r"<(?P<close>/?)table\b[^<>]*>", re.IGNORECASE)
_ROW = re.compile(r"<(?P<close>/?)(?:(?P<table>table)|(?P<row>tr))\b[^<>]*>", re.IGNORECASE)
_ROW_END = re.compile(r"</(?:tr|thead|table)\s*>|<tbody\b", re.IGNORECASE)
_CELL = re.compile(r"<t(?P<kind>[hd])\b[^<>]*>", re.IGNORECASE)
_GROUP = re.compile(r"<thead\b", re.IGNORECASE)
_ANY_TAG = re.compile(r"<[^<>]*>")


def table_ends(text: str) -> dict[int, int]:
    """For each opening table tag that is closed, by its offset: the offset after its closing tag."""
    ends: dict[int, int] = {}
    open_tags: list[int] = []
    for tag in _TABLE_TAG.finditer(text):
        if not tag["close"]:
            open_tags.append(tag.start())
        elif open_tags:
            ends[open_tags.pop()] = tag.end()
    return ends


def row_starts(text: str, start: int, end: int) -> list[int]:
    """Where the rows of the table, or of a part of one, begin; not those of tables inside it."""
    starts = []
    depth = 0
    for tag in _ROW.finditer(text, start, end):
        if tag["row"]:
            if not tag["close"] and depth <= 1:
                starts.append(tag.start())
        else:
            depth += -1 if tag["close"] else 1
    return starts


def header_cells(text: str, start: int, end: int) -> tuple[str, ...]:
    """Plain text of the cells of a table's header: the first row of `thead`, or a first row of nothing but `th`."""
    rows = row_starts(text, start, min(end, start + _HEADER_CHARS))
    if not rows:
        return ()
    row_end = _ROW_END.search(text, rows[0], min(end, rows[0] + _HEADER_CHARS))
    stop = row_end.start() if row_end else min(end, rows[1] if len(rows) > 1 else end)
    cells = list(islice(_CELL.finditer(text, rows[0], stop), _HEAD_CELLS + 1))
    is_header = _GROUP.search(text, start, rows[0]) or all(cell["kind"] in "hH" for cell in cells)
    if not is_header:
        return ()
    ends = [*(cell.start() for cell in cells[1:]), stop]
    spans = list(zip((cell.end() for cell in cells), ends, strict=False))
    return tuple(plain_html(text[start:end]) for start, end in spans[:_HEAD_CELLS])


def plain_html(source: str) -> str:
    """The text of a piece of HTML, at most 200 characters, whitespace folded."""
    text = html.unescape(_ANY_TAG.sub("", source))
    return " ".join(text.split())[:TITLE_CHARS].rstrip()


def line_end(text: str, ends: dict[int, int], end: int) -> int:
    """The end of the line on which a table ends at `end`, or of the one on which tables end that begin there."""
    while True:
        newline = text.find("\n", end)
        stop = len(text) if newline < 0 else newline
        later = [ends[tag.start()] for tag in _TABLE_TAG.finditer(text, end, stop) if tag.start() in ends]
        if not later:
            return stop
        end = max(later)
