"""Definitions in source code of common languages, found by indentation and keywords, and blocks cut at them.

No grammar is known: a definition begins at a line that introduces one, with the comments and decorators above it, and
lasts while lines are indented more, up to the brace or `end` that closes it. A namespace may leave its content
unindented. Where code is formatted otherwise, fewer definitions are found; nothing of the text is ever lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ctx_pipeline.chunking.code_lines import (
    CONTINUATION,
    LABEL,
    Header,
    LineKind,
    closes,
    header_of,
    kind_of,
)
from ctx_pipeline.documents.blocks import TITLE_CHARS, Block, line_starts, trimmed
from ctx_pipeline.documents.model import Parsed

_MAX_DEPTH = 6
_TAB_COLUMNS = 4
_MOST_DECORATOR_LINES = 50

# A class's first line alone is as good as a heading: it stays with the first method.
_HEADER_CHARS = 200
_CLOSERS = re.compile(r"(?:[\s)\]};,]|\bend\b|//[^\r\n]*+)*+")

# Code is told from prose by the lines at its beginning; comments say nothing, for they are prose themselves.
_SAMPLE_CHARS = 20_000
_SAMPLE_LINE_CHARS = 200
_NEUTRAL_LINE = re.compile(r"//|/\*|\*|--|#(?!include|define|if|endif|pragma|!?\[)|;;")
_CODE_LINE = re.compile(
    r"""[^\r\n]*[;{}]\s*(?://.*|/\*.*)?\Z            # ends a statement, opens or closes a block
    |[)\]}]|\#|@\w+\S*\Z                             # closes one, or is a directive or decorator
    |(?:import|from|use|package|using|require|include)\s+["'<\w]\S*(?:\s+(?:import|as)\b.*)?\Z
    |(?:(?:async|static|public|private|export|local|pub|final|abstract)\s+)*
       (?:def|class|fn|func|fun|function|struct|enum|trait|interface|impl|module|namespace|sub)\s+\w[^.]*\Z
    |(?:if|elif|else|for|while|try|except|finally|with|switch|match|case|do|unless|until|rescue)\b.*[:{]\Z
    |(?:return|raise|throw|yield|assert|break|continue|pass|end)(?:\s+\S*[^.\s])?\Z
    |[\w.\[\]"'*&$>:-]+(?:\s*:\s*[\w.\[\], <>|]+)?\s*(?:[-+*/|&^%:]|<<|>>)?=\s*\S
    |[\w.$:>-]+\(.*[(),:]\Z                          # a call, or the beginning of one
    |\w[\w ]*(?::\s*\S+)?,\Z                         # a field or parameter
    |["'][^"']*["']\s*[:,]                           # an element of a list or mapping
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Definition:
    """A function, class, namespace or the like; definitions nest properly."""

    start: int
    """Character offset of the first comment or decorator above the header, else of the header."""
    header: int
    """Character offset of the line that introduces the definition, without its indentation."""
    end: int
    """Character offset after the last character."""
    name: str
    depth: int
    """Number of definitions around it."""


def is_code(parsed: Parsed) -> bool:
    """Whether a document is source code: by its file's suffix, else when most of its first lines look like code."""
    if parsed.media_type != "text/plain":
        return parsed.media_type == "text/x-source"
    lines = [line.strip() for line in parsed.text[:_SAMPLE_CHARS].splitlines()]
    telling = [line[:_SAMPLE_LINE_CHARS] for line in lines if line and not _NEUTRAL_LINE.match(line)]
    return 2 * sum(bool(_CODE_LINE.match(line)) for line in telling) > len(telling)


def find_definitions(text: str) -> list[Definition]:
    """All definitions, by their start."""
    reader = _Reader()
    starts = line_starts(text)
    for start, following in pairwise([*starts, len(text)]):
        line = text[start:following]
        content = line.strip()
        indentation = line[: len(line) - len(line.lstrip())]
        reader.read(content, len(indentation.expandtabs(_TAB_COLUMNS)), start + len(indentation))
    return reader.finish()


def code_blocks(text: str, definitions: Sequence[Definition]) -> list[Block]:
    """Blocks that begin where definitions begin and end; level = 1 + the definitions around what a block begins with.

    A short header or label stays with the definition after it, and closing brackets with what they follow.
    """
    starts = [(definition.start, 1, definition.depth + 1) for definition in definitions]
    ends = [(definition.end, 0, -definition.depth - 1) for definition in definitions]
    cuts = [(offset, abs(level)) for offset, _, level in sorted([(0, 0, 1), *starts, *ends])]
    blocks: list[Block] = []
    held: tuple[int, int] | None = None
    for (cut, cut_level), (next_cut, next_level) in pairwise([*cuts, (len(text), 0)]):
        start, end = trimmed(text, cut, next_cut)
        if start == end:
            continue
        if blocks and not held and _CLOSERS.fullmatch(text, start, end):
            blocks[-1] = Block("code", blocks[-1].start, end, level=blocks[-1].level)
            continue
        start, level = held or (start, cut_level)
        is_short = end - start <= _HEADER_CHARS
        if is_short and (next_level > cut_level or (next_level == cut_level and LABEL.fullmatch(text, start, end))):
            held = start, level
        else:
            held = None
            blocks.append(Block("code", start, end, level=level))
    return blocks


def enclosing_names(definitions: Sequence[Definition], offsets: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """For each of the increasing offsets, names of the definitions whose header is before it and whose end after."""
    enclosing: list[Definition] = []
    position = 0
    for offset in offsets:
        while position < len(definitions) and definitions[position].header < offset:
            enclosing = [outer for outer in enclosing if outer.end > definitions[position].start]
            enclosing.append(definitions[position])
            position += 1
        enclosing = [outer for outer in enclosing if outer.end > offset]
        yield tuple(outer.name for outer in enclosing if outer.name)


@dataclass(slots=True)
class _Open:
    indent: int
    start: int
    header: int
    kind: Header
    position: int
    braces: bool = False
    unfinished: bool = True
    """Its header goes on in the next line."""
    flat: bool = False
    """Its content is indented no more than itself."""


class _Reader:
    """Takes the lines of a file in order."""

    def __init__(self) -> None:
        self._found: list[Definition | None] = []
        self._open: list[_Open] = []
        self._code_end = 0
        self._seen_code = False
        self._lead: tuple[int, int] | None = None
        """Start and indentation of the comments and decorators that the next definition may own."""
        self._until = ""
        """What ends the comment or string that the line is in."""
        self._decorator_lines = self._decorator_depth = 0

    def read(self, content: str, indent: int, start: int) -> None:
        end = start + len(content)
        if not content:
            if not self._seen_code:
                self._lead = None
            return
        if self._until:
            if self._until in content:
                self._until = ""
            if not self._lead or self._is_inside(self._lead[1]):
                self._code_end = end
            return
        if self._decorator_depth > 0 and self._decorator_lines < _MOST_DECORATOR_LINES:
            self._decorate(content)
            return
        kind = kind_of(content)
        if kind is LineKind.COMMENT or kind is LineKind.DECORATOR:
            self._note_lead(content, indent, start, kind)
            return
        self._seen_code = True
        if kind is LineKind.DIRECTIVE:
            self._lead = None
            return
        self._code(content, indent, start)
        for quotes in ('"""', "'''"):
            if content.count(quotes) % 2:
                self._until = quotes
        self._lead = None
        self._code_end = end

    def finish(self) -> list[Definition]:
        while self._open:
            self._close()
        return [definition for definition in self._found if definition]

    def _note_lead(self, content: str, indent: int, start: int, kind: LineKind) -> None:
        if not self._lead or self._lead[1] != indent:
            self._lead = start, indent
        if content.startswith("/*") and "*/" not in content:
            self._until = "*/"
        if kind is LineKind.DECORATOR:
            self._decorator_lines = self._decorator_depth = 0
            self._decorate(content)
        if self._is_inside(indent):
            self._code_end = start + len(content)

    def _is_inside(self, indent: int) -> bool:
        return bool(self._open) and indent > self._open[-1].indent

    def _decorate(self, content: str) -> None:
        self._decorator_lines += 1
        self._decorator_depth += sum(map(content.count, "([{")) - sum(map(content.count, ")]}"))

    def _code(self, content: str, indent: int, start: int) -> None:
        while self._open and self._open[-1].indent > indent:
            self._close()
        if self._belongs_to_open(content, indent, start + len(content)):
            return
        if self._open and self._open[-1].unfinished:
            self._go_on(content, start + len(content))
            return
        inside = self._open[-1].kind if self._open else None
        header = header_of(content, inside) if len(self._open) < _MAX_DEPTH else None
        if header:
            lead = self._lead[0] if self._lead and self._lead[1] == indent else start
            self._open.append(_Open(indent, lead, start, header, len(self._found)))
            self._found.append(None)
            self._go_on(content, start + len(content))

    def _belongs_to_open(self, content: str, indent: int, end: int) -> bool:
        """Whether a line that is indented no more than the open definition is still a part of it; others close it."""
        closing = closes(content)
        while self._open and self._open[-1].indent == indent:
            top = self._open[-1]
            if closing and (top.braces or not content.startswith("}")):
                self._code_end = end
                self._close()
                return True
            if not top.braces and CONTINUATION.match(content):
                self._go_on(content, end)
                return True
            if top.braces and LABEL.fullmatch(content):
                return True
            if top.flat or (top.braces and top.kind.is_namespace):
                top.flat = True
                return False
            self._close()
        return False

    def _go_on(self, content: str, end: int) -> None:
        """A line of the header of the open definition, which ends it if nothing can follow."""
        top = self._open[-1]
        opened, closed = content.count("{"), content.count("}")
        top.braces |= opened > 0
        top.unfinished = content.endswith((",", "(", "<")) and not opened
        if (opened and opened <= closed) or (content.endswith(";") and not opened):
            self._code_end = end
            self._close()

    def _close(self) -> None:
        top = self._open.pop()
        if top.braces or not top.kind.needs_braces:
            name = top.kind.name[:TITLE_CHARS]
            end = max(self._code_end, top.header + 1)
            self._found[top.position] = Definition(top.start, top.header, end, name, len(self._open))
