"""What a model wrote, made fit to be shown and embedded: plain text on one line, within the room for a context."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence

from ctx_pipeline.chunking.boundaries import character_cuts, sentence_cuts, word_cuts

_KEPT_FORMATS = frozenset("\u200c\u200d")
"""Joiners, which belong to the spelling of some scripts; other invisible characters may hide or reorder text."""


def clean(text: str) -> str:
    """`text` without control and invisible characters, whitespace as single spaces."""
    text = text.encode("utf-8", "replace").decode()
    kept = (" " if char.isspace() else char for char in text if char.isspace() or not _is_hidden(char))
    return re.sub(" +", " ", "".join(kept)).strip()


def shortened(texts: Sequence[str], max_tokens: int, count_tokens: Callable[[Sequence[str]], list[int]]) -> list[str]:
    """Each text, or as many of its first sentences (else words, else characters) as have at most `max_tokens`."""
    counts = count_tokens(texts) if texts else []
    return [
        text if count <= max_tokens else _beginning(text, max_tokens, count_tokens)
        for text, count in zip(texts, counts, strict=True)
    ]


def _beginning(text: str, max_tokens: int, count_tokens: Callable[[Sequence[str]], list[int]]) -> str:
    for cutter in (sentence_cuts, word_cuts, character_cuts):
        cuts = [0, *cutter(text, 0, len(text), 1)]
        # The longest beginning that fits, by halves: token counts grow with the text.
        low, high = 0, len(cuts) - 1
        while low < high:
            middle = (low + high + 1) // 2
            fits = count_tokens([text[: cuts[middle]].rstrip()])[0] <= max_tokens
            low, high = (middle, high) if fits else (low, middle - 1)
        if cuts[low]:
            return text[: cuts[low]].rstrip()
    return ""


def _is_hidden(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn") and char not in _KEPT_FORMATS
