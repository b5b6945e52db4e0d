"""Names of files and text of documents as data: what a terminal, Markdown or JSON must not take for more."""

from __future__ import annotations

import json
import re

_ACTIVE = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
"""Controls that move a cursor or change a terminal's state, what turns the order of letters around, line separators,
and lone surrogates, which no stream can encode. Joiners and marks of direction stay: emoji and scripts need them."""
_ACTIVE_CHARACTER = re.compile(f"[{_ACTIVE}]")
_NOT_ON_A_LINE = re.compile(f"[\t\n{_ACTIVE}]")
_LINE_END = re.compile("\r\n?")
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

_MARKUP = re.compile(r"[\\`*_\[\]<>|~&]")
_BLOCK_START = re.compile(r"[#+\-=]|\d+(?=[.)])")
_WORD = re.compile(r"([^\s|`]+)")
_ADDRESS = re.compile(r"://|www\.|@", re.IGNORECASE)
"""Renderers make links of bare addresses, whatever is escaped in them, but not of code."""


def one_line(text: str) -> str:
    """Text on one line: a newline in a file's name cannot forge a line of output, nor a control move the cursor."""
    return _NOT_ON_A_LINE.sub(lambda found: _NAMED.get(found[0], "�"), text)


def printable(text: str) -> str:
    """Text of several lines, without control characters but newlines and tabs."""
    return _ACTIVE_CHARACTER.sub("�", _LINE_END.sub("\n", text))


def markdown(text: str) -> str:
    """Text as one line of Markdown that shows it and nothing else: no link, picture, markup, HTML or table cell."""
    words = _WORD.split(one_line(text).strip())
    escaped = "".join(f"`{word}`" if _ADDRESS.search(word) else _MARKUP.sub(r"\\\g<0>", word) for word in words)
    start = _BLOCK_START.match(escaped)
    if start is None:
        return escaped
    return f"{start[0]}\\{escaped[start.end() :]}" if start[0].isdigit() else f"\\{escaped}"


def json_text(value: object) -> str:
    """JSON on one line, readable in any script and exact: what a terminal would act on is written as an escape."""
    return _ACTIVE_CHARACTER.sub(_json_escape, json.dumps(value, ensure_ascii=False))


def _json_escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
