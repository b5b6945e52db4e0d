"""Block structure of reStructuredText, in character offsets of the untouched text.

Sections are found by their adornments as docutils finds them, styles being levels in the order of their first use. The
source is kept as text: no directive is carried out (`include` is never followed), no role is looked up, and what
docutils reports as an error is read as ordinary text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from ctx_pipeline.documents.blocks import TITLE_CHARS, Block, BlockKind, line_starts
from ctx_pipeline.documents.nodes import Node, node_blocks
from ctx_pipeline.documents.rst_inline import plain_title

# What is nested deeper is one block: every level of nesting costs another pass over its lines.
_MAX_DEPTH = 12
_MAX_LEVEL = 6
# Markers stand at a line's beginning; a line may be a whole minified file.
_MARKER_CHARS = 500
_TAB_COLUMNS = 8
_SHORTEST_SURE_ADORNMENT = 4
"""An underline of fewer characters must be as long as its title, a transition is never shorter."""

_ADORNMENTS = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_BULLET = re.compile(r"[-+*•‣⁃](?:\s+|$)")
_NUMBER = r"(?:\d{1,9}|[a-zA-Z#]|[ivxlcdm]{1,9}|[IVXLCDM]{1,9})"
_ENUMERATOR = re.compile(rf"(?:\({_NUMBER}\)|{_NUMBER}[.)])(?:\s+|$)")
_FIELD = re.compile(r":(?![: ])(?P<name>(?:[^:\\]|\\.|:(?![ `]|$))+)(?<! ):(?:\s+|$)")
_LINE_BLOCK = re.compile(r"\|(?:\s|$)")
_DOCTEST = re.compile(r">>>(?:\s|$)")
_GRID_TABLE = re.compile(r"\+-[-+]+-\+$")
_SIMPLE_TABLE = re.compile(r"=+(?: +=+)+$")
_SIMPLE_BORDER = re.compile(r"=+(?: +=+)*$")
_EXPLICIT = re.compile(r"\.\.(?:\s+|$)|__(?:\s|$)")
_DIRECTIVE = re.compile(r"(?:\|[^|]+\|\s+)?(?P<name>[^\W_]+(?:[-._+:][^\W_]+)*) ?::(?:\s|$)")
_NOTE = re.compile(r"\[(?:\d+|#?[\w.+:-]*|\*)\](?:\s|$)")

_CODE_NAMES = """
code code-block sourcecode parsed-literal literalinclude prompt testcode testoutput testsetup testcleanup doctest math
raw productionlist graphviz digraph graph mermaid uml plantuml ipython jupyter-execute console plot
"""
_CODE_DIRECTIVES = frozenset(_CODE_NAMES.split())
_PLAIN_DIRECTIVES = frozenset(["toctree", "contents", "include", "index", "image"])
_MARKS = frozenset(["index", "highlight", "currentmodule", "default-domain", "default-role", "module", "py:module"])
"""Directives that say something of what follows."""
_FILE_FIELDS = frozenset(["orphan", "tocdepth", "nocomments", "nosearch"])
"""Fields at the top of a file that tell a program what to do with it."""


def rst_blocks(text: str) -> list[Block]:
    """The document's blocks; headings, with level and title, are those of sections alone.

    Literal and doctest blocks and directives that show code are `code`, comments and fields for programs `skipped`;
    other directives are `quote` with what they hold as children. A target stands in the block that it names.
    """
    reader = _Reader(text)
    nodes = reader.body(0, len(reader.indents), 0, 0) or [Node("paragraph", 0)]
    return list(node_blocks(text, [*reader.starts, len(text)], nodes, 0, len(reader.indents)))


class _Reader:
    """The lines of a text, and the blocks that begin at them."""

    def __init__(self, text: str) -> None:
        self.starts = line_starts(text)
        self.lines: list[str] = []
        """Without whitespace at their ends; of a list item's first line, what follows the marker."""
        self.indents: list[int] = []
        """Columns before a line's text; -1 for a blank line."""
        self._styles: list[str] = []
        for start, end in zip(self.starts, [*self.starts[1:], len(text)], strict=True):
            raw = text[start:end].rstrip()
            line = raw.lstrip()
            self.lines.append(line)
            lead = raw[: len(raw) - len(line)]
            self.indents.append(len(lead.expandtabs(_TAB_COLUMNS)) if line else -1)

    def body(self, first: int, last: int, base: int, depth: int) -> list[Node]:
        """The blocks of the lines from `first` to `last` (exclusive), of which none is indented less than `base`."""
        nodes: list[Node] = []
        mark: int | None = None
        """Where targets begin that belong to the block after them."""
        position = first
        while position < last:
            if self.indents[position] < 0:
                position += 1
                continue
            if self._is_mark(position, base, last):
                mark = position if mark is None else mark
                position += 1
                continue
            found = list(self._block(position, last, base, depth, is_first=not nodes))
            position = found[-1][1]
            if mark is not None and found[0][0].kind not in ("table", "skipped"):
                found[0][0].line, mark = mark, None
            elif mark is not None:
                nodes.append(Node("paragraph", mark))
                mark = None
            nodes += [node for node, _ in found]
        if mark is not None:
            nodes.append(Node("paragraph", mark))
        return nodes

    def _block(self, at: int, last: int, base: int, depth: int, *, is_first: bool) -> Iterator[tuple[Node, int]]:
        """The block that begins at a line, with the line after its last; a literal block comes with its paragraph."""
        line, following = self.lines[at][:_MARKER_CHARS], at + 1
        if self.indents[at] > base:
            end = self._region_end(at, last, base)
            yield Node("quote", at, children=self._inside(at, end, depth)), end
        elif _EXPLICIT.match(line):
            end = self._region_end(following, last, base)
            yield self._explicit(at, end, depth)
        elif (is_list := self._list_marker(at, last, base)) is not None:
            yield self._list(at, last, base, depth, is_list, at_top=is_first and not depth)
        elif _LINE_BLOCK.match(line):
            while following < last and (self.indents[following] > base or self.lines[following].startswith("|")):
                following += 1
            yield Node("paragraph", at), following
        elif _DOCTEST.match(line):
            yield Node("code", at), self._blank_from(following, last)
        elif _GRID_TABLE.match(line):
            while following < last and self.lines[following].startswith(("+", "|")):
                following += 1
            yield Node("table", at), following
        elif _SIMPLE_TABLE.match(line):
            yield Node("table", at), self._simple_table_end(at, last)
        elif heading := self._heading(at, last, base, depth):
            yield heading
        elif _is_adornment(line) and len(line) >= _SHORTEST_SURE_ADORNMENT:
            yield Node("rule", at), following
        else:
            yield from self._text(at, last, base, depth)

    def _text(self, at: int, last: int, base: int, depth: int) -> Iterator[tuple[Node, int]]:
        end = at + 1
        while end < last and self.indents[end] == base:
            end += 1
        literal = self.lines[end - 1].endswith("::")
        if end == at + 1 and end < last and self.indents[end] > base and not literal:
            end = self._region_end(end, last, base)
            yield Node("item", at, children=_led_by(at, self._inside(at + 1, end, depth))), end
            return
        code = self._filled_from(end, last) if literal else last
        if code < last and self.indents[code] > base:
            if self.lines[at] != "::":
                yield Node("paragraph", at), end
                at = code
            yield Node("code", at), self._region_end(code, last, base)
        else:
            yield Node("paragraph", at), end

    def _heading(self, at: int, last: int, base: int, depth: int) -> tuple[Node, int] | None:
        if depth or base or at + 1 >= last or self.indents[at + 1] < 0:
            return None
        line, following = self.lines[at], self.lines[at + 1]
        if not _is_adornment(line):
            is_title = self.indents[at + 1] == 0 and _underlines(following, line)
            return (Node("heading", at, self._level(following[0]), _title(line)), at + 2) if is_title else None
        if at + 2 >= last or self.lines[at + 2] != line or self.indents[at + 2] or _is_adornment(following):
            return None
        if not _underlines(line, following):
            return None
        return Node("heading", at, self._level(line[0] * 2), _title(following)), at + 3

    def _level(self, style: str) -> int:
        if style not in self._styles:
            self._styles.append(style)
        return min(self._styles.index(style) + 1, _MAX_LEVEL)

    def _is_mark(self, at: int, base: int, last: int) -> bool:
        """Whether the line is a target without an address, or a directive of one line for what follows."""
        line = self.lines[at]
        if self.indents[at] != base or not line.startswith(".. ") or (at + 1 < last and self.indents[at + 1] > base):
            return False
        rest = line[3:].lstrip()[:_MARKER_CHARS]
        if rest.startswith("_"):
            return line.endswith(":")
        directive = _DIRECTIVE.match(rest)
        return bool(directive) and directive["name"] in _MARKS if directive else False

    def _explicit(self, at: int, end: int, depth: int) -> tuple[Node, int]:
        line = self.lines[at][:_MARKER_CHARS]
        rest = line[2:].lstrip()
        if line.startswith("__") or rest.startswith("_"):
            return Node("paragraph", at), end
        if not rest and self._filled_from(at + 1, end) > at + 1:
            return Node("skipped", at), at + 1  # an empty comment does not reach over a blank line
        directive = _DIRECTIVE.match(rest)
        if not directive and not _NOTE.match(rest):
            return Node("skipped", at), end
        name = directive["name"].lower() if directive else ""
        kind: BlockKind = "code" if name in _CODE_DIRECTIVES else "table" if name == "csv-table" else "paragraph"
        if kind != "paragraph" or name in _PLAIN_DIRECTIVES:
            return Node(kind, at), end
        body = at + 1
        while body < end and self.indents[body] >= 0 and _FIELD.match(self.lines[body][:_MARKER_CHARS]):
            body += 1
        children = self._inside(body, end, depth)
        return (Node("quote", at, children=_led_by(at, children)) if children else Node("paragraph", at)), end

    def _list_marker(self, at: int, last: int, base: int) -> re.Pattern[str] | None:
        """The pattern of a list whose item begins at the line."""
        line = self.lines[at][:_MARKER_CHARS]
        if self.indents[at] != base:
            return None
        for marker in (_BULLET, _FIELD):
            if marker.match(line):
                return marker
        if not _ENUMERATOR.match(line):
            return None
        if at + 1 < last and self.indents[at + 1] == base and not _ENUMERATOR.match(self.lines[at + 1][:_MARKER_CHARS]):
            return None  # a sentence, or the title of a numbered section
        return _ENUMERATOR

    def _list(
        self, at: int, last: int, base: int, depth: int, marker: re.Pattern[str], *, at_top: bool
    ) -> tuple[Node, int]:
        items: list[Node] = []
        names = set()
        position = at
        while position < last and self._list_marker(position, last, base) is marker:
            found = marker.match(self.lines[position][:_MARKER_CHARS])
            assert found
            names.add(found[0].strip(" :"))
            end = self._region_end(position + 1, last, base)
            # A continuation is often indented less than the text after the marker.
            inner = min(
                (indent for indent in self.indents[position + 1 : end] if indent >= 0), default=base + len(found[0])
            )
            self.lines[position] = self.lines[position][found.end() :]
            self.indents[position] = inner if self.lines[position] else -1
            children = self.body(position, end, inner, depth + 1) if depth < _MAX_DEPTH else []
            items.append(Node("item", position, children=children))
            position = end
        if at_top and marker is _FIELD and names <= _FILE_FIELDS:
            return Node("skipped", at), position
        return Node("list", at, children=items), position

    def _inside(self, first: int, end: int, depth: int) -> list[Node]:
        """The blocks of lines that are indented alike, at least."""
        inner = min((indent for indent in self.indents[first:end] if indent >= 0), default=-1)
        if inner < 0:
            return []
        return self.body(first, end, inner, depth + 1) if depth < _MAX_DEPTH else [Node("paragraph", first)]

    def _region_end(self, position: int, last: int, base: int) -> int:
        """The first line from `position` on that is neither blank nor indented more than `base`."""
        while position < last and (self.indents[position] < 0 or self.indents[position] > base):
            position += 1
        return position

    def _blank_from(self, position: int, last: int) -> int:
        while position < last and self.indents[position] >= 0:
            position += 1
        return position

    def _filled_from(self, position: int, last: int) -> int:
        while position < last and self.indents[position] < 0:
            position += 1
        return position

    def _simple_table_end(self, at: int, last: int) -> int:
        """The line after the third border, or after the second where a blank line follows; else the next blank line."""
        borders = 0
        for position in range(at + 1, last):
            if self.lines[position].startswith("=") and _SIMPLE_BORDER.match(self.lines[position]):
                borders += 1
                if borders == 2 or position + 1 == last or self.indents[position + 1] < 0:
                    return position + 1
        return self._blank_from(at + 1, last)


def _led_by(line: int, nodes: list[Node]) -> list[Node]:
    """The nodes with a line before them: in the first, when that is a paragraph."""
    if nodes and nodes[0].kind == "paragraph":
        nodes[0].line = line
        return nodes
    return [Node("paragraph", line), *nodes] if nodes else []


def _is_adornment(line: str) -> bool:
    return line[0] in _ADORNMENTS and not line.strip(line[0]) and line != "::"


def _underlines(line: str, title: str) -> bool:
    if not _is_adornment(line):
        return False
    return len(line) >= _SHORTEST_SURE_ADORNMENT or len(line) >= _columns(title)


def _columns(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def _title(line: str) -> str:
    return plain_title(line)[:TITLE_CHARS].rstrip()
