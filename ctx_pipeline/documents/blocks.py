"""A document's blocks, in character offsets of the untouched text, whatever its format."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

BlockKind = Literal[
    "front_matter", "heading", "paragraph", "fence", "code", "table", "html", "rule", "quote", "list", "item", "record",
    "skipped",
]  # fmt: skip
"""A record is a message, a line of a log or some of a table of data; what is skipped is not indexed."""

TITLE_CHARS = 200

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
    """Blocks inside a quote, list or list item; empty for every other kind."""
    level: int = 0
    """1 to 6 for a heading, else 0."""
    title: str = ""
    """Plain text of a heading, at most 200 characters, whitespace folded; else empty."""


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
