"""Front matter: what a document states about itself at its very top, in YAML, TOML or JSON.

A block is told from text by its lines alone, so that finding where it ends costs next to nothing. What its format
refuses is read again entry by entry: a value that is one line of text needs no quotes here, and what cannot be read is
named in a warning. No other entry is lost with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from textwrap import dedent
from typing import Any, Literal

from ctx_pipeline.documents.blocks import NEWLINE
from ctx_pipeline.documents.yaml_mapping import Allowance, UnreadableError, read_mapping

MOST_CHARS = 1_000_000
"""A block that is not closed within so many characters is text."""
NAMED = 5
"""Entries that a warning names."""

Format = Literal["YAML", "TOML", "JSON"]

_START = r"\ufeff?(?:[ \t]*[\r\n])*+"
_FENCES: tuple[tuple[Format, re.Pattern[str], re.Pattern[str]], ...] = (
    ("YAML", re.compile(rf"{_START}---[ \t]*(?=[\r\n])"), re.compile(r"[\r\n](?:---|\.\.\.)[ \t]*(?=[\r\n]|\Z)")),
    ("TOML", re.compile(rf"{_START}\+\+\+[ \t]*(?=[\r\n])"), re.compile(r"[\r\n]\+\+\+[ \t]*(?=[\r\n]|\Z)")),
    ("JSON", re.compile(rf"{_START};;;[ \t]*(?=[\r\n])"), re.compile(r"[\r\n];;;[ \t]*(?=[\r\n]|\Z)")),
)
_OBJECT = re.compile(rf"""{_START}(?=\{{\s*(?:"[^"\r\n]*"\s*:|\}}))""")
_OBJECT_LINES = re.compile(r"\{[ \t]*[\r\n]")
_OBJECT_CLOSING = re.compile(r"[\r\n]\}[ \t]*(?=[\r\n]|\Z)")
_LINE_REST = re.compile(r"[ \t]*(?=[\r\n]|\Z)")

# An entry begins in the first column. `title:Upgrade` lacks a space, `http://` is no key.
_ENTRY: Mapping[Format, re.Pattern[str]] = {
    "YAML": re.compile(
        r"""(?P<key>"[^"]*"[ \t]*|'[^']*'[ \t]*|[\w$@.<][^:]*+):(?:[ \t]+|$)(?P<value>.*)"""
        r"""|(?P<loose>[^\W\d][\w.-]*+):(?!//)(?P<rest>.+)"""
    ),
    "TOML": re.compile(r"""(?P<key>"[^"]*"|'[^']*'|[\w.-]+)[ \t]*=[ \t]*(?P<value>.*)|\[.*\][ \t]*(?:#.*)?"""),
}
# What else stands in the first column of a well-formed block: remarks, items and ends of what an entry began.
_PART_OF_ENTRY: Mapping[Format, re.Pattern[str]] = {
    "YAML": re.compile(r"\s|#|-(?:\s|$)|[\]}]|[?:](?:\s|$)"),
    "TOML": re.compile(r"""\s|#|[\]}]|"{3}|'{3}"""),
}
_REMARK = re.compile(r"\s*(?:#|$)")
_NUMBER = re.compile(r"[^\r\n,#}\]]+")
_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)*")


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """The block at the top of a document, and what it says."""

    end: int
    """Character offset after its last line, without the newline."""
    values: dict[str, Any]
    """As the format's reader gives them; a `title` is the text that stands there."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Found:
    format: Format
    content: str
    first_line: int
    """1-based line of the document on which the content begins."""
    end: int


def front_matter_end(text: str) -> int:
    """The character offset after the front matter at the top of a document; 0 when there is none."""
    found = _find(text)
    return found.end if found else 0


def read_front_matter(text: str) -> FrontMatter | None:
    """The front matter of a document; None when it has none. Nothing that is written in it raises an error."""
    found = _find(text)
    if not found:
        return None
    allowance = Allowance()
    warnings: tuple[str, ...] = ()
    try:
        values = _READERS[found.format](found.content, allowance)
    except UnreadableError as error:
        entries = _Entries(_as_lines(found), allowance)
        values, left_out = entries.values, entries.left_out
        more = [f"and {len(left_out) - NAMED} more"] if len(left_out) > NAMED else []
        named = ", ".join([*left_out[:NAMED], *more])
        rest = f"left out: {named}" if named else "its lines were read one by one"
        reason = " ".join(str(error).split())[:200]
        place = f"line {found.first_line + error.line}: {reason}"
        warnings = (f"front matter is not valid {found.format} ({place}); {rest}",)
    return FrontMatter(found.end, {str(key): value for key, value in values.items()}, warnings)


def _find(text: str) -> _Found | None:
    for format_, opening_line, closing_line in _FENCES:
        if opening := opening_line.match(text):
            closing = closing_line.search(text, opening.end(), MOST_CHARS)
            content = text[opening.end() : closing.start()] if closing else ""
            if closing and _is_front_matter(content, format_):
                return _Found(format_, content, _line(text, opening.end()), closing.end())
            return None
    return _find_object(text)


def _find_object(text: str) -> _Found | None:
    """A JSON object that begins the document, and ends a line."""
    opening = _OBJECT.match(text)
    if not opening:
        return None
    start = opening.end()
    try:
        _, end = json.JSONDecoder().raw_decode(text[:MOST_CHARS], start)
        rest = _LINE_REST.match(text, end)
    except (ValueError, RecursionError):
        rest = _OBJECT_CLOSING.search(text, start, MOST_CHARS) if _OBJECT_LINES.match(text, start) else None
    return _Found("JSON", text[start : rest.end()], _line(text, start), rest.end()) if rest else None


def _is_front_matter(content: str, format_: Format) -> bool:
    """Whether lines between two fences are entries rather than prose between two thematic breaks."""
    if not content.strip() or format_ == "JSON":
        return True
    entry, part = _ENTRY[format_], _PART_OF_ENTRY[format_]
    entries = strays = 0
    for line in NEWLINE.split(content):
        if not line or part.match(line):
            if not entries and not _REMARK.match(line):
                return False
        elif entry.fullmatch(line):
            entries += 1
        elif not entries:
            return False
        else:
            strays += 1
    return entries > strays


def _line(text: str, offset: int) -> int:
    return 1 + len(NEWLINE.findall(text, 0, offset))


# Readers of whole blocks ------------------------------------------------------------------------------------------


def _read_yaml(content: str, allowance: Allowance) -> dict[Any, Any]:
    return read_mapping(content, allowance) if content.strip() else {}


def _read_toml(content: str, allowance: Allowance) -> dict[Any, Any]:
    import tomllib

    _spend(content, allowance)
    source = NEWLINE.sub("\n", content)
    try:
        values = tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r" \(at line (\d+), .*", str(error))
        reason = str(error)[: place.start()] if place else str(error)
        raise UnreadableError(reason, int(place[1]) - 1 if place else 0) from None
    except (ValueError, RecursionError) as error:
        raise UnreadableError(str(error)) from None
    return _as_written(values, source, lambda number: tomllib.loads(f"title = {number}")["title"])


def _read_json(content: str, allowance: Allowance) -> dict[Any, Any]:
    _spend(content, allowance)
    source = content.strip()
    try:
        values = json.loads(source if source.startswith("{") else f"{{{source}}}")
    except json.JSONDecodeError as error:
        raise UnreadableError(error.msg, error.lineno - 1) from None
    except (ValueError, RecursionError) as error:
        raise UnreadableError(str(error)) from None
    return _as_written(values, source, json.loads)


_READERS: Mapping[Format, Callable[[str, Allowance], dict[Any, Any]]] = {
    "YAML": _read_yaml,
    "TOML": _read_toml,
    "JSON": _read_json,
}


def _spend(content: str, allowance: Allowance) -> None:
    if len(content) > allowance.chars:
        raise UnreadableError("more characters than are read")
    allowance.chars -= len(content)


def _as_written(values: dict[str, Any], source: str, read: Callable[[str], Any]) -> dict[str, Any]:
    """The values with a title that is a number, date or truth value as the text that stands for it."""
    for name, value in values.items():
        if name.casefold() == "title" and value is not None and not isinstance(value, str | list | dict):
            values[name] = str(value)
            for match in re.finditer(rf"""(?:^|[,{{])[ \t]*"?{name}"?[ \t]*[:=][ \t]*""", source, re.MULTILINE):
                written = _NUMBER.match(source, match.end())
                try:
                    if written and read(written[0]) == value:
                        values[name] = written[0].strip()
                except ValueError:
                    continue
    return values


# Entry by entry ---------------------------------------------------------------------------------------------------


def _as_lines(found: _Found) -> _Found:
    """The block in a format whose entries begin in the first column: members of a JSON object are YAML."""
    if found.format != "JSON":
        return found
    content = found.content.rstrip()
    content = content[1:] if content.startswith("{") else content
    return replace(found, format="YAML", content=dedent(content.removesuffix("}")))


@dataclass
class _Entries:
    """The entries of a block that its format refuses, each read by itself."""

    found: _Found
    allowance: Allowance
    values: dict[Any, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for line, source in self._sources():
            match = _ENTRY[self.found.format].fullmatch(NEWLINE.split(source)[0])
            if not match:
                self.left_out.append(f"line {line}")
                continue
            try:
                self.values.update(self._read(source))
            except UnreadableError:
                self._take_text(line, source, match)

    def _read(self, source: str) -> dict[Any, Any]:
        """The entry by its format; tabs are no indentation in YAML, but are meant so."""
        if self.found.format == "TOML":
            return _read_toml(source, self.allowance)
        return read_mapping(source.expandtabs(4).rstrip().removesuffix(","), self.allowance)

    def _take_text(self, line: int, source: str, match: re.Match[str]) -> None:
        groups = {name: value for name, value in match.groupdict().items() if value is not None}
        key = (groups.get("key") or groups.get("loose") or "").strip("\"'")
        first, *others = (part for part in NEWLINE.split(source) if not _REMARK.match(part))
        lines = [groups.get("value") or groups.get("rest") or "", *others]
        is_text = key and lines[0].strip() and len(source) <= self.allowance.chars
        value = " ".join(part.strip() for part in lines)
        if is_text and _is_text(value) and not any(re.match(r"\s*-\s", part) for part in others):
            self.allowance.chars -= len(source)
            self.values[key] = _unquoted(value)
        else:
            self.left_out.append(f"`{key or first.strip()}` (line {line})")

    def _sources(self) -> Iterator[tuple[int, str]]:
        """Each entry with the lines that belong to it, and the line of the document on which it begins."""
        form = self.found.format
        lines = NEWLINE.split(self.found.content)
        first: int | None = None
        for number, line in enumerate([*lines, None]):
            if line is None or not (line == "" or _PART_OF_ENTRY[form].match(line)) or _ENTRY[form].fullmatch(line):
                if first is not None:
                    yield self.found.first_line + first, "\n".join(lines[first:number])
                first = number


def _is_text(value: str) -> bool:
    """Whether a value is words, such as `[draft] Limits`, rather than a list or table that nobody can read."""
    value = value[_PROPERTIES.match(value).end() :]  # type: ignore[union-attr]  # it matches nothing, too
    if not value.startswith(("[", "{")) or value.startswith(("{{", "{%")):
        return True
    return not value.endswith(("]", "}", ",")) and all(value.count(a) == value.count(b) for a, b in ("[]", "{}"))


def _unquoted(value: str) -> str:
    """Without quotes around all of it; those in a word (`'It's here'`) are apostrophes."""
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        inner = value[1:-1]
        if value[0] not in re.sub(r"(?<=\w)'(?=\w)", "", inner):
            return inner
    return value
