"""Blocks that CommonMark does not know, found before it is parsed: template code, comments, admonitions, HTML tables.

One pass over the text finds what opens such a block and what closes it. What is never closed is ordinary text, and is
looked for once, so that no number of opening tags takes more than one pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ctx_pipeline.documents.blocks import BlockKind
from ctx_pipeline.documents.html_tables import header_cells, line_end, table_ends


@dataclass(frozen=True, slots=True)
class Region:
    """A block by its own rules, from the first character of its first line on."""

    kind: BlockKind
    end: int
    """Offset after its last line; 0 when it lasts while lines are indented more."""
    head: tuple[str, ...] = ()


# Without one of these there is no such block. Searching for them is what an ordinary document pays: a pattern is faster
# than several strings with the same first character, and slower than strings with different ones.
_SIGNS = (":::", "!!!", "???", '=== "', "```{", "~~~{")
_SIGN_PATTERNS = (re.compile(r"\{[%{/#]"), re.compile(r"<(?:!--|[tT][aA])"))

_CODE = "highlight|codeblock|code|prism|sourcecode|mermaid|plantuml|raw|verbatim"
"""Paired tags whose content is no Markdown."""
_ALWAYS_CODE = frozenset(["highlight", "codeblock", "prism", "sourcecode", "mermaid", "plantuml"])
"""The others may wrap a fence, or a whole page, which is Markdown then."""
_CODE_DIRECTIVES = frozenset(
    [
        *("code", "code-block", "code-cell", "sourcecode", "math", "mermaid", "literalinclude", "eval-rst"),
        *("parsed-literal", "toctree"),
    ]
)
_ADMONITIONS = re.compile(
    r"[`~]*\s*\{(?:admonition|attention|caution|danger|dropdown|error|hint|important|note|seealso|tip|todo|warning|card"
    r"|grid|grid-item|grid-item-card|tab-item|tab-set|margin|sidebar|topic|versionadded|versionchanged|deprecated)\}"
)
COMMENTS = {"<!--": "-->", "{/*": "*/}", "{#": "#}", "{{/*": "*/}}"}

_OPENING = re.compile(
    rf"""^[ \t>*+\-\d.)]*?(?:
      (?P<fence>`{{3,}}(?=[^`\n]*$)|~{{3,}})
    | (?P<colons>:{{3,}})
    | (?P<indented>(?:!!!|\?\?\?\+?)[ ]+[\w"]|===[!+]?[ ]+")
    | (?P<table>(?:<[a-z][^<>\n]*>[ \t]*)*<table(?=[\s>]))
    | (?P<comment><!--|\{{/\*|\{{\{{/\*|\{{\#(?=\s))
    | (?P<tag>\{{%-?\s*(?P<liquid>{_CODE}|comment)\b[^%\n]*%\}}
        |\{{\{{[<%]-?\s*(?P<hugo>{_CODE}|comment)\b[^{{}}\n]*(?<!/)[>%]\}}\}})
    )""",
    re.MULTILINE | re.VERBOSE | re.IGNORECASE,
)
_BLANK_LINE_OR_FENCE = re.compile(r"^[ \t>]*(?:$|`{3}|~{3})", re.MULTILINE)
_DIRECTIVE = re.compile(r":*\s*\{([\w:-]+)\}")
_NAMED = re.compile(r":*[ \t]*[\w{\[.]")
_REST_OF_LINE = re.compile(r"[^\n]*")


def find_regions(text: str) -> dict[int, Region]:
    r"""The blocks by the offset of their first character; in `text` every newline is \n."""
    if not (any(sign in text for sign in _SIGNS) or any(sign.search(text) for sign in _SIGN_PATTERNS)):
        return {}
    return _Scan(text).regions()


class _Scan:
    def __init__(self, text: str) -> None:
        self._text = text
        self._regions: dict[int, Region] = {}
        self._tables = table_ends(text)
        self._containers = _Containers()
        self._missing: set[str] = set()
        """What closes something and occurs no more."""
        self._next: dict[str, tuple[int, int]] = {}
        """The last match that was found of a pattern."""

    def regions(self) -> dict[int, Region]:
        position = 0
        while opening := _OPENING.search(self._text, position):
            position = self._take(opening)
        return self._regions

    def _take(self, opening: re.Match[str]) -> int:
        """Note what an opening begins; where to look on."""
        if opening["fence"]:
            return self._fence(opening)
        if opening["colons"]:
            return self._colons(opening)
        if opening["indented"]:
            self._regions[opening.start("indented")] = Region("admonition", 0)
        elif opening["table"]:
            return self._table(opening)
        elif opening["comment"]:
            return self._comment(opening)
        elif opening["tag"]:
            return self._tag(opening)
        return opening.end()

    def _fence(self, opening: re.Match[str]) -> int:
        marks = opening["fence"]
        rest = self._line(opening.end())
        if not rest[0].strip() and self._close(marks, rest.end()):
            return rest.end()
        if _ADMONITIONS.match(rest[0]):
            self._containers.open(marks, opening.start("fence"))
            return rest.end()
        # One that is never closed is code to the end.
        return self._after(rf"^[ \t>]*{re.escape(marks[0])}{{{len(marks)},}}[ \t]*$", rest.end()) or len(self._text)

    def _colons(self, opening: re.Match[str]) -> int:
        marks = opening["colons"]
        start, rest = opening.start("colons"), self._line(opening.end())
        if not rest[0].strip():
            self._close(marks, rest.end())
            return rest.end()
        directive = _DIRECTIVE.match(rest[0])
        if directive and directive[1] in _CODE_DIRECTIVES:
            end = self._after(rf"^[ \t>]*:{{{len(marks)},}}[ \t]*$", rest.end())
            if end:
                self._regions[start] = Region("fence", end)
                return end
        elif _NAMED.match(rest[0]):
            self._containers.open(marks, start)
        return rest.end()

    def _close(self, marks: str, end: int) -> bool:
        start = self._containers.close(marks)
        if start is None:
            return False
        self._regions[start] = Region("admonition", end)
        return True

    def _table(self, opening: re.Match[str]) -> int:
        start = opening.end() - len("<table")
        end = self._tables.get(start)
        if end is None:
            return opening.end()
        line = line_end(self._text, self._tables, end)
        self._regions[opening.start("table")] = Region("table", line, header_cells(self._text, start, end))
        return line

    def _comment(self, opening: re.Match[str]) -> int:
        mark = opening["comment"]
        closing = COMMENTS[mark]
        # `<!-->` is a whole comment.
        found = -1 if closing in self._missing else self._text.find(closing, opening.end() - (mark == "<!--") * 2)
        if found < 0:
            self._missing.add(closing)
            return opening.end()
        end = found + len(closing)
        if not self._line(end)[0].strip():
            self._regions[opening.start("comment")] = Region("skipped", end)
        return end

    def _tag(self, opening: re.Match[str]) -> int:
        name = (opening["liquid"] or opening["hugo"]).lower()
        closing = rf"\{{%-?\s*end{name}\s*-?%\}}" if opening["liquid"] else rf"\{{\{{[<%]-?\s*/\s*{name}\s*-?[>%]\}}\}}"
        end = self._after(closing, opening.end())
        if not end or self._line(end)[0].strip():
            return end or opening.end()
        is_code = name in _ALWAYS_CODE or not _BLANK_LINE_OR_FENCE.search(
            self._text, self._line(opening.end()).end() + 1, end
        )
        if name != "comment" and not is_code:
            return opening.end()
        self._regions[opening.start("tag")] = Region("skipped" if name == "comment" else "fence", end)
        return end

    def _line(self, position: int) -> re.Match[str]:
        line = _REST_OF_LINE.match(self._text, position)
        assert line is not None
        return line

    def _after(self, pattern: str, position: int) -> int:
        """The offset after the next match, 0 when there is none."""
        if pattern in self._missing:
            return 0
        start, end = self._next.get(pattern, (-1, 0))
        if start < position:
            found = re.compile(pattern, re.MULTILINE | re.IGNORECASE).search(self._text, position)
            if not found:
                self._missing.add(pattern)
                return 0
            start, end = self._next[pattern] = found.span()
        return end


class _Containers:
    """Admonitions that are open. A closing line closes the innermost one with as many marks, else one with fewer."""

    def __init__(self) -> None:
        self._open: list[tuple[str, int]] = []
        self._positions: dict[str, list[int]] = {}

    def open(self, marks: str, start: int) -> None:
        self._positions.setdefault(marks, []).append(len(self._open))
        self._open.append((marks, start))

    def close(self, marks: str) -> int | None:
        """Where the container begins that these marks close; those inside it were never closed."""
        positions = self._positions.get(marks, [])
        while positions and not (positions[-1] < len(self._open) and self._open[positions[-1]][0] == marks):
            positions.pop()
        if positions:
            position = positions.pop()
        elif self._open and marks.startswith(self._open[-1][0]):
            position = len(self._open) - 1
        else:
            return None
        start = self._open[position][1]
        del self._open[position:]
        return start
