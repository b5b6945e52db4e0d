"""A document, and its identity as a Dagster partition key."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import unquote


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a parser makes of a document's bytes."""

    text: str
    """The decoded file without a byte order mark, newlines untranslated; all offsets count its characters."""
    media_type: str
    title: str
    language: str
    """ISO 639-1 code, or `und` where the text is too short to tell."""
    metadata: dict[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    """What a person should know of how the document was read, one sentence each."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document as it was read: its place, its bytes' identity and its parsed form."""

    doc_id: str
    uri: str
    size: int
    mtime_ns: int
    read_at_ns: int
    """When the bytes were read; a file whose mtime is younger than about this moment is hashed again."""
    content_hash: str
    parsed: Parsed


# What Dagster refuses (`...`, control characters) or its range syntax and command line would misread (`[a...b]`,
# commas, spaces, edge dots), what turns the order of letters around in the UI, and `%` itself. `/` and letters of any
# script stay readable.
_ESCAPED = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069%,\\\"'\[\]{}*?]|\.(?=\.\.)|^\.|\.$")


def partition_key(doc_id: str) -> str:
    """The document's key in the dynamic partitions: the doc_id, percent-escaped where Dagster would trip over it."""
    return _ESCAPED.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), doc_id)


def doc_id_of(key: str) -> str:
    """The inverse of `partition_key`; a key that it never gives, added by hand, becomes the name of no document."""
    return unquote(key, errors="replace")
