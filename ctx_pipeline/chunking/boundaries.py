"""Where text may be cut: sentence ends, blank lines, lines, words, characters."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from ctx_pipeline.documents.blocks import Span, blank_line_cuts, trimmed
from ctx_pipeline.documents.html_tables import row_starts
from ctx_pipeline.documents.template_tags import TAG

Cutter = Callable[[str, int, int, int], Iterable[int]]
"""(text, start, end, piece_chars) -> increasing offsets inside the span. `piece_chars` is the size, in characters,
up to which small pieces are joined again: a cutter may leave out cuts that are closer together than that."""

_NEWLINE = re.compile(r"\r\n?|\n")
_WHITESPACE = re.compile(r"\s+")
_SENTENCE_END = re.compile(r"""[.!?…]["'”’»)\]*_`]*\s+|[。！？]["'”’」』）]*\s*""")
_FENCE_OPENING = re.compile(r"[>\s*+\-\d.)]*(?:`{3}|~{3}|:{3}|\{%|\{\{[<%])[^\r\n]*[>\s]*")
_FENCE_CLOSING = re.compile(r"[>\s]*(?:`{3,}|~{3,}|:{3,}|\{%-?\s*end[^\r\n]*%\}|\{\{[<%]\s*/[^\r\n]*\}\})\s*")
_HTML = re.compile(r"[>\s*+\-\d.)]*<")

_GRID_BORDER = re.compile(r"\s*\+[-=+]+\+\s*\Z")
_SIMPLE_BORDER = re.compile(r"\s*=+(?: +=+)+\s*\Z")

# Joined emoji have up to 11 code points; longer runs of combining marks are cut so that no text defeats the limits.
_MAX_GRAPHEME_CHARS = 16
_ZERO_WIDTH_JOINER = "\u200d"
_FLAG_LETTERS = "".join(map(chr, range(0x1F1E6, 0x1F200)))


def sentence_cuts(text: str, start: int, end: int, piece_chars: int) -> Iterable[int]:
    """After a full stop, question or exclamation mark that whitespace and no lower-case letter follows."""
    marks = _SENTENCE_END.finditer(text, start, end)
    return [mark.end() for mark in marks if not text[mark.end() : mark.end() + 1].islower()]


def line_cuts(text: str, start: int, end: int, piece_chars: int) -> Iterable[int]:
    """At the beginning of every line but the first."""
    return [newline.end() for newline in _NEWLINE.finditer(text, start, end)]


def row_cuts(text: str, start: int, end: int, piece_chars: int) -> Iterable[int]:
    """At every row of a table but those of its head.

    The head is a line and what underlines it; in HTML the first row; in a table drawn with `+---+` or `===  ===` what
    is above the first border of `=`, or else the first row. There a row may have several lines.
    """
    rows = row_starts(text, start, end)[1:] if _HTML.match(text, start, end) else []
    if rows:
        return rows
    cuts = list(line_cuts(text, start, end, piece_chars))
    lines = [text[line:following] for line, following in pairwise([start, *cuts, end])]
    is_grid = _GRID_BORDER.match(lines[0])
    if not is_grid and not _SIMPLE_BORDER.match(lines[0]):
        return cuts[1:]
    borders = [number for number, line in enumerate(lines) if (_GRID_BORDER if is_grid else _SIMPLE_BORDER).match(line)]
    if is_grid:
        head = next((number for number in borders if "=" in lines[number]), (borders[1:] or [0])[0])
        return [cuts[number] for number in borders if head <= number < len(cuts)]
    head = borders[1] if len(borders) > 2 else 0
    return [cuts[number - 1] for number, line in enumerate(lines) if number > head and line[:1].strip(" =\t\r\n")]


def code_paragraph_cuts(text: str, start: int, end: int, piece_chars: int) -> Iterable[int]:
    """After blank lines; the fences stay with the code next to them."""
    return _inside_fences(text, start, end, blank_line_cuts(text, start, end))


def code_line_cuts(text: str, start: int, end: int, piece_chars: int) -> Iterable[int]:
    """At every line; the fences stay with the code next to them."""
    return _inside_fences(text, start, end, [newline.end() for newline in _NEWLINE.finditer(text, start, end)])


def _inside_fences(text: str, start: int, end: int, cuts: list[int]) -> list[int]:
    opening = _FENCE_OPENING.match(text, start, end)
    code_start = opening.end() if opening else start
    code_end = end
    if cuts and _FENCE_CLOSING.fullmatch(text, cuts[-1], end):
        code_end = start + len(text[start : cuts[-1]].rstrip("> \t\r\n"))
    return [cut for cut in cuts if code_start < cut <= code_end]


def word_cuts(text: str, start: int, end: int, piece_chars: int) -> Iterable[int]:
    """After whitespace, at every `piece_chars` characters or more."""
    space = _WHITESPACE.search(text, start + piece_chars, end)
    while space:
        yield space.end()
        space = _WHITESPACE.search(text, space.end() + piece_chars, end)


def character_cuts(text: str, start: int, end: int, piece_chars: int) -> Iterable[int]:
    """Every `piece_chars` characters or a little more, not inside what a reader sees as one character."""
    cut = _grapheme_boundary(text, start, start + piece_chars)
    while cut < end:
        yield cut
        cut = _grapheme_boundary(text, cut, cut + piece_chars)


def _grapheme_boundary(text: str, known_boundary: int, offset: int) -> int:
    """The first offset from `offset` on that separates no base character from its marks, joiners and the like."""
    limit = min(offset + _MAX_GRAPHEME_CHARS, len(text))
    while offset < limit and _joined(text, known_boundary, offset):
        offset += 1
    return offset


def _joined(text: str, known_boundary: int, offset: int) -> bool:
    before, after = text[offset - 1], text[offset]
    if after.isascii():
        return False
    if "\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff":
        return True
    if before in _FLAG_LETTERS and after in _FLAG_LETTERS:
        letters_before = offset - known_boundary - len(text[known_boundary:offset].rstrip(_FLAG_LETTERS))
        return letters_before % 2 == 1
    category = unicodedata.category(after)
    return (
        category[0] == "M"
        or after == _ZERO_WIDTH_JOINER
        or (before == _ZERO_WIDTH_JOINER and category == "So")
        or "\U0001f3fb" <= after <= "\U0001f3ff"
        or "\U000e0020" <= after <= "\U000e007f"
    )


def _outside(cuts: Iterable[int], spans: Iterator[Span]) -> Iterator[int]:
    """The cuts that lie inside none of the spans; both in order."""
    span = next(spans, None)
    for cut in cuts:
        while span and span[1] <= cut:
            span = next(spans, None)
        if not span or cut <= span[0]:
            yield cut


def pieces(text: str, start: int, end: int, cutter: Cutter, piece_chars: int) -> list[tuple[int, int]]:
    """The span cut by `cutter`: trimmed spans that hold all its non-whitespace characters.

    Neighbours that together have at most `piece_chars` characters stay one piece, to bound the number of pieces. Only
    single characters are worth a cut inside a tag.
    """
    cuts: Iterable[int] = cutter(text, start, end, piece_chars)
    if cutter is not character_cuts and ("{" in text[start:end] or "<" in text[start:end]):
        cuts = _outside(cuts, (tag.span() for tag in TAG.finditer(text, start, end)))
    kept = [start]
    for cut, following in pairwise([*cuts, end]):
        if following - kept[-1] > piece_chars:
            kept.append(cut)
    spans = (trimmed(text, *span) for span in pairwise([*kept, end]))
    return [span for span in spans if span[0] < span[1]]
