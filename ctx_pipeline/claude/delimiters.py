"""Text of documents and users inside a prompt: delimited as data, and unable to end the block it stands in."""

from __future__ import annotations

import re
from functools import cache


def neutralized(text: str, *tags: str) -> str:
    """`text` in which no opening or closing tag of these names is left: its `<` becomes `&lt;`."""
    return _pattern(tags).sub("&lt;", text)


@cache
def _pattern(tags: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"<(?=\s*/?\s*(?:{'|'.join(map(re.escape, tags))})\b)", re.IGNORECASE)
