"""Inline markup of reStructuredText, as plain text."""

from __future__ import annotations

import re

# Longer titles are cut anyway; each pattern takes time in proportion to the text.
_SOURCE_CHARS = 1_000

_ROLE = r":[a-zA-Z][\w.+-]*(?::[a-zA-Z][\w.+-]*)*:"
_MARKUP = re.compile(
    rf"""\\(?P<escaped>.)
    |``(?P<literal>[^\s`](?:[^`]|`(?!`))*?)``
    |(?P<role>{_ROLE})?`(?P<text>[^`\s](?:[^`\\]|\\.)*)`(?:{_ROLE}|__?)?
    |\*\*(?P<strong>[^\s*](?:[^*]*[^\s*])?)\*\*
    |\*(?P<emphasis>[^\s*](?:[^*]*[^\s*])?)\*
    |(?<!\w)\|(?P<substitution>[^\s|](?:[^|]*[^\s|])?)\|_{{0,2}}
    |\s*(?<!\w)\[(?:\d+|\#\w*|\*|[\w.-]+)\]_(?!\w)
    |(?<![\w_])(?P<reference>[^\W_]+(?:[-._+:][^\W_]+)*)__?(?!\w)
    """,
    re.VERBOSE,
)
_EMBEDDED = re.compile(r"(?P<text>.*\S)\s*<[^<>]*>")


def plain_title(source: str) -> str:
    """A title's text as a reader sees it: roles, references and emphasis by what they show, whitespace folded."""
    return " ".join(_MARKUP.sub(_shown, source[:_SOURCE_CHARS]).split())


def _shown(markup: re.Match[str]) -> str:
    if markup["text"] is not None:
        return _shown_by_role(markup["role"] or "", re.sub(r"\\(.)", r"\1", markup["text"]))
    for name in ("escaped", "literal", "strong", "emphasis", "substitution", "reference"):
        if markup[name] is not None:
            return "" if name == "escaped" and markup[name].isspace() else markup[name]
    return ""  # a reference to a footnote


def _shown_by_role(role: str, text: str) -> str:
    embedded = _EMBEDDED.fullmatch(text)
    if embedded:
        return embedded["text"]
    if role:
        return text.rpartition(".")[2] if text.startswith("~") else text.removeprefix("!")
    return text
