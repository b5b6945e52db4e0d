"""What a line of source code is: comment, decorator, directive, the header of a definition, or anything else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

# No header has more, and a line may be a whole minified file.
_MOST_CHARS = 400

_DIRECTIVE = re.compile(
    r"#[ \t]*(?:include|define|undef|ifdef|ifndef|endif|pragma)\b|#(?:if|elif|else|import|error|region|endregion)\b"
)
_ATTRIBUTE = r"#!?\[[^\[\]]*\]|\[\[[^\[\]]*\]\]|@[\w.:]+(?:\([^()]*\))?(?=\s|\Z)"
_DECORATOR = re.compile(r"@[\w.:]+|#!?\[|\[\[\w|\[[A-Z]\w*[(\],]|template\s*<")
_ATTRIBUTES = re.compile(rf"(?:(?:{_ATTRIBUTE})\s*)+")
_COMMENT = re.compile(r"//|/\*|\*/|\*(?:\s|\Z)|--(?:\s|\[|\Z)|;;|#")

_MODIFIERS = r"""(?:(?:export|default|declare|public|private|protected|internal|static|final|abstract|async|unsafe|const
    |inline|override|virtual|open|sealed|data|partial|readonly|local|pub(?:\([^()]*\))?|extern(?:\s*"[^"]*")?|constexpr
    |typedef|case|companion|annotation|suspend|operator|actual|expect|fileprivate|mutating|strictfp)\s+)*"""
_NAMESPACE = re.compile(
    rf"""(?:inline\s+)?namespace\b\s*(?P<space>[\w.:]*)|extern\s*"[^"]*"\s*\{{\Z
    |{_MODIFIERS}(?:mod|module)\s+(?P<module>[\w.:]+)\s*(?:\{{|\Z)|package\s+(?P<package>[\w.:]+)\s*\{{""",
    re.VERBOSE,
)
_TYPE = re.compile(
    rf"""{_MODIFIERS}(?:enum\s+class|enum\s+struct|class|struct|interface|trait|enum|union|object|protocol|extension
    |record|contract|defmodule|@interface)\s+
    (?:[A-Z][A-Z0-9_]{{2,}}(?:\([^()]*\))?\s+(?!extends|implements|final|with)(?=\w))?  # a macro for exported symbols
    (?P<name>[\w.:$]++)(?!\s*[*&]|\s*\w+\s*[\[=;(])  # no function or variable of that type
    """,
    re.VERBOSE,
)
_GO_TYPE = re.compile(r"type\s+(?P<name>\w+)(?:\[[^\[\]]*\])?\s+(?:struct|interface)\b")
_IMPL = re.compile(r"(?:unsafe\s+)?impl\b(?P<name>[^{]*)")
_FUNCTION = re.compile(
    rf"""{_MODIFIERS}(?:def|defp|fn|func|fun|function\*?|sub|proc|macro_rules!)\s+
    (?:\([^()]*\)\s*|<[^<>]*>\s*)?(?P<name>[\w.:$?!]+)""",
    re.VERBOSE,
)
_ARROW = re.compile(
    rf"""{_MODIFIERS}(?:(?:let|var)\s+)?(?P<name>[\w.$]+)\s*[=:]\s*(?:async\s+)?
    (?:function\b|\([^()]*\)\s*(?::[^=]*)?=>\s*\{{|\w+\s*=>\s*\{{)""",
    re.VERBOSE,
)
_C_FUNCTION = re.compile(r"(?:[\w:<>,*&\[\]$.?\s]*[\s*&])?(?P<name>[~\w:$]+|operator\s*[^\s\w(]+)\s*\(")
_STATEMENT = re.compile(
    r"(?:if|else|for|foreach|while|do|switch|match|case|try|catch|return|throw|new|delete|await|yield|assert|using|with"
    r"|elif|except|raise|print|loop|unless|until|when|sizeof|synchronized|static_assert|goto|import|include|function"
    r"|func|fn|let|var|and|or|not|in)\b"
)
_GENERICS = re.compile(r"<[^<>]*>")
_BOUNDS = re.compile(r"\bwhere\b.*")
_CLOSING = re.compile(r"\}|end\b(?!\s*=)")

CONTINUATION = re.compile(r"[{)\]:]|->|=>|(?:where|throws|extends|implements|requires|noexcept|override)\b")
"""How a line begins that goes on with a header above it, at the same indentation."""
LABEL = re.compile(r"(?:public|private|protected|signals|default|case\b[^{};]*|\w+)(?:\s+\w+)?\s*:")
"""A line that may be indented less than what is around it: access specifiers, labels."""


class LineKind(Enum):
    """What a line that is not blank is, looked at alone."""

    COMMENT = auto()
    DECORATOR = auto()
    DIRECTIVE = auto()
    CODE = auto()


@dataclass(frozen=True, slots=True)
class Header:
    """What a line introduces."""

    name: str
    holds_definitions: bool = False
    """A class or namespace; not a function."""
    is_namespace: bool = False
    needs_braces: bool = False
    """Without braces it turns out to be a call or a declaration."""


def kind_of(line: str) -> LineKind:
    """The kind of a line without whitespace at its ends."""
    if _DIRECTIVE.match(line):
        return LineKind.DIRECTIVE
    if _DECORATOR.match(line) and not _TYPE.match(line):
        return LineKind.CODE if header_of(line, None) else LineKind.DECORATOR
    return LineKind.COMMENT if _COMMENT.match(line) else LineKind.CODE


def closes(line: str) -> bool:
    """Whether the line ends a definition that is indented as much."""
    return bool(_CLOSING.match(line))


def header_of(line: str, inside: Header | None) -> Header | None:
    """What a line of code introduces, directly inside a definition or (None) outside of all."""
    line = _without_attributes(line[:_MOST_CHARS])
    if line.endswith(";") and "{" not in line:
        return None
    if found := _NAMESPACE.match(line):
        return Header(found["space"] or found["module"] or found["package"] or "", True, True)
    if found := _TYPE.match(line) or _GO_TYPE.match(line):
        return Header(found["name"].rstrip(":"), True)
    if found := _IMPL.match(line):
        return Header(_impl_name(found["name"]), True)
    if found := _FUNCTION.match(line) or _ARROW.match(line):
        return Header(found["name"].rstrip(":"))
    if (inside is None or inside.holds_definitions) and not _STATEMENT.match(line):
        found = _C_FUNCTION.match(line)
        if found and not _STATEMENT.fullmatch(found["name"]):
            return Header(found["name"], needs_braces=True)
    return None


def _without_attributes(line: str) -> str:
    attributes = _ATTRIBUTES.match(line)
    if attributes:
        line = line[attributes.end() :]
    if line.startswith("template"):
        depth = 0
        for position, character in enumerate(line):
            depth += (character == "<") - (character == ">")
            if character == ">" and not depth:
                return line[position + 1 :].lstrip()
        return ""
    return line


def _impl_name(source: str) -> str:
    """`<T> Trait<T> for Type<T> where ...` without type parameters and bounds."""
    source = _BOUNDS.sub("", source)
    while (shorter := _GENERICS.sub("", source)) != source:
        source = shorter
    return " ".join(source.split())
