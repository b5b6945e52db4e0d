"""Tags of template languages and of components that stand in Markdown: shortcodes, Liquid and Jinja tags, MDX.

A tag is the machinery of a page and no text of it: contexts do without, and no chunk ends inside one.
"""

from __future__ import annotations

import re

# What a tag holds ends at the next brace or, in a component, angle bracket, and no real one is longer.
_TAG_CHARS = 600
_SHORTCODE = (
    rf"\{{\{{[<%](?:[^{{}}]|\{{(?!\{{)|\}}(?!\}})){{0,{_TAG_CHARS}}}?[%>]\}}\}}"
    rf"|\{{%(?:[^{{}}%]|%(?!\}})){{0,{_TAG_CHARS}}}%\}}"
    rf"|\{{\{{(?![<%])[^{{}}\r\n]{{0,{_TAG_CHARS}}}\}}\}}"
)
_COMPONENT = rf"</?[A-Za-z][\w.:-]{{0,60}}(?:\s[^<>]{{0,{_TAG_CHARS}}})?/?>"
_COMMENT = rf"<!--(?:[^<-]|<(?!!--)|-(?!->)){{0,{_TAG_CHARS}}}-->|\{{/\*[^{{}}]{{0,{_TAG_CHARS}}}\*/\}}"
TAG = re.compile(f"{_SHORTCODE}|{_COMPONENT}|{_COMMENT}")
"""A tag or a comment; in text without `{` and `<` there is none."""
TAG_OR_WORD = re.compile(rf"(?P<tag>{TAG.pattern})|(?:(?!{TAG.pattern})\S)+")

_TITLE_PARTS = re.compile(rf"(?P<code>(?<!`)(?P<ticks>`{{1,3}})(?!`)[^`]+(?P=ticks)(?!`))|(?P<tag>{_SHORTCODE})")
_SHORTCODES = re.compile(_SHORTCODE)
_DELIMITERS = re.compile(r"\{\{[<%]?-?(?:/\*)?\s*|\{%-?\s*|\s*(?:\*/)?-?[>%]?\}\}|\s*-?%\}")
# A quoted argument that is not the value of a named one and is made of words, not a path or an address.
_SPOKEN_ARGUMENT = re.compile(r"""(?<=\s)(?P<quote>["'])(?P<words>[^"'/=<>{}.]*[^\W\d_][^"'/=<>{}.]*)(?P=quote)""")


def without_shortcodes(title: str) -> str:
    """The source of a title without its shortcodes; one with a quoted argument in words reads as that argument.

    In code a shortcode is what the title is about: it stays, without its brackets.
    """
    return _TITLE_PARTS.sub(_spoken, title) if "{" in title else title


def _spoken(part: re.Match[str]) -> str:
    if part["code"]:
        return _SHORTCODES.sub(lambda tag: _DELIMITERS.sub("", tag[0]), part["code"])
    argument = _SPOKEN_ARGUMENT.search(part["tag"])
    return argument["words"] if argument else ""


_MEDIA = re.compile(r"<(?:img|video|audio|source|iframe|object|embed|svg|input|hr)\b", re.IGNORECASE)
_ATTRIBUTES = r"\{:[^{}\r\n]*\}|\([\w.-]+\)=(?=\s|\Z)"
_ONLY_TAGS = re.compile(rf"(?:\s|&nbsp;|{_SHORTCODE}|{_COMPONENT}|{_ATTRIBUTES})++")
_ONLY_CLOSING = re.compile(
    rf"(?:\s|\{{\{{[<%]-?\s*/[^{{}}]{{0,{_TAG_CHARS}}}\}}\}}|\{{%-?\s*end[^{{}}]{{0,{_TAG_CHARS}}}%\}}"
    r"|</[A-Za-z][\w.:-]*\s*>|<br\s*/?>)++"
)
_IMPORTS = re.compile(
    r"""(?:import\s+(?:[\w*${][^'";]{0,500}?\sfrom\s*)?["'][^"'\r\n]{1,200}["'][ \t]*;?\s*"""
    r"|(?://|\{/\*)[^\r\n]*\s*)++"
)
_EXPORT = re.compile(r"export\s+(?:default\b|\*|\{|(?:async\s+)?(?:const|let|var|function|class)\s+[\w${\[])")
_BEGINNINGS = frozenset("<{(&ie")
_MOST_CHARS = 4_000


def is_machinery(text: str, start: int, end: int) -> bool:
    """Whether the span is nothing but tags, anchors, attribute lists, or imports and exports of MDX."""
    if text[start] not in _BEGINNINGS or end - start > _MOST_CHARS:
        return False
    if text[start] == "i":
        return _IMPORTS.fullmatch(text, start, end) is not None
    if text[start] == "e":
        return _EXPORT.match(text, start, end) is not None
    return bool(_ONLY_TAGS.fullmatch(text, start, end)) and not _MEDIA.search(text, start, end)


def closes_only(text: str, start: int, end: int) -> bool:
    """Whether the span, which `is_machinery`, is nothing but closing tags."""
    return _ONLY_CLOSING.fullmatch(text, start, end) is not None
