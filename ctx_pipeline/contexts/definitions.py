"""What source code defines, and the definitions that enclose a place: by lines and indentation, in any language.

No grammar is used: a definition is a line that begins like one in common languages, and it encloses the deeper
indented lines below it. Prose has such lines rarely, because the name must be followed by what follows names in code.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from ctx_pipeline.documents.blocks import line_starts

LINE_CHARACTERS = 240
"""Of each line, so that a file on one line takes no longer than one of many."""
TAB_COLUMNS = 4

# Words are told apart by white space alone, and brackets are never matched inside a pattern: with generics removed
# first, no line can make a pattern try many ways to divide it.
_GENERICS, _NESTED = re.compile(r"<[^<>]*>"), 4
_MODIFIERS = r"(?:[@\w\[\](:)]+\s+){0,6}?"
_NAME = r"(?P<name>~?[^\W\d]\w*(?:(?:::|\.)~?\w+)*[?!]?)"
_TYPE = re.compile(
    rf"{_MODIFIERS}(?:class|struct|enum|union|trait|interface|protocol|extension|impl|namespace|module|mod|object|record"
    rf"|type|actor|contract|package)\s+(?:[\w:]+\s+for\s+)?{_NAME}\s*(?=$|[\[\](){{}}:<=;,|&]"
    r"|(?:extends|implements|for|where|with|final|struct|interface|func)\b)"
)
_FUNCTION = re.compile(
    rf"{_MODIFIERS}(?:fn|fun|func|function|def|defp|sub|macro_rules!)(?:\s*\*)?\s+(?:\([^()]*\)\s*)?{_NAME}\s*"
    r"(?=$|[\[\](){}:<=;])"
)
_TYPED_FUNCTION = re.compile(rf"(?:[@\w:.?\[\]*&,]+(?<![^:]:)\s+){{1,8}}[*&]*{_NAME}\(")
_DECLARATION_ENDS = re.compile(r".*(?:[{(,]|\)[\w ]*;?)$")
_BARE_METHOD = re.compile(rf"(?:(?:async|static|get|set)\s+){{0,3}}#?{_NAME}\([^;{{]*\{{$")
_VALUE = re.compile(rf"{_MODIFIERS}(?:const|static|let|var|val|final)\s+(?:mut\s+)?(?:[^\s=]+(?<!:)\s+)?{_NAME}\s*[:=]")
_SQL = re.compile(
    r"create\s+(?:or\s+replace\s+)?(?:\w+\s+)?(?:table|view|function|procedure|trigger|type|schema)\s+"
    r"(?:if\s+not\s+exists\s+)?[\"`\[]?(?P<name>[\w.]+)",
    re.IGNORECASE,
)
_STATEMENTS = """
and assert await case catch delete do elif else finally for foreach from goto if import in is match new not or print
raise return self sizeof super switch this throw try unless until using when while with yield
"""
_NOT_NAMES = frozenset(_STATEMENTS.split())
_STATEMENT = re.compile(rf"(?:{'|'.join(_STATEMENTS.split())})\b")
_COMMENT = re.compile(r"//|/\*|\*|#|--|<!--|;;|%%")
_CONTINUES = re.compile(r"[{)\]>]|where\b|(?:public|private|protected|signals|internal)\b[\w ]*:$")


@dataclass(frozen=True, slots=True)
class Definition:
    """A line that begins a type, a function or a value."""

    name: str
    start: int
    """Offset of the line in the text."""
    kind: str
    parent: int
    """Position of the enclosing definition in the list; -1 at the top."""


class Definitions:
    """The definitions of one text, in order. Takes time in proportion to its length."""

    def __init__(self, text: str) -> None:
        self._line_starts = line_starts(text)
        self.all: list[Definition] = []
        self._scopes = self._read(text)

    def enclosing(self, offset: int) -> list[Definition]:
        """The definitions around the first line of code from `offset`'s on, outermost first."""
        scope = self._scopes[bisect_right(self._line_starts, offset) - 1] if self._scopes else -1
        path = []
        while scope >= 0:
            path.append(self.all[scope])
            scope = self.all[scope].parent
        return path[::-1]

    def between(self, start: int, end: int) -> list[Definition]:
        """The definitions that begin from `start` on and before `end`."""
        first, last = (
            bisect_left(self.all, offset, key=lambda definition: definition.start) for offset in (start, end)
        )
        return self.all[first:last]

    def _read(self, text: str) -> list[int]:
        """For each line the innermost definition around it, comments belonging to the code below them; -1 for none."""
        scopes: list[int | None] = []
        open_scopes: list[tuple[int, int]] = []  # indentation, position
        for start, end in zip(self._line_starts, [*self._line_starts[1:], len(text)], strict=True):
            raw = text[start : min(end, start + LINE_CHARACTERS)]
            line = raw.strip()
            if not line or _COMMENT.match(line):
                scopes.append(None)
                continue
            indentation = len(raw[: len(raw) - len(raw.lstrip())].expandtabs(TAB_COLUMNS))
            closes = line[0] == "}"
            if closes or not _CONTINUES.match(line):
                while open_scopes and open_scopes[-1][0] >= indentation:
                    open_scopes.pop()
            parent = open_scopes[-1][1] if open_scopes else -1
            scopes.append(None if closes else parent)
            found = _definition(line, in_function=parent >= 0 and self.all[parent].kind == "function")
            if found:
                name, kind = found
                self.all.append(Definition(name, start, kind, parent))
                if not line.endswith(";"):
                    open_scopes.append((indentation, len(self.all) - 1))
        filled, below = [], -1
        for scope in reversed(scopes):
            below = below if scope is None else scope
            filled.append(below)
        return filled[::-1]


def _definition(line: str, *, in_function: bool) -> tuple[str, str] | None:
    """Name and kind of what a line begins to define; in a function, neither calls nor local values count."""
    for _ in range(_NESTED):
        line = _GENERICS.sub("", line)
    for kind, pattern in (("type", _TYPE), ("function", _FUNCTION), ("type", _SQL)):
        match = pattern.match(line)
        if match:
            return match["name"], kind
    if in_function:
        return None
    match = _TYPED_FUNCTION.match(line) if _DECLARATION_ENDS.match(line) else None
    match = match or _BARE_METHOD.match(line)
    if match and _STATEMENT.match(line) is None and match["name"] not in _NOT_NAMES:
        return match["name"], "function"
    match = _VALUE.match(line)
    return (match["name"], "value") if match else None
