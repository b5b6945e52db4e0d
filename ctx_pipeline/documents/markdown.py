"""Block structure of Markdown and of plain text, in character offsets of the untouched text.

Only block rules are parsed; a 1 MB document of the worst kinds tried (nested quotes and lists, brackets, tables,
headings, NUL) takes at most 7 s, a real one about 0.15 s. Link reference definitions are left in paragraphs: their rule
is quadratic in a list of definitions, which every changelog has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

BlockKind = Literal[
    "front_matter", "heading", "paragraph", "fence", "code", "table", "html", "rule", "quote", "list", "item"
]

TITLE_CHARS = 200
FRONT_MATTER_CHARS = 65_536

# Lists and quotes nested deeper than this (a list level counts twice) stay one block without children.
_MAX_NESTING = 20
# Inline markup of a heading is parsed in its first characters only: some patterns cost quadratic time.
_TITLE_SOURCE_CHARS = 1_000

_NEWLINE = re.compile(r"\r\n?|\n")
_NEWLINE_AND_SPACE = re.compile(r"[\r\n]\s+")
_FRONT_MATTER_OPENING = re.compile(r"\ufeff?---[ \t]*(?=[\r\n])")
_FRONT_MATTER_CLOSING = re.compile(r"[\r\n](?:---|\.\.\.)[ \t]*(?=[\r\n]|\Z)")
_FRONT_MATTER_KEY = re.compile(r"""(?:\s|#[^\r\n]*[\r\n])*+["']?\w[^:\r\n]*:(?:\s|\Z)""")
_ATTRIBUTE = r"""(?:[#.][\w:.-]+|[\w:-]+=(?:"[^"]*"|'[^']*'|[^\s"'{}]+))"""
_ATTRIBUTE_LIST = re.compile(rf"\{{:?\s*{_ATTRIBUTE}(?:\s+{_ATTRIBUTE})*\s*\}}")
_INLINE_MARKUP = re.compile(r"[\\`*_~\[\]<>&!]")
_REFERENCE_DEFINITION = re.compile(r"(?:\A|[\r\n]) {0,3}\[([^\[\]\r\n]{1,200})\]:[ \t]*[^\s]")

_LEAVES: Mapping[str, BlockKind] = {
    "paragraph_open": "paragraph",
    "fence": "fence",
    "code_block": "code",
    "html_block": "html",
    "hr": "rule",
    "table_open": "table",
}
_CONTAINERS: Mapping[str, BlockKind] = {
    "blockquote_open": "quote",
    "bullet_list_open": "list",
    "ordered_list_open": "list",
    "list_item_open": "item",
}
_CLOSINGS = frozenset(["blockquote_close", "bullet_list_close", "ordered_list_close", "list_item_close"])


@dataclass(frozen=True, slots=True)
class Block:
    """A block of text, `text[start:end]`, that begins and ends with a character other than whitespace.

    A block owns whole lines: the first block inside a list item or quote begins with the item's marker, later lines
    keep theirs. The blocks of one level are in order, do not overlap, and hold every non-whitespace character of
    their parent.
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
        return [0, *(newline.end() for newline in _NEWLINE.finditer(text))]
    return list(accumulate((len(line) + 1 for line in text.split("\n")[:-1]), initial=0))


def markdown_blocks(text: str) -> list[Block]:
    """The document's blocks by CommonMark's block rules, with GFM tables and YAML front matter."""
    matter_end = _front_matter_end(text)
    blocks = []
    if matter_end:
        start, end = trim(text, 0, matter_end)
        blocks.append(Block("front_matter", start, end))
    starts = line_starts(text)
    first_line = text.count("\n", 0, matter_end) if "\r" not in text else len(_NEWLINE.findall(text, 0, matter_end))
    body = text[matter_end:] if matter_end else text.removeprefix("\ufeff")
    tokens = _block_parser().parse(body)
    return blocks + _tree(text, tokens, [*starts[first_line:], len(text)], first_content=matter_end)


def plain_blocks(text: str) -> list[Block]:
    """Paragraphs of plain text: runs of lines separated by blank lines."""
    blocks = []
    start = 0
    for cut in [*blank_line_cuts(text, 0, len(text)), len(text)]:
        first, last = trim(text, start, cut)
        if first < last:
            blocks.append(Block("paragraph", first, last))
        start = cut
    return blocks
