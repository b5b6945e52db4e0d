"""A document's blocks, in character offsets of the untouched text, whatever its format."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

BlockKind = Literal[
    "front_matter",
    "heading",
    "paragraph",
    "fence",
    "code",
    "table",
    "html",
    "rule",
    "quote",
    "list",
    "item",
    "admonition",
    "record",
    "lead",
    "tail",
    "skipped",
]
"""A `record` is a message, a line of a log or some of a table of data. A `lead` says nothing itself and belongs with
what follows: an anchor, imports of MDX, a tag that opens something. A `tail` is a tag that closes something and belongs
with what precedes. `skipped` is what no reader sees: a comment, the bytes of an image."""

NOT_INDEXED: frozenset[BlockKind] = frozenset(["front_matter", "skipped"])
"""Blocks that lie in no chunk; only short comments may lie inside the span of one."""
NO_CONTENT: frozenset[BlockKind] = NOT_INDEXED | {"heading", "lead", "tail"}
"""Blocks that tell nothing without others."""

INNER_CHARS = 300
"""Text that is not indexed may lie inside a chunk's span up to this length; longer text lies in no chunk."""

TITLE_CHARS = 200

Span = tuple[int, int]
"""Start and end of characters, end exclusive."""

NEWLINE = re.compile(r"\r\n?|\n")
_FORM_FEED = re.compile("\f")
_NEWLINE_AND_SPACE = re.compile(r"[\r\n]\s+")


@dataclass(frozen=True, slots=True)
class Block:
    """A block `text[start:end]`, which begins and ends with a character other than whitespace.

    A block owns whole lines: the first block inside a list item or quote begins with the item's marker, and later
    lines keep theirs. The blocks of one level are in order, do not overlap, and together hold every non-whitespace
    character of their parent, at the top level of the document.
    """

    kind: BlockKind
    start: int
    """Character offset of the first character."""
    end: int
    """Character offset after the last character."""
    children: tuple[Block, ...] = ()
    """Blocks inside a quote, list, list item or admonition; empty for every other kind."""
    level: int = 0
    """1 to 6 for a heading, else 0."""
    title: str = ""
    """Plain text of a heading, at most 200 characters, whitespace folded; else empty."""
    head: tuple[str, ...] = ()
    """Plain text of the cells of a table's header row, the first ones; empty for every other kind."""
    left_out: tuple[Span, ...] = ()
    """Spans inside a block without children that are not indexed, in order and apart: comments, data URIs."""


def line_starts(text: str) -> list[int]:
    r"""Offsets at which the lines of `text` begin; a line ends with \n, \r\n or \r and with nothing else."""
    if "\r" in text:
        return [0, *(newline.end() for newline in NEWLINE.finditer(text))]
    return list(accumulate((len(line) + 1 for line in text.split("\n")[:-1]), initial=0))


def page_breaks(text: str) -> list[int]:
    """Offsets of the form feeds, which end pages."""
    return [feed.start() for feed in _FORM_FEED.finditer(text)] if "\f" in text else []


def page_at(breaks: Sequence[int], offset: int) -> int | None:
    """The page, from 1, on which a character of a text with these page breaks stands; None in a text without pages."""
    return bisect_right(breaks, offset) + 1 if breaks else None


def trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without the whitespace at its ends; empty when it holds nothing else."""
    tail = text[start:end].lstrip()
    start = end - len(tail)
    return start, start + len(tail.rstrip())


def blank_line_cuts(text: str, start: int, end: int) -> list[int]:
    """For every run of blank lines inside the span, the offset of the text that follows it."""
    cuts = []
    for gap in _NEWLINE_AND_SPACE.finditer(text, start, end):
        space = gap.group().replace("\r\n", "\n")
        if space.count("\n") + space.count("\r") > 1:
            cuts.append(gap.end())
    return cuts
